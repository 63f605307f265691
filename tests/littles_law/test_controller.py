"""The controller follows a load that turns, does not oscillate, and lies between the best fixed ratio and an oracle."""

from __future__ import annotations

import itertools

import pytest

from pdbench.littles_law.batch import Tpot
from pdbench.littles_law.controller import Contest, Controller, contest, drain_time_s, fixed_runs, oracle_schedule
from pdbench.littles_law.costs import PrefillCost
from pdbench.littles_law.day import turning_jobs
from pdbench.littles_law.pools import Job, Pools, Seen
from pdbench.littles_law.ratio import Site, Slo, Workload

SITE = Site(PrefillCost(1 / 50), Tpot(8, 0.05), 32, 0.0007, 1.0, "shared")
SLO = Slo(2000, 20)
PREFILL_HEAVY = Workload(11, (16_000.0,), 128, 1)
DECODE_HEAVY = Workload(16, (1000.0,), 1000, 1)
INSTANCES, EVERY_S = 8, 15.0


def turned(phases: list[Workload], seed: int = 0, phase_s: float = 240) -> Contest:
    jobs = turning_jobs(phases, phase_s, SITE, seed)
    return contest(jobs, SITE, SLO, fixed_runs(jobs, SITE, SLO, INSTANCES), EVERY_S)


@pytest.fixture(scope="module", params=[0, 1])
def contested(request: pytest.FixtureRequest) -> Contest:
    return turned([PREFILL_HEAVY, DECODE_HEAVY], request.param)


def test_between_the_best_fixed_ratio_and_an_oracle(contested: Contest) -> None:
    assert contested.best_fixed.share < contested.controller.share <= contested.oracle.share
    assert contested.controller.share > contested.best_fixed.share + 0.2
    assert all(each.share <= contested.best_fixed.share for each in contested.fixed)


def test_follows_the_turn(contested: Contest) -> None:
    before = [count for when_s, count in contested.controller.prefills if when_s < 240]
    assert contested.controller.prefills[-1][1] < before[-1], "decode-heavy: fewer prefill instances"


def test_back_and_forth() -> None:
    found = turned([DECODE_HEAVY, PREFILL_HEAVY, DECODE_HEAVY], 7, 180)
    counts = {int(when_s // 180): count for when_s, count in found.controller.prefills}
    assert counts[1] > counts[0] or counts[1] > INSTANCES // 2
    assert found.controller.prefills[-1][1] < counts[1]
    assert found.best_fixed.share <= found.controller.share <= found.oracle.share


def test_never_faster_than_its_drain_time(contested: Contest) -> None:
    gaps = [b - a for a, b in itertools.pairwise(contested.controller.moves)]
    assert all(gap >= contested.drain_s for gap in gaps)


def test_a_steady_load_that_fits_moves_nothing() -> None:
    quiet = turned([Workload(5, (8000.0,), 128, 1)])
    assert quiet.controller.moves == ()
    assert quiet.controller.share == pytest.approx(1, abs=0.01)


def seen(now_s: float, prefill: float, decode: float, prefill_load: float = 0.5, decode_load: float = 0.5) -> Seen:
    return Seen(now_s, 4, 4, prefill, decode, prefill_load, decode_load, False)


def test_decisions() -> None:
    def fresh() -> Controller:
        return Controller(SLO, 60)

    assert fresh().decide(seen(15, 0.3, 0.0)) == 1
    assert fresh().decide(seen(15, 0.0, 0.3)) == -1
    assert fresh().decide(seen(15, 0.09, 0.0)) == 0, "within the share that may exceed the SLO"
    assert fresh().decide(seen(15, 0.5, 0.0, decode_load=0.7)) == 0, "the giving pool would be too busy: 0.7 x 4/3"
    assert fresh().decide(Seen(15, 7, 1, 0.5, 0.0, 0.9, 0.1, False)) == 0, "a pool keeps its last instance"
    assert fresh().decide(Seen(15, 4, 4, 0.5, 0.0, 0.9, 0.1, True)) == 0, "not while an instance drains"


def test_hysteresis() -> None:
    controller = Controller(SLO, 60)
    assert controller.decide(seen(15, 0.3, 0.0)) == 1
    assert controller.decide(seen(30, 0.3, 0.0)) == 0, "sooner than a drain"
    # Back again only with a wider margin: 0.63 x 4/3 is 0.84, below 0.9 but not below 0.8.
    assert controller.decide(seen(90, 0.0, 0.3, prefill_load=0.63)) == 0
    assert controller.decide(seen(105, 0.0, 0.3, prefill_load=0.5)) == -1


def test_drained_instances_finish_their_streams() -> None:
    """An instance that leaves decode is ready only when its last stream ends, and takes no new ones."""
    jobs = [Job(0.0, 0.1, 0.2, 1000), Job(1.0, 0.1, 0.2, 1000), Job(40.0, 0.1, 0.2, 10)]
    pools = Pools(SITE, SLO, switch_s=2.0)
    pools.run(jobs, 1, 2, 5.0, lambda now: 1 if now.now_s == 5.0 else 0)
    assert [when_s for when_s, _ in pools.moves] == [5.0]
    ends_s = 0.1 + 1000 * SITE.tpot.at(1) / 1000
    assert pools.ready == [pytest.approx(ends_s + 2.0)]
    assert len(pools.served) == 3


def test_everything_is_served_once_and_waits_add_up() -> None:
    jobs = turning_jobs([PREFILL_HEAVY], 60, SITE, 3)
    pools = Pools(SITE, SLO, 0.0)
    pools.run(jobs, 3, 5)
    assert len(pools.served) == len(jobs)
    for done in pools.served:
        assert done.prefill_wait_s >= 0
        assert done.slot_wait_s >= 0
        assert done.ttft_s * 1000 >= SITE.least_ttft_ms(16_000) - 1e-6


def test_oracle_schedule_balances_what_arrives() -> None:
    plan = oracle_schedule(turning_jobs([PREFILL_HEAVY, DECODE_HEAVY], 300, SITE, 0), SITE, INSTANCES, 60)
    assert min(plan[:5]) > max(plan[5:10])


def test_drain_time_is_that_of_long_outputs() -> None:
    jobs = [Job(float(index), 0.1, 0.2, 100) for index in range(200)] + [Job(300.0, 0.1, 0.2, 4000)] * 10
    assert drain_time_s(jobs, SITE, 1.0) == pytest.approx(SITE.tpot.held_s(4000, 32) + 1.0)
