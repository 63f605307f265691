"""The process that parses answers and writes rows, so that neither JSON nor the disk can delay a stamp.

It reads frames (length, pickle) from its standard input and writes frames to its standard output. It ends when its
input does, which is also what the parent's death looks like, after writing all that it was given; Ctrl-C is not for it.
It imports nothing heavy, since a run waits for it to start.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import sys
from collections.abc import Callable
from operator import attrgetter
from pathlib import Path
from typing import Any, BinaryIO

from pdbench.run import RequestRow, request_record
from pdbench.sweep.frames import frame, frames
from pdbench.sweep.rows import CellContext, read_row, read_turn
from pdbench.sweep.said import Said

_NICENESS = 5  # it may lag behind the client, never push it off its core
_values: Callable[[RequestRow], tuple[Any, ...]] = attrgetter(*RequestRow.__slots__)


class Lines:
    """A file of JSON lines to which whole lines are appended, or nothing. The lock tells readers that there is more."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(self._fd, fcntl.LOCK_SH)
        self._size = os.fstat(self._fd).st_size

    def append(self, record: Any) -> None:
        line = json.dumps(record, allow_nan=False, separators=(",", ":")).encode() + b"\n"
        written = 0
        try:
            while written < len(line):
                written += os.write(self._fd, line[written:])
        except OSError:
            # Half a line would spoil the next one, should there be room again.
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, self._size)
            raise
        self._size += len(line)

    def close(self) -> None:
        os.close(self._fd)


class CellFiles:
    """The two files of a running cell."""

    def __init__(self, context: CellContext, requests: Path, chunks: Path) -> None:
        self.context = context
        self._requests, self._chunks = Lines(requests), Lines(chunks)

    def take(self, raw: Any, *, streamed: bool = False) -> tuple[RequestRow, str | None, Said | None]:
        """Parse one answer and append its row. The second part says why that could not be written, the third what a
        session's answer said. `streamed`: its chunks are in their file already, written by one that died before the
        row was."""
        said = None
        if raw.turn is None:
            row, offsets = read_row(raw, self.context)
        else:
            row, offsets, said = read_turn(raw, self.context)
        file = self._chunks
        try:
            if offsets and not streamed:
                file.append({"request_id": row.request_id, "offset_s": offsets})
            file = self._requests
            file.append(request_record(row))
        except OSError as error:
            return row, f"cannot write {file.path}: {error.strerror or error}", said
        return row, None, said

    def close(self) -> None:
        self._requests.close()
        self._chunks.close()


def serve(source: BinaryIO, target: BinaryIO) -> None:
    """Answer messages: ("begin", context, paths), ("answers", some raw ones), ("end",)."""

    def reply(*message: Any) -> None:
        with contextlib.suppress(BrokenPipeError):  # the parent is gone; what it sent is still written
            target.write(frame(message))
            target.flush()

    files: CellFiles | None = None
    for kind, *rest in frames(source):
        if kind == "answers":
            assert files is not None
            taken = [files.take(raw) for raw in rest[0]]
            reply("rows", [(_values(row), problem, said) for row, problem, said in taken])
            continue
        if files is not None:
            files.close()
            files = None
        if kind == "begin":
            try:
                files = CellFiles(*rest)
            except OSError as error:
                reply("refused", f"cannot write {error.filename}: {error.strerror}")
                continue
        reply(kind)
    if files is not None:
        files.close()


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(OSError):
        os.nice(_NICENESS)
    serve(sys.stdin.buffer, sys.stdout.buffer)


if __name__ == "__main__":
    main()
