"""How sure a change is: intervals for a whole family of changes at once, from paired repeats.

A row is a repeat, a column one change (a metric in a cell), a value the difference within a pair. Requests within a run
are autocorrelated, so nothing here ever looks at requests: a repeat counts once. From 8 pairs on, the interval inverts
the exact sign-flip permutation test of the largest studentised change (Westfall and Young's single-step max-T): under
no change base and new of a pair are exchangeable, so every pattern of signs is as likely as the one that was seen. With
5 to 7 pairs there are too few patterns to reach 0.05, and Student's t stands in, with Bonferroni over the family.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Interval = tuple[float, float]

ALPHA = 0.05  # two-sided, of the whole family
PAIRS_FOR_T = 5
PAIRS_FOR_PERMUTATION = 8
ALL_PATTERNS_UP_TO = 12  # pairs: 2,048 patterns of signs; beyond, as many are drawn
SMALLEST = 1e-5  # a thousandth of a percent, added to both ends of an interval: rounding is no change
STEPS = 30  # of the bisection for an end of an interval


def mean_changes(differences: Floats) -> Floats:
    """The mean difference of each column over the pairs that have one (NaN: this pair has none)."""
    means: Floats = np.nanmean(differences, axis=0)
    return means


def intervals(differences: Floats, alpha: float = ALPHA) -> list[Interval]:
    """For each column an interval of its mean difference; all of them hold together with probability 1 - alpha.

    `differences` has a row a pair and at least `PAIRS_FOR_T` values in every column.
    """
    if differences.shape[1] == 0:
        return []
    fewest = int(np.isfinite(differences).sum(axis=0).min())
    if fewest < PAIRS_FOR_T:
        raise ValueError(f"{fewest} pairs decide nothing")
    exact = fewest >= PAIRS_FOR_PERMUTATION and 0.5 ** (fewest - 1) <= alpha
    return by_permutation(differences, alpha) if exact else by_student(differences, alpha)


def by_student(differences: Floats, alpha: float = ALPHA) -> list[Interval]:
    """Paired t with Bonferroni over the columns."""
    found = []
    for column in differences.T:
        values = column[np.isfinite(column)]
        reach = critical_t(len(values), differences.shape[1], alpha) * _standard_error(values) + SMALLEST
        found.append((float(values.mean() - reach), float(values.mean() + reach)))
    return found


def critical_t(pairs: int, family: int, alpha: float = ALPHA) -> float:
    """Student's two-sided critical value at alpha shared by `family` changes."""
    from scipy.special import stdtrit  # a fifth of a second, which a report of one target does not need

    return float(stdtrit(pairs - 1, 1 - alpha / 2 / family))


def by_permutation(differences: Floats, alpha: float = ALPHA) -> list[Interval]:
    """Sign flips of whole repeats, the maximum over the columns, inverted column by column.

    While one column's difference is tried, the others stand at their own means, as if each had just its true change:
    else a large change elsewhere, whose flips all look alike, would make the intervals of the rest too narrow.
    """
    known = np.isfinite(differences)
    flips = sign_patterns(len(differences))
    columns = [_Flipped.of(flips[:, kept], column[kept]) for column, kept in zip(differences.T, known.T, strict=True)]
    statistics = np.stack([column.statistic(column.mean) for column in columns])
    return [_inverted(column, _greatest_but(statistics, place), alpha) for place, column in enumerate(columns)]


def sign_patterns(pairs: int) -> Floats:
    """Every pattern of signs, those as seen first; a pattern and its opposite give one |t|, so one of them is enough.

    Many pairs get as many drawn patterns (and the seen one) instead.
    """
    if pairs <= ALL_PATTERNS_UP_TO:
        return np.array([(1.0, *signs) for signs in itertools.product((1.0, -1.0), repeat=pairs - 1)])
    drawn = np.random.default_rng(pairs).choice([1.0, -1.0], (2 ** (ALL_PATTERNS_UP_TO - 1), pairs))
    drawn[0] = 1.0
    return drawn


@dataclass(frozen=True, slots=True)
class _Flipped:
    """One column under every pattern of signs: the means of its values and of ones, and what the spread needs."""

    values: Floats  # (patterns,)
    ones: Floats  # (patterns,)
    n: int
    mean: float
    square: float  # mean of the squares

    @classmethod
    def of(cls, flips: Floats, values: Floats) -> _Flipped:
        n = len(values)
        return cls(flips @ values / n, flips.sum(axis=1) / n, n, float(values.mean()), float(values @ values / n))

    def statistic(self, at: float) -> Floats:
        """|t| of the values less `at` under every pattern."""
        means = self.values - at * self.ones
        spread = np.maximum(self.square - 2 * at * self.mean + at * at - means**2, 0.0) / (self.n - 1)
        statistic: Floats = np.abs(means) / np.sqrt(spread + SMALLEST**2)
        return statistic

    @property
    def standard_error(self) -> float:
        return math.sqrt(max(self.square - self.mean**2, 0.0) / (self.n - 1) + SMALLEST**2)


def _greatest_but(statistics: Floats, column: int) -> Floats:
    """For every pattern the largest |t| of the other columns."""
    others = np.delete(statistics, column, axis=0)
    greatest: Floats = others.max(axis=0) if len(others) else np.zeros(statistics.shape[1])
    return greatest


def _inverted(column: _Flipped, others: Floats, alpha: float) -> Interval:
    """The mean differences that the test does not reject, as the two ends where its p-value crosses alpha."""

    def rejects(at: float) -> bool:
        seen = column.statistic(at)
        return float(np.mean(np.maximum(seen, others) >= seen[0] * (1 - 1e-12))) <= alpha

    ends = []
    for side in (-1.0, 1.0):
        reach = column.standard_error
        while not rejects(column.mean + side * reach):
            reach *= 2
        low, high = 0.0, reach
        for _ in range(STEPS):
            between = (low + high) / 2
            low, high = (low, between) if rejects(column.mean + side * between) else (between, high)
        ends.append(column.mean + side * (high + SMALLEST))
    return ends[0], ends[1]


def _standard_error(values: Floats) -> float:
    return math.sqrt(float(values.var(ddof=1)) / len(values))


def pairs_needed(reach: float, pairs: int, wanted: float, family: int, limit: int) -> int | None:
    """How many pairs would bring an interval's reach from `reach` (with `pairs`) down to `wanted`; None beyond `limit`.

    The reach falls with the root of the pairs and with Student's critical value.
    """
    for n in range(pairs + 1, limit + 1):
        shrunk = math.sqrt(pairs / n) * critical_t(n, family) / critical_t(pairs, family)
        if reach * shrunk <= wanted:
            return n
    return None
