"""The grid, cell by cell: settle, drive beside the sampler, record, seal."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Set
from dataclasses import dataclass, replace
from typing import Any, Protocol

from pdbench.deployment import Deployment
from pdbench.errors import Unreachable
from pdbench.probe.sampler import Edge, Sampler
from pdbench.run import RequestRow, Run
from pdbench.sweep.cell import Job, run_tag
from pdbench.sweep.live import Live
from pdbench.sweep.plan import Cell, Plan
from pdbench.sweep.prompts import ChatCalibration
from pdbench.sweep.schedule import cell_schedule

SETTLE_S = 0.5  # between cells, at least
SETTLE_LIMIT_S = 30.0  # how long to wait for servers that still work on what is not ours to wait for
GAUGES_PERIOD_S = 0.25
GONE = {"connect", "reset", "dns"}  # what requests end with when the server is not there


Grow = Callable[[Run, Plan], Plan | None]


def as_planned(run: Run, plan: Plan) -> Plan | None:
    """The plan stays as it is."""
    return None


class Senders(Protocol):
    """Who sends a cell's requests: this process, or several others."""

    async def run_cell(
        self, job: Job, run: Run, stop: asyncio.Event, on_row: Callable[[RequestRow], None]
    ) -> dict[str, Any]: ...

    def check(self) -> None:
        """Raise what ended a cell early, if anything did."""

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Bench:
    """What stays the same from cell to cell."""

    run: Run
    plan: Plan
    deployments: Mapping[str, Deployment]
    chat: Mapping[str, ChatCalibration | None]
    sampler: Sampler
    senders: Senders
    live: Live
    stop: asyncio.Event


async def measure(
    run: Run,
    plan: Plan,
    deployments: Mapping[str, Deployment],
    chat: Mapping[str, ChatCalibration | None],
    live: Live,
    stop: asyncio.Event,
    senders: Senders,
    grow: Grow = as_planned,
) -> None:
    """Measure every cell that run.json does not call done, and those by which the plan then grows.

    Raises Unreachable when a whole cell finds no server.
    """
    done = {(entry["cell"], entry["repeat"]) for entry in run.document["cell_runs"] if entry["state"] == "done"}
    async with _sampling(run, plan, deployments) as sampler:
        bench = Bench(run, plan, deployments, chat, sampler, senders, live, stop)
        while (turn := await _next_turn(bench, done, grow)) is not None:
            bench, cell, repeat = turn
            await _settle(sampler, stop)
            if stop.is_set():
                return
            kinds = await _measure_cell(bench, cell, repeat)
            done.add((cell.cell, repeat))
            if kinds and kinds <= GONE:
                run.document["cell_runs"][-1]["state"] = "interrupted"
                run.save()
                raise Unreachable(
                    f"{deployments[cell.target].front.url} stopped answering: no request of a whole cell got through.",
                    f"Start it again and go on: pdbench sweep --resume {run.path}",
                )


async def _next_turn(bench: Bench, done: Set[tuple[int, int]], grow: Grow) -> tuple[Bench, Cell, int] | None:
    """The next cell that is not done, if need be of a plan that has grown; None at the end."""
    run, plan = bench.run, bench.plan
    if all((cell.cell, repeat) in done for cell, repeat in plan.turns()) and not bench.stop.is_set():
        grown = await asyncio.to_thread(grow, run, plan)
        if grown is None:
            return None
        run.document["plan"] = grown.document()
        run.save()
        bench.live.grown(grown)
        bench = replace(bench, plan=grown)
    return next(((bench, cell, repeat) for cell, repeat in bench.plan.turns() if (cell.cell, repeat) not in done), None)


@contextlib.asynccontextmanager
async def _sampling(run: Run, plan: Plan, deployments: Mapping[str, Deployment]) -> AsyncIterator[Sampler]:
    sampler = Sampler(list(deployments.values()), plan.sample_interval_s, run.origin_ns)
    sampler.start()
    try:
        yield sampler
    finally:
        await asyncio.to_thread(sampler.stop)
        run.document["notes"] += sampler.notes
        run.save()


async def _measure_cell(bench: Bench, cell: Cell, repeat: int) -> set[str | None]:
    """Measure one cell and keep it. Returns the kinds of error that its requests ended with (None: without)."""
    run, entries = bench.run, bench.run.document["cell_runs"]
    former = [entry for entry in entries if (entry["cell"], entry["repeat"]) == (cell.cell, repeat)]
    attempt = sum(1 + entry.get("attempt", 0) for entry in former)
    run.discard(cell.cell, repeat)
    entries[:] = [entry for entry in entries if (entry["cell"], entry["repeat"]) != (cell.cell, repeat)]
    entries.append({"cell": cell.cell, "repeat": repeat, "attempt": attempt, "state": "running"})
    run.save()
    plan = bench.plan.of(cell)
    kinds: set[str | None] = set()

    def on_row(row: RequestRow) -> None:
        kinds.add(row.error_kind)
        bench.live.row(row)

    edge = await bench.sampler.begin(cell.cell, repeat, run.live_path("metrics", cell.cell, repeat))
    _note(run, cell, edge)
    bench.live.cell_started(cell, repeat, plan.num_prompts)
    gauges = asyncio.create_task(_show_gauges(bench))
    try:
        deployment, chat = bench.deployments[cell.target], bench.chat[cell.target]
        schedule = cell_schedule(plan, cell, repeat) if plan.digests else None
        job = Job(deployment, plan, cell, repeat, run_tag(run), chat, attempt=attempt, schedule=schedule)
        entries[-1] = await bench.senders.run_cell(job, run, bench.stop, on_row)
    finally:
        gauges.cancel()
        # Whatever ended the cell, what it measured is closed off and kept.
        edge = await bench.sampler.end()
        bench.live.cell_ended(cell, repeat, lost_workers(entries[-1]))
        run.save()
        await asyncio.to_thread(run.seal, cell.cell, repeat)
    _note(run, cell, edge)
    run.document["notes"] += [f"cell {cell.cell}, repeat {repeat}: {told}" for told in lost_workers(entries[-1])]
    bench.senders.check()
    return kinds


def _note(run: Run, cell: Cell, edge: Edge) -> None:
    """A page that is missing at both edges of a cell, or in each repeat, is told once."""
    told = [f"cell {cell.cell}: no metrics from {missing}" for missing in edge.missing]
    run.document["notes"] += [note for note in told if note not in run.document["notes"]]


def lost_workers(entry: Mapping[str, Any]) -> list[str]:
    """A sentence on each worker that was lost; of a loop that lasts a time nobody knows how many requests it left."""
    return [
        f"load worker {lost['worker']} was lost ({lost['why']}); "
        f"{'nobody knows how many' if lost['not_measured'] is None else lost['not_measured']}"
        " of its requests were not measured."
        for lost in entry.get("lost", ())
    ]


async def _settle(sampler: Sampler, stop: asyncio.Event) -> None:
    """Wait until the servers have nothing left to do, so that one cell's backlog is not the next one's load."""
    loop = asyncio.get_running_loop()
    limit = loop.time() + SETTLE_LIMIT_S
    wait_s = SETTLE_S
    while not stop.is_set() and loop.time() < limit:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), wait_s)
        busy = [(one.get("running") or 0) + (one.get("waiting") or 0) for one in sampler.latest().values() if one["up"]]
        if not any(busy):
            return
        wait_s = 0.1


async def _show_gauges(bench: Bench) -> None:
    while True:
        await asyncio.sleep(GAUGES_PERIOD_S)
        gauges: dict[Any, dict[str, Any]] = bench.sampler.latest()
        bench.live.gauges(gauges)
