"""One cell from its seed to its entry in run.json: schedule, requests, rows, and how the client fared.

A process sends a whole cell, or one of several processes its share of it (`sweep/workers.py`). The schedule, the ids
and the prompts are those of the cell, whoever sends which of them.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from hashlib import blake2s
from typing import Any

from pdbench.deployment import Deployment
from pdbench.errors import UsageError
from pdbench.run import RequestRow, Run
from pdbench.sweep import sessions
from pdbench.sweep.alarm import Alarm
from pdbench.sweep.arrivals import Offsets
from pdbench.sweep.client import Client, Request
from pdbench.sweep.clients import raise_fd_limit
from pdbench.sweep.drive import DRIVES, OPENS, MakeRequest
from pdbench.sweep.health import Health, SharedReads, quiet_collector
from pdbench.sweep.loops import Flight
from pdbench.sweep.plan import Cell, Plan
from pdbench.sweep.prompts import ChatCalibration, prompt_source
from pdbench.sweep.recorder import Recorder
from pdbench.sweep.rows import CellContext
from pdbench.sweep.schedule import Schedule, cell_schedule
from pdbench.sweep.sessions import Conversation, Script
from pdbench.sweep.stock import Stock

_LEAD_NS = 50_000_000  # from the last preparation to the start of the schedule


@dataclass(frozen=True, slots=True)
class Job:
    """One cell to be sent: all that a process must know, on whatever host. The share of `worker`, of `workers`."""

    deployment: Deployment
    plan: Plan
    cell: Cell
    repeat: int
    tag: str
    chat: ChatCalibration | None = None
    attempt: int = 0  # how often the cell was measured before
    worker: int = 0
    workers: int = 1
    schedule: Schedule | None = None  # where it rests on a file that the process may not have

    def seeds(self) -> dict[str, int]:
        return {
            "seed": self.plan.cell_seed(self.cell, self.repeat),
            "prompt_seed": self.plan.prompt_seed_of(self.cell, self.repeat, self.attempt),
        }


@dataclass(frozen=True, slots=True)
class Alone:
    """This process sends. What `workers.Crew` is for several."""

    recorder: Recorder

    @classmethod
    async def start(cls) -> Alone:
        return cls(await Recorder.start())

    async def run_cell(
        self, job: Job, run: Run, stop: asyncio.Event, on_row: Callable[[RequestRow], None]
    ) -> dict[str, Any]:
        """Measure one cell and return its entry of `cell_runs`.

        `stop` ends it early: requests in flight become `cancelled` rows, the state is `interrupted`. So does a recorder
        that dies or a disk that is full; keep the entry, then `check` raises what happened.
        """
        cell, repeat, recorder = job.cell, job.repeat, self.recorder
        context = CellContext(cell.cell, repeat, cell.target, run.origin_ns, job.deployment.credentials)
        paths = [run.live_path(table, cell.cell, repeat) for table in ("requests", "chunks")]
        shared = SharedReads()

        def counted(row: RequestRow) -> None:
            shared.add(row)
            on_row(row)

        await recorder.begin(context, paths[0], paths[1], counted)
        try:
            async with prepared(job) as load:
                driven = await drive_cell(load, recorder, time.monotonic_ns() + _LEAD_NS, stop)
        finally:
            await recorder.end()
        entry = driven.entry(run.origin_ns)
        if recorder.failed.done():
            entry["state"] = "interrupted"
        entry["client"] |= {"recorder_backlog_max": recorder.backlog_max, **shared.figures()}
        return {"cell": cell.cell, "repeat": repeat, "attempt": job.attempt, **job.seeds(), **entry}

    def check(self) -> None:
        """Raise what went wrong, if anything did."""
        self.recorder.check()

    async def close(self) -> None:
        await self.recorder.close()


def cell_requests(job: Job, schedule: Schedule) -> MakeRequest:
    """The requests of a cell by index: fresh prompts from its seed, ids `<tag>-<cell>-<repeat>-<index>`."""
    plan, cell = job.plan, job.cell
    seed = plan.prompt_seed_of(cell, job.repeat, job.attempt)
    prompt = prompt_source(plan.endpoint, seed, plan.vocab_size, job.chat)
    request = DRIVES[cell.drive](job.deployment, plan, f"{job.tag}-{cell.cell}-{job.repeat}")

    def make(index: int) -> Request:
        ask = schedule.ask(index)
        return request(index, ask, prompt(index, ask))

    return make


def run_tag(run: Run) -> str:
    """Eight hex digits that tell this run's requests from those of others in a server's log."""
    clock = run.document["clock"]
    return blake2s(f"{clock['origin_unix_s']} {clock['origin_monotonic_ns']}".encode(), digest_size=4).hexdigest()


@dataclass(frozen=True, slots=True)
class Share:
    """What one process sends of a cell: its part of the schedule of an open loop, or of the streams of a closed one.

    `planned`: how many requests that is, and `lasts_s`: how long it sends them, each where it is known beforehand.
    """

    schedule: Schedule  # of the whole cell
    offsets: Offsets | None
    streams: int
    indices: Iterator[int]  # of its requests, perhaps without end
    planned: int | None
    lasts_s: float | None


def share_of(job: Job) -> Share:
    """Every n-th request of an open loop. Of a closed one the streams are dealt out like cards, and requests to the
    streams in turn: who has more streams has more requests."""
    plan, cell = job.plan, job.cell
    schedule = cell_schedule(plan, cell, job.repeat) if job.schedule is None else job.schedule
    whole, most = schedule.offset_s, plan.num_prompts
    if whole is not None:
        places = range(job.worker, len(whole), job.workers)
        # Where the number of requests is what ends it, the last one does; else it lasts as long as was asked.
        lasts_s = None if schedule.complete else plan.duration_s
        return Share(schedule, whole[places.start :: places.step], 0, iter(places), len(places), lasts_s)
    streams = cell.max_concurrency or 1
    mine = range(job.worker, streams, job.workers)
    if plan.session_turns is not None:
        return Share(schedule, None, len(mine), iter(()), sessions.planned(plan, cell, mine), plan.duration_s)
    indices = itertools.count() if most is None else range(most)
    dealt = (index for index in indices if index % streams % job.workers == job.worker)
    planned = None if most is None else sum(len(range(stream, most, streams)) for stream in mine)
    return Share(schedule, None, len(mine), dealt, planned, plan.duration_s)


@dataclass(frozen=True, slots=True)
class Prepared:
    """A share that waits for its start."""

    job: Job
    share: Share
    stock: Stock
    clients: tuple[Iterator[Conversation], ...]  # of sessions
    client: Client


@asynccontextmanager
async def prepared(job: Job) -> AsyncIterator[Prepared]:
    """Do all that takes time before the clock of the cell runs. From here to the end no garbage is collected."""
    raise_fd_limit()
    share = share_of(job)
    stock = Stock(cell_requests(job, share.schedule), share.indices)
    await stock.fill()
    async with OPENS[job.cell.drive](job.deployment, job.plan.connections) as client:
        with quiet_collector():
            yield Prepared(job, share, stock, conversations(job, share.schedule), client)


def conversations(job: Job, schedule: Schedule) -> tuple[Iterator[Conversation], ...]:
    """What each of this process's clients leads; empty for a load without sessions."""
    plan, cell = job.plan, job.cell
    if plan.session_turns is None:
        return ()
    if job.chat is None:
        raise UsageError("sessions need the calibration that the warm-up makes.")
    request = DRIVES[cell.drive](job.deployment, plan, f"{job.tag}-{cell.cell}-{job.repeat}")
    script = Script(plan, cell, **job.seeds(), chat=job.chat, ask=request, schedule=schedule)
    return tuple(script.led(client) for client in range(job.worker, cell.max_concurrency or 1, job.workers))


@dataclass(frozen=True, slots=True)
class Driven:
    """How the sending of a cell went. Times are CLOCK_MONOTONIC ns of the host that sent."""

    state: str  # done, interrupted
    start_ns: int
    send_end_ns: int
    end_ns: int
    planned: int
    sent: int
    client: dict[str, Any]

    def entry(self, origin_ns: int) -> dict[str, Any]:
        """As in run.json."""
        return {
            "state": self.state,
            "start_s": (self.start_ns - origin_ns) / 1e9,
            "send_end_s": (self.send_end_ns - origin_ns) / 1e9,
            "end_s": (self.end_ns - origin_ns) / 1e9,
            "planned": self.planned,
            "sent": self.sent,
            "client": dict(self.client),
        }


async def drive_cell(load: Prepared, recorder: Recorder, start_ns: int, stop: asyncio.Event) -> Driven:
    """Send a cell's requests from `start_ns` on and wait for their answers."""
    health, alarm = Health(), Alarm()
    flight = Flight(load.client, load.job.plan.timeout_s, load.stock, recorder, health)
    stopper = asyncio.create_task(_halt_on(stop, flight))
    watch = asyncio.create_task(_halt_on_loss(recorder, flight))
    try:
        health.open(start_ns)
        send_end_ns = await _send_all(flight, load, start_ns, alarm)
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
    return Driven(
        state="interrupted" if flight.halted.done() else "done",
        start_ns=start_ns,
        send_end_ns=send_end_ns,
        end_ns=end_ns,
        planned=flight.sent if load.share.planned is None else load.share.planned,
        sent=flight.sent,
        client={
            **health.lateness(),
            **window,
            **load.client.health(),
            "achieved_concurrency": window["achieved_concurrency"] if load.share.offsets is None else None,
        },
    )


async def _halt_on(stop: asyncio.Event, flight: Flight) -> None:
    await stop.wait()
    flight.halt()


async def _halt_on_loss(recorder: Recorder, flight: Flight) -> None:
    await asyncio.shield(recorder.failed)
    flight.halt()


async def _send_all(flight: Flight, load: Prepared, start_ns: int, alarm: Alarm) -> int:
    """Send until a limit is reached or the cell is halted; returns the end of the send window."""
    share = load.share
    end_ns = None if share.lasts_s is None else start_ns + int(share.lasts_s * 1e9)
    if share.offsets is not None:
        work = flight.open_loop(share.offsets, start_ns, end_ns, alarm)
    elif load.clients:
        work = flight.sessions(load.clients, start_ns, end_ns, alarm)
    else:
        work = flight.closed_loop(share.streams, share.planned, start_ns, end_ns, alarm)
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
