"""One of several processes that send a cell together: `python -m pdbench.sweep.worker_process`.

It is spoken to in frames over stdin and stdout (`pdbench.sweep.workers` is the other side), and has a client, a kernel
clock and a recorder of its own. It ends when its input does, which is also what the parent's death looks like: a load
that nobody waits for any more must not go on. Ctrl-C is not for it.

It hears `("cell", job, requests path, chunks path)`, `("go", start_s, origin_ns)` and `("stop",)`. It says
`("hello", version, host)`, `("ready",)`, `("started",)`, `("rows", rows)` some times a second,
`("failed", error)`, and at the cell's end `("entry", entry)`: None when it was stopped before it began.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pdbench import __version__
from pdbench.errors import PdbenchError
from pdbench.run import RequestRow
from pdbench.sweep.cell import Job, drive_cell, prepared
from pdbench.sweep.frames import frame
from pdbench.sweep.pipes import Incoming
from pdbench.sweep.recorder import Recorder
from pdbench.sweep.rows import CellContext

TELL_EVERY_S = 0.25
LEAD_NS = 200_000_000  # from the word to start until the start, for the recorder's files to be opened

Say = Callable[..., None]


class Worker:
    """Sends its share of one cell after the other."""

    def __init__(self, recorder: Recorder, say: Say) -> None:
        self._recorder, self._say = recorder, say
        self._rows: list[tuple[Any, ...]] = []
        self._stop = asyncio.Event()
        self._go: asyncio.Future[tuple[float, int | None] | None] | None = None
        self._cell: asyncio.Task[None] | None = None
        self._teller = asyncio.create_task(self._tell())

    def hear(self, message: tuple[Any, ...]) -> None:
        kind, *rest = message
        if kind == "cell":
            self._stop = asyncio.Event()
            self._go = asyncio.get_running_loop().create_future()
            job, requests, chunks = rest
            self._cell = asyncio.create_task(self._send(job, requests, chunks, self._go, self._stop))
        elif kind == "go" and self._go is not None and not self._go.done():
            self._go.set_result((rest[0], rest[1]))
        elif kind == "stop":
            self._stop.set()
            if self._go is not None and not self._go.done():
                self._go.set_result(None)

    async def _send(
        self,
        job: Job,
        requests: Path,
        chunks: Path,
        go: asyncio.Future[tuple[float, int | None] | None],
        stop: asyncio.Event,
    ) -> None:
        entry = None
        try:
            async with prepared(job) as load:
                self._say("ready")
                if (word := await go) is not None:
                    # Without an origin this is another host, whose clock is its own: the start is when the word came.
                    start_s, origin_ns = word
                    start_ns = time.monotonic_ns() + LEAD_NS if origin_ns is None else origin_ns + int(start_s * 1e9)
                    origin_ns = start_ns - int(start_s * 1e9)
                    self._say("started")
                    cell, credentials = job.cell, job.deployment.credentials
                    context = CellContext(cell.cell, job.repeat, cell.target, origin_ns, credentials, job.worker)
                    await self._recorder.begin(context, requests, chunks, self._keep)
                    try:
                        driven = await drive_cell(load, self._recorder, start_ns, stop)
                    finally:
                        await self._recorder.end()
                    entry = driven.entry(origin_ns)
                    entry["client"]["recorder_backlog_max"] = self._recorder.backlog_max
            self._recorder.check()
        except PdbenchError as error:
            if entry is not None:
                entry["state"] = "interrupted"
            self._say("failed", error)
        except Exception as error:  # noqa: BLE001 - a bug of ours: told to the parent, which ends the run with it
            self._say("failed", PdbenchError(f"a load worker failed: {type(error).__name__}: {error}"))
        self._tell_rows()
        self._say("entry", entry)

    def _keep(self, row: RequestRow) -> None:
        self._rows.append(tuple(getattr(row, name) for name in RequestRow.__slots__))

    async def _tell(self) -> None:
        """The newest rows in few messages; without any, still a sign of life."""
        while True:
            self._tell_rows()
            await asyncio.sleep(TELL_EVERY_S)

    def _tell_rows(self) -> None:
        rows, self._rows = self._rows, []
        self._say("rows", rows)

    async def end(self) -> None:
        self.hear(("stop",))
        self._teller.cancel()
        if self._cell is not None:
            await asyncio.wait({self._cell})
        await self._recorder.close()


async def main() -> None:
    loop = asyncio.get_running_loop()
    recorder = await Recorder.start()
    # Frames go where stdout was; what anybody prints goes to stderr.
    out, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, os.fdopen(os.dup(1), "wb"))
    os.dup2(2, 1)
    out.write(frame(("hello", __version__, socket.gethostname())))
    over = loop.create_future()
    worker = Worker(recorder, lambda *message: out.write(frame(message)))
    await loop.connect_read_pipe(lambda: Incoming(worker.hear, lambda: over.set_result(None)), sys.stdin)
    await over
    await worker.end()


if __name__ == "__main__":
    import uvloop

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())
