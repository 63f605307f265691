"""Where series change their level. Behind this one function stands ruptures; its penalty is not guessed but measured.

Runs without a change may be put into any order, so the penalty is the one that 95 % of shuffled histories do not pay:
all series are shuffled together, and the series that would gain most by a change point counts. That bounds the chance
that a history in which nothing happened shows a change at all. It does not hold for runs that resemble their neighbours
in time (docs/compare.md).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

ALPHA = 0.05
SHUFFLES = 299
SEGMENT = 3  # runs, at least, on each side of a change: one odd run is no level
FEWEST_RUNS = 10


def change_points(series: Sequence[Floats], alpha: float = ALPHA) -> list[list[int]]:
    """For each series (NaN: this run has no value) the indices at which a new level begins."""
    from ruptures import KernelCPD

    known = [np.flatnonzero(np.isfinite(values)) for values in series]
    usable = [k for k, where in enumerate(known) if len(where) >= FEWEST_RUNS and np.ptp(series[k][where]) > 0]
    found: list[list[int]] = [[] for _ in series]
    if not usable:
        return found
    scaled = {k: _scaled(series[k]) for k in usable}
    penalty = _penalty(list(scaled.values()), alpha)
    for k in usable:
        model = KernelCPD(kernel="linear", min_size=SEGMENT).fit(scaled[k][known[k]][:, None])
        found[k] = [int(known[k][place]) for place in model.predict(pen=penalty)[:-1]]
    return found


def _scaled(values: Floats) -> Floats:
    """Deviations from the mean in standard deviations, neither of which a shuffle changes."""
    scaled: Floats = (values - np.nanmean(values)) / np.nanstd(values)
    return scaled


def _penalty(series: Sequence[Floats], alpha: float) -> float:
    """What a change point must gain: more than the best one of all series gains in 1 - alpha of the shuffles."""
    rng = np.random.default_rng(len(series))
    orders = np.argsort(rng.random((SHUFFLES, len(series[0]))), axis=1)
    most = np.max([_gains(values[orders]) for values in series], axis=0)
    return float(np.sort(most)[math.ceil((1 - alpha) * (SHUFFLES + 1)) - 1])


def _gains(shuffled: Floats) -> Floats:
    """For each row the most that one change point, or two, save in squared error, for each of them."""
    values = shuffled[np.isfinite(shuffled)].reshape(len(shuffled), -1)
    n = values.shape[1]
    sums = np.cumsum(values, axis=1)  # of deviations: the whole sums to nothing
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
