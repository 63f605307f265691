"""Co-located instances with chunked prefill: what they give a load, in the terms in which P/D is judged.

A prefill runs in chunks, and every stream that decodes waits for the step that carries one. Such a step reads the
weights once, so streams ride along for their slope alone: this favours co-located instances, and with it TTFT on P/D is
never better on equal GPUs than what a shorter queue makes of it. TPOT is that of `crossover`; TTFT is a wait for the
prefills before and the chunks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from pdbench.littles_law.batch import Tpot
from pdbench.littles_law.crossover import colocated_tpot_ms
from pdbench.littles_law.queueing import poisson_waits
from pdbench.littles_law.ratio import (
    NO_TAIL,
    Site,
    Slo,
    Tail,
    Workload,
    attainment,
    beyond,
    decoding,
    quantile_ms,
    rate_by_bisection,
    tail_of,
)

ITL_QUANTILE = 0.99


@dataclass(frozen=True, slots=True)
class Service:
    """What a load gets from one way of using the GPUs; `share` is within TTFT and TPOT. `None` in overload."""

    load: float
    share: float
    ttft_ms: float | None
    ttft_quantile_ms: float | None
    ttft_share: float
    tpot_ms: float | None
    itl_p99_ms: float | None
    e2el_ms: float | None
    streams: float | None

    def holds(self, slo: Slo) -> bool:
        if self.itl_p99_ms is None:
            return False
        smooth = slo.itl_ms is None or self.itl_p99_ms <= slo.itl_ms
        return smooth and self.share >= slo.share


def overloaded(load: float) -> Service:
    return Service(load, 0.0, None, None, 0.0, None, None, None, None)


def colocated(workload: Workload, site: Site, slo: Slo, instances: int, chunk_tokens: float) -> Service:
    """`instances` equal ones, each with its part of the rate (Poisson)."""
    qps = workload.qps / instances
    lens = workload.prompt_lens
    forwards = [site.prefill.forward_ms(tokens) for tokens in lens]
    mean_ms = math.fsum(forwards) / len(forwards)
    tpot_ms = colocated_tpot_ms(qps, mean_ms, workload.out_tokens, site.tpot)
    busy = qps * mean_ms / 1000
    full_s = site.tpot.held_s(workload.out_tokens, site.slots)
    load = busy + qps * full_s / site.slots * (1 - busy) if busy < 1 else busy
    if tpot_ms is None:
        return overloaded(load)
    streams = qps * workload.out_tokens * tpot_ms / 1000
    if streams >= site.slots:
        return overloaded(streams / site.slots)
    step_ms = site.tpot.at(max(1.0, streams))
    beside_ms = site.tpot.slope_ms * streams
    spans = [ms + chunks_of(tokens, chunk_tokens) * beside_ms for ms, tokens in zip(forwards, lens, strict=True)]
    wait = _wait(workload.qps, spans, instances, site.routing)
    if wait is None:
        return overloaded(qps * math.fsum(spans) / len(spans) / 1000)
    least = [site.prefill.fixed_ms + span for span in spans]
    ttft_ms = math.fsum(least) / len(least) + wait.mean_ms
    share = math.fsum(1 - beyond(wait, NO_TAIL, slo.ttft_ms - base) for base in least) / len(least)
    # Between prefills streams decode as on an engine that is slower by the time which prefills take.
    slowed = Tpot(site.tpot.alone_ms / (1 - busy), site.tpot.slope_ms / (1 - busy))
    streaming = decoding(qps, workload, slowed, site.slots, 1, replace(slo, itl_ms=None))
    if streaming is None:
        return overloaded(load)
    chunk_ms = [ms / chunks_of(tokens, chunk_tokens) for ms, tokens in zip(forwards, lens, strict=True)]
    chunks = math.fsum(chunks_of(tokens, chunk_tokens) for tokens in lens) / len(lens)
    itl_ms = _itl_quantile(step_ms, beside_ms, chunk_ms, qps * chunks * tpot_ms / 1000)
    e2el_ms = ttft_ms + (workload.out_tokens - 1) * tpot_ms
    quantile = quantile_ms(least, wait, NO_TAIL, slo.share)
    both = share * streaming.tpot_share
    return Service(load, both, ttft_ms, quantile, share, tpot_ms, itl_ms, e2el_ms, streams)


def chunks_of(tokens: float, chunk_tokens: float) -> int:
    return max(1, math.ceil(tokens / chunk_tokens))


def _wait(qps: float, spans: list[float], instances: int, routing: str) -> Tail | None:
    """The wait for prefills before, in one queue or in one of each instance."""
    servers = instances if routing == "shared" else 1
    mean_ms = math.fsum(spans) / len(spans)
    load = qps * mean_ms / 1000 * servers / instances
    if load >= servers:
        return None
    cv = math.sqrt(math.fsum((span - mean_ms) ** 2 for span in spans) / len(spans)) / mean_ms
    return tail_of(poisson_waits(load, servers, cv), mean_ms)


def _itl_quantile(step_ms: float, beside_ms: float, chunk_ms: list[float], stalled: float) -> float:
    """The ITL percentile when a share `stalled` of the gaps, the longest ones, are steps with a chunk."""
    if stalled <= 1 - ITL_QUANTILE:
        return step_ms
    ordered = sorted(chunk_ms)
    at = 1 - (1 - ITL_QUANTILE) / min(1.0, stalled)
    return max(step_ms, beside_ms + ordered[min(len(ordered) - 1, int(at * len(ordered)))])


def disaggregated(workload: Workload, site: Site, slo: Slo, prefills: int, decodes: int) -> Service:
    """The same load on P/D, without what posting a handoff takes of the decode loop."""
    at = attainment(workload, site, slo, prefills, decodes)
    load = max(at.prefill_load, at.decode_load)
    if at.tpot_ms is None or at.prefill_wait_ms is None or at.slot_wait_ms is None:
        return overloaded(load)
    least = math.fsum(site.least_ttft_ms(tokens) for tokens in workload.prompt_lens) / len(workload.prompt_lens)
    ttft_ms = least + at.prefill_wait_ms + at.slot_wait_ms
    e2el_ms = ttft_ms + (workload.out_tokens - 1) * at.tpot_ms
    streams = workload.qps / decodes * workload.out_tokens * at.tpot_ms / 1000
    return Service(load, at.share, ttft_ms, at.ttft_ms, at.ttft_share, at.tpot_ms, at.tpot_ms, e2el_ms, streams)


def colocated_highest_qps(workload: Workload, site: Site, slo: Slo, instances: int, chunk_tokens: float) -> float:
    """The highest rate at which both SLOs hold on co-located instances; 0 where they hold at no rate."""
    forward_ms = site.mean_forward_ms(workload)
    top = instances * min(1000 / forward_ms, site.slots / site.tpot.held_s(workload.out_tokens, site.slots))
    return rate_by_bisection(
        lambda qps: colocated(workload.at(qps), site, slo, instances, chunk_tokens).holds(slo), top
    )
