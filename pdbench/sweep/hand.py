"""One load worker as the parent sees it: the way to it, what it has said, and whether it is lost."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from pdbench import __version__
from pdbench.errors import PdbenchError, UsageError
from pdbench.run import RequestRow, Run
from pdbench.sweep.cell import Job
from pdbench.sweep.pipes import Child

EXIT_S = 15.0

OnRow = Callable[[RequestRow], None]


class Link(Protocol):
    """The way to a worker. `own_clock`: it is on another host, whose clock is never compared with ours."""

    own_clock: bool

    def paths(self, run: Run, job: Job) -> tuple[Path, Path]:
        """Where it shall write its rows, and their chunks."""

    def send(self, *message: Any) -> None: ...

    def kill(self) -> None: ...

    async def close(self) -> None: ...


class Hand:
    """A worker, from cell to cell. `hear` is called with its messages, `lose` when there will be no more."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.link: Link | None = None
        self.host: str | None = None
        self.lost: str | None = None  # why
        self.failure: PdbenchError | None = None
        self.heard_s = time.monotonic()
        self._loop = asyncio.get_running_loop()
        self.greeted: asyncio.Future[None] = self._loop.create_future()
        self.ready: asyncio.Future[None] = self._loop.create_future()
        self.ended: asyncio.Future[None] = self._loop.create_future()
        self._on_row: OnRow = lambda row: None

    job: Job
    entry: dict[str, Any] | None
    start_within_ms: float | None

    def take(self, job: Job, run: Run, on_row: OnRow) -> None:
        """Begin with a cell, or a share of it: it is prepared now and waits for `go`."""
        self.job, self._on_row = job, on_row
        self.entry = self.start_within_ms = None
        self.ready, self.ended = self._loop.create_future(), self._loop.create_future()
        if self.link is not None:
            self.send("cell", job, *self.link.paths(run, job))

    def go(self, start_s: float, origin_ns: int) -> None:
        """Start the cell at `start_s`; one with a clock of its own starts when it hears this."""
        self._told_ns = time.monotonic_ns()
        self.send("go", start_s, None if self.link is not None and self.link.own_clock else origin_ns)

    def send(self, *message: Any) -> None:
        if self.link is not None and self.lost is None:
            self.link.send(*message)

    def hear(self, message: tuple[Any, ...]) -> None:
        kind, *rest = message
        self.heard_s = time.monotonic()
        if kind == "rows":
            for values in rest[0]:
                self._on_row(RequestRow(*values))
        elif kind == "hello":
            version, self.host = rest
            if version != __version__:
                self.failure = UsageError(
                    f"{self.host} has pdbench {version}, this is {__version__}.", "Install one version on all hosts."
                )
            _now(self.greeted)
        elif kind == "ready":
            _now(self.ready)
        elif kind == "started":
            self.start_within_ms = (time.monotonic_ns() - self._told_ns) / 1e6
        elif kind == "failed":
            self.failure = self.failure or rest[0]
        elif kind == "entry":
            self.entry = rest[0]
            _now(self.ready)
            _now(self.ended)

    def lose(self, why: str) -> None:
        self.lost = self.lost or why
        for future in (self.greeted, self.ready, self.ended):
            _now(future)


def _now(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class LocalLink:
    """A worker process on this host, which writes into the run directory itself."""

    own_clock = False
    _child: Child

    @classmethod
    async def start(cls, hand: Hand) -> LocalLink:
        link = cls()

        def ended() -> None:
            if not link._child.closing:
                hand.lose(link._child.why())

        link._child = await Child.start("pdbench.sweep.worker_process", hand.hear, ended)
        return link

    @property
    def pid(self) -> int:
        return self._child.pid

    def paths(self, run: Run, job: Job) -> tuple[Path, Path]:
        return share_paths(run, job)

    def send(self, *message: Any) -> None:
        self._child.send(*message)

    def kill(self) -> None:
        self._child.kill()

    async def close(self) -> None:
        await self._child.close(EXIT_S)


def share_paths(run: Run, job: Job) -> tuple[Path, Path]:
    """Where the JSON lines of a share of a cell are kept: its rows, and their chunks."""
    requests, chunks = (
        run.live_path(table, job.cell.cell, job.repeat, job.worker).absolute() for table in ("requests", "chunks")
    )
    return requests, chunks
