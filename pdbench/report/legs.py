"""The legs of a request that pdbench handed over itself (`--drive two-hop`), and what a proxy costs beside that.

Prefill leg: hop 1, from its send to the end of its answer. Decode leg: from hop 2's send to the first token. Between
them lies only our own hand-over. The second token is told apart for every drive: where the first one came from prefill,
the gap to the second holds what the handoff cost.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pdbench.report.answers import QUANTILES, Answers
from pdbench.report.blocks import FEWEST_BLOCKS, MOST_BLOCKS, REQUESTS_IN_BLOCK
from pdbench.report.cell import Measured
from pdbench.report.statistics import Floats, percentile

SAME = ("target", "loop", "request_rate", "max_concurrency", "prompt_len", "output_len")
# Two-sided 97.5 % points of Student's t for 1 to 30 degrees of freedom.
T_975 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
FEWEST_PAIRS = 3  # repeats


def traffic_of(cell: Measured) -> str | None:
    """The name of a load that is more than a rate; a drive of our own is part of it."""
    said = cell.cell.get("traffic")
    drive = cell.cell.get("drive", "proxy")
    if drive == "proxy":
        return said
    rate, streams = cell.rate, cell.streams
    load = said or (f"{rate:g} req/s" if rate is not None else f"{streams} streams, closed loop")
    return f"{load}, {drive}"


def legs_ms(answers: Answers) -> dict[str, Any]:
    """Mean, p50, p90 and p99 of each leg over the answered requests, and of the gap to the second token."""
    spans: dict[str, Floats] = {
        "render": answers.render_done - answers.sent,
        "prefill": answers.prefill_done - answers.prefill_sent,
        "between": answers.decode_sent - answers.prefill_done,
        "decode": answers.first - answers.decode_sent,
        "derender": answers.derender_done - answers.derender_sent,
    }
    found = {name: _figures(answers, span) for name, span in spans.items()}
    if any(found.values()):
        found["second_token"] = _figures(answers, answers.second - answers.first)
    return {name: figures for name, figures in found.items() if figures}


def _figures(answers: Answers, span_s: Floats) -> dict[str, float]:
    kept = span_s[answers.ok & np.isfinite(span_s)] * 1000
    if len(kept) == 0:
        return {}
    quantiles = {label: percentile(kept, q) for label, q in QUANTILES.items()}
    return {"mean": float(kept.mean()), **{label: value for label, value in quantiles.items() if value is not None}}


def add_proxy_costs(cells: Sequence[dict[str, Any]], measured: Sequence[Measured] = ()) -> None:
    """`proxy_cost_ms` on each cell that went through the proxy and has a two-hop twin: what the proxy adds to TTFT."""
    of = {each.cell.get("cell"): each for each in measured}
    for cell in cells:
        if cell.get("drive") != "proxy" or cell.get("mean_ttft_ms") is None:
            continue
        twin = next((other for other in cells if other.get("drive") == "two-hop" and _same(cell, other)), None)
        if twin is not None and twin.get("mean_ttft_ms") is not None:
            cell["proxy_cost_ms"] = _cost(cell, twin, _blocks(of.get(cell.get("cell")), of.get(twin.get("cell"))))


def _same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return all(one.get(name) == other.get(name) for name in SAME)


def _cost(cell: Mapping[str, Any], twin: Mapping[str, Any], blocks: Sequence[float]) -> dict[str, Any]:
    """Difference of the means with its 95 % interval (Student's t): from paired repeats where there are enough of them,
    else from `blocks`, the mean differences of requests that were sent one after the other; none from fewer."""
    found: dict[str, Any] = {"mean": cell["mean_ttft_ms"] - twin["mean_ttft_ms"]}
    twins = {each["repeat"]: each.get("mean_ttft_ms") for each in twin.get("repeats", [])}
    repeats = [
        each["mean_ttft_ms"] - twins[each["repeat"]]
        for each in cell.get("repeats", [])
        if each.get("mean_ttft_ms") is not None and twins.get(each["repeat"]) is not None
    ]
    found["repeats"] = len(repeats)
    pairs = repeats if len(repeats) >= FEWEST_PAIRS else blocks
    if len(pairs) >= FEWEST_PAIRS:
        mean, spread = float(np.mean(pairs)), float(np.std(pairs, ddof=1))
        half = T_975[min(len(pairs) - 1, len(T_975)) - 1] * spread / math.sqrt(len(pairs))
        found |= {"mean": mean, "interval": [mean - half, mean + half]}
    return found


def _blocks(cell: Measured | None, twin: Measured | None) -> list[float]:
    """Mean differences of TTFT in ms over blocks of requests with the same arrivals. Requests of a block wait together,
    so the blocks are what is independent. Empty where there are too few, or where the arrivals differ."""
    if cell is None or twin is None or len(cell.parts) != len(twin.parts):
        return []
    parts = zip(cell.parts, twin.parts, strict=True)
    gaps = [_differences_ms(one.load.answers, other.load.answers) for one, other in parts]
    count = min(MOST_BLOCKS, sum(map(len, gaps)) // REQUESTS_IN_BLOCK)
    if count < FEWEST_BLOCKS:
        return []
    return [float(block.mean()) for block in np.array_split(np.concatenate(gaps), count)]


def _differences_ms(one: Answers, other: Answers) -> Floats:
    """TTFT of one less that of the other for each arrival that both answered, in the order of the arrivals."""
    if len(one) != len(other):
        return np.array([])
    ranks = np.argsort(one.intended, kind="stable"), np.argsort(other.intended, kind="stable")
    both = one.ok[ranks[0]] & other.ok[ranks[1]]
    difference: Floats = (one.ttft_ms[ranks[0]] - other.ttft_ms[ranks[1]])[both]
    return difference
