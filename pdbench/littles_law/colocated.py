"""Co-located instances with chunked prefill: what they give a load, in the terms in which P/D is judged.

A prefill runs in chunks, and a step that carries one carries every stream that decodes as well: each gets its token at
the end of the step, as in vLLM v1. Such a step reads the weights once: it takes the chunk's time, or a decode step's
where that is longer, and streams add their slope alone, which favours co-located instances. TPOT is the mean step, ITL
p99 a percentile of the same steps. A slot is held while the chunks run and while the tokens come. TTFT is a wait for a
slot, one for the prefills before, and the chunks. (`crossover` has prefills in one piece, for which streams stop.)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from pdbench.littles_law.batch import Tpot
from pdbench.littles_law.crossover import colocated_tpot_ms
from pdbench.littles_law.queueing import poisson_waits
from pdbench.littles_law.ratio import (
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
    """What a load gets from one way of using the GPUs; `share` is within TTFT and TPOT. `streams` and `slots_held` are
    means of an instance that makes tokens; co-located, a prompt that is computed holds a slot too. `None` in overload.
    """

    load: float
    share: float
    ttft_ms: float | None
    ttft_quantile_ms: float | None
    ttft_share: float
    tpot_ms: float | None
    itl_p99_ms: float | None
    e2el_ms: float | None
    streams: float | None
    slots_held: float | None

    def holds(self, slo: Slo) -> bool:
        if self.itl_p99_ms is None:
            return False
        smooth = slo.itl_ms is None or self.itl_p99_ms <= slo.itl_ms
        return smooth and self.share >= slo.share


def overloaded(load: float) -> Service:
    return Service(load, 0.0, None, None, 0.0, None, None, None, None, None)


@dataclass(frozen=True, slots=True)
class Prompt:
    """The forward of one prompt, in equal chunks."""

    forward_ms: float
    chunks: int

    @property
    def chunk_ms(self) -> float:
        return self.forward_ms / self.chunks


@dataclass(frozen=True, slots=True)
class Steps:
    """The steps of one instance: `plain_ms` without a chunk, and (ms, share of all steps) of those with one.

    A stream gets one token a step, so `tpot_ms` is the mean step.
    """

    plain_ms: float
    chunked: tuple[tuple[float, float], ...]
    tpot_ms: float
    streams: float

    @property
    def itl_p99_ms(self) -> float:
        longer = 0.0
        for step_ms, share in sorted(self.chunked, reverse=True):
            longer += share
            if longer > 1 - ITL_QUANTILE:
                return step_ms
        return self.plain_ms


def colocated(workload: Workload, site: Site, slo: Slo, instances: int, chunk_tokens: float) -> Service:
    """`instances` equal ones, each with its part of the rate (Poisson)."""
    qps = workload.qps / instances
    prompts = prompts_of(workload, site, chunk_tokens)
    added = _added(qps, prompts, site.tpot)
    steps = steps_of(qps, prompts, workload.out_tokens, site.tpot)
    if steps is None or steps.streams >= site.slots:
        return overloaded(_load(qps, prompts, added, workload.out_tokens, site, site.slots))
    load = _load(qps, prompts, added, workload.out_tokens, site, steps.streams)
    beside_ms = site.tpot.slope_ms * steps.streams
    spans = _spans(prompts, beside_ms)
    wait = _wait(workload.qps, spans, instances, site.routing)
    # Streams decode as on an engine that is slower by what chunks add to its steps.
    slowed = Tpot(site.tpot.alone_ms / (1 - added), site.tpot.slope_ms / (1 - added))
    streaming = decoding(qps, workload, slowed, site.slots, 1, replace(slo, itl_ms=None))
    slot = slot_wait(qps, workload, slowed, site.slots, math.fsum(spans) / len(spans), steps.tpot_ms)
    if wait is None or streaming is None or slot is None:
        return overloaded(load)
    least = [
        site.prefill.fixed_ms + one.chunks * (max(one.chunk_ms, site.tpot.alone_ms) + beside_ms) for one in prompts
    ]
    ttft_ms = math.fsum(least) / len(least) + wait.mean_ms + slot.mean_ms
    share = math.fsum(1 - beyond(wait, slot, slo.ttft_ms - base) for base in least) / len(least)
    e2el_ms = ttft_ms + (workload.out_tokens - 1) * steps.tpot_ms
    quantile = quantile_ms(least, wait, slot, slo.share)
    both = share * streaming.tpot_share
    held = steps.streams + qps * math.fsum(spans) / len(spans) / 1000
    return Service(load, both, ttft_ms, quantile, share, steps.tpot_ms, steps.itl_p99_ms, e2el_ms, steps.streams, held)


def slot_wait(qps: float, workload: Workload, slowed: Tpot, slots: int, span_ms: float, tpot_ms: float) -> Tail | None:
    """The wait for one of an instance's slots, each held for the prefill (`span_ms`) and for the tokens; `None` where
    there are too few."""
    tokens = workload.out_tokens + span_ms / tpot_ms  # the prefill as the tokens that would come meanwhile
    found = decoding(qps, replace(workload, out_tokens=tokens), slowed, slots, 1, Slo(math.inf, math.inf))
    return None if found is None else found.wait


def prompts_of(workload: Workload, site: Site, chunk_tokens: float) -> list[Prompt]:
    return [Prompt(site.prefill.forward_ms(n), chunks_of(n, chunk_tokens)) for n in workload.prompt_lens]


def steps_of(qps: float, prompts: Sequence[Prompt], out_tokens: float, tpot: Tpot) -> Steps | None:
    """The steps of one instance at `qps`; `None` where chunks and streams together exceed its time.

    Of the steps a share p = qps x chunks x TPOT carries a chunk, and they last max(a, chunk) + d b, the others a + d b:
    the mean is TPOT = a + d b + TPOT x (what chunks add to steps, as a share of the time).
    """
    longer_ms = _longer_ms(prompts, tpot)
    mean_ms = colocated_tpot_ms(qps, longer_ms, out_tokens, tpot)
    if mean_ms is None:
        return None
    if qps * out_tokens * mean_ms < 1000:  # a stream that decodes is at least one
        mean_ms = tpot.at(1) / (1 - qps * longer_ms / 1000)
    streams = qps * out_tokens * mean_ms / 1000
    beside_ms = tpot.slope_ms * max(1.0, streams)
    share = qps * mean_ms / 1000 / len(prompts)
    chunked = tuple((max(one.chunk_ms, tpot.alone_ms) + beside_ms, one.chunks * share) for one in prompts)
    return Steps(tpot.alone_ms + beside_ms, chunked, mean_ms, streams)


def _longer_ms(prompts: Sequence[Prompt], tpot: Tpot) -> float:
    """By how much a prompt's chunks lengthen the steps that carry them, all together."""
    return math.fsum(max(0.0, one.forward_ms - one.chunks * tpot.alone_ms) for one in prompts) / len(prompts)


def _added(qps: float, prompts: Sequence[Prompt], tpot: Tpot) -> float:
    return qps * _longer_ms(prompts, tpot) / 1000


def _spans(prompts: Sequence[Prompt], beside_ms: float) -> list[float]:
    return [one.forward_ms + one.chunks * beside_ms for one in prompts]


def _load(qps: float, prompts: Sequence[Prompt], added: float, out_tokens: float, site: Site, streams: float) -> float:
    """Of the engine's time for prompts and of its slots the fuller."""
    busy = qps * math.fsum(_spans(prompts, site.tpot.slope_ms * streams)) / len(prompts) / 1000
    if added >= 1:
        return busy
    return max(busy, (qps * site.tpot.held_s(out_tokens, site.slots) / (1 - added) + busy) / site.slots)


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
    return Service(
        load, at.share, ttft_ms, at.ttft_ms, at.ttft_share, at.tpot_ms, at.tpot_ms, e2el_ms, streams, streams
    )


def colocated_highest_qps(workload: Workload, site: Site, slo: Slo, instances: int, chunk_tokens: float) -> float:
    """The highest rate at which both SLOs hold on co-located instances; 0 where they hold at no rate."""
    forward_ms = site.mean_forward_ms(workload)
    top = instances * min(1000 / forward_ms, site.slots / site.tpot.held_s(workload.out_tokens, site.slots))
    return rate_by_bisection(
        lambda qps: colocated(workload.at(qps), site, slo, instances, chunk_tokens).holds(slo), top
    )
