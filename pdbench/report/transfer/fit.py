"""t = t0 + bytes / bandwidth + descriptors x d, fitted to measured transfers of several shapes; numpy only.

Relative errors are made small, no part may be negative, and the intervals come from drawing shapes, and rounds of each
shape, anew. A straight line is not all there is (caches make small transfers faster): `worst` says how far it misses.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
FEWEST_SHAPES = 4
DRAWS = 400
SPAN = (2.5, 97.5)


@dataclass(frozen=True, slots=True)
class Shape:
    """Rounds of one shape: seconds each, for so many bytes in so many descriptors (after merging)."""

    nbytes: int
    descriptors: int
    seconds: Floats


@dataclass(frozen=True, slots=True)
class Fit:
    """Seconds, seconds a byte and seconds a descriptor; `draws` has one row of these for each draw. `worst` and `rms`
    are relative misses of the shapes' medians."""

    parts: Floats
    draws: Floats
    worst: float
    rms: float
    shapes: int

    def interval(self, part: int) -> tuple[float, float]:
        low, high = np.percentile(self.draws[:, part], SPAN)
        return float(low), float(high)

    def predict(self, nbytes: float, descriptors: float) -> tuple[float, float, float]:
        """Seconds, and the interval that the draws and the line's own misses leave."""
        row = np.array([1.0, nbytes, descriptors])
        low, high = np.percentile(self.draws @ row, SPAN)
        return float(self.parts @ row), float(low) * max(0.0, 1 - self.rms), float(high) * (1 + self.rms)


def fit(shapes: Sequence[Shape], seed: int = 0) -> Fit | None:
    """None when there are too few shapes, or they do not tell the three parts apart."""
    if len({(shape.nbytes, shape.descriptors) for shape in shapes}) < FEWEST_SHAPES:
        return None
    rows = np.array([[1.0, shape.nbytes, shape.descriptors] for shape in shapes])
    if not _tells_apart(rows):
        return None
    medians = np.array([np.median(shape.seconds) for shape in shapes])
    parts = _parts(rows, medians)
    missed = np.abs(rows @ parts / medians - 1)
    rng = np.random.default_rng(seed)
    draws = []
    for _ in range(DRAWS):
        chosen = rng.integers(0, len(shapes), len(shapes))
        if not _tells_apart(rows[chosen]):
            continue
        again = [np.median(rng.choice(shapes[index].seconds, len(shapes[index].seconds))) for index in chosen]
        draws.append(_parts(rows[chosen], np.array(again)))
    if len(draws) < DRAWS // 4:
        return None
    rms = float(np.sqrt(np.mean(missed**2)))
    return Fit(parts, np.array(draws), float(missed.max()), rms, len(shapes))


def _tells_apart(rows: Floats) -> bool:
    """Whether the three columns, each brought to a length of 1, are independent."""
    rank = np.linalg.matrix_rank(rows / np.linalg.norm(rows, axis=0), tol=1e-3)
    return bool(rank == rows.shape[1])


def _parts(rows: Floats, seconds: Floats) -> Floats:
    """Least squares of relative errors with no part below zero: the best of the subsets whose solution is positive."""
    weighted, ones = rows / seconds[:, None], np.ones(len(seconds))
    scale = np.linalg.norm(weighted, axis=0)
    best, least = np.zeros(rows.shape[1]), np.inf
    for count in range(1, rows.shape[1] + 1):
        for columns in itertools.combinations(range(rows.shape[1]), count):
            used = list(columns)
            found, *_ = np.linalg.lstsq(weighted[:, used] / scale[used], ones, rcond=None)
            if (found < 0).any():
                continue
            miss = float(np.sum((weighted[:, used] / scale[used] @ found - 1) ** 2))
            if miss < least:
                least, best = miss, np.zeros(rows.shape[1])
                best[used] = found / scale[used]
    return best
