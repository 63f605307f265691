"""P:D ratio: closed forms, limits and monotony; and the formulas against the event simulation of the same pools."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdbench.littles_law.batch import Tpot
from pdbench.littles_law.costs import PrefillCost
from pdbench.littles_law.day import turning_jobs
from pdbench.littles_law.pools import Pools
from pdbench.littles_law.ratio import (
    Site,
    Slo,
    Tail,
    Workload,
    attainment,
    beyond,
    fluid_ratio,
    highest_qps,
    ratios,
)

SLO = Slo(2000, 30)


def site(**more: object) -> Site:
    given = {"prefill": PrefillCost(1 / 50), "tpot": Tpot(8, 0.05), "slots": 32, **more}
    return Site(**given)  # type: ignore[arg-type]


def test_fluid_ratio_of_two_extremes() -> None:
    # 16k/128: forward 0.3 s, 0.9 s over 8 slots; 1k/1k: 20 ms, 10 s over 64 slots.
    heavy = Site(PrefillCost(0.3 / 16), Tpot(900 / 128), 8)
    assert fluid_ratio(Workload(1, (16_000,), 128), heavy) == pytest.approx(3, rel=0.15)
    light = Site(PrefillCost(0.02), Tpot(10), 64)
    assert fluid_ratio(Workload(1, (1000,), 1000), light) == pytest.approx(1 / 8, rel=0.05)


@given(st.floats(0, 1), st.floats(0.1, 1000), st.floats(0, 1), st.floats(0.1, 1000), st.floats(0, 3000))
def test_sum_of_two_waits(p1: float, s1: float, p2: float, s2: float, t: float) -> None:
    a, b = Tail(p1, s1), Tail(p2, s2)
    tail = beyond(a, b, t)
    alone = max(p1 * math.exp(-t / s1), p2 * math.exp(-t / s2))
    assert alone - 1e-9 <= tail <= 1
    assert tail == pytest.approx(beyond(b, a, t), abs=1e-6)
    assert beyond(a, b, t + 1) <= tail + 1e-9


def test_sum_of_two_waits_by_sampling() -> None:
    rng = random.Random(5)
    a, b = Tail(0.6, 100), Tail(0.4, 250)

    def draw(tail: Tail) -> float:
        return rng.expovariate(1 / tail.scale_ms) if rng.random() < tail.p else 0.0

    sums = [draw(a) + draw(b) for _ in range(60_000)]
    for t in (0, 50, 200, 800):
        assert beyond(a, b, t) == pytest.approx(sum(each > t for each in sums) / len(sums), abs=0.008)


@pytest.mark.parametrize("routing", ["shared", "split"])
def test_one_instance_of_each_is_the_same_either_way(routing: str) -> None:
    found = attainment(Workload(2, (4096,), 128), site(routing=routing), SLO, 1, 1)
    again = attainment(Workload(2, (4096,), 128), site(), SLO, 1, 1)
    assert found == again


@given(st.floats(0.1, 20), st.floats(1.01, 3), st.integers(1, 6), st.integers(1, 6))
@settings(deadline=None, max_examples=60)
def test_more_rate_is_never_better(qps: float, more: float, prefills: int, decodes: int) -> None:
    workload = Workload(qps, (2000.0, 9000.0), 300, 1)
    low = attainment(workload, site(), SLO, prefills, decodes)
    high = attainment(workload.at(qps * more), site(), SLO, prefills, decodes)
    assert high.ttft_share <= low.ttft_share + 1e-9
    if low.tpot_ms is not None and high.tpot_ms is not None:
        assert high.tpot_ms >= low.tpot_ms - 1e-9
    assert low.tpot_ms is not None or high.tpot_ms is None


@given(st.floats(500, 4000), st.floats(1.1, 3))
@settings(deadline=None, max_examples=30)
def test_looser_slos_and_longer_prompts(limit: float, factor: float) -> None:
    workload = Workload(1, (4000.0,), 200, 1)
    tight = highest_qps(workload, site(), Slo(limit, 30), 2, 2)
    assert highest_qps(workload, site(), Slo(limit * factor, 30), 2, 2) >= tight - 1e-9
    longer = Workload(1, (4000.0 * factor,), 200, 1)
    assert highest_qps(longer, site(), Slo(limit, 30), 2, 2) <= tight + 1e-9


def test_limits() -> None:
    # One request alone exceeds the SLO: no rate is low enough.
    assert highest_qps(Workload(1, (200_000.0,), 10), site(), SLO, 4, 4) == 0
    # A trickle waits for nothing.
    idle = attainment(Workload(1e-9, (1000.0,), 100), site(), SLO, 1, 1)
    assert idle.ttft_ms == pytest.approx(site().least_ttft_ms(1000), rel=1e-3)
    assert idle.state(SLO) == "both"
    flooded = attainment(Workload(1e6, (1000.0,), 100), site(), SLO, 1, 1)
    assert flooded.overload
    assert flooded.state(SLO) == "overload"
    slow = attainment(Workload(1, (1000.0,), 100), site(), Slo(2000, 1), 1, 1)
    assert slow.state(Slo(2000, 1)) == "tpot"


def test_best_ratio_follows_the_shape_of_the_load() -> None:
    def best(workload: Workload) -> int:
        return max(ratios(workload, site(), SLO, 8), key=lambda each: each.highest_qps).prefills

    assert best(Workload(1, (16_000.0,), 128)) > 4 > best(Workload(1, (500.0,), 1000))


@pytest.mark.parametrize(("qps", "prefills"), [(6, 4), (8, 4), (10, 4), (8, 3)])
def test_formulas_against_the_simulated_pools(qps: float, prefills: int) -> None:
    """Poisson arrivals, one queue a role, exponential-like outputs: what the formulas assume."""
    workload, of = Workload(qps, (8000.0, 16_000.0), 500, 1), site(routing="shared")
    slo = Slo(700, 30)
    said = attainment(workload, of, slo, prefills, 8 - prefills)
    met, waits, seen = 0.0, 0.0, 0
    for seed in range(4):
        pools = Pools(of, slo, 0.0)
        pools.run(turning_jobs([workload], 900, of, seed), prefills, 8 - prefills)
        late = [done for done in pools.served if done.arrived_s > 100]
        met += sum(done.ttft_s * 1000 <= slo.ttft_ms for done in late)
        waits += sum(done.prefill_wait_s for done in late) * 1000
        seen += len(late)
    assert said.ttft_share == pytest.approx(met / seen, abs=0.03)
    assert said.prefill_wait_ms == pytest.approx(waits / seen, rel=0.25, abs=3)


@pytest.mark.parametrize("routing", ["shared", "split"])
@pytest.mark.parametrize(
    ("qps", "prefills", "slope", "limit_ms"), [(11, 4, 0, 50), (11, 4, 1, 20), (11, 6, 1, 36), (12, 5, 1, 28)]
)
def test_one_answer_by_formula_and_by_simulation(
    routing: str, qps: float, prefills: int, slope: float, limit_ms: float
) -> None:
    """The share within both SLOs, also where TPOT's limit cuts through the batches that streams join."""
    of, slo = Site(PrefillCost(1 / 50), Tpot(10, slope), 64, routing=routing), Slo(2000, limit_ms)
    workload = Workload(qps, (16_000.0,), 128)
    said = attainment(workload, of, slo, prefills, 8 - prefills)
    met = []
    for seed in range(2):
        pools = Pools(of, slo, 0.0)
        pools.run(turning_jobs([workload], 700, of, seed), prefills, 8 - prefills)
        met += [done.meets(slo) for done in pools.served if done.arrived_s > 100]
    assert said.share == pytest.approx(sum(met) / len(met), abs=0.07 if slope else 0.04)
