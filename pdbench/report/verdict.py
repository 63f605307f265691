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
        named = ", also ".join([voids[0]["code"], *sorted(codes - {voids[0]["code"]})])
        return f"{name}: void ({named}): {voids[0]['evidence']}"
    return f"{name}: {_good(cell)}"


def _not_steady(cell: Mapping[str, Any], finding: Mapping[str, Any]) -> str:
    growth = cell.get("ttft_growth_ms_per_request")
    if growth is None:
        return f"not steady state: {finding['evidence']}"
    cause = next(iter(cell["diagnosis"]), None)
    text = "not steady state"
    if cause is not None:
        slots = cell.get("slots", {})
        demand = slots.get("needed", 0.0) + slots.get("prefill_held", 0.0)
        counted = cause["cause"] == "decode-slots" and demand >= slots.get("available", demand + 1)
        text += f": {_short_of(slots) if counted else cause['cause']}"
    mean = f"{cell['mean_ttft_ms']:,.0f} ms"
    text += f"; TTFT grows {_ms(growth)} ms per request, so {mean} is a figure of this run's length."
    return f"{text} {_first_sentence(cause['advice'] if cause is not None else 'Lower the rate or add capacity.')}"


def _short_of(slots: Mapping[str, Any]) -> str:
    where = "the server" if slots.get("role") == "colocated" else "decode"
    own = slots.get("prefill_held", 0.0)
    held = f" plus {own:.1f} held during prefill" if own and slots["needed"] < slots["available"] else ""
    return f"{where} needs {slots['needed']:.1f} slots{held} and has {slots['available']}"


def _good(cell: Mapping[str, Any]) -> str:
    mean = cell.get("mean_ttft_ms")
    text = "" if mean is None else f"mean TTFT {mean:,.0f} ms"
    if (tpot := cell.get("mean_tpot_ms")) is not None:
        text += f", TPOT {tpot:.1f} ms"
    slots = cell.get("slots", {})
    if "utilisation" in slots:
        kind = "slots" if slots.get("role") == "colocated" else "decode slots"
        text += f", {slots['needed']:.1f} of {slots['available']} {kind}"
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
    """How many cells are valid, and the first thing to change at the most telling one."""
    prefix = "SIMULATED. " if simulated else ""
    if not cells:
        return prefix + "No cell was measured."
    void = [cell for cell in cells if is_void(cell)]
    valid = [cell for cell in cells if not is_void(cell)]
    if void:
        counted = f"{len(valid)} of {len(cells)} cells are valid" if valid else "No cell is valid"
        return f"{prefix}{counted}; {min(void, key=_tells)['verdict']}"
    named = [cell for cell in valid if cell["diagnosis"]]
    telling = max(named or valid, key=_share if named else _load)
    counted = f"All {len(valid)} cells are valid" if len(valid) > 1 else "The cell is valid"
    return f"{prefix}{counted}; {'' if named else 'the busiest, '}{telling['verdict']}"


def _tells(cell: Mapping[str, Any]) -> tuple[int, float, float]:
    """What to put right first: doubt about the measurement, then the lowest load that breaks, its slowest shape."""
    codes = [v["code"] for v in cell["validity"] if v["severity"] == "void"]
    grave = min((GRAVE.index(code) if code in GRAVE else len(GRAVE) for code in codes), default=-1)
    load, mean = _load(cell)
    return grave, load, -mean


def _share(cell: Mapping[str, Any]) -> float:
    shares = [cause.get("share") for cause in cell["diagnosis"]]
    return max((float(share) for share in shares if share is not None), default=0.0)


def is_void(cell: Mapping[str, Any]) -> bool:
    return any(v["severity"] == "void" for v in cell["validity"]) or not cell.get("completed")


def _load(cell: Mapping[str, Any]) -> tuple[float, float]:
    return (float(cell.get("request_rate") or cell.get("max_concurrency") or 0.0), float(cell.get("mean_ttft_ms", 0.0)))
