"""Closed forms against exact values, against each other, and in their limits."""

from __future__ import annotations

import math
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdbench.littles_law.batch import Tpot, batch_waits, closed_loop, running_without_limit
from pdbench.littles_law.fixed_length import fixed_length_waits
from pdbench.littles_law.incomplete_gamma import lower, upper
from pdbench.littles_law.queueing import bursty_waits, cosmetatos_mean, exponential_waits, poisson_waits
from pdbench.littles_law.slots import erlang_b, erlang_c

# c, rho, P(wait), mean wait in S: Erlang C to the digits of the tables.
ERLANG = [
    (4, 0.5, 0.17391, 0.086957),
    (4, 0.9, 0.78775, 1.969383),
    (8, 0.7, 0.27060, 0.112751),
    (8, 0.95, 0.84417, 2.110422),
    (64, 0.7, 0.00441, 0.000230),
    (64, 0.95, 0.58801, 0.183753),
    (256, 0.8, 0.00033, 0.000007),
    (256, 0.95, 0.31293, 0.024447),
]
rhos = st.floats(0.01, 0.99)
counts = st.integers(1, 300)


@pytest.mark.parametrize(("slots", "rho", "p_wait", "mean"), ERLANG)
def test_erlang_c(slots: int, rho: float, p_wait: float, mean: float) -> None:
    found = exponential_waits(slots * rho, slots)
    assert found.p_wait == pytest.approx(p_wait, abs=6e-6)
    assert found.mean_s == pytest.approx(mean, abs=6e-7)


@pytest.mark.parametrize(("slots", "load"), [(2001, 1900.0), (5000, 4900.0), (100_000, 99_900.0), (100_000, 2e5)])
def test_large_pools_agree_with_the_recursion(slots: int, load: float) -> None:
    blocked = 1.0
    for k in range(1, slots + 1):
        blocked = load * blocked / (k + load * blocked)
    assert erlang_b(load, slots) == pytest.approx(blocked, rel=1e-9)


def test_erlang_c_is_fast_where_it_is_large() -> None:
    start = time.process_time()
    for load in range(99_000, 99_100):
        erlang_c(load, 100_000)
    assert time.process_time() - start < 0.5


def test_parts_of_a_slot_lie_between_whole_ones() -> None:
    values = [erlang_b(7.3, slots / 4) for slots in range(0, 60)]
    assert values == sorted(values, reverse=True)
    assert erlang_b(7.3, 8.0) == pytest.approx(erlang_b(7.3, 8 + 1e-9), rel=1e-6)


@pytest.mark.parametrize(
    ("a", "x", "p"),
    # Exact: 1 - exp(-x) sum x^k / k! for whole a; erf(sqrt(x)) for a = 1/2.
    [(1, 0.5, 1 - math.exp(-0.5)), (2, 3.0, 1 - math.exp(-3) * 4), (0.5, 2.0, math.erf(math.sqrt(2.0)))],
)
def test_incomplete_gamma(a: float, x: float, p: float) -> None:
    assert lower(a, x) == pytest.approx(p, rel=1e-9)
    assert upper(a, x) == pytest.approx(1 - p, rel=1e-9)


@pytest.mark.parametrize("ratio", [0.6, 0.9, 0.999, 1.0, 1.001, 1.2])
def test_both_forms_of_the_incomplete_gamma_meet(ratio: float) -> None:
    for function in (lower, upper):
        below, above = function(400.0, 400 * ratio), function(400.0001, 400.0001 * ratio)
        assert below == pytest.approx(above, rel=2e-4)


@pytest.mark.parametrize("rho", [0.1, 0.5, 0.9, 0.99, 0.999999])
def test_one_slot_of_equal_lengths_is_pollaczek_khinchine(rho: float) -> None:
    found = fixed_length_waits(rho, 1)
    assert found.p_wait == pytest.approx(rho, rel=1e-4)
    assert found.mean_s == pytest.approx(rho / (2 * (1 - rho)), rel=1e-4)


@pytest.mark.parametrize(("slots", "burstiness"), [(4, 0.5), (2, 0.25), (16, 2.0)])
def test_bursts_of_equal_lengths_depend_on_slots_times_burstiness(slots: int, burstiness: float) -> None:
    """Every c-th gap of shape b is a gap of shape c b: the same queue as one slot with smoother arrivals."""
    here, one = fixed_length_waits(0.8 * slots, slots, burstiness), fixed_length_waits(0.8, 1, slots * burstiness)
    assert here.p_wait == pytest.approx(one.p_wait) and here.p99_s == pytest.approx(one.p99_s)


@pytest.mark.parametrize("slots", [4, 8, 64])
def test_cosmetatos_is_near_the_exact_mean(slots: int) -> None:
    for rho in (0.7, 0.8, 0.9, 0.95):
        exact = fixed_length_waits(slots * rho, slots).mean_s
        assert cosmetatos_mean(slots * rho, slots) == pytest.approx(exact, rel=0.06)


@pytest.mark.parametrize(
    ("slots", "out_tokens", "alone", "slope", "use", "occupied", "p_wait", "mean_ms", "p99_ms"),
    [
        (8, 128, 7, 0.05, 0.80, 6.35, 0.451, 267, 2254),
        (8, 128, 7, 0.05, 0.90, 7.17, 0.697, 825, 5025),
        (64, 200, 10, 0.1, 0.90, 54.6, 0.225, 115, 1595),
        (64, 200, 10, 0.1, 0.95, 59.2, 0.512, 524, 4033),
        (256, 500, 12, 0.05, 0.95, 231.7, 0.179, 173, 2794),
    ],
)
def test_batch_chain(
    slots: int, out_tokens: float, alone: float, slope: float, use: float,
    occupied: float, p_wait: float, mean_ms: float, p99_ms: float,
) -> None:  # fmt: skip
    tpot = Tpot(alone, slope)
    qps = use * slots / tpot.held_s(out_tokens, slots)
    found = batch_waits(qps, out_tokens, tpot, slots)
    assert found is not None
    assert found.running == pytest.approx(occupied, rel=0.002)
    assert found.waits.p_wait == pytest.approx(p_wait, abs=0.001)
    assert found.waits.mean_s * 1000 == pytest.approx(mean_ms, rel=0.005)
    assert found.waits.p99_s * 1000 == pytest.approx(p99_ms, rel=0.001)
    assert (running_without_limit(qps, out_tokens, tpot) or 0) == pytest.approx(occupied, rel=0.01)


@given(rho=rhos, slots=counts)
def test_without_a_slope_the_batch_chain_is_erlang(rho: float, slots: int) -> None:
    found = batch_waits(slots * rho, 1000, Tpot(1.0), slots)
    assert found is not None
    assert found.waits.p_wait == pytest.approx(erlang_c(slots * rho, slots), rel=1e-9, abs=1e-25)


@pytest.mark.parametrize("elsewhere_s", [0.2, 1.0, 5.0])
def test_closed_loop(elsewhere_s: float) -> None:
    """With a slot for each stream nobody waits; two streams and one slot are a chain of three states, by hand."""
    tpot, tokens, held_s = Tpot(10.0), 50, 0.5
    free = closed_loop(6, elsewhere_s, tokens, tpot, 6)
    assert free.wait_s == pytest.approx(0.0, abs=1e-9) and free.rate == pytest.approx(6 / (elsewhere_s + held_s))
    ratio = held_s / elsewhere_s
    chances = [1 / (1 + 2 * ratio + 2 * ratio**2) * weight for weight in (1, 2 * ratio, 2 * ratio**2)]
    one = closed_loop(2, elsewhere_s, tokens, tpot, 1)
    assert one.rate == pytest.approx((1 - chances[0]) / held_s) and one.held == pytest.approx(1 - chances[0])
    assert one.wait_s == pytest.approx(chances[2] / one.rate)


@given(rho=rhos, slots=counts, cs=st.floats(0, 3), factor=st.floats(1.001, 1.5))
@settings(max_examples=150)
def test_waits_rise_with_load_and_cv_and_fall_with_slots(rho: float, slots: int, cs: float, factor: float) -> None:
    load = rho * slots
    here = poisson_waits(load, slots, cs)
    assert all(math.isfinite(x) and x >= 0 for x in (here.p_wait, here.mean_s, here.p50_s, here.p90_s, here.p99_s))
    slack = 1e-9 + 1e-5 * here.mean_s
    assert poisson_waits(load, slots + 1, cs).mean_s <= here.mean_s + slack
    assert poisson_waits(load, slots, cs * factor).mean_s >= here.mean_s - slack
    if load * factor < slots:
        more = poisson_waits(load * factor, slots, cs)
        assert more.mean_s >= here.mean_s - slack and more.p_wait >= here.p_wait - 1e-6


@given(rho=rhos, slots=counts, burstiness=st.floats(0.05, 5), factor=st.floats(0.3, 0.95))
@settings(max_examples=150)
def test_waits_rise_with_bursts(rho: float, slots: int, burstiness: float, factor: float) -> None:
    load = rho * slots
    fixed = fixed_length_waits(load, slots, burstiness)
    burstier = fixed_length_waits(load, slots, burstiness * factor)
    assert burstier.mean_s >= fixed.mean_s * (1 - 1e-4) - 1e-12
    assert burstier.p_wait >= fixed.p_wait - 1e-4
    ca = burstiness**-0.5
    by_hayward = [bursty_waits(load, slots, one, 1.0, 0.5).mean_s for one in (ca, ca * factor**-0.5)]
    assert by_hayward[1] >= by_hayward[0] - 1e-9


def test_limits() -> None:
    assert exponential_waits(0, 8).p99_s == 0
    assert erlang_c(8, 8) == 1 and erlang_c(1e300, 8) == 1
    assert fixed_length_waits(1e-12, 1).p_wait == pytest.approx(1e-12)
    assert fixed_length_waits(5, 8, math.inf).p_wait == 0
    assert fixed_length_waits(1 - 1e-12, 1).mean_s == pytest.approx(0.5e12, rel=1e-3)
    assert fixed_length_waits(50_000, 100_000).mean_s == 0
    assert batch_waits(0, 100, Tpot(10, 0.1), 8) is not None
    assert batch_waits(1e9, 100, Tpot(10, 0.1), 8) is None
