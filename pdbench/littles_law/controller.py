"""A controller that moves instances between the pools by measured SLO violations, against fixed ratios and an oracle.

It moves one instance when a pool violates its SLO for more requests than allowed, more than the other pool does, and
the giving pool would stay below `BUSY` of its capacity. Hysteresis: never while an instance drains, never sooner than a
drain time after the last move, and a move back only when the giving pool would stay `MARGIN` lower still.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from pdbench.littles_law.pools import Decide, Job, Pools, Seen, Served
from pdbench.littles_law.ratio import Site, Slo

BUSY = 0.9
MARGIN = 0.1


@dataclass(slots=True)
class Controller:
    """`decide` is asked every interval; `drain_s` is the longest time that a move takes to come into effect."""

    slo: Slo
    drain_s: float
    last_s: float = -math.inf
    last_step: int = 0
    steps: list[tuple[float, int]] = field(default_factory=list)

    def decide(self, seen: Seen) -> int:
        step = self._wanted(seen)
        if step == 0 or seen.draining or seen.now_s - self.last_s < self.drain_s:
            return 0
        receiving, giving = (seen.decodes, seen.decode_load) if step > 0 else (seen.prefills, seen.prefill_load)
        if receiving < 2:
            return 0
        after = giving * receiving / (receiving - 1)
        if after > BUSY - (MARGIN if step == -self.last_step else 0.0):
            return 0
        self.last_s, self.last_step = seen.now_s, step
        self.steps.append((seen.now_s, step))
        return step

    def _wanted(self, seen: Seen) -> int:
        allowed = 1 - self.slo.share
        worst = max(seen.prefill_violations, seen.decode_violations)
        if worst <= allowed:
            return 0
        return 1 if seen.prefill_violations > seen.decode_violations else -1


@dataclass(frozen=True, slots=True)
class Outcome:
    """One way of running the pools over one load. `prefills` is (time, prefill instances, also those on their way)."""

    name: str
    met: int
    requests: int
    mean_ttft_ms: float
    worst_share: float
    prefills: tuple[tuple[float, float], ...]
    moves: tuple[float, ...]

    @property
    def share(self) -> float:
        return self.met / self.requests


@dataclass(frozen=True, slots=True)
class Contest:
    """The controller, the best fixed ratio (known only afterwards), and an oracle that switches without draining."""

    controller: Outcome
    best_fixed: Outcome
    oracle: Outcome
    fixed: tuple[Outcome, ...]
    drain_s: float
    ended_s: float


def drain_time_s(jobs: Sequence[Job], site: Site, switch_s: float) -> float:
    """The longest drain to expect: the 99th percentile of outputs at full batch, or of forwards, and the switch."""
    outs = sorted(job.out_tokens for job in jobs)
    forwards = sorted(job.forward_s for job in jobs)
    last = min(len(jobs) - 1, int(0.99 * len(jobs)))
    return max(site.tpot.held_s(outs[last], site.slots), forwards[last]) + switch_s


def fixed_runs(jobs: Sequence[Job], site: Site, slo: Slo, instances: int) -> list[Pools]:
    """The same load under every fixed ratio, from one prefill instance to one decode instance."""
    runs = []
    for prefills in range(1, instances):
        pools = Pools(site, slo, 0.0)
        pools.run(jobs, prefills, instances - prefills)
        runs.append(pools)
    return runs


def contest(
    jobs: Sequence[Job], site: Site, slo: Slo, fixed: Sequence[Pools], every_s: float, switch_s: float = 1.0
) -> Contest:
    """The controller and the oracle on a load whose `fixed_runs` are known. The controller starts at equal shares."""
    instances = len(fixed) + 1
    kept = [_outcome(f"{n}:{instances - n} fixed", pools, n) for n, pools in enumerate(fixed, start=1)]
    best = max(kept, key=lambda outcome: (outcome.met, -outcome.mean_ttft_ms))
    controller, start = Controller(slo, drain_time_s(jobs, site, switch_s)), instances // 2
    steered = Pools(site, slo, switch_s)
    steered.run(jobs, start, instances - start, every_s, controller.decide)
    plan = oracle_schedule(jobs, site, instances, every_s)
    knowing = Pools(site, slo, 0.0, instant=True)
    knowing.run(jobs, plan[0], instances - plan[0], every_s, follow(plan, every_s))
    # An oracle may also leave everything where it is.
    oracle = max((_outcome("oracle", knowing, plan[0]), replace(best, name="oracle")), key=lambda outcome: outcome.met)
    done = _outcome("controller", steered, start)
    return Contest(done, best, oracle, tuple(kept), controller.drain_s, jobs[-1].at_s)


def oracle_schedule(jobs: Sequence[Job], site: Site, instances: int, every_s: float) -> list[int]:
    """Prefill instances for each interval that balance the work which arrives in it, known before it comes."""
    intervals = int(jobs[-1].at_s / every_s) + 1
    prefill_s, slot_s = [0.0] * intervals, [0.0] * intervals
    for job in jobs:
        at = int(job.at_s / every_s)
        prefill_s[at] += job.forward_s
        slot_s[at] += site.tpot.held_s(job.out_tokens, site.slots) / site.slots
    return [
        min(range(1, instances), key=lambda n: max(p / n, d / (instances - n)))
        for p, d in zip(prefill_s, slot_s, strict=True)
    ]


def follow(plan: Sequence[int], every_s: float) -> Decide:
    def decide(seen: Seen) -> int:
        at = min(round(seen.now_s / every_s), len(plan) - 1)
        return plan[at] - seen.prefills

    return decide


def _outcome(name: str, pools: Pools, prefills: int) -> Outcome:
    slo = pools.slo
    met = sum(done.meets(slo) for done in pools.served)
    mean_ms = math.fsum(done.ttft_s for done in pools.served) / len(pools.served) * 1000
    line, now = [(0.0, float(prefills))], prefills
    for when_s, step in pools.moves:
        now += step
        line.append((when_s, float(now)))
    moves = tuple(when_s for when_s, _ in pools.moves)
    return Outcome(name, met, len(pools.served), mean_ms, worst_minute(pools.served, slo), tuple(line), moves)


def worst_minute(served: Sequence[Served], slo: Slo) -> float:
    """The lowest share of requests within both SLOs among the minutes in which they arrived."""
    minutes: dict[int, list[bool]] = {}
    for done in served:
        minutes.setdefault(int(done.arrived_s // 60), []).append(done.meets(slo))
    return min(sum(each) / len(each) for each in minutes.values())
