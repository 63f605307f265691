"""The parent's side of the recorder: answers go out, rows come back, and a recorder that dies is noticed.

Answers that the recorder has not confirmed are kept here, so that its death loses nothing: they are written by the
parent then. They are kept as they were sent: that takes a third of the memory, since the pipe has them anyway.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pdbench.errors import PdbenchError, StorageError
from pdbench.run import RequestRow
from pdbench.sweep.client import RawAnswer
from pdbench.sweep.frames import opened
from pdbench.sweep.pipes import Child
from pdbench.sweep.recorder_process import CellFiles
from pdbench.sweep.rows import CellContext
from pdbench.sweep.said import Said

OnRow = Callable[[RequestRow], None]
Heard = tuple[RequestRow, Said]
_PATIENCE_S = 60.0  # without any row while some are owed
_EXIT_S = 10.0
_HOLD_S = 0.005  # answers of so long go out together: waking another process costs more than the pickle
_READS_AT_ONCE = 500  # pickled in some 0.3 ms; then sockets are read before the next ones
_PAUSE_S = 0.001


class Recorder:
    """One recorder process for a run. `start` it, `begin` a cell, `record` answers, `end` the cell, `close` it."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._unconfirmed: dict[int, RawAnswer | bytes] = {}  # bytes: the frame in which it was sent, with others
        self._held: deque[RawAnswer] = deque()
        self._cell: tuple[CellContext, Path, Path] | None = None
        self._reply: asyncio.Future[None] | None = None
        self._on_row: OnRow = lambda row: None
        self._listening: dict[int, asyncio.Future[Heard]] = {}
        self._gone = False
        self.failed: asyncio.Future[PdbenchError] = self._loop.create_future()
        self.backlog_max = 0

    @classmethod
    async def start(cls) -> Recorder:
        recorder = cls()
        recorder._child = await Child.start("pdbench.sweep.recorder_process", recorder._message, recorder._lost)
        return recorder

    _child: Child

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def backlog(self) -> int:
        """Answers that are not yet written."""
        return len(self._unconfirmed)

    async def begin(self, context: CellContext, requests: Path, chunks: Path, on_row: OnRow) -> None:
        """Open a cell's files. Raises StorageError when they cannot be written."""
        self._on_row = on_row
        self._cell = (context, requests, chunks)
        self._listening.clear()
        self.backlog_max = 0
        self.check()
        await self._ask("begin", *self._cell)
        self.check()

    def record(self, raw: RawAnswer) -> None:
        """Hand an answer over, soon, or at once where somebody listens: a pickle, and a write that cannot block."""
        self._unconfirmed[raw.index] = raw
        self.backlog_max = max(self.backlog_max, len(self._unconfirmed))
        self._held.append(raw)
        if raw.index in self._listening:
            self._hand_over()
        elif len(self._held) == 1:
            self._loop.call_later(_HOLD_S, self._hand_over)

    def _hand_over(self) -> None:
        """The oldest of the answers in one message; where they are long or many the others follow a little later."""
        some: list[RawAnswer] = []
        nreads = 0
        while self._held and nreads < _READS_AT_ONCE:
            some.append(self._held.popleft())
            nreads += len(some[-1].reads) + 10
        if some and not self._gone:
            framed = self._child.send("answers", some)
            self._unconfirmed |= dict.fromkeys((raw.index for raw in some), framed)
        if self._held:
            self._loop.call_later(_PAUSE_S, self._hand_over)

    def hear(self, index: int) -> asyncio.Future[Heard]:
        """What the answer with this index will have said, once it is recorded: for the turns of a session."""
        listener = self._listening.setdefault(index, self._loop.create_future())
        self._hand_over()
        return listener

    async def end(self) -> None:
        """Wait until all rows of the cell are written, as far as that goes: `check` tells."""
        if not self._gone:
            await self._ask("end")
        if self._gone:
            self._salvage()

    def check(self) -> None:
        """Raise what went wrong, if anything did."""
        if self.failed.done():
            raise self.failed.result()

    async def _ask(self, *message: Any) -> None:
        self._reply = self._loop.create_future()
        while self._held:
            self._hand_over()
        self._child.send(*message)
        while True:
            owed = self.backlog
            done, _ = await asyncio.wait({self._reply}, timeout=_PATIENCE_S)
            if done:
                break
            if self.backlog == owed:
                self._fail(StorageError(f"the recorder has written nothing for {_PATIENCE_S:.0f} s."))
                break
        self._reply = None

    def _message(self, message: tuple[Any, ...]) -> None:
        kind, *rest = message
        if kind == "rows":
            for values, problem, said in rest[0]:
                self._confirmed(RequestRow(*values), problem, said)
            return
        if kind == "refused":
            self._fail(StorageError(f"{rest[0]}.", "Free space or give another --out, then sweep --resume."))
        self._answered()

    def _confirmed(self, row: RequestRow, problem: str | None, said: Said | None) -> None:
        self._unconfirmed.pop(row.index, None)
        if problem is not None:
            self._fail(StorageError(f"{problem}.", "Free space or give another --out, then sweep --resume."))
        self._on_row(row)
        if (listener := self._listening.pop(row.index, None)) is not None and not listener.done():
            listener.set_result((row, said or Said()))

    def _answered(self) -> None:
        if self._reply is not None and not self._reply.done():
            self._reply.set_result(None)

    def _fail(self, error: PdbenchError) -> None:
        if not self.failed.done():
            self.failed.set_result(error)

    def _lost(self) -> None:
        self._gone = True
        if self._child.closing:
            return
        kept = self._salvage()
        self._fail(PdbenchError(f"the recorder died ({self._child.why()}); {kept}.", "Go on with: sweep --resume RUN"))
        self._answered()

    def _salvage(self) -> str:
        """Write what the recorder was given and did not confirm."""
        if self._cell is None or not self._unconfirmed:
            return "all rows are on disk"
        context, requests, chunks = self._cell
        try:
            known, streamed = _written_ids(requests), _written_ids(chunks)
            files = CellFiles(context, requests, chunks)
        except OSError as error:
            return f"{self.backlog} rows are lost ({error.strerror})"
        lost = 0
        for raw in self.unconfirmed():
            if raw.request_id not in known:
                row, problem, _ = files.take(raw, streamed=raw.request_id in streamed)
                lost += problem is not None
                self._on_row(row)
        files.close()
        self._unconfirmed.clear()
        return f"{lost} rows are lost" if lost else "its rows were saved"

    def unconfirmed(self) -> Iterator[RawAnswer]:
        """The answers that the recorder was given, or will be, and did not confirm."""
        last, answers = b"", dict[int, RawAnswer]()
        for index, kept in list(self._unconfirmed.items()):
            if not isinstance(kept, bytes):
                yield kept
                continue
            if kept is not last:
                last, answers = kept, {raw.index: raw for raw in opened(kept)[1]}
            yield answers[index]

    async def close(self) -> None:
        """End the process: it writes what it was given first."""
        await self._child.close(_EXIT_S)


def _written_ids(path: Path) -> set[str]:
    """The ids of the lines in a file; a last line that the recorder's death cut is closed off first."""
    ids = set()
    with path.open("rb+") as lines:
        for line in lines:
            with contextlib.suppress(ValueError):
                ids.add(json.loads(line)["request_id"])
            if not line.endswith(b"\n"):
                lines.write(b"\n")
    return ids
