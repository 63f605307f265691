"""What is known of the wait for a slot: how many wait, the mean, the percentiles. Times in seconds.

A formula gives the tail P(W > t) as a sum of exponentials; a simulation gives the percentiles themselves.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

QUANTILES = (0.5, 0.9, 0.99)
ALL_OF_IT = 1e-6  # what is left of P(W > 0) beside the term far out: below it only rounding
SLOWEST_REST = 0.8  # of the rate far out: a slower rest would itself be what is far out


class Waits(NamedTuple):
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


class TailFacts(NamedTuple):
    """What is known exactly of a tail: P(W > 0), the density at 0+, two moments, and weight * exp(-rate t) far out."""

    p_wait: float
    density: float
    mean_s: float
    second_s2: float
    weight: float
    rate: float


def matched_tail(facts: TailFacts) -> Waits:
    """Waits whose tail has all of these.

    What the term far out leaves is taken as (r + k t + l t^2) exp(-f t): its value and slope at 0 and its two moments
    fix r, k, l and f. Of the three f that do, the middle one bends the tail least.
    """
    rest = facts.p_wait - facts.weight
    if abs(rest) < ALL_OF_IT * facts.p_wait:
        return exponential_tail(facts.p_wait, facts.mean_s)
    first = facts.mean_s - facts.weight / facts.rate
    second = facts.second_s2 / 2 - facts.weight / facts.rate**2
    turn = facts.weight * facts.rate - facts.density
    faster = _middle_root(-3 * first / second, 3 * rest / second, turn / second) if second else None
    if faster is None or faster < SLOWEST_REST * facts.rate:
        return exponential_tail(facts.p_wait, facts.mean_s)
    slope = faster * rest + turn
    bend = (first * faster**3 - rest * faster**2 - slope * faster) / 2

    def tail(t: float) -> float:
        far = facts.weight * math.exp(-facts.rate * t)
        return far + (rest + (slope + bend * t) * t) * math.exp(-faster * t)

    step_s = facts.mean_s / facts.p_wait
    p50, p90, p99 = (_root(tail, 1 - q, step_s) if facts.p_wait > 1 - q else 0.0 for q in QUANTILES)
    return Waits(facts.p_wait, facts.mean_s, p50, p90, p99)


def _middle_root(a: float, b: float, c: float) -> float | None:
    """The middle real root of x^3 + a x^2 + b x + c, or the only one; `None` where rounding leaves no sign of it."""
    p, q = b - a * a / 3, 2 * a**3 / 27 - a * b / 3 + c
    spread = -(4 * p**3 + 27 * q * q)
    if spread >= 0 and p < 0:
        angle = math.acos(max(-1.0, min(1.0, 3 * q / (2 * p) * math.sqrt(-3 / p)))) / 3
        return 2 * math.sqrt(-p / 3) * math.cos(angle - 2 * math.pi / 3) - a / 3
    if not math.isfinite(spread):
        return None
    side = math.sqrt(max(0.0, -spread / 108))
    return math.cbrt(-q / 2 + side) + math.cbrt(-q / 2 - side) - a / 3


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
