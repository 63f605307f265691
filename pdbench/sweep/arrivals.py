"""When are requests sent? Arrival processes as pure functions: numbers in, offsets out; no clock, no sleep.

Offsets are seconds from the cell's start, sorted. The first gap is drawn like every other, and nothing is rescaled to
hit the mean: a Poisson process of rate r sends r*t requests in t seconds only on average, and its count varies by
sqrt(r*t). Each process is a prefix of itself: more requests from the same seed begin with the same offsets.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from pdbench.errors import UsageError

Offsets = NDArray[np.float64]
Arrivals = Callable[[float, float, int, np.random.Generator], Offsets]

_BLOCK = 1024


def poisson(rate_per_s: float, burstiness: float, n: int, rng: np.random.Generator) -> Offsets:
    """Exponential gaps (CV 1, dispersion of counts 1); `burstiness` has no part in it."""
    return np.cumsum(rng.standard_exponential(n)) / rate_per_s


def gamma(rate_per_s: float, burstiness: float, n: int, rng: np.random.Generator) -> Offsets:
    """Gamma gaps of shape `burstiness`: CV = 1/sqrt(shape). 1 is Poisson, below 1 is burstier, infinite is constant."""
    if math.isinf(burstiness):
        return constant(rate_per_s, burstiness, n, rng)
    return np.cumsum(rng.standard_gamma(burstiness, n)) / (rate_per_s * burstiness)


def constant(rate_per_s: float, burstiness: float, n: int, rng: np.random.Generator) -> Offsets:
    """Equal gaps of 1/rate; the first request leaves after one gap."""
    return np.arange(1, n + 1, dtype=np.float64) / rate_per_s


ARRIVALS: dict[str, Arrivals] = {"poisson": poisson, "gamma": gamma, "constant": constant}


def schedule(
    kind: str,
    rate_per_s: float,
    burstiness: float,
    num_prompts: int | None,
    duration_s: float | None,
    rng: np.random.Generator,
) -> Offsets:
    """All arrivals before `duration_s`, at most `num_prompts`: the first limit reached ends it. Raises UsageError."""
    if kind not in ARRIVALS:
        raise UsageError(f"there are no arrivals called {kind!r}.", f"Known are: {', '.join(ARRIVALS)}.")
    if not (rate_per_s > 0 and math.isfinite(rate_per_s) and burstiness > 0):
        raise UsageError("the request rate and the burstiness are positive numbers.")
    if num_prompts is None and duration_s is None:
        raise UsageError("the sends have no end.", "Give --num-prompts or --duration.")
    most = math.inf if num_prompts is None else num_prompts
    end_s = math.inf if duration_s is None else duration_s
    # Gaps are independent, so a process drawn in blocks is the process. Equal gaps are drawn at once: no sum of
    # blocks, hence no sum of rounding errors.
    if kind == "constant":
        ceiling = math.floor(end_s * rate_per_s) + 1 if math.isfinite(end_s) else most
        offsets = constant(rate_per_s, burstiness, int(min(most, ceiling)), rng)
        return offsets[offsets < end_s]
    blocks: list[Offsets] = []
    count, last_s = 0, 0.0
    while count < most and last_s < end_s:
        block = last_s + ARRIVALS[kind](rate_per_s, burstiness, int(min(_BLOCK, most - count)), rng)
        blocks.append(block)
        count, last_s = count + len(block), float(block[-1])
    offsets = np.concatenate(blocks) if blocks else np.empty(0)
    return offsets[offsets < end_s]
