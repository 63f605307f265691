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
    if not _tell_apart(rows[None])[0]:
        return None
    medians = np.array([np.median(shape.seconds) for shape in shapes])
    parts = _parts(rows[None], medians[None])[0]
    missed = np.abs(rows @ parts / medians - 1)
    rng = np.random.default_rng(seed)
    chosen = rng.integers(0, len(shapes), (DRAWS, len(shapes)))
    chosen = chosen[_tell_apart(rows[chosen])]
    if len(chosen) < DRAWS // 4:
        return None
    drawn = np.array([_drawn_medians(shape.seconds, len(chosen), rng) for shape in shapes]).T
    draws = _parts(rows[chosen], np.take_along_axis(drawn, chosen, axis=1))
    return Fit(parts, draws, float(missed.max()), float(np.sqrt(np.mean(missed**2))), len(shapes))


def _drawn_medians(seconds: Floats, draws: int, rng: np.random.Generator) -> Floats:
    """The median of the rounds, drawn anew so often."""
    medians: Floats = np.median(seconds[rng.integers(0, len(seconds), (draws, len(seconds)))], axis=1)
    return medians


def _tell_apart(rows: Floats) -> npt.NDArray[np.bool_]:
    """For each stack of rows whether its three columns, each brought to a length of 1, are independent."""
    rank = np.linalg.matrix_rank(rows / np.linalg.norm(rows, axis=-2, keepdims=True), tol=1e-3)
    told: npt.NDArray[np.bool_] = rank == rows.shape[-1]
    return told


def _parts(rows: Floats, seconds: Floats) -> Floats:
    """For each stack of rows the least squares of relative errors with no part below zero: of all subsets of the parts
    whose solution is positive the one that misses least."""
    weighted = rows / seconds[..., None]
    weighted /= (scale := np.linalg.norm(weighted, axis=-2))[:, None, :]
    best, least = np.zeros(scale.shape), np.full(len(rows), np.inf)
    for count in range(1, rows.shape[-1] + 1):
        for columns in itertools.combinations(range(rows.shape[-1]), count):
            used = weighted[..., columns]
            square = np.swapaxes(used, 1, 2) @ used + 1e-12 * np.eye(count)
            found = np.linalg.solve(square, used.sum(axis=1)[..., None])[..., 0]
            miss = (((used @ found[..., None])[..., 0] - 1) ** 2).sum(axis=1)
            better = (found >= 0).all(axis=1) & (miss < least)
            least[better] = miss[better]
            best[better] = 0.0
            best[np.ix_(better, columns)] = found[better]
    parts: Floats = best / scale
    return parts
