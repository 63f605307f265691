"""One cell from its seed to its entry in run.json: schedule, requests, rows, and how the client fared."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from hashlib import blake2s
from typing import Any

import numpy as np

from pdbench.deployment import Deployment
from pdbench.run import RequestRow, Run
from pdbench.sweep.alarm import Alarm
from pdbench.sweep.arrivals import Offsets, schedule
from pdbench.sweep.clients import open_client, raise_fd_limit
from pdbench.sweep.drive import DRIVES, MakeRequest
from pdbench.sweep.health import Health, SharedReads, quiet_collector
from pdbench.sweep.loops import Flight
from pdbench.sweep.plan import Cell, Plan
from pdbench.sweep.prompts import ChatCalibration, prompt_source
from pdbench.sweep.recorder import Recorder
from pdbench.sweep.rows import CellContext
from pdbench.sweep.stock import Stock

_LEAD_NS = 50_000_000  # from the last preparation to the start of the schedule


async def run_cell(
    deployment: Deployment,
    plan: Plan,
    cell: Cell,
    repeat: int,
    run: Run,
    recorder: Recorder,
    stop: asyncio.Event,
    on_row: Callable[[RequestRow], None],
    *,
    chat: ChatCalibration | None = None,
    drive: str = "proxy",
    attempt: int = 0,
) -> dict[str, Any]:
    """Measure one cell and return its entry of `cell_runs`; `attempt` counts how often it was measured before.

    `stop` ends it early: requests in flight become `cancelled` rows, the state is `interrupted`. So does a recorder
    that dies or a disk that is full; keep the entry, then `recorder.check()` raises what happened.
    """
    make = cell_requests(deployment, plan, cell, repeat, run_tag(run), chat=chat, drive=drive, attempt=attempt)
    offsets = cell_offsets(plan, cell, repeat)
    context = CellContext(cell.cell, repeat, cell.target, run.origin_ns, deployment.credentials)
    paths = [run.live_path(table, cell.cell, repeat) for table in ("requests", "chunks")]
    shared = SharedReads()

    def counted(row: RequestRow) -> None:
        shared.add(row)
        on_row(row)

    await recorder.begin(context, paths[0], paths[1], counted)
    try:
        entry = await drive_cell(plan, cell, offsets, make, recorder, run.origin_ns, stop, deployment.entry.url)
    finally:
        await recorder.end()
    if recorder.failed.done():
        entry["state"] = "interrupted"
    entry["client"] |= {"recorder_backlog_max": recorder.backlog_max, "shared_reads_share": shared.share}
    seeds = {"seed": plan.cell_seed(cell, repeat), "prompt_seed": plan.prompt_seed_of(cell, repeat, attempt)}
    return {"cell": cell.cell, "repeat": repeat, "attempt": attempt, **seeds, **entry}


def cell_offsets(plan: Plan, cell: Cell, repeat: int) -> Offsets | None:
    """The schedule of an open loop from the cell's seed; `None` for a closed loop, whose answers set the pace."""
    if cell.request_rate is None:
        return None
    rng = np.random.Generator(np.random.PCG64(plan.cell_seed(cell, repeat)))
    return schedule(plan.arrivals, cell.request_rate, plan.burstiness, plan.num_prompts, plan.duration_s, rng)


def cell_requests(
    deployment: Deployment,
    plan: Plan,
    cell: Cell,
    repeat: int,
    tag: str,
    *,
    chat: ChatCalibration | None = None,
    drive: str = "proxy",
    attempt: int = 0,
) -> MakeRequest:
    """The requests of a cell by index: fresh prompts from its seed, ids `<tag>-<cell>-<repeat>-<index>`."""
    seed = plan.prompt_seed_of(cell, repeat, attempt)
    prompt = prompt_source(plan.endpoint, seed, cell.prompt_len, plan.vocab_size, chat)
    return DRIVES[drive](deployment, plan, cell, f"{tag}-{cell.cell}-{repeat}", prompt)


def run_tag(run: Run) -> str:
    """Eight hex digits that tell this run's requests from those of others in a server's log."""
    clock = run.document["clock"]
    return blake2s(f"{clock['origin_unix_s']} {clock['origin_monotonic_ns']}".encode(), digest_size=4).hexdigest()


async def drive_cell(
    plan: Plan,
    cell: Cell,
    offsets: Offsets | None,
    make: MakeRequest,
    recorder: Recorder,
    origin_ns: int,
    stop: asyncio.Event,
    url: str,
) -> dict[str, Any]:
    """Send a cell's requests and wait for their answers; `offsets` is None in a closed loop."""
    raise_fd_limit()
    planned = plan.num_prompts if offsets is None else len(offsets)
    stock = Stock(make, planned)
    await stock.fill()
    health, alarm = Health(), Alarm()
    async with open_client(url) as client:
        flight = Flight(client, plan.timeout_s, stock, recorder, health)
        stopper = asyncio.create_task(_halt_on(stop, flight))
        watch = asyncio.create_task(_halt_on_loss(recorder, flight))
        try:
            with quiet_collector():
                start_ns = time.monotonic_ns() + _LEAD_NS
                health.open(start_ns)
                send_end_ns = await _send_all(flight, plan, cell, offsets, start_ns, alarm)
                window = health.shut()
                await flight.land()
                end_ns = max(time.monotonic_ns(), send_end_ns)
        finally:
            stopper.cancel()
            watch.cancel()
            health.close()
            await flight.end_all()
            alarm.close()
    if flight.halted.done() and (bug := flight.halted.result()) is not None:
        raise bug
    return {
        "state": "interrupted" if flight.halted.done() else "done",
        "start_s": (start_ns - origin_ns) / 1e9,
        "send_end_s": (send_end_ns - origin_ns) / 1e9,
        "end_s": (end_ns - origin_ns) / 1e9,
        "planned": flight.sent if planned is None else planned,
        "sent": flight.sent,
        "client": {
            **health.lateness(),
            **window,
            **client.health(),
            "achieved_concurrency": window["achieved_concurrency"] if offsets is None else None,
        },
    }


async def _halt_on(stop: asyncio.Event, flight: Flight) -> None:
    await stop.wait()
    flight.halt()


async def _halt_on_loss(recorder: Recorder, flight: Flight) -> None:
    await asyncio.shield(recorder.failed)
    flight.halt()


async def _send_all(
    flight: Flight, plan: Plan, cell: Cell, offsets: Offsets | None, start_ns: int, alarm: Alarm
) -> int:
    """Send until a limit is reached or the cell is halted; returns the end of the send window."""
    end_ns = None if plan.duration_s is None else start_ns + int(plan.duration_s * 1e9)
    if offsets is not None:
        by_count = plan.num_prompts is not None and len(offsets) >= plan.num_prompts
        work = flight.open_loop(offsets, start_ns, None if by_count else end_ns, alarm)
    else:
        work = flight.closed_loop(cell.max_concurrency or 1, plan.num_prompts, start_ns, end_ns, alarm)
    sender = asyncio.create_task(work)
    either: set[asyncio.Future[Any]] = {sender, flight.halted}
    try:
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
    finally:
        now_ns = time.monotonic_ns()
        if not sender.done():
            sender.cancel()
            await asyncio.wait({sender})
    if not sender.cancelled():
        sender.result()
    return max(now_ns, start_ns)
