"""What is known of the wait for a slot: how many wait, the mean, the percentiles. Times in seconds.

A formula gives the tail P(W > t) as a sum of exponentials; a simulation gives the percentiles themselves.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

QUANTILES = (0.5, 0.9, 0.99)


@dataclass(frozen=True, slots=True)
class Waits:
    """The wait for a slot of a request that arrives in the steady state, or in a run of finite length."""

    p_wait: float
    mean_s: float
    p50_s: float
    p90_s: float
    p99_s: float

    def scaled(self, factor: float) -> Waits:
        """The same waits in a unit of `factor` seconds."""
        quantiles = (self.p50_s * factor, self.p90_s * factor, self.p99_s * factor)
        return Waits(self.p_wait, self.mean_s * factor, *quantiles)

    def blended(self, other: Waits, share: float) -> Waits:
        """`share` of this one and the rest of the other, figure by figure."""
        rest = 1 - share
        return Waits(
            share * self.p_wait + rest * other.p_wait,
            share * self.mean_s + rest * other.mean_s,
            share * self.p50_s + rest * other.p50_s,
            share * self.p90_s + rest * other.p90_s,
            share * self.p99_s + rest * other.p99_s,
        )


NO_WAIT = Waits(0.0, 0.0, 0.0, 0.0, 0.0)


def exponential_tail(p_wait: float, mean_s: float) -> Waits:
    """P(W > t) = C exp(-t C / E W): exact for M/M/c, the usual approximation elsewhere."""
    if p_wait <= 0 or mean_s <= 0:
        return Waits(max(0.0, p_wait), max(0.0, mean_s), 0.0, 0.0, 0.0)
    scale_s = mean_s / p_wait
    p50, p90, p99 = (0.0 if p_wait <= 1 - q else scale_s * math.log(p_wait / (1 - q)) for q in QUANTILES)
    return Waits(p_wait, mean_s, p50, p90, p99)


def matched_tail(p_wait: float, mean_s: float, second_s2: float, weight: float, rate: float) -> Waits:
    """A tail that is `weight * exp(-rate t)` far out and has the given P(W > 0), E W and E W^2.

    What the first term leaves is taken as (r + k t) exp(-f t): its value at 0 and its two moments fix r, k and f.
    """
    rest = p_wait - weight
    first = mean_s - weight / rate
    second = second_s2 / 2 - weight / rate**2
    faster = _decay(rest, first, second)
    if faster is None or faster <= rate:
        return exponential_tail(p_wait, mean_s)
    slope = (first - rest / faster) * faster**2

    def tail(t: float) -> float:
        return weight * math.exp(-rate * t) + (rest + slope * t) * math.exp(-faster * t)

    p50, p90, p99 = (_root(tail, 1 - q, mean_s / p_wait) if p_wait > 1 - q else 0.0 for q in QUANTILES)
    return Waits(p_wait, mean_s, p50, p90, p99)


def _decay(rest: float, first: float, second: float) -> float | None:
    """The largest positive f with second f^2 - 2 first f + rest = 0."""
    spread = first * first - rest * second
    if spread < 0 or second == 0:
        return None
    roots = ((first + math.sqrt(spread)) / second, (first - math.sqrt(spread)) / second)
    return max((root for root in roots if root > 0), default=None)


def _root(tail: Callable[[float], float], wanted: float, step_s: float) -> float:
    """Where a falling tail has the value wanted, by bisection."""
    low, high = 0.0, step_s
    while tail(high) > wanted:
        low, high = high, 2 * high
    for _ in range(60):
        middle = (low + high) / 2
        if tail(middle) > wanted:
            low = middle
        else:
            high = middle
    return (low + high) / 2
