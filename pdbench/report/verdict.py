"""One sentence a cell and one a run, for a tired engineer to act on. A void cell never gets a good word."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

# The order in which a void code is worth naming first.
UNKNOWN_SHARE = 0.5  # of TTFT unexplained, and an absolute size: then nobody looked, which is not "no cause"
UNKNOWN_MS = 50.0
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
    growth = cell.get("ttft_growth_ms_per_request")
    if growth is None:
        return f"not steady state: {finding['evidence']}"
    cause = next(iter(cell["diagnosis"]), None)
    text = "not steady state"
    if cause is not None:
        slots = cell.get("slots", {})
        counted = cause["cause"] == "decode-slots" and slots.get("utilisation", 0) >= 1
        known = f"decode needs {slots['needed']:.1f} slots and has {slots['available']}" if counted else cause["cause"]
        text += f": {known}"
    mean = f"{cell['mean_ttft_ms']:,.0f} ms"
    text += f"; TTFT grows {_ms(growth)} ms per request, so {mean} is a figure of this run's length."
    return f"{text} {_first_sentence(cause['advice'] if cause is not None else 'Lower the rate or add capacity.')}"


def _good(cell: Mapping[str, Any]) -> str:
    mean = cell.get("mean_ttft_ms")
    text = "" if mean is None else f"mean TTFT {mean:,.0f} ms"
    if (tpot := cell.get("mean_tpot_ms")) is not None:
        text += f", TPOT {tpot:.1f} ms"
    slots = cell.get("slots", {})
    if "utilisation" in slots:
        text += f", {slots['needed']:.1f} of {slots['available']} decode slots"
    causes = cell["diagnosis"]
    if causes:
        first = causes[0]
        share = "" if first.get("share") is None else f" ({first['share']:.0%} of TTFT)"
        return f"{text}; {first['cause']}{share}: {_first_sentence(first['advice'])}"
    unknown = cell.get("ttft_split_ms", {}).get("unexplained", 0.0)
    if mean and unknown > UNKNOWN_SHARE * mean and unknown > UNKNOWN_MS:
        return f"{text}; where {unknown / mean:.0%} of TTFT goes was not measured (see metrics-missing)."
    return f"{text}. No cause stands out."


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
