"""From the kernel's receive stamps (CLOCK_REALTIME) to CLOCK_MONOTONIC, and how late reads come after them.

On Linux both clocks run at the same rate, disciplined or not: they differ by a constant that changes only when somebody
sets the time. So the offset is the best of many samples, each the middle of a bracket whose width bounds its error, and
a sample that no bracket explains is a step.
"""

from __future__ import annotations

import time
from array import array
from collections import deque

import numpy as np

from pdbench.sweep.client import USER_STAMP

_FIRST_TRIES = 12
_SLACK_NS = 1000
_WIDE_NS = 20_000  # a bracket hides steps of half its width; a cold cache makes some us of 0.1
_AFTERMATH_NS = 100_000_000  # what is read so soon after a step may have arrived before it
_MOST_STEPS = 64
_FOLD = 4096  # lags kept before they go into the histogram


class KernelClock:
    """`offset_ns` is what to take off a realtime stamp. `doubtful` holds the spans in which a step took place."""

    def __init__(self) -> None:
        self.steps = 0
        self.doubtful: deque[tuple[int, int]] = deque(maxlen=_MOST_STEPS)
        self._seen_ns, self.offset_ns, self.width_ns = _bracket(_FIRST_TRIES)

    def sample(self) -> None:
        """Compare the clocks again: some 0.5 us."""
        at_ns, offset_ns, width_ns = _bracket(1)
        if abs(offset_ns - self.offset_ns) > (width_ns + self.width_ns) // 2 + _SLACK_NS:
            self.steps += 1
            self.doubtful.append((self._seen_ns, at_ns))
            self.offset_ns, self.width_ns = offset_ns, width_ns
        elif width_ns > _WIDE_NS:
            return  # so wide a bracket may hide a step: when one is seen, it may be as old as the sample before
        elif width_ns < self.width_ns:
            self.offset_ns, self.width_ns = offset_ns, width_ns
        self._seen_ns = at_ns

    def in_doubt(self, from_ns: int, to_ns: int) -> bool:
        """Whether a step took place in this span, as far as the samples so far tell."""
        return any(begin < to_ns and from_ns < end + _AFTERMATH_NS for begin, end in self.doubtful)


def _bracket(tries: int) -> tuple[int, int, int]:
    """The narrowest of some brackets: when it ended, realtime less monotonic, and the width that bounds the error."""
    best = (0, 0, 1 << 62)
    for _ in range(tries):
        before = time.monotonic_ns()
        real = time.time_ns()
        after = time.monotonic_ns()
        if after - before < best[2]:
            best = (after, real - (before + after) // 2, after - before)
    return best


class LagHistogram:
    """Percentiles of very many lags in little memory, to within 4 %."""

    _EDGES_NS = np.geomspace(1e2, 1e11, 9 * 64)

    def __init__(self) -> None:
        self._fresh = array("q")
        self._counts = np.zeros(len(self._EDGES_NS) + 1, np.int64)

    def add(self, lags_ns: array[int]) -> None:
        self._fresh.extend(lags_ns)
        if len(self._fresh) >= _FOLD:
            self._fold()

    def _fold(self) -> None:
        lags = np.array(self._fresh, np.int64)
        places = np.searchsorted(self._EDGES_NS, lags[lags != USER_STAMP])
        self._counts += np.bincount(places, minlength=len(self._counts))
        self._fresh = array("q")

    def percentile_ms(self, percent: float) -> float | None:
        self._fold()
        total = int(self._counts.sum())
        if total == 0:
            return None
        place = int(np.searchsorted(np.cumsum(self._counts), max(1.0, percent / 100 * total)))
        return float(self._EDGES_NS[min(place, len(self._EDGES_NS) - 1)]) / 1e6
