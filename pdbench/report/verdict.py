"""One sentence a cell and one a run, for a tired engineer to act on. A void cell never gets a good word."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pdbench.report.wording import (
    TOO_FEW,
    counted,
    cut_short,
    followable,
    interruption,
    is_cut,
    is_down,
    is_imported,
    place,
    share_in_words,
    tenths,
)

UNKNOWN_SHARE = 0.5  # of TTFT unexplained, and an absolute size: then nobody looked, which is not "no cause"
UNKNOWN_MS = 50.0
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


def cell_verdict(cell: Mapping[str, Any]) -> str:
    """At most two sentences on a cell of the summary."""
    voids = [v for v in cell["validity"] if v["severity"] == "void"]
    name = place(cell)
    failed, rejected, cancelled = (int(cell.get(key) or 0) for key in ("failed", "rejected", "cancelled"))
    if is_cut(cell) or (cancelled and not (cell.get("completed") or failed or rejected)):
        return f"{name}: {cut_short(cell)}."
    if (stopped := _stopped(cell)) is not None:
        void_for = ", ".join(sorted({v["code"] for v in voids}))
        return f"{name}: {stopped}" + (f" Void: {void_for}." if void_for else "")
    if not cell.get("completed"):
        return f"{name}: no request was answered ({failed:,} failed, {rejected:,} rejected)."
    if voids:
        voids.sort(key=lambda v: GRAVE.index(v["code"]) if v["code"] in GRAVE else len(GRAVE))
        if _short_of_slots(cell):  # more than was there was asked for, whatever the client's own health
            voids.sort(key=lambda v: v["code"] != "not-steady-state")
        codes = {v["code"] for v in voids}
        if voids[0]["code"] == "not-steady-state":
            also = ", also ".join(["", *sorted(codes - {"not-steady-state"})])
            return f"{name}: {_not_steady(cell, voids[0], also)}"
        named = ", also ".join([voids[0]["code"], *sorted(codes - {voids[0]["code"]})])
        return f"{name}: void ({named}): {_two_sentences(voids[0]['evidence'])}"
    return f"{name}: {_good(cell)}"


def _stopped(cell: Mapping[str, Any]) -> str | None:
    """The server that was gone and since when, before anything that is said of a cell."""
    cause = next((cause for cause in cell["diagnosis"] if is_down(cause)), None)
    return cause and f"{cause['cause']}: {cause['evidence']} {_first_sentence(cause['advice'])}"


def _two_sentences(text: str) -> str:
    """What was found, and what to do: evidence ends with its advice."""
    found, _, rest = text.partition(". ")
    return f"{found}. {_first_sentence(rest)}" if rest else text


def _short_of_slots(cell: Mapping[str, Any]) -> bool:
    slots = cell.get("slots") or {}
    needed, available = slots.get("needed"), slots.get("available")
    return needed is not None and available is not None and needed > available


def _not_steady(cell: Mapping[str, Any], finding: Mapping[str, Any], also: str = "") -> str:
    growth = cell.get("ttft_growth_ms_per_request")
    if growth is None:
        return f"not steady state{also}: {_two_sentences(finding['evidence'])}"
    cause = next(iter(cell["diagnosis"]), None)
    text = f"not steady state{also}"
    if cause is not None:
        slots = cell.get("slots", {})
        demand = slots.get("needed", 0.0) + slots.get("prefill_held", 0.0)
        counted = cause["cause"] == "decode-slots" and demand >= slots.get("available", demand + 1)
        unclear = "its cause is " if cause["cause"] == "not-distinguishable" else ""
        made_of = f" ({share_in_words(cause)})" if cause.get("made_of") else ""
        text += f": {_short_of(slots) if counted else unclear + cause['cause'] + made_of}"
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
    text = "no TTFT" if mean is None else f"mean TTFT {mean:,.0f} ms"
    if (steady := (cell.get("short_run") or {}).get("steady_mean_ttft_ms")) is not None:
        text += f" in a short run, about {steady:,.0f} in a steady state"
    if (tpot := cell.get("mean_tpot_ms")) is not None:
        text += f", TPOT {tenths(tpot)} ms"
    slots = cell.get("slots", {})
    if "utilisation" in slots:
        kind = "slots" if slots.get("role") == "colocated" else "decode slots"
        text += f", {slots['needed']:.1f} of {slots['available']} {kind}"
    causes = cell["diagnosis"]
    if causes:
        first = causes[0]
        share = f" ({said})" if (said := share_in_words(first)) else ""
        return f"{text}; {first['cause']}{share}: {_first_sentence(first['advice'])}"
    if is_imported(cell):
        return f"{text}{_warned(cell)}. Causes could not be looked for: an imported run has no server pages."
    split = cell.get("ttft_split_ms", {})
    unknown = split.get("unexplained", 0.0)
    nothing_read = set(split) == {"unexplained"}
    if mean and ((unknown > UNKNOWN_SHARE * mean and unknown > UNKNOWN_MS) or nothing_read):
        unseen = "nothing stands out to the client, and " if nothing_read else ""
        return f"{text}; {unseen}where {unknown / mean:.0%} of TTFT goes was not measured (see metrics-missing)."
    return f"{text}. No cause stands out."


def _warned(cell: Mapping[str, Any]) -> str:
    """What is flagged of an imported cell, in short: nothing else was seen of it."""
    flags = [
        v
        for v in cell["validity"]
        if v["severity"] == "warn" and v["code"] not in ("imported", "metrics-missing", TOO_FEW)
    ]
    if not flags:
        return ""
    flags.sort(key=lambda v: v["code"] != "not-steady-state")
    also = ", ".join(v["code"] for v in flags)
    return f"; flagged ({also}): {_first_sentence(flags[0]['evidence']).rstrip('.')}"


def _first_sentence(text: str) -> str:
    head, _, _ = text.partition(". ")
    return head.rstrip(".") + "."


def _ms(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 10 else f"{value:.1f}"


def run_verdict(
    cells: Sequence[Mapping[str, Any]],
    simulated: bool,
    plan: Mapping[str, Any] | None = None,
    interrupted: bool = False,
    answer: str = "",
) -> str:
    """How many cells are valid, and the first thing to change at the most telling one; of a search its `answer`."""
    prefix = "SIMULATED. " if simulated else ""
    prefix += f"{interruption(plan or {}, cells)} " if interrupted else ""
    if not cells:
        return prefix + "No cell was measured."
    several = len({cell.get("target") for cell in (*cells, *((plan or {}).get("cells") or []))}) > 1
    if answer:
        return f"{prefix}{answer}"
    # What an interruption cut off says nothing about the servers, as long as anything else was measured.
    judged = [cell for cell in cells if not is_cut(cell)] or cells
    void = [cell for cell in judged if is_void(cell)]
    valid = [cell for cell in judged if not is_void(cell)]
    foreign = [cell for cell in valid if is_imported(cell)]
    # Of another tool's file nothing calls a cell valid: what voids it may not be in there.
    sound = "not void by what its file tells" if foreign else "valid"
    if void:
        are = "is" if len(valid) == 1 else "are"
        said = f"{len(valid):,} of {counted(len(judged), 'cell')} {are} {sound}" if valid else _none_valid(judged)
        first, busy = _first_to_say(judged, void)
        return followable(f"{prefix}{said}; {_named(first, several)}{_busy_client(busy)}", simulated)
    if flagged := [cell for cell in foreign if _warned(cell)]:
        are = "The cell is" if len(valid) == 1 else f"{len(flagged):,} of {len(valid):,} cells are"
        return f"{prefix}{are} flagged, and not shown to be valid; {_named(max(flagged, key=_load), several)}"
    named = [cell for cell in valid if cell["diagnosis"]]
    telling = max(named or valid, key=_share if named else _load)
    said = f"All {len(valid):,} cells are {sound}" if len(valid) > 1 else f"The cell is {sound}"
    return f"{prefix}{said}; {'' if named or len(valid) == 1 else 'the busiest, '}{_named(telling, several)}"


def _first_to_say(
    cells: Sequence[Mapping[str, Any]], void: Sequence[Mapping[str, Any]]
) -> tuple[Mapping[str, Any], Sequence[Mapping[str, Any]]]:
    """The cell that the verdict speaks of, and the void ones that come second: where a busy client spoilt half of the
    cells at most and the others show what the servers lack, that is what the run was made for."""
    busy = [cell for cell in void if _only_the_client(cell)]
    others = [cell for cell in void if cell not in busy]
    sound = [cell for cell in cells if cell not in void and cell["diagnosis"]]
    if busy and 2 * len(busy) <= len(cells) and (others or sound):
        return (min(others, key=_tells) if others else max(sound, key=_share)), busy
    return min(void, key=_tells), ()


def _only_the_client(cell: Mapping[str, Any]) -> bool:
    """Void for our own client's sake, and for nothing that a server did."""
    return {v["code"] for v in cell["validity"] if v["severity"] == "void"} == {"client-saturated"}


def _busy_client(cells: Sequence[Mapping[str, Any]]) -> str:
    if not cells:
        return ""
    evidence = next(v["evidence"] for v in cells[0]["validity"] if v["code"] == "client-saturated")
    are = "is" if len(cells) == 1 else "are"
    remedy = evidence.partition(". ")[2]
    return f" {counted(len(cells), 'cell')} {are} void for a busy client (client-saturated). {remedy}".rstrip()


def _none_valid(cells: Sequence[Mapping[str, Any]]) -> str:
    """No cell is valid; where some of its repeats are, these can still be compared."""
    repeats = [
        bool(repeat.get("valid")) and repeat.get("state", "done") == "done"
        for cell in cells
        for repeat in cell.get("repeats") or []
    ]
    if not any(repeats):
        return "No cell is valid"
    void, are = repeats.count(False), "is" if repeats.count(False) == 1 else "are"
    return f"No cell is valid as a whole, since {void:,} of {len(repeats):,} repeats {are} void"


def _named(cell: Mapping[str, Any], several: bool) -> str:
    """The cell's verdict, with its target in front where the run has several."""
    return place(cell, target=several).removesuffix(place(cell)) + str(cell["verdict"])


def _tells(cell: Mapping[str, Any]) -> tuple[int, float, float]:
    """What to put right first: doubt about the measurement, then the lowest load that breaks, its slowest shape."""
    codes = [v["code"] for v in cell["validity"] if v["severity"] == "void"]
    grave = min((GRAVE.index(code) if code in GRAVE else len(GRAVE) for code in codes), default=-1)
    grave = -2 if _stopped(cell) else grave
    load, mean = _load(cell)
    return grave, load, -mean


def _share(cell: Mapping[str, Any]) -> float:
    if _stopped(cell):
        return 1.0
    shares = [cause.get("share") for cause in cell["diagnosis"]]
    return max((float(share) for share in shares if share is not None), default=0.0)


def is_void(cell: Mapping[str, Any]) -> bool:
    """No result: void, without an answer, or cut short by an interruption."""
    return any(v["severity"] == "void" for v in cell["validity"]) or not cell.get("completed") or is_cut(cell)


def _load(cell: Mapping[str, Any]) -> tuple[float, float]:
    return (float(cell.get("request_rate") or cell.get("max_concurrency") or 0.0), float(cell.get("mean_ttft_ms", 0.0)))
