"""Arrivals: exact tables, then what the names promise. Peers fail here: correlated workers, a random "constant",
relative sleeps, offsets rescaled so that the last one falls on n/rate."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdbench.errors import UsageError
from pdbench.sweep.arrivals import ARRIVALS, schedule
from pdbench.sweep.plan import Plan, grid


def rng(seed: int = 7) -> np.random.Generator:
    return np.random.default_rng(seed)


def gaps(offsets: np.ndarray) -> np.ndarray:
    return np.diff(offsets, prepend=0.0)


@pytest.mark.parametrize(
    ("rate", "num_prompts", "duration_s", "expected"),
    [
        (2.0, 4, None, [0.5, 1.0, 1.5, 2.0]),  # the first gap counts
        (2.0, None, 2.0, [0.5, 1.0, 1.5]),  # the end itself is outside
        (2.0, 2, 60.0, [0.5, 1.0]),  # the first limit reached ends it
        (2.0, 100, 1.2, [0.5, 1.0]),
        (0.5, None, 1.9, []),  # nothing falls into so short a time
        (1.0, 0, 10.0, []),
    ],
)
def test_constant_arrivals_are_a_table(rate, num_prompts, duration_s, expected):
    assert schedule("constant", rate, 1.0, num_prompts, duration_s, rng()).tolist() == expected


def test_constant_does_not_drift():
    assert schedule("constant", 3.0, 1.0, None, 3600.0, rng())[-1] == pytest.approx(10799 / 3, abs=1e-9)


@pytest.mark.parametrize("shape", [0.25, 1.0, 4.0])
def test_gamma_gaps_have_the_mean_and_the_cv_of_their_shape(shape):
    drawn = gaps(ARRIVALS["gamma"](8.0, shape, 200_000, rng()))
    assert drawn.mean() == pytest.approx(1 / 8, rel=0.02)
    assert drawn.std() / drawn.mean() == pytest.approx(1 / math.sqrt(shape), rel=0.02)


def test_gamma_of_infinite_shape_is_constant():
    assert np.array_equal(ARRIVALS["gamma"](5.0, math.inf, 10, rng()), ARRIVALS["constant"](5.0, 1.0, 10, rng()))


def test_poisson_gaps_are_exponential_and_counts_have_dispersion_one():
    offsets = ARRIVALS["poisson"](20.0, 1.0, 200_000, rng())
    drawn = np.sort(gaps(offsets))
    assert drawn.std() / drawn.mean() == pytest.approx(1.0, rel=0.02)
    # Kolmogorov-Smirnov against 1 - exp(-rate x); 1.63/sqrt(n) is the 1 % point.
    distance = np.abs(np.arange(1, len(drawn) + 1) / len(drawn) - (1 - np.exp(-20.0 * drawn))).max()
    assert distance < 1.63 / math.sqrt(len(drawn))
    counts = np.bincount(offsets.astype(int))[:-1]
    assert counts.var() / counts.mean() == pytest.approx(1.0, abs=0.05)
    assert len(np.unique(drawn)) == len(drawn)  # no gap is drawn twice


def test_nothing_is_rescaled_to_hit_the_mean():
    """The n-th arrival of a Poisson process has a spread of sqrt(n)/rate; rescaled ones have none."""
    lasts = np.array([schedule("poisson", 4.0, 1.0, 400, None, rng(seed))[-1] for seed in range(400)])
    assert lasts.mean() == pytest.approx(100.0, rel=0.02)
    assert lasts.std() == pytest.approx(math.sqrt(400) / 4, rel=0.15)
    counts = np.array([len(schedule("poisson", 4.0, 1.0, None, 100.0, rng(seed))) for seed in range(400)])
    assert counts.mean() == pytest.approx(400, rel=0.02)
    assert counts.std() == pytest.approx(20, rel=0.15)


@given(
    st.sampled_from(sorted(ARRIVALS)),
    st.floats(0.1, 500),
    st.floats(0.05, 50),
    st.integers(0, 3000),
    st.floats(0.01, 60),
    st.integers(0, 2**32),
)
@settings(max_examples=60, deadline=None)
def test_schedules_are_sorted_end_at_the_first_limit_and_are_prefixes(kind, rate, shape, n, duration_s, seed):
    by_count = schedule(kind, rate, shape, n, None, rng(seed))
    both = schedule(kind, rate, shape, n, duration_s, rng(seed))
    assert len(by_count) == n and len(both) <= n
    assert (np.diff(by_count) >= 0).all() and (both < duration_s).all() and (both >= 0).all()
    assert np.array_equal(both, by_count[: len(both)])
    assert len(both) == n or by_count[len(both)] >= duration_s  # nothing before the end is left out


def test_cells_and_repeats_have_different_arrivals_and_targets_the_same():
    plan = Plan(grid(["a", "b"], [4.0, 8.0], [], [1024], [16]), repeats=2)
    seeds = {(cell.target, cell.request_rate, repeat): plan.cell_seed(cell, repeat) for cell, repeat in plan.turns()}
    assert seeds["a", 4.0, 0] == seeds["b", 4.0, 0]
    assert len(set(seeds.values())) == 4


@pytest.mark.parametrize(
    ("kind", "rate", "shape", "num_prompts"),
    [
        ("uniform", 1, 1, 1),
        ("poisson", 0, 1, 1),
        ("poisson", math.inf, 1, 1),
        ("gamma", 1, 0, 1),
        ("poisson", 1, 1, None),
    ],
)
def test_senseless_schedules_are_refused(kind, rate, shape, num_prompts):
    with pytest.raises(UsageError):
        schedule(kind, rate, shape, num_prompts, None, rng())
