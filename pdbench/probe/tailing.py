"""A server's log as it grows, file or pipe: what its lines add to the counters of its page."""

from __future__ import annotations

import contextlib
import os
import stat
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pdbench.errors import UsageError
from pdbench.probe.log_lines import LogTotals
from pdbench.probe.scrape import Row

SUFFIX = ".log"  # of the server's name in metrics.parquet: a page of its own
_READ_NBYTES = 1 << 20
_LONGEST_LINE = 1 << 16


_NO_WAIT = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC


def open_log(path: str) -> int:
    """A descriptor that never blocks: of a file at its end, of a pipe at once. Raises UsageError."""
    try:
        fd = os.open(path, _NO_WAIT)
    except OSError as error:
        raise UsageError(
            f"log {path} cannot be read: {error.strerror}.", "Give a file or a pipe, such as <(kubectl logs -f POD)."
        ) from None
    if stat.S_ISREG(os.fstat(fd).st_mode):
        os.lseek(fd, 0, os.SEEK_END)
    return fd


@dataclass(slots=True)
class Tailed:
    """One log that is followed. Written by the process that reads it only."""

    target: str
    server: str
    role: str
    fd: int
    path: str = ""
    totals: LogTotals = field(default_factory=LogTotals)
    _rest: bytes = b""
    _done: bool = False  # the file was moved away, and is read to its end

    def read(self) -> bool:
        """Take the lines that have come; whether any of them said something of KV transfers."""
        said = False
        while chunk := self._chunk():
            *lines, self._rest = (self._rest + chunk).split(b"\n")
            self._rest = self._rest[-_LONGEST_LINE:]
            for line in lines:
                said = self.totals.take(line.decode("utf-8", "replace")) or said
        return said

    def record(self, origin_ns: int, edge: str | None) -> dict[str, Any]:
        """The line for metrics, as `Watched.record` makes one. Its count of lines is there before any line has come,
        so that what the first one says is known to be of this cell."""
        t_s = (time.monotonic_ns() - origin_ns) / 1e9
        lines: Row = ("log", "log_lines", "counter", "", "{}", float(self.totals.lines))
        found: dict[str, Any] = {"t": t_s, "target": self.target, "server": self.server, "role": self.role}
        return {**found, "rows": [lines, *self.totals.rows()], **({"edge": edge} if edge else {})}

    def _chunk(self) -> bytes:
        with contextlib.suppress(BlockingIOError):
            state = os.fstat(self.fd)
            if stat.S_ISREG(state.st_mode) and state.st_size < os.lseek(self.fd, 0, os.SEEK_CUR):
                os.lseek(self.fd, 0, os.SEEK_SET)  # it was cut: begun anew
            if chunk := os.read(self.fd, _READ_NBYTES):
                return chunk
            if stat.S_ISREG(state.st_mode) and self._followed_another(state):
                return os.read(self.fd, _READ_NBYTES)
        return b""

    def _followed_another(self, state: os.stat_result) -> bool:
        """Rotated: another file has the log's name now. Its predecessor may still be written to for one look more."""
        try:
            new = Path(self.path).stat()
        except OSError:
            return False
        if not stat.S_ISREG(new.st_mode) or os.path.samestat(new, state):
            return False
        if not self._done:
            self._done = True
            return False
        try:
            fd = os.open(self.path, _NO_WAIT)
        except OSError:
            return False
        os.dup2(fd, self.fd, inheritable=False)
        os.close(fd)
        self._rest, self._done = b"", False
        return True
