"""The answer of `pdbench slots` as the document that --json prints and the views show."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from pdbench.littles_law.capacity import (
    CURVE,
    FINE_CURVE,
    RULE,
    Point,
    WaitsAt,
    curve,
    fewest_slots,
    highest_rate,
    highest_rate_between,
    keeps,
    rule_verdict,
)
from pdbench.littles_law.demand import Demand
from pdbench.littles_law.slots_question import Question
from pdbench.littles_law.slots_warnings import warnings
from pdbench.littles_law.steady import Estimate, steady
from pdbench.littles_law.waits import Waits

CURVE_EFFORT = 0.04  # of a full simulation, for each point of the curve
SEARCH_EFFORT = 0.1


def answer(question: Question, *, fine: bool = False) -> dict[str, Any]:
    """Everything that `pdbench slots` says; `fine` draws its curve with more points where they cost little.

    Times in ms; no NaN; `None` is not known or not existing.
    """
    one = question.demand.share(question.decoders)  # what one decoder gets
    slots = question.slots
    if question.trace:
        from pdbench.littles_law.slots_trace import TraceWaits

        traced: TraceWaits | None = TraceWaits(question)
    else:
        traced = None
    least = one.held_slots(slots)
    document: dict[str, Any] = {
        "slots_needed": None if least is None else least * question.decoders,
        "slots_available": None if slots is None else slots * question.decoders,
        "utilisation": None,
        "p_wait": None,
        "wait_ms": None,
        "method": None,
        "method_error": None,
        "stable": least is not None,
        "recommended_max_num_seqs": None,
        "max_qps": None,
        "overload": None,
    }
    point = _here(question, one, slots, traced) if slots else None
    if slots and point:
        document |= _against_capacity(question, one, slots, point)
    document |= _advice(question, one, slots, point, traced, FINE_CURVE if fine else CURVE)
    document |= _facts(question, one, slots)
    if traced is not None:
        document["trace"] = traced.facts()
    if question.num_prompts is not None and slots:
        document["finite"] = _finite(question, one, slots)
    if question.decoders > 1 and slots and point and not question.trace:
        document["pools"] = _pools(question, slots, point)
    document["warnings"] = warnings(question, document)
    return document


def _here(question: Question, one: Demand, slots: int, traced: Any) -> Estimate:
    return steady(one, slots) if traced is None else traced.estimate(one.qps, slots)


def _against_capacity(question: Question, one: Demand, slots: int, here: Estimate) -> dict[str, Any]:
    capacity = one.capacity_qps(slots)
    found: dict[str, Any] = {
        "utilisation": one.qps / capacity,
        "p_wait": 1.0 if here.waits is None else here.waits.p_wait,
        "wait_ms": None if here.waits is None else wait_ms(here.waits),
        "method": here.method,
        "method_error": here.error,
        "stable": here.waits is not None,
        "keeps_slo": keeps(here.waits, question.slo_s),
        "capacity_qps": capacity * question.decoders,
    }
    if here.waits is None:
        total = question.decoders * capacity
        found["overload"] = {
            "ttft_growth_ms_per_request": max(0.0, 1000 / total - 1000 / question.demand.qps),
            "achieved_qps": min(total, question.demand.qps),
        }
    return found


def wait_ms(waits: Waits) -> dict[str, float]:
    pairs = (("mean", waits.mean_s), ("p50", waits.p50_s), ("p90", waits.p90_s), ("p99", waits.p99_s))
    return {name: value * 1000 for name, value in pairs}


def _advice(
    question: Question,
    one: Demand,
    slots: int | None,
    here: Estimate | None,
    traced: Any,
    shares: Sequence[float],
) -> dict[str, Any]:
    """The fewest slots and the highest rate for the SLO, the curve, and what the 80 % rule would have said."""
    slo_s = question.slo_s

    def quick(qps: float, count: int) -> Waits | None:
        return steady(one.at(qps), count, simulate=False).waits

    def careful(qps: float, count: int) -> Waits | None:
        return steady(one.at(qps), count, effort=SEARCH_EFFORT).waits

    if traced is not None:
        simulated, waits_at = False, traced.waits_at
    else:
        probe = here or steady(one, _or_one(fewest_slots(one, slo_s, quick)), effort=SEARCH_EFFORT)
        simulated = probe.simulated or (probe.waits is None and _simulates(one, slots))
        waits_at = careful if simulated else quick
    near = fewest_slots(one, slo_s, quick) if simulated else None
    fewest = fewest_slots(one, slo_s, waits_at, near=near)
    if fewest and slots and here and keeps(here.waits, slo_s):
        fewest = min(fewest, slots)  # a short simulation of the search does not overrule the long one
    found: dict[str, Any] = {"slo_wait_p99_ms": slo_s * 1000, "slots_for_slo": fewest}
    fits = fewest is not None and (question.pool is None or fewest <= question.pool.slots)
    found["recommended_max_num_seqs"] = fewest if fits else None
    if slots:
        found |= _rates(question, one, slots, here, waits_at, CURVE if simulated else shares, simulated)
    return found


def _or_one(slots: int | None) -> int:
    return slots or 1


def _simulates(one: Demand, slots: int | None) -> bool:
    """Whether waits at 80 % use would be simulated: in overload the load itself does not say."""
    return bool(slots) and steady(one.at(RULE * one.capacity_qps(slots or 1)), slots or 1, effort=0.01).simulated


def _rates(
    question: Question,
    one: Demand,
    slots: int,
    here: Estimate | None,
    waits_at: WaitsAt,
    shares: Sequence[float],
    simulated: bool,
) -> dict[str, Any]:
    slo_s, capacity = question.slo_s, one.capacity_qps(slots)

    def rough(qps: float, count: int) -> Waits | None:
        return steady(one.at(qps), count, effort=CURVE_EFFORT).waits if simulated else waits_at(qps, count)

    points = curve(one, slots, rough, shares)
    known = _bounded(points, one.qps, capacity, here, slo_s)
    if simulated:
        safe = highest_rate_between(known, capacity, slo_s, waits_at, slots)
    else:
        safe = highest_rate(known, capacity, slo_s, waits_at, slots)
    at_rule = next(point for point in points if point.utilisation == RULE)
    return {
        "max_qps": safe * question.decoders,
        "safe_utilisation": safe / capacity,
        "rule_80": {
            "qps": at_rule.qps * question.decoders,
            "wait_p99_ms": at_rule.waits.p99_s * 1000,
            "verdict": rule_verdict(safe / capacity),
        },
        "curve": [_curve_point(point, question.decoders) for point in points],
        "curve_method": "replay of the trace" if question.trace else _named(one, slots, simulated),
    }


def _bounded(
    points: Sequence[Point], qps: float, capacity: float, here: Estimate | None, slo_s: float
) -> Sequence[Point]:
    """The curve on that side of the load itself where the highest rate is: the load's own waits are known best."""
    if here is None or here.waits is None:
        return points
    point = Point(qps / capacity, qps, here.waits)
    if keeps(here.waits, slo_s):
        return [point, *(other for other in points if other.qps > qps)]
    return [*(other for other in points if other.qps < qps), point]


def _named(one: Demand, slots: int, simulated: bool) -> str:
    return (
        "short simulations"
        if simulated
        else steady(one.at(0.5 * one.capacity_qps(slots)), slots, simulate=False).method
    )


def _curve_point(point: Point, decoders: int) -> dict[str, float]:
    waits = wait_ms(point.waits)
    return {
        "utilisation": point.utilisation,
        "qps": point.qps * decoders,
        "p_wait": point.waits.p_wait,
        "mean_ms": waits["mean"],
        "p99_ms": waits["p99"],
    }


def _facts(question: Question, one: Demand, slots: int | None) -> dict[str, Any]:
    """What went in, as it was understood."""
    demand = question.demand
    at = one.held_slots(slots) or 1.0
    if slots is not None:
        at = min(at, slots)
    tpot_ms = demand.tpot.at(at) - question.prefill_ms / demand.out_tokens
    found: dict[str, Any] = {
        "qps": demand.qps,
        "out_tokens": demand.out_tokens,
        "tpot_ms": tpot_ms,
        "held_ms": demand.held_s(at) * 1000,
        "half_step_ms": tpot_ms / 2,
        "lengths": demand.lengths.kind,
        "out_cv": demand.lengths.total_cv,
        "burstiness": None if demand.arrival_cv == 0 else demand.burstiness,
        "decoders": question.decoders,
        "max_num_seqs": question.max_num_seqs,
    }
    if demand.tpot.slope_ms > 0:
        found["tpot_slope_ms"] = demand.tpot.slope_ms
        found["tpot_full_batch_ms"] = None if slots is None else demand.tpot.at(slots)
    if question.prefill_ms:
        found["prefill_ms"] = question.prefill_ms
    if question.classes:
        found["classes"] = _classes(question, at)
    if question.pool is not None:
        found["kv"] = _kv(question)
    return found


def _classes(question: Question, slots: float) -> list[dict[str, Any]]:
    needs = [one.qps * question.demand.tpot.held_s(one.out_tokens, slots) for one in question.classes]
    total = sum(needs)
    return [
        {
            "name": one.name,
            "out_tokens": one.out_tokens,
            "qps": one.qps,
            "held_ms": question.demand.tpot.held_s(one.out_tokens, slots) * 1000,
            "slots_needed": need,
            "share": need / total,
        }
        for one, need in zip(question.classes, needs, strict=True)
    ]


def _kv(question: Question) -> dict[str, Any]:
    pool = question.pool
    assert pool is not None
    each = pool.bytes_per_slot
    return {
        "sequences": pool.sequences,
        "staging": pool.staging,
        "slots": pool.slots,
        "tokens_per_sequence": pool.tokens_per_sequence,
        "gib_per_slot": None if each is None else each / 2**30,
        "pool_gib": None if pool.pool_bytes is None else pool.pool_bytes / 2**30,
        "binds": question.max_num_seqs is None or pool.slots < question.max_num_seqs,
    }


def _finite(question: Question, one: Demand, slots: int) -> dict[str, Any]:
    from pdbench.littles_law.finite import finite

    asked = question.num_prompts or 1
    each = max(1, round(asked / question.decoders))
    found = finite(one, slots, each, normalised=question.normalised)
    return {
        "num_prompts": asked,
        "arrivals": "rescaled as in vllm bench serve" if found.normalised else "not rescaled",
        "wait_ms": wait_ms(found.waits),
        "p_wait": found.waits.p_wait,
        "mean_sd_ms": found.mean_sd_s * 1000,
        "last_tenth_mean_ms": found.last_tenth_mean_s * 1000,
        "ttft_growth_ms_per_request": found.growth_s_per_request * 1000 / question.decoders,
        "makespan_s": found.makespan_s,
        "achieved_qps": asked / found.makespan_s,
        "method": f"simulation, {found.runs} runs from an empty start",
        "method_error": f"95 %: mean +-{1960 * found.mean_sd_s / found.runs**0.5:.3g} ms",
    }


def _pools(question: Question, slots: int, separate: Estimate) -> dict[str, Any]:
    """What one pool of all slots would give instead of `decoders` separate ones."""
    joint = steady(question.demand, slots * question.decoders, simulate=not separate.simulated)
    return {
        "one_pool_wait_p99_ms": None if joint.waits is None else joint.waits.p99_s * 1000,
        "separate_wait_p99_ms": None if separate.waits is None else separate.waits.p99_s * 1000,
    }


def slots_curve(question: Question) -> list[dict[str, float]]:
    """p99 waits against max-num-seqs at this rate, by formula, from the first stable number of slots on."""
    one = question.demand.share(question.decoders)
    least = fewest_slots(one, math.inf, lambda qps, slots: steady(one.at(qps), slots, simulate=False).waits)
    if least is None:
        return []
    step = max(1, least // 12)
    found = []
    for slots in range(least, least + 16 * step, step):
        waits = steady(one, slots, simulate=False).waits
        if waits is not None:
            found.append({"max_num_seqs": slots, "p99_ms": waits.p99_s * 1000})
    return found


def fullest(documents: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The fullest of several cells."""
    return max(documents, key=lambda document: document["utilisation"] or document["slots_needed"] or 0.0)
