"""The search against exact queues: the truth is the steady state of M/D/c (tests/littles_law/truth)."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from pdbench.report.capacity.fit import Batches, crossing, rising
from pdbench.report.capacity.search import RELAXATIONS, needed_requests
from tests.capacity.queue import probe, search

TRUTH = Path(__file__).parents[1] / "littles_law" / "truth" / "truth_mgc.csv"


def true_p99(slots: int, use: float) -> float:
    """p99 wait at this use, in service times: as an SLO its capacity is exactly use x slots."""
    with TRUTH.open() as file:
        for row in csv.DictReader(file):
            if (int(row["c"]), float(row["rho"]), row["service_law"]) == (slots, use, "deterministic"):
                return float(row["p99"])
    raise LookupError(f"no {slots} slots at {use}")


@pytest.mark.parametrize(("slots", "use"), [(8, 0.8), (4, 0.7), (256, 0.95)])
def test_the_capacity_of_an_exact_queue(slots: int, use: float) -> None:
    errors, covered = [], 0
    for seed in range(6):
        answer, why, probes = search(slots, true_p99(slots, use), seed)
        assert why == "settled", (seed, answer)
        assert answer.rate is not None and answer.low is not None and answer.high is not None
        errors.append(answer.rate / (use * slots) - 1)
        covered += answer.low <= use * slots <= answer.high
        assert any(p.holds and p.rate <= answer.rate for p in probes)
        assert answer.fails is not None and answer.holds is not None and answer.fails <= 1.13 * answer.holds
    assert float(np.median(np.abs(errors))) <= 0.05
    assert max(np.abs(errors)) <= 0.12
    assert covered >= 4  # of 6; benchmarks/capacity_errors.py has the shares


def test_a_short_run_decides_nothing_and_a_deciding_one_is_as_long_as_the_theory_asks() -> None:
    rng = np.random.default_rng(0)
    probes = [probe(0, 1.0, 40, 8, 1.0, rng), probe(1, 10.0, 400, 8, 1.0, rng)]
    use = 6.16 / (probes[1].achieved or 0)
    assert needed_requests(6.16, probes) == pytest.approx(RELAXATIONS * use / (1 - use) ** 2, rel=0.01)


def test_with_many_slots_a_probe_lasts_long_enough_for_a_queue() -> None:
    """8,000 requests are 33 stays at 256 slots: too few to see one build up."""
    rng = np.random.default_rng(0)
    few, many = ([probe(0, 1.0, 40, slots, 1.0, rng)] for slots in (8, 256))
    assert needed_requests(7.6, few) == 8000
    assert needed_requests(243, many) == pytest.approx(160 * 243, rel=0.01)


def test_a_probe_in_which_most_requests_miss_the_limit_bends_no_line() -> None:
    def made(rate: float, ratio: float) -> Batches:
        return Batches(rate, np.full(10, ratio * 100.0), np.full(10, 100.0), 100.0)

    steep = [made(rate, (rate / 5) ** 60) for rate in (4.9, 5.05)]
    found, bent = crossing([*steep, made(5.8, 100.0)]), crossing([*steep, made(5.8, 40.0)])
    assert found is not None and found.rate == pytest.approx(5.0, rel=1e-6)
    assert bent is not None and abs(bent.rate - 5.0) > 0.01


def test_a_budget_ends_the_search_with_what_is_known() -> None:
    answer, why, probes = search(8, true_p99(8, 0.8), 1, budget_s=400)
    assert why == "budget"
    assert sum(p.spent_s for p in probes) < 500
    assert answer.holds is not None and answer.fails is not None and answer.holds < answer.fails


def test_an_slo_that_fails_when_requests_are_alone_ends_at_the_lowest_rate() -> None:
    answer, why, probes = search(8, -1.0, 0)  # every wait is above
    assert why == "lowest" and answer.holds is None
    assert min(p.rate * (p.request_s or 0) for p in probes) <= 0.05


def test_an_slo_that_never_fails_ends_where_the_queue_no_longer_keeps_up() -> None:
    for seed in range(4):
        answer, why, _ = search(8, 1e9, seed)
        assert answer.holds is not None and answer.fails is not None
        assert answer.holds < 8.2 and 7.8 < answer.fails <= 1.13 * answer.holds
        assert answer.low is not None and answer.high is not None and answer.low <= 8.0 <= answer.high
        assert why == "settled"


def test_crossing_is_exact_where_the_model_is() -> None:
    def made(rate: float) -> Batches:
        return Batches(rate, np.full(10, (rate / 5) ** 12 * 100.0), np.full(10, 100.0))

    found = crossing([made(4.7), made(5.2), made(5.4)])
    assert found is not None and found.rate == pytest.approx(5.0, rel=1e-6)
    assert crossing([made(4.7)]) is None


def test_rising_pools_what_falls() -> None:
    assert rising(np.array([1.0, 3.0, 2.0, 5.0]), np.array([1.0, 1.0, 3.0, 1.0])).tolist() == [1.0, 2.25, 2.25, 5.0]
