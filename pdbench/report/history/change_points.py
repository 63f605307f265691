"""Where series change their level. Behind this one function stands ruptures; its penalty is not guessed but measured.

Runs without a change may be put into any order, so the penalty is the one that 95 % of shuffled histories do not pay:
all series are shuffled together, and the series that would gain most by a change point counts. That bounds the chance
that a history in which nothing happened shows a change at all. Runs that resemble their neighbours in time may not be
shuffled: what is shuffled is then what each run adds to its share of the one before (a first-order autoregression), and
how large that share is, is measured from the same series.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pdbench.report.statistics import theil_sen

Floats = NDArray[np.float64]

ALPHA = 0.05
SHUFFLES = 299
MOST_MEMORY = 0.9
SEGMENT = 3  # runs, at least, on each side of a change: one odd run is no level
FEWEST_RUNS = 10


def change_points(series: Sequence[Floats], alpha: float = ALPHA) -> list[list[int]]:
    """For each series (NaN: this run has no value) the indices at which a new level begins."""
    return with_memory(series, alpha)[0]


def with_memory(series: Sequence[Floats], alpha: float = ALPHA) -> tuple[list[list[int]], float]:
    """The same, and the share of a run's deviation that the next run has too, from 0 to MOST_MEMORY.

    The share is measured between the changes that would be there without it, and what is shuffled then is what is left
    of the series without them, so that changes are not taken for weather.
    """
    known = [np.flatnonzero(np.isfinite(values)) for values in series]
    usable = [k for k, where in enumerate(known) if len(where) >= FEWEST_RUNS and np.ptp(series[k][where]) > 0]
    found: list[list[int]] = [[] for _ in series]
    if not usable:
        return found, 0.0
    scaled = [_scaled(series[k]) for k in usable]
    bare = [values[np.isfinite(values)] for values in scaled]
    places = _places(bare, _penalty(scaled, 0.0, alpha))
    stretches = [np.split(values, at) for values, at in zip(bare, places, strict=True)]
    memory, error = _memory([part for parts in stretches for part in parts])
    if memory > error and any(places):  # else there is none to speak of; what is measured itself may be too low
        for values, parts in zip(scaled, stretches, strict=True):
            values[np.isfinite(values)] = np.concatenate([part - part.mean() for part in parts])
        places = _places(bare, _penalty(scaled, min(memory + error, MOST_MEMORY), alpha))
    for k, at in zip(usable, places, strict=True):
        found[k] = [int(known[k][place]) for place in at]
    return found, memory


def memory_beside_trends(series: Sequence[Floats], points: Sequence[Sequence[int]]) -> float:
    """The share that a run passes on to the next one, beside levels and trends; 0 where it is not beyond doubt."""
    rests = []
    for values, at in zip(series, points, strict=True):
        for part in np.split(values, list(at)):
            known = part[np.isfinite(part)]
            place = np.arange(len(known), dtype=float)
            rests.append(known - (theil_sen(place, known) or 0.0) * place if len(known) >= SEGMENT else known)
    if sum(max(0, len(rest) - 2) for rest in rests) < FEWEST_RUNS:
        return 0.0
    memory, error = _memory(rests)
    return memory if memory > error else 0.0


def trend_spread(runs: int, memory: float) -> float:
    """By how much memory widens the scatter of Mann and Kendall's sum (Hamed and Rao, J. of Hydrology 204, 1998)."""
    lags = np.arange(1, runs - 2)
    whole = runs * (runs - 1) * (runs - 2)
    weight = (runs - lags) * (runs - lags - 1) * (runs - lags - 2) / whole
    return math.sqrt(1 + 2 * float(np.sum(weight * memory**lags)))


def _places(series: Sequence[Floats], penalty: float) -> list[list[int]]:
    from ruptures import KernelCPD

    models = [KernelCPD(kernel="linear", min_size=SEGMENT).fit(values[:, None]) for values in series]
    return [[int(place) for place in model.predict(pen=penalty)[:-1]] for model in models]


def _memory(stretches: Sequence[Floats]) -> tuple[float, float]:
    """The share and its standard error.

    Of a first-order autoregression the squared difference of runs two apart is 1 + share times that of neighbours.
    """
    one, two = (
        np.concatenate([(part[lag:] - part[:-lag]) ** 2 for part in stretches if len(part) > lag]) for lag in (1, 2)
    )
    ratio = float(two.mean() / one.mean()) if one.any() else 1.0
    return min(max(ratio - 1, 0.0), MOST_MEMORY), ratio * math.sqrt(2 / len(two))


def _scaled(values: Floats) -> Floats:
    """Deviations from the mean in standard deviations, neither of which a shuffle changes."""
    scaled: Floats = (values - np.nanmean(values)) / np.nanstd(values)
    return scaled


def _penalty(series: Sequence[Floats], memory: float, alpha: float) -> float:
    """What a change point must gain: more than the best one of all series gains in 1 - alpha of the shuffles."""
    rng = np.random.default_rng(len(series))
    orders = np.argsort(rng.random((SHUFFLES, len(series[0]))), axis=1)
    most = np.max([_gains(_shuffled(values, orders, memory)) for values in series], axis=0)
    return float(np.sort(most)[math.ceil((1 - alpha) * (SHUFFLES + 1)) - 1])


def _shuffled(values: Floats, orders: NDArray[np.int64], memory: float) -> Floats:
    """The known values of a series in each of these orders of its runs, a row an order, scaled as the series itself."""
    known, rest = np.isfinite(values), math.sqrt(1 - memory**2)
    added = np.full(len(values), np.nan)
    own = values[known]
    added[known] = np.concatenate([own[:1], (own[1:] - memory * own[:-1]) / rest])
    mixed = added[orders]
    found: Floats = mixed[np.isfinite(mixed)].reshape(len(orders), -1)
    for run in range(1, found.shape[1]):
        found[:, run] = memory * found[:, run - 1] + rest * found[:, run]
    found -= found.mean(axis=1, keepdims=True)
    found /= found.std(axis=1, keepdims=True)
    return found


def _gains(shuffled: Floats) -> Floats:
    """For each row the most that one change point, or two, save in squared error, for each of them."""
    n = shuffled.shape[1]
    sums = np.cumsum(shuffled, axis=1)  # of deviations: the whole sums to nothing
    size = np.arange(1, n + 1)
    ends = np.arange(SEGMENT - 1, n - SEGMENT)  # a first part ends here
    best: Floats = (sums[:, ends] ** 2 * (n / (size[ends] * (n - size[ends])))).max(axis=1)
    for first in ends[: -SEGMENT or None]:
        second = np.arange(first + SEGMENT, n - SEGMENT)
        middle = sums[:, second] - sums[:, [first]]
        saved = (
            sums[:, [first]] ** 2 / size[first]
            + middle**2 / (second - first)
            + sums[:, second] ** 2 / (n - size[second])
        )
        best = np.maximum(best, saved.max(axis=1) / 2)
    return best
