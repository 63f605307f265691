"""One sentence a cell and one a run, for a tired engineer to act on. A void cell never gets a good word."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

# The order in which a void code is worth naming first.
GRAVE = (
    "client-saturated",
    "server-restarted",
    "failed-requests",
    "kv-expired",
    "decode-recomputed",
    "prefix-cache-hits",
    "token-mismatch",
    "arrivals-off",
    "stall",
    "not-steady-state",
)


def name_of(cell: Mapping[str, Any]) -> str:
    """`8 req/s x 16384`, or `4 streams x 16384` in a closed loop."""
    rate, streams = cell.get("request_rate"), cell.get("max_concurrency")
    load = f"{rate:g} req/s" if rate is not None else f"{streams} streams (closed loop)"
    return f"{load} x {cell['prompt_len']}"


def cell_verdict(cell: Mapping[str, Any]) -> str:
    """One sentence on a cell of the summary."""
    voids = [v for v in cell["validity"] if v["severity"] == "void"]
    name = name_of(cell)
    if not cell.get("completed"):
        return f"{name}: no request was answered ({cell.get('failed', 0)} failed, {cell.get('rejected', 0)} rejected)."
    if voids:
        voids.sort(key=lambda v: GRAVE.index(v["code"]) if v["code"] in GRAVE else len(GRAVE))
        codes = {v["code"] for v in voids}
        if voids[0]["code"] == "not-steady-state":
            return f"{name}: {_not_steady(cell, voids[0])}"
        others = ", ".join(sorted(codes - {voids[0]["code"]}))
        return f"{name}: void ({voids[0]['code']}): {voids[0]['evidence']}" + (f" Also {others}." if others else "")
    return f"{name}: {_good(cell)}"


def _not_steady(cell: Mapping[str, Any], finding: Mapping[str, Any]) -> str:
    slots, split = cell.get("slots", {}), cell.get("ttft_split_ms", {})
    slope = cell.get("ttft_growth_ms_per_request")
    text = "not steady state"
    diagnosis = next(iter(cell["diagnosis"]), None)
    if slots.get("utilisation", 0) >= 1 and "available" in slots:
        text += f": decode needs {slots['needed']:.1f} slots and has {slots['available']}"
    elif diagnosis is not None:
        text += f": {diagnosis['cause']}"
    if slope is not None and slope > 0 and "TTFT grows" in finding["evidence"]:
        text += f"; TTFT grows {_ms(slope)} ms per request, so {cell['mean_ttft_ms']:,.0f} ms is a figure of this run's length."
    else:
        text += f": {finding['evidence']}"
        return text
    advice = diagnosis["advice"] if diagnosis is not None else "Lower the rate or add capacity."
    del split
    return f"{text} {_first_sentence(advice)}"


def _good(cell: Mapping[str, Any]) -> str:
    mean = cell.get("mean_ttft_ms")
    text = "" if mean is None else f"mean TTFT {mean:,.0f} ms"
    if (tpot := cell.get("mean_tpot_ms")) is not None:
        text += f", TPOT {tpot:.1f} ms"
    slots = cell.get("slots", {})
    if "utilisation" in slots:
        text += f", {slots['needed']:.1f} of {slots['available']} decode slots"
    causes = cell["diagnosis"]
    if not causes:
        return f"{text}. No single cause stands out."
    first = causes[0]
    share = "" if first["share"] is None else f" ({first['share']:.0%} of TTFT)"
    return f"{text}; {first['cause']}{share}: {_first_sentence(first['advice'])}"


def _first_sentence(text: str) -> str:
    head, _, _ = text.partition(". ")
    return head.rstrip(".") + "."


def _ms(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 10 else f"{value:.1f}"


def run_verdict(cells: Sequence[Mapping[str, Any]], simulated: bool) -> str:
    """One sentence on the run."""
    prefix = "SIMULATED. " if simulated else ""
    if not cells:
        return prefix + "No cell was measured."
    valid = [cell for cell in cells if not is_void(cell)]
    void = [cell for cell in cells if is_void(cell)]
    if not valid:
        return f"{prefix}No cell is valid. {cells[0]['verdict']}"
    if not void:
        busiest = max(valid, key=_load)
        return f"{prefix}All {len(valid)} cells are valid. The busiest: {busiest['verdict']}"
    return f"{prefix}{len(valid)} of {len(cells)} cells are valid. {void[0]['verdict']}"


def is_void(cell: Mapping[str, Any]) -> bool:
    return any(v["severity"] == "void" for v in cell["validity"]) or not cell.get("completed")


def _load(cell: Mapping[str, Any]) -> tuple[float, float]:
    return (float(cell.get("request_rate") or cell.get("max_concurrency") or 0.0), float(cell.get("mean_ttft_ms", 0.0)))
