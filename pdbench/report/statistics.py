"""The statistics a verdict rests on, with numpy and `math` only: order statistics, trends, Kolmogorov-Smirnov, tails.

Percentiles take censored values as infinity (a request that ran into its deadline is slower than all that finished);
a percentile that falls among them is `None`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
CONFIDENCE = 0.95
EXACT_BINOMIAL_UP_TO = 5000


def percentile(values: NDArray[Any], q: float, *, ordered: bool = False) -> float | None:
    """The `q` quantile (0 to 1), linear between order statistics as in numpy; `None` without data or when censored.

    `ordered` says that the values are sorted already.
    """
    if len(values) == 0:
        return None
    sorted_ = values if ordered else np.sort(values)
    place = q * (len(values) - 1)
    low = math.floor(place)
    part = place - low
    below, above = float(sorted_[low]), float(sorted_[min(low + 1, len(values) - 1)])
    if not math.isfinite(below) or (part > 0 and not math.isfinite(above)):
        return None
    return below if part == 0 else below + part * (above - below)


def binomial_cdf(k: int, n: int, q: float) -> float:
    """P(X <= k) for X ~ Binomial(n, q): exact for small n, else normal with continuity correction."""
    if k < 0:
        return 0.0
    if k >= n:
        return 1.0
    if n > EXACT_BINOMIAL_UP_TO:
        return normal_cdf((k + 0.5 - n * q) / math.sqrt(n * q * (1 - q)))
    return float(_binomial_table(n, q)[k])


@lru_cache(maxsize=256)
def _binomial_table(n: int, q: float) -> Floats:
    """P(X <= k) for all k."""
    log_factorial = np.concatenate(([0.0], np.cumsum(np.log(np.arange(1, n + 1)))))
    k = np.arange(n + 1)
    log_p = log_factorial[n] - log_factorial - log_factorial[::-1] + k * math.log(q) + (n - k) * math.log1p(-q)
    table: Floats = np.minimum(1.0, np.cumsum(np.exp(log_p)))
    return table


def needed_for(q: float, confidence: float = CONFIDENCE) -> int:
    """Smallest n for which a two-sided distribution-free interval of the `q` quantile exists (299 for p99 at 95 %)."""
    n = 1
    while q**n + (1 - q) ** n > 1 - confidence:
        n += 1
    return n


def quantile_ranks(n: int, q: float, confidence: float = CONFIDENCE) -> tuple[int | None, int | None]:
    """Ranks (from 1) of the order statistics that bracket the `q` quantile; `None` where that side is unbounded."""
    alpha = 1 - confidence
    # P(B < l) for the lower rank, P(B >= u) for the upper one, B ~ Binomial(n, q).
    upper = _smallest(lambda u: 1 - binomial_cdf(u - 1, n, q) <= alpha / 2, 1, n)
    if upper is None and q**n + (1 - q) ** n <= alpha:
        upper = n
    budget = alpha / 2 if upper is None else alpha - (1 - binomial_cdf(upper - 1, n, q))
    beyond = _smallest(lambda rank: binomial_cdf(rank - 1, n, q) > budget, 1, n + 1)
    lower = (beyond or 1) - 1
    return (lower if lower >= 1 else None), upper


def _smallest(holds: Callable[[int], bool], low: int, high: int) -> int | None:
    """Smallest integer in [low, high] for which the monotone condition holds."""
    if low > high or not holds(high):
        return None
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle + 1, high)
    return low


def quantile_interval(
    values: NDArray[Any], q: float, n: int | None = None, *, ordered: bool = False
) -> tuple[float | None, float | None]:
    """The 95 % order-statistic interval of a quantile; `None` where unbounded or censored.

    `n` below `len(values)` says how many independent groups the values come from: the ranks are then taken for that
    many and read as quantile levels (each request's gaps count as one observation).
    """
    size = len(values) if n is None else n
    if size == 0 or len(values) == 0:
        return None, None
    lower, upper = quantile_ranks(size, q)
    sorted_ = values if ordered else np.sort(values)
    ends: list[float | None] = []
    for rank in (lower, upper):
        if rank is None:
            ends.append(None)
            continue
        value = float(sorted_[math.ceil(rank / size * len(sorted_)) - 1])
        ends.append(value if math.isfinite(value) else None)
    return ends[0], ends[1]


def normal_cdf(z: float) -> float:
    return 0.5 * math.erfc(-z / math.sqrt(2))


def theil_sen(x: Floats, y: Floats, at_most: int = 600) -> float | None:
    """Median slope over all pairs; more than `at_most` points are first joined into that many block medians."""
    if len(x) > at_most:
        x, y = block_medians(x, at_most), block_medians(y, at_most)
    i, j = np.triu_indices(len(x), 1)
    run = x[j] - x[i]
    slopes = (y[j] - y[i])[run != 0] / run[run != 0]
    return float(np.median(slopes)) if len(slopes) else None


def block_medians(values: Floats, blocks: int) -> Floats:
    """Medians of `blocks` consecutive, nearly equal parts."""
    blocks = min(blocks, len(values))
    if blocks == 0:
        return np.array([])
    size, longer = divmod(len(values), blocks)
    # The first ones are longer by one. Two tables, since a call a block takes most of a large report's time.
    head = values[: longer * (size + 1)].reshape(longer, size + 1)
    tail = values[longer * (size + 1) :].reshape(blocks - longer, size)
    found: Floats = np.concatenate((np.median(head, axis=1), np.median(tail, axis=1)))
    return found


def mann_kendall_z(y: Floats) -> float:
    """Standard score of Kendall's S against order: positive when the series rises. Independent values assumed."""
    n = len(y)
    if n < 3:
        return 0.0
    i, j = np.triu_indices(n, 1)
    s = float(np.sign(y[j] - y[i]).sum())
    _, ties = np.unique(y, return_counts=True)
    variance = (n * (n - 1) * (2 * n + 5) - float(np.sum(ties * (ties - 1) * (2 * ties + 5)))) / 18
    if variance <= 0:
        return 0.0
    return (s - math.copysign(1.0, s)) / math.sqrt(variance) if s else 0.0


def kolmogorov_p(distance: float, n: int) -> float:
    """P(D_n >= distance) for a fully specified distribution (Kolmogorov's limit with Stephens' correction for n)."""
    if distance <= 0:
        return 1.0
    t = (math.sqrt(n) + 0.12 + 0.11 / math.sqrt(n)) * distance
    if t < 0.3:
        return 1.0
    total = 2 * math.fsum((-1) ** (k - 1) * math.exp(-2 * k * k * t * t) for k in range(1, 101))
    return min(1.0, max(0.0, total))


def ks_distance(sample: Floats, cdf: Callable[[Any], Any], slack: float = 0.0) -> float:
    """Largest distance of the empirical from the named distribution that shifting values by `slack` cannot mend."""
    ordered = np.sort(sample)
    n = len(ordered)
    above = np.arange(1, n + 1) / n - np.asarray(cdf(ordered + slack))
    below = np.asarray(cdf(ordered - slack)) - np.arange(n) / n
    return float(max(above.max(), below.max(), 0.0))


def gamma_cdf(shape: float) -> Callable[[Any], Any]:
    """CDF of a gamma distribution with this shape and scale 1, as a function of an array (regularised lower gamma)."""

    def one(x: float) -> float:
        if x <= 0:
            return 0.0
        log_front = shape * math.log(x) - x - math.lgamma(shape)
        if x < shape + 1:
            term = total = 1 / shape
            k = shape
            while abs(term) > abs(total) * 1e-14:
                k += 1
                term *= x / k
                total += term
            return min(1.0, total * math.exp(log_front))
        # Lentz's continued fraction for the upper part.
        b = x + 1 - shape
        c, d = 1e300, 1 / b
        h = d
        for i in range(1, 500):
            a = -i * (i - shape)
            b += 2
            d = 1 / _away_from_zero(a * d + b)
            c = _away_from_zero(b + a / c)
            step = c * d
            h *= step
            if abs(step - 1) < 1e-14:
                break
        return max(0.0, 1 - math.exp(log_front) * h)

    if shape == 1:  # the exponential one has a closed form, which a run of many requests is glad of
        return lambda xs: -np.expm1(-np.maximum(np.asarray(xs, float), 0.0))
    return lambda xs: np.array([one(float(x)) for x in np.asarray(xs)])


def _away_from_zero(value: float) -> float:
    return value if abs(value) > 1e-300 else 1e-300


def chi_square_tails(value: float, freedom: int) -> tuple[float, float]:
    """P(X <= value) and P(X >= value) for a chi-square variable."""
    below = float(gamma_cdf(freedom / 2)(np.array([value / 2]))[0])
    return below, 1 - below
