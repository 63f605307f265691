"""How does the rate move through a cell? Ramps and steps as stretches of time, each with a closed form both ways.

Arrivals of a moving rate are those of a steady one on a bent clock: the process is drawn at one request a second of
*expected requests*, and each is sent when the schedule expects that many. A Poisson process stays Poisson this way, a
constant one stays even, and bursts are as long in requests as the rate makes them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pdbench.errors import UsageError

STRATEGIES = ("linear", "exponential")  # as in vllm bench serve's --ramp-up-strategy


@dataclass(frozen=True, slots=True)
class Stage:
    """`duration_s` in which the rate goes from `start` to `end` requests/s, linearly or by equal factors."""

    duration_s: float
    start: float
    end: float
    exponential: bool = False

    @property
    def expected(self) -> float:
        """Requests that the stage sends on average."""
        if self.exponential and self.start != self.end:
            return self.duration_s * (self.end - self.start) / math.log(self.end / self.start)
        return self.duration_s * (self.start + self.end) / 2

    def when(self, count: NDArray[np.float64]) -> NDArray[np.float64]:
        """Seconds from the stage's start at which `count` requests are expected."""
        found: NDArray[np.float64]
        rise = (self.end - self.start) / self.duration_s
        if rise == 0:
            found = count / self.start
        elif self.exponential:
            growth = math.log(self.end / self.start) / self.duration_s
            found = np.log1p(count * growth / self.start) / growth
        else:
            found = 2 * count / (self.start + np.sqrt(np.maximum(self.start**2 + 2 * rise * count, 0.0)))
        return found


def ramp(start: float, end: float, strategy: str, duration_s: float | None, requests: int | None) -> tuple[Stage, ...]:
    """One stage over `duration_s`, or over the time in which `requests` are expected where only they are given."""
    exponential = strategy == "exponential"
    if exponential and not (start > 0 and end > 0):
        raise UsageError("an exponential ramp starts and ends above 0.", "Give --ramp 1:8, or a linear one.")
    one = Stage(1.0, start, end, exponential)
    if duration_s is None:
        duration_s = (requests or 0) / one.expected
    return (Stage(duration_s, start, end, exponential),)


def steps(rates: Sequence[float], duration_s: float | None, requests: int | None) -> tuple[Stage, ...]:
    """Equal stretches of time, one at each rate."""
    if duration_s is None:
        duration_s = (requests or 0) / (sum(rates) / len(rates))
    return tuple(Stage(duration_s / len(rates), rate, rate) for rate in rates)


def expected(stages: Sequence[Stage]) -> float:
    """Requests that all stages together send on average."""
    return math.fsum(stage.expected for stage in stages)


def mean_rate(stages: Sequence[Stage]) -> float:
    return expected(stages) / math.fsum(stage.duration_s for stage in stages)


def bent(counts: NDArray[np.float64], stages: Sequence[Stage]) -> NDArray[np.float64]:
    """When the schedule expects so many requests; `counts` ascend and end before all stages do."""
    begins = np.cumsum([0.0, *(stage.expected for stage in stages[:-1])])
    starts_s = np.cumsum([0.0, *(stage.duration_s for stage in stages[:-1])])
    of = np.searchsorted(begins, counts, side="right") - 1
    offsets = np.empty_like(counts)
    for number, stage in enumerate(stages):
        inside = of == number
        offsets[inside] = starts_s[number] + stage.when(counts[inside] - begins[number])
    return offsets
