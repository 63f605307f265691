"""A server's log as it grows, file or pipe: what its lines add to the counters of its page."""

from __future__ import annotations

import contextlib
import os
import stat
import time
from dataclasses import dataclass, field
from typing import Any

from pdbench.errors import UsageError
from pdbench.probe.log_lines import LogTotals
from pdbench.probe.scrape import Row

SUFFIX = ".log"  # of the server's name in metrics.parquet: a page of its own
_READ_NBYTES = 1 << 20
_LONGEST_LINE = 1 << 16


def open_log(path: str) -> int:
    """A descriptor that never blocks: of a file at its end, of a pipe at once. Raises UsageError."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
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
    totals: LogTotals = field(default_factory=LogTotals)
    _rest: bytes = b""

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
            if stat.S_ISREG((state := os.fstat(self.fd)).st_mode) and state.st_size < os.lseek(self.fd, 0, os.SEEK_CUR):
                os.lseek(self.fd, 0, os.SEEK_SET)  # it was cut: begun anew
            return os.read(self.fd, _READ_NBYTES)
        return b""
