"""Intervals of a family: against the definition counted out, against textbook values, and in thousands of families."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdbench.report.compare.evidence import (
    SMALLEST,
    by_permutation,
    by_student,
    critical_t,
    intervals,
    pairs_needed,
    sign_patterns,
)


def p_value(values: np.ndarray, at: float) -> float:
    """Two-sided sign-flip test of a single mean, by counting all patterns: no code in common."""
    shifted = [value - at for value in values]
    seen = abs(sum(shifted))
    sums = [
        abs(sum(s * v for s, v in zip(signs, shifted, strict=True)))
        for signs in itertools.product((1, -1), repeat=len(values))
    ]
    return sum(each >= seen - 1e-12 for each in sums) / len(sums)


@pytest.mark.parametrize("seed", range(4))
def test_a_single_interval_ends_where_the_counted_p_value_crosses_alpha(seed: int) -> None:
    values = np.random.default_rng(seed).normal(0.02, 0.05, 9)
    ((low, high),) = by_permutation(values[:, None], alpha=0.05)
    inside, outside = 1e-6, -1e-6
    low, high = low + SMALLEST, high - SMALLEST  # what is added for rounding
    assert p_value(values, low + inside) > 0.05 >= p_value(values, low + outside)
    assert p_value(values, high - inside) > 0.05 >= p_value(values, high - outside)


def test_eight_pairs_can_decide_and_five_patterns_cannot() -> None:
    """Why permutation starts at eight: with five pairs the smallest p-value is 2 of 32."""
    assert 2 * 0.5**5 > 0.05 > 2 * 0.5**8
    ((low, _),) = intervals(np.linspace(0.09, 0.11, 8)[:, None])
    assert low > 0.05
    assert len(sign_patterns(8)) == 2**7
    assert len({tuple(pattern) for pattern in sign_patterns(8)}) == 2**7
    assert (sign_patterns(20)[0] == 1).all()


def test_student_with_bonferroni_is_the_textbook_interval() -> None:
    values = np.array([1.0, 2.0, 3.0, 4.0, 5.0])
    ((low, high),) = by_student(values[:, None])
    assert (low, high) == pytest.approx((3 - 2.776 * math.sqrt(0.5), 3 + 2.776 * math.sqrt(0.5)), abs=1e-3)
    assert critical_t(5, 10) == pytest.approx(5.598, abs=1e-3)  # t of 4 degrees at 0.0025


def test_too_few_pairs_are_no_family() -> None:
    with pytest.raises(ValueError, match="4 pairs"):
        intervals(np.zeros((4, 2)))


@pytest.mark.parametrize(
    ("pairs", "columns", "shared", "tail"), [(5, 16, 0.5, 1.0), (7, 4, 0.0, 2.0), (8, 4, 0.8, 2.0), (8, 12, 0.0, 1.0)]
)
def test_the_whole_family_errs_in_at_most_five_percent(pairs: int, columns: int, shared: float, tail: float) -> None:
    """Equal sides: no interval excludes zero. Unequal ones: every interval holds its own change. Heavy tails too."""
    rng = np.random.default_rng([pairs, columns, int(10 * shared), int(tail)])
    families, false, missed = 120, 0, 0
    changes = rng.choice([0.0, 0.1, 0.5], columns)
    for _ in range(families):
        noise = math.sqrt(1 - shared) * rng.standard_normal((pairs, columns)) + math.sqrt(shared) * rng.standard_normal(
            (pairs, 1)
        )
        differences = 0.02 * np.sign(noise) * np.abs(noise) ** tail
        false += any(low > 0 or high < 0 for low, high in intervals(differences))
        found = intervals(differences + changes)
        missed += not all(low <= change <= high for (low, high), change in zip(found, changes, strict=True))
    # Three standard errors above 5 %.
    assert max(false, missed) <= families * 0.05 + 3 * math.sqrt(families * 0.05 * 0.95)


@given(st.lists(st.floats(-0.5, 0.5), min_size=8, max_size=11), st.floats(-0.3, 0.3))
def test_an_interval_moves_with_its_values_and_holds_their_mean(values: list[float], shift: float) -> None:
    column = np.array(values)[:, None]
    ((low, high),) = intervals(column)
    assert low <= column.mean() <= high
    ((low2, high2),) = intervals(column + shift)
    # Bisection and the floor under the spread leave a thousandth of a percent.
    assert (low2 - shift, high2 - shift) == pytest.approx((low, high), abs=2e-5)


def test_columns_of_different_pairs_share_a_family() -> None:
    """A void repeat leaves a hole in its cell's columns; the others lose nothing."""
    rng = np.random.default_rng(3)
    differences = rng.normal(0.1, 0.01, (10, 3))
    differences[4:6, 1] = math.nan
    found = intervals(differences)
    assert all(low > 0.05 for low, _ in found)
    assert found[1][1] - found[1][0] > 0


def test_equal_values_are_no_news() -> None:
    assert intervals(np.zeros((8, 2))) == [pytest.approx((0, 0), abs=1e-4)] * 2


def test_a_rounding_difference_is_no_evidence() -> None:
    ((low, high),) = intervals(np.full((8, 1), 1e-9))
    assert low < 0 < high


def test_more_pairs_shrink_the_reach_as_planned() -> None:
    needed = pairs_needed(0.08, 8, 0.04, family=4, limit=100)
    assert needed is not None and 20 <= needed <= 26  # four times the pairs, less what Student's t gives back
    assert pairs_needed(0.5, 8, 0.001, family=4, limit=100) is None
