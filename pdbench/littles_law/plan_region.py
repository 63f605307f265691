"""The region where both SLOs hold, over ratio and rate: sentence, tables and map."""

from __future__ import annotations

import math
from typing import Any

from pdbench.littles_law.plan_charts import StateMap
from pdbench.littles_law.plan_text import Table, ms, number, percent
from pdbench.littles_law.ratio import RatioResult, Site, Slo, Workload, attainment

RATES, DRAWN_RATES = 9, 24
SHOWN_RATIOS = 16
MARKS = {"both": "ok", "ttft": "T", "tpot": "D", "neither": "x", "overload": "over"}
STATE_WORDS = {"both": "both hold", "ttft": "TTFT fails", "tpot": "TPOT fails", "neither": "both fail"}
STATE_WORDS |= {"overload": "overload"}


def place(found: RatioResult) -> str:
    return f"{found.prefills}:{found.decodes}"


def answer_of(workload: Workload, slo: Slo, instances: int, found: list[RatioResult]) -> str:
    best = max(found, key=lambda each: each.highest_qps)
    limits = f"TTFT {ms(slo.ttft_ms)} and TPOT {ms(slo.tpot_ms)} for {percent(slo.share)}"
    if best.highest_qps <= 0:
        return f"No split of {instances} instances holds {limits} at any rate: one request alone exceeds them."
    most = f"{place(best)} (prefill:decode) serves most, {number(best.highest_qps)} req/s within {limits}"
    if not any(each.at_workload.state(slo) == "both" for each in found):
        needed = f"about {math.ceil(instances * workload.qps / best.highest_qps)} are needed"
        return f"No split of {instances} instances holds {limits} at {number(workload.qps)} req/s: {most}; {needed}."
    return f"{most}; at {load_text(workload)} {holding_on(slo, found)}."


def holding_on(slo: Slo, found: list[RatioResult]) -> str:
    """`both hold on 5:3 to 7:1`."""
    holding = [place(each) for each in found if each.at_workload.state(slo) == "both"]
    if not holding:
        return "no split holds both"
    return f"both hold only on {holding[0]}" if len(holding) == 1 else f"both hold on {holding[0]} to {holding[-1]}"


def at_workload_table(workload: Workload, slo: Slo, found: list[RatioResult]) -> Table:
    """What each ratio gives the rate that was asked for."""
    rows = []
    for each in _shown(found):
        at = each.at_workload
        rows.append(
            (place(each), number(each.highest_qps), percent(at.prefill_load), percent(at.decode_load), ms(at.ttft_ms),
             ms(at.tpot_quantile_ms), STATE_WORDS[at.state(slo)])
        )  # fmt: skip
    percentile = f"p{slo.share * 100:g}"
    heads = ("P:D", "most req/s", "prefill load", "decode load", f"TTFT {percentile}", f"TPOT {percentile}", "SLOs")
    return Table(f"At {load_text(workload)}", heads, tuple(rows))


def load_text(workload: Workload) -> str:
    """`11.0 req/s of 16,000:128 tokens`: rate, mean prompt and mean output."""
    prompt = sum(workload.prompt_lens) / len(workload.prompt_lens)
    return f"{number(workload.qps)} req/s of {prompt:,.0f}:{workload.out_tokens:,.0f} tokens"


def _shown(found: list[RatioResult]) -> list[RatioResult]:
    """At most so many ratios as fit a screen, around the best one."""
    best = max(range(len(found)), key=lambda index: found[index].highest_qps)
    start = min(max(0, best - SHOWN_RATIOS // 2), max(0, len(found) - SHOWN_RATIOS))
    return found[start : start + SHOWN_RATIOS]


def rates_of(workload: Workload, found: list[RatioResult], count: int) -> list[float]:
    """Round rates that span the region and hold the rate asked for."""
    top = 1.15 * max([each.highest_qps for each in found] + [workload.qps])
    step = top / (count - 1)
    return sorted({workload.qps} | {float(f"{step * index:.2g}") for index in range(1, count)})


def region_map(workload: Workload, site: Site, slo: Slo, found: list[RatioResult], count: int) -> StateMap:
    """States over rate (columns) and ratio (rows)."""
    rates, shown = rates_of(workload, found, count), _shown(found)
    grid = [[attainment(workload.at(rate), site, slo, each.prefills, each.decodes) for rate in rates] for each in shown]
    states = tuple(tuple(cell.state(slo) for cell in row) for row in grid)
    words = tuple(tuple(percent(cell.share) if not cell.overload else "" for cell in row) for row in grid)
    title = f"Where both SLOs hold: TTFT {ms(slo.ttft_ms)}, TPOT {ms(slo.tpot_ms)} (share of requests within both)"
    labels = tuple(number(rate) for rate in rates)
    return StateMap(title, "requests/s", "P:D", labels, tuple(place(each) for each in shown), states, words)


def region_table(area: StateMap) -> Table:
    rows = tuple(
        (label, *(MARKS[state] for state in states)) for label, states in zip(area.y_labels, area.states, strict=True)
    )
    title = "Both SLOs over req/s: ok both hold, T TTFT fails, D TPOT fails, x both fail, over overload"
    return Table(title, ("P:D", *area.x_labels), rows)


def ratio_document(each: RatioResult, slo: Slo) -> dict[str, Any]:
    at = each.at_workload
    return {
        "prefills": each.prefills,
        "decodes": each.decodes,
        "highest_qps": each.highest_qps,
        "state": at.state(slo),
        "prefill_load": at.prefill_load,
        "decode_load": at.decode_load,
        "share": at.share,
        "ttft_share": at.ttft_share,
        "tpot_share": at.tpot_share,
        "ttft_ms": at.ttft_ms,
        "tpot_ms": at.tpot_ms,
        "tpot_quantile_ms": at.tpot_quantile_ms,
        "prefill_wait_ms": at.prefill_wait_ms,
        "slot_wait_ms": at.slot_wait_ms,
    }
