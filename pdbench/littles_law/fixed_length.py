"""Waits when every request holds its slot equally long, as with --ignore-eos: exact, for any gamma arrivals.

With equal holding times the slots are taken in turn, so every c-th request meets the same slot and its wait is the
supremum of a random walk with steps S - (c gaps), a gamma variable. Spitzer's identity (F. Spitzer, Trans. AMS 82,
1956; Asmussen, Applied Probability and Queues, ch. VIII) then gives

    P(W = 0) = exp(-sum_n P(S_n > 0) / n),   E W = sum_n E max(S_n, 0) / n,   var W = sum_n E max(S_n, 0)^2 / n

and the tail is weight * exp(-rate t) far out, with the Cramer-Lundberg constants of the same walk. All of them are
incomplete gamma functions of shape n c b at rho n c b, where b is the burstiness (the gaps' gamma shape). P(wait),
mean, variance, tail and the density at 0+ are exact; the percentiles match those (`matched_tail`), p90 and p99 within
3 %. Unit of time: S.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from pdbench.littles_law.incomplete_gamma import deviance, log_density, lower, upper
from pdbench.littles_law.waits import NO_WAIT, TailFacts, Waits, matched_tail

SUMMED_ONE_BY_ONE = 8
LOG_STEP = 0.5
NEGLIGIBLE_EXPONENT = 40.0


def fixed_length_waits(load: float, slots: int, burstiness: float = 1.0) -> Waits:
    """Waits of G/D/c in units of S for `load` (slots) below `slots`; gaps are gamma of shape `burstiness`."""
    rho = load / slots
    if rho <= 0 or math.isinf(burstiness):
        return NO_WAIT
    shape = slots * burstiness
    decay = shape * deviance(rho)
    if decay > 700:
        return NO_WAIT
    conjugate = _conjugate(rho)
    never, mean, variance, early, density = _harmonic_sums(lambda n: _terms(n, shape, rho, conjugate), decay)
    rate = shape * (conjugate - rho)
    weight = math.exp(-never - early) / (rate * (1 - 1 / conjugate))
    density *= shape * math.exp(-never)
    return matched_tail(TailFacts(-math.expm1(-never), density, mean, variance + mean * mean, weight, rate))


def _terms(n: float, shape: float, rho: float, conjugate: float) -> tuple[float, float, float, float, float]:
    """P(S_n > 0), E max(S_n, 0), E max(S_n, 0)^2, P(S_n < 0) under the conjugate measure, S_n's density at 0 / shape.

    S_n = n - T with T gamma of shape a = n * shape and mean n / rho.
    """
    a = n * shape
    late = lower(a, a * rho)
    density = math.exp(log_density(a, a * rho))
    gap = 1 / rho  # E T / n
    spread = gap * gap * (1 + 1 / a)
    mean = n * gap * (density - (1 - rho) * late)
    square = n * n * ((1 - 2 * gap + spread) * late - (spread - 2 * gap + gap) * density)
    return late, max(0.0, mean), max(0.0, square), upper(a, a * conjugate), density


def _conjugate(rho: float) -> float:
    """The other solution x > 1 of x exp(-x) = rho exp(-rho), by Newton's method on x - 1 - ln x."""
    aim = deviance(rho)
    x = 1 + math.sqrt(2 * aim) + aim / 1.5
    for _ in range(50):
        step = (deviance(x) - aim) / (1 - 1 / x)
        x -= step
        if abs(step) < 1e-14 * (x - 1):
            break
    return x


def _harmonic_sums(terms: Callable[[float], tuple[float, ...]], decay: float) -> list[float]:
    """sum over n >= 1 of term(n) / n for each term, all of which fall as exp(-decay n).

    One by one at first, then as an integral over ln n, with the first Euler-Maclaurin term where the two meet.
    """
    last = min(SUMMED_ONE_BY_ONE, max(1, math.ceil(NEGLIGIBLE_EXPONENT / decay)))
    weighted = [(1 / n, terms(n)) for n in range(1, last + 1)]
    start, end = math.log(last + 0.5), math.log(max(last + 0.5, NEGLIGIBLE_EXPONENT / decay))
    if end > start:
        weighted += [(1 / 24 / (last + 1), terms(last + 1)), (-1 / 24 / last, terms(last))]
        panels = max(1, math.ceil((end - start) / LOG_STEP))
        half = (end - start) / panels / 2
        for i in range(2 * panels + 1):
            simpson = 1 if i in (0, 2 * panels) else 4 if i % 2 else 2
            weighted.append((simpson * half / 3, terms(math.exp(start + i * half))))
    return [math.fsum(weight * values[k] for weight, values in weighted) for k in range(5)]
