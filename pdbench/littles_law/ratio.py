"""How many prefill and how many decode instances does a load need, and at which rates do both SLOs hold?

TTFT = fixed parts + forward + handoff + wait for a prefill engine + wait for a decode slot. Each wait is zero or
exponential (P(W > t) = C exp(-t C / E W)); the two are taken as independent. Prefill waits come from M/G/n, slot waits
from the birth-death chain of a batch that slows down as it grows. A stream's TPOT is that of the batch that it joins,
as in the simulation (`pools`), which is to say the same of a load that does not turn.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist

from pdbench.littles_law.batch import Tpot, batch_waits, running_without_limit
from pdbench.littles_law.costs import PrefillCost
from pdbench.littles_law.queueing import poisson_waits
from pdbench.littles_law.waits import Waits

ROUTINGS = ("split", "shared")
RATE_STEPS = 24


@dataclass(frozen=True, slots=True)
class Workload:
    """What is asked: a rate, prompt lengths (each as likely as the next), and output lengths by mean and CV."""

    qps: float
    prompt_lens: tuple[float, ...]
    out_tokens: float
    out_cv: float = 0.0

    def at(self, qps: float) -> Workload:
        return Workload(qps, self.prompt_lens, self.out_tokens, self.out_cv)


@dataclass(frozen=True, slots=True)
class Site:
    """What serves it. `routing` says whether instances of a role share one queue or each has its part of the rate."""

    prefill: PrefillCost
    tpot: Tpot
    slots: int
    handoff_ms_per_token: float = 0.0
    handoff_fixed_ms: float = 0.0
    routing: str = "split"

    def handoff_ms(self, tokens: float) -> float:
        return self.handoff_fixed_ms + self.handoff_ms_per_token * tokens

    def mean_forward_ms(self, workload: Workload) -> float:
        return math.fsum(self.prefill.forward_ms(t) for t in workload.prompt_lens) / len(workload.prompt_lens)

    def least_ttft_ms(self, tokens: float) -> float:
        """TTFT of a prompt that waits for nothing: one decode step is part of it."""
        return self.prefill.whole_ms(tokens) + self.handoff_ms(tokens) + self.tpot.at(1)


@dataclass(frozen=True, slots=True)
class Slo:
    """Both must hold for `share` of the requests. `itl_ms`, where given, is for 99% of the gaps."""

    ttft_ms: float
    tpot_ms: float
    share: float = 0.9
    itl_ms: float | None = None

    @property
    def step_ms(self) -> float:
        """What a decode step may take on an engine that only decodes, where ITL and TPOT are one."""
        return self.tpot_ms if self.itl_ms is None else min(self.tpot_ms, self.itl_ms)


@dataclass(frozen=True, slots=True)
class Tail:
    """A wait that is 0 with probability 1 - p, else exponential with mean `scale_ms`."""

    p: float
    scale_ms: float

    @property
    def mean_ms(self) -> float:
        return self.p * self.scale_ms


NO_TAIL = Tail(0.0, 1.0)


@dataclass(frozen=True, slots=True)
class Attainment:
    """What a ratio gives a workload: shares within each SLO and within both. `ttft_ms` and `tpot_quantile_ms` are
    the SLO's percentile, `tpot_ms` is that of the mean batch. `None` in overload."""

    prefill_load: float
    decode_load: float
    share: float
    ttft_share: float
    tpot_share: float
    ttft_ms: float | None
    tpot_ms: float | None
    tpot_quantile_ms: float | None
    prefill_wait_ms: float | None
    slot_wait_ms: float | None

    @property
    def overload(self) -> bool:
        return self.tpot_ms is None

    def state(self, slo: Slo) -> str:
        """`both` hold for the same requests, `ttft` or `tpot` fails alone, `neither` holds, or `overload`."""
        if self.tpot_ms is None:
            return "overload"
        if self.share >= slo.share:
            return "both"
        if max(self.ttft_share, self.tpot_share) < slo.share:
            return "neither"
        return "tpot" if self.tpot_share < self.ttft_share else "ttft"


def attainment(workload: Workload, site: Site, slo: Slo, prefills: int, decodes: int) -> Attainment:
    """How `prefills`:`decodes` instances serve a workload. `ttft_ms` is the SLO's percentile of TTFT."""
    forwards = [site.prefill.forward_ms(tokens) for tokens in workload.prompt_lens]
    mean_ms = math.fsum(forwards) / len(forwards)
    prefill_load = workload.qps * mean_ms / 1000 / prefills
    decode_load = workload.qps * site.tpot.held_s(workload.out_tokens, site.slots) / (decodes * site.slots)
    first = _prefill_tail(workload, site, forwards, prefills)
    pools = decodes if site.routing == "shared" else 1
    second = decoding(workload.qps * pools / decodes, workload, site.tpot, site.slots, pools, slo)
    if first is None or second is None:
        return Attainment(prefill_load, decode_load, 0.0, 0.0, 0.0, None, None, None, None, None)
    least = [site.least_ttft_ms(tokens) for tokens in workload.prompt_lens]
    ttft_share = _within_ttft(least, first, second.wait, slo)
    quantile = quantile_ms(least, first, second.wait, slo.share)
    tpot_ms = site.tpot.at(max(1.0, second.running))
    # Who waits for a slot joins a full batch: where that is too slow, who meets TPOT has not waited.
    full = site.tpot.at(site.slots) <= slo.step_ms
    share = ttft_share if full else second.tpot_share * _within_ttft(least, first, NO_TAIL, slo)
    return Attainment(prefill_load, decode_load, share, ttft_share, second.tpot_share, quantile, tpot_ms,
                      second.tpot_ms, first.mean_ms, second.wait.mean_ms)  # fmt: skip


def _within_ttft(least: Sequence[float], first: Tail, second: Tail, slo: Slo) -> float:
    return math.fsum(1 - beyond(first, second, slo.ttft_ms - base) for base in least) / len(least)


def _prefill_tail(workload: Workload, site: Site, forwards: Sequence[float], prefills: int) -> Tail | None:
    mean_ms = math.fsum(forwards) / len(forwards)
    cv = math.sqrt(math.fsum((each - mean_ms) ** 2 for each in forwards) / len(forwards)) / mean_ms
    servers = prefills if site.routing == "shared" else 1
    load = workload.qps * mean_ms / 1000 * servers / prefills
    if load >= servers:
        return None
    waits = poisson_waits(load, servers, cv)
    return tail_of(waits, mean_ms)


@dataclass(frozen=True, slots=True)
class Decoding:
    """The wait for a slot, the mean number running on one instance, and of streams' TPOT the share within the SLO and
    the SLO's percentile."""

    wait: Tail
    running: float
    tpot_share: float
    tpot_ms: float


def decoding(qps: float, workload: Workload, tpot: Tpot, slots: int, pools: int, slo: Slo) -> Decoding | None:
    """`pools` instances that share one queue at `qps` in all, the emptiest first; `None` in overload."""
    most = (slo.step_ms - tpot.alone_ms) / tpot.slope_ms if tpot.slope_ms > 0 else math.inf
    most = math.floor(min(most, slots) + 1e-9) if slo.step_ms >= tpot.at(1) else 0
    free = running_without_limit(qps / pools, workload.out_tokens, tpot)
    if free is not None:
        deviation = math.sqrt(free * tpot.at(free) / tpot.alone_ms)  # of the chain near its mode
        if free + 12 * deviation + 12 < (most or slots):
            usual = free + max(0.0, NormalDist().inv_cdf(slo.share)) * deviation
            # Nobody waits, and counting up to that many slots takes long.
            return Decoding(NO_TAIL, free, float(most > 0), tpot.at(max(1.0, usual)))
    batch = batch_waits(qps, workload.out_tokens, Tpot(tpot.alone_ms, tpot.slope_ms / pools), slots * pools)
    if batch is None:
        return None
    # Lengths that vary less than exponential ones wait less, by (1 + cs^2) / 2 in the mean (Lee and Longton).
    wait = tail_of(batch.waits, 1000 * (1 + workload.out_cv**2) / 2)
    share = 1.0 if most >= slots else batch.joins_within(most * pools)
    return Decoding(wait, batch.running / pools, share, tpot.at(math.ceil(batch.joined(slo.share) / pools)))


def tail_of(waits: Waits, scale: float) -> Tail:
    """The exponential tail with this P(W > 0) and mean, in ms where a unit of the waits is `scale` ms."""
    if waits.p_wait <= 0 or waits.mean_s <= 0:
        return NO_TAIL
    return Tail(waits.p_wait, max(waits.mean_s * scale / waits.p_wait, 1e-9))


def beyond(first: Tail, second: Tail, t_ms: float) -> float:
    """P(W1 + W2 > t) of two independent waits."""
    if t_ms < 0:
        return 1.0
    a, b = first, second
    tail_a, tail_b = math.exp(-t_ms / a.scale_ms), math.exp(-t_ms / b.scale_ms)
    if math.isclose(a.scale_ms, b.scale_ms, rel_tol=1e-6):
        both = (1 + t_ms / a.scale_ms) * tail_a
    else:
        both = (a.scale_ms * tail_a - b.scale_ms * tail_b) / (a.scale_ms - b.scale_ms)
    return min(1.0, a.p * (1 - b.p) * tail_a + b.p * (1 - a.p) * tail_b + a.p * b.p * both)


def quantile_ms(least: Sequence[float], first: Tail, second: Tail, share: float) -> float:
    """The TTFT that `share` of the requests stay within, by bisection."""

    def within(t_ms: float) -> float:
        return math.fsum(1 - beyond(first, second, t_ms - base) for base in least) / len(least)

    low, high = min(least), max(least)
    while within(high) < share:
        low, high = high, 2 * high + 1
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (low, middle) if within(middle) >= share else (middle, high)
    return high


def highest_qps(workload: Workload, site: Site, slo: Slo, prefills: int, decodes: int) -> float:
    """The highest rate at which both SLOs hold on this ratio; 0 where they hold at no rate."""
    forward_ms = site.mean_forward_ms(workload)
    full_s = site.tpot.held_s(workload.out_tokens, site.slots)
    top = min(1000 * prefills / forward_ms, decodes * site.slots / full_s)

    def holds(qps: float) -> bool:
        return attainment(workload.at(qps), site, slo, prefills, decodes).state(slo) == "both"

    return rate_by_bisection(holds, top)


def rate_by_bisection(holds: Callable[[float], bool], top: float) -> float:
    """The highest rate below `top` that holds; 0 where not even a trickle does."""
    if not holds(top * 1e-6):
        return 0.0
    low, high = 0.0, top
    for _ in range(RATE_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


@dataclass(frozen=True, slots=True)
class RatioResult:
    """One split of the instances: the highest rate at which both SLOs hold, and what it gives the rate asked for."""

    prefills: int
    decodes: int
    highest_qps: float
    at_workload: Attainment


def ratios(workload: Workload, site: Site, slo: Slo, instances: int) -> list[RatioResult]:
    """Every split of `instances`, from one prefill instance to one decode instance."""
    found = []
    for prefills in range(1, instances):
        decodes = instances - prefills
        found.append(
            RatioResult(
                prefills,
                decodes,
                highest_qps(workload, site, slo, prefills, decodes),
                attainment(workload, site, slo, prefills, decodes),
            )
        )
    return found


def fluid_ratio(workload: Workload, site: Site, prefill_load: float = 1.0, decode_load: float = 1.0) -> float:
    """n_P / n_D that loads both pools to the given shares: the formula without waits."""
    forward_s = site.mean_forward_ms(workload) / 1000
    slot_s = site.tpot.held_s(workload.out_tokens, site.slots) / site.slots
    return (forward_s / prefill_load) / (slot_s / decode_load)
