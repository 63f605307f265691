"""What `probe-transfer` says on standard error while it measures: one line that a terminal rewrites, elsewhere one a
pass."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TextIO

from pdbench.littles_law.plan_text import size

WORDS = {"READ": "pull", "WRITE": "push"}
REWRITE = "\r\x1b[K"


@dataclass(slots=True)
class Progress:
    """`planned` measurements are `passes` over all shapes; `done` of them have been told."""

    stream: TextIO
    passes: int
    planned: int = 0
    done: int = 0
    since_s: float = 0.0

    @property
    def shapes(self) -> int:
        return self.planned // self.passes

    def begin(self, planned: int) -> None:
        self.planned, self.since_s = planned, time.monotonic()
        self._say(f"{planned} measurements: {self.shapes} shapes in {self.passes} passes")

    def measured(self, found: Mapping[str, Any]) -> None:
        """After each measurement, with what was measured last and how long the rest will take."""
        self.done += 1
        left = self.planned - self.done
        rest_s = (time.monotonic() - self.since_s) / self.done * left
        told = f"{self.done} of {self.planned} measured" + (f", about {rest_s:.0f} s left" if left else "")
        if self.stream.isatty():
            last = f"{WORDS[found['op']]} {found['ids']} {size(found['nbytes'])}"
            self._write(f"{REWRITE}{told} (last: {last})" + ("" if left else "\n"))
        elif self.done % self.shapes == 0:
            self._say(told)

    def end(self) -> None:
        """Leave a terminal's line for what comes next."""
        if self.stream.isatty() and 0 < self.done < self.planned:
            self._write("\n")

    def _say(self, line: str) -> None:
        self._write(line + "\n")

    def _write(self, text: str) -> None:
        self.stream.write(text)
        self.stream.flush()
