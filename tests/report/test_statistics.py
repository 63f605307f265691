"""Statistics against brute force, known tables and simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pdbench.report.statistics import (
    binomial_cdf,
    block_medians,
    chi_square_tails,
    gamma_cdf,
    kolmogorov_p,
    ks_distance,
    mann_kendall_z,
    needed_for,
    percentile,
    quantile_interval,
    quantile_ranks,
    theil_sen,
)


def test_percentile_is_numpys_and_censoring_stays_honest() -> None:
    values = np.random.default_rng(1).exponential(size=101)
    for q in (0.0, 0.137, 0.5, 0.9, 0.99, 1.0):
        assert percentile(values, q) == pytest.approx(float(np.quantile(values, q)))
    late = np.array([1.0, 2.0, 3.0, np.inf, np.inf])
    assert percentile(late, 0.5) == 3.0 and percentile(late, 0.6) is None and percentile(late, 0.9) is None
    assert percentile(np.array([]), 0.5) is None


def test_binomial_cdf_by_summing() -> None:
    n, q = 37, 0.9
    for k in (-1, 0, 20, 33, 36, 37):
        exact = sum(math.comb(n, i) * q**i * (1 - q) ** (n - i) for i in range(k + 1)) if k >= 0 else 0.0
        assert binomial_cdf(k, n, q) == pytest.approx(exact, abs=1e-12)


def test_how_many_requests_a_percentile_needs() -> None:
    assert [needed_for(q) for q in (0.5, 0.9, 0.95, 0.99, 0.999)] == [6, 29, 59, 299, 2995]


@pytest.mark.parametrize(("n", "q"), [(10, 0.5), (40, 0.9), (299, 0.99), (400, 0.99), (3000, 0.99), (20000, 0.99)])
def test_ranks_cover_the_quantile_95_times_in_100(n: int, q: float) -> None:
    lower, upper = quantile_ranks(n, q)
    assert lower is not None and upper is not None
    # The quantile lies between X_(l) and X_(u) when at least l and at most u - 1 values lie below it.
    covered = binomial_cdf(upper - 1, n, q) - binomial_cdf(lower - 1, n, q)
    assert 0.95 - (0.001 if n > 5000 else 0) <= covered < 0.995


def test_below_the_needed_number_the_upper_end_is_unbounded() -> None:
    assert quantile_ranks(298, 0.99)[1] is None and quantile_ranks(299, 0.99)[1] == 299
    low, high = quantile_interval(np.arange(100.0), 0.99)
    assert low is not None and high is None
    assert quantile_interval(np.append(np.arange(400.0), [np.inf] * 10), 0.99)[1] is None


def test_interval_coverage_by_simulation() -> None:
    rng = np.random.default_rng(5)
    hit = 0
    for _ in range(400):
        low, high = quantile_interval(rng.exponential(size=350), 0.99)
        hit += (low or 0) <= -math.log(0.01) <= (high or math.inf)
    assert hit >= 400 * 0.93


def test_gaps_of_few_requests_do_not_count_as_many_observations() -> None:
    gaps = np.random.default_rng(2).exponential(size=12_800)
    narrow, wide = quantile_interval(gaps, 0.5), quantile_interval(gaps, 0.5, 100)
    assert narrow[0] > wide[0] and narrow[1] < wide[1]  # type: ignore[operator]
    assert quantile_interval(gaps, 0.99, 100)[1] is None


def test_theil_sen_ignores_outliers_and_handles_many_points() -> None:
    x = np.arange(3000.0)
    y = 3 + 0.04 * x
    y[::7] += 1000
    assert theil_sen(x, y) == pytest.approx(0.04, rel=0.02)
    assert theil_sen(np.array([1.0]), np.array([1.0])) is None


def test_mann_kendall_on_known_series_and_under_the_null() -> None:
    # S = 10 of 10 pairs for n = 5: (10 - 1) / sqrt(5*4*15/18) = 2.2045.
    assert mann_kendall_z(np.arange(5.0)) == pytest.approx(2.2045, abs=1e-4)
    assert mann_kendall_z(np.ones(20)) == 0.0
    rng = np.random.default_rng(3)
    z = [mann_kendall_z(rng.normal(size=20)) for _ in range(2000)]
    assert 0.004 < np.mean(np.array(z) > 2.33) < 0.018


def test_kolmogorov_tail_and_coverage() -> None:
    # Critical value of sqrt(n) D at 5 % is 1.358 for large n; 0.409 is the tabulated one for n = 10.
    assert kolmogorov_p(1.358 / math.sqrt(1e6), 10**6) == pytest.approx(0.05, abs=0.001)
    assert kolmogorov_p(0.409, 10) == pytest.approx(0.05, abs=0.003)
    rng = np.random.default_rng(4)
    small = [kolmogorov_p(ks_distance(rng.random(50), lambda x: np.clip(x, 0, 1)), 50) < 0.05 for _ in range(1000)]
    assert 0.03 < np.mean(small) < 0.07


def test_gamma_and_chi_square_tails() -> None:
    assert gamma_cdf(1.0)([0.0, 0.5, 3.0]) == pytest.approx([0.0, 1 - math.exp(-0.5), 1 - math.exp(-3.0)])
    # Chi-square with 10 degrees: 95 % at 18.307, 5 % at 3.940; with 1 degree it is erf.
    assert chi_square_tails(18.307, 10)[1] == pytest.approx(0.05, abs=1e-5)
    assert chi_square_tails(3.940, 10)[0] == pytest.approx(0.05, abs=1e-4)
    assert chi_square_tails(1.7, 1)[0] == pytest.approx(math.erf(math.sqrt(0.85)), abs=1e-9)


@pytest.mark.parametrize("n", [0, 1, 5, 599, 600, 601, 1199, 1200, 9999])
@pytest.mark.parametrize("blocks", [1, 7, 600])
def test_block_medians_are_those_of_the_parts(n, blocks):
    values = np.random.default_rng(n).random(n)
    parts = np.array_split(values, min(blocks, n)) if n else []
    assert block_medians(values, blocks).tolist() == [np.median(part) for part in parts]
