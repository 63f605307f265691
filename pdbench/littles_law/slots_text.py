"""The answer of `pdbench slots` on a terminal: the verdict first, then the figures, the curve and what to doubt."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

Document = dict[str, Any]

BAR = 30
DRAWN = (0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95)  # utilisations with a bar: one screen
TOO_FEW, OVERLOADED = "too-few-requests", "not-steady-state"  # as the report has them


def print_answers(documents: list[Document], page: Path | None) -> None:
    # rich takes 80 columns where neither a terminal nor COLUMNS says otherwise.
    console = Console(highlight=False, markup=False, emoji=False, soft_wrap=False)
    with console.capture() as captured:
        if len(documents) > 1:
            console.print("Mean wait for a slot: in the steady state, in a run of this length, and as measured")
            console.print(cells_table(documents))
            console.print("load: asked rate / what full slots complete")
        else:
            _print(console, documents[0])
        for note in notes_of_run(documents):
            console.print(note)
        if page is not None:
            console.print(f"page  {page}", soft_wrap=True)
    console.file.write(re.sub(r" +$", "", captured.get(), flags=re.MULTILINE))


def _print(console: Console, document: Document) -> None:
    if "request_rate" in document:
        console.print(validity(document) or f"From a valid cell: {place(document)}")
    console.print(headline(document), style="bold")
    console.print()
    console.print(_grid(figures(document)))
    if document.get("curve"):
        console.print()
        console.print(f"p99 wait against utilisation ({document['curve_method']})")
        console.print(_grid(curve_rows(document)))
    console.print()
    for warning in document["warnings"]:
        console.print(warning["text"])


def _grid(rows: list[tuple[str, ...]]) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    for cells in rows:
        table.add_row(*cells)
    return table


def headline(document: Document) -> str:
    """One or two sentences: does it fit, how long is the wait, what would be safe."""
    needed, available = document["slots_needed"], document["slots_available"]
    if needed is None:
        return "Overload on any number of slots: the batch slows down faster than it grows."
    if available is None:
        wanted = document["slots_for_slo"]
        enough = (
            ""
            if wanted is None
            else f" max-num-seqs {wanted} keeps the p99 wait within {ms(document['slo_wait_p99_ms'])}"
            f"{_unchanged(document, ' at an unchanged TPOT of')}."
        )
        return f"The load holds {figure(needed)} slots on average.{enough}"
    full = f"{figure(needed)} of {available} slots"
    if "tpot_slope_ms" in document:
        full += " at the TPOT measured" if "steady_slots_needed" in document else ""
        full += f", {percent(document['utilisation'])} of the rate that full slots complete"
        full += f" (TPOT {figure(document['tpot_full_batch_ms'])} ms)"
    else:
        full += f" ({percent(document['utilisation'])})"
    overload = document["overload"]
    if overload is not None:
        growth = overload["ttft_growth_ms_per_request"]
        if growth == 0:
            return f"Overload: the load needs {full}, exactly all there are. Waits grow without end, though slowly."
        return (
            f"Overload: the load needs {full}. Each request waits {ms(growth)} longer than the one before it, "
            f"{figure(overload['achieved_qps'])} of {figure(document['qps'])} req/s are achieved."
        )
    wait = document["wait_ms"]
    kept = "within" if document.get("keeps_slo") else "beyond"
    return (
        f"The load holds {full}; {document['p_wait']:.0%} of the requests wait for a slot, "
        f"{ms(wait['mean'])} on average; p99 {ms(wait['p99'])}, {kept} the SLO of {ms(document['slo_wait_p99_ms'])}."
    )


def _unchanged(document: Document, words: str) -> str:
    """What the number of slots rests on where TPOT is taken for one number."""
    return "" if "tpot_slope_ms" in document else f"{words} {figure(document['tpot_ms'])} ms"


def place(document: Document) -> str:
    return f"{figure(document['qps'])} req/s x {figure(document.get('prompt_len'))} tokens"


def mark(document: Document) -> str:
    """What the run's report calls the cell."""
    if document["cell_void"]:
        return "VOID"
    return "warn" if _flags(document) else "ok"


def _flags(document: Document) -> list[str]:
    return [code for code in document["cell_validity"] if code != TOO_FEW]


def validity(document: Document) -> str:
    """What is wrong with the cell itself, and what that leaves of the answer; empty where nothing is."""
    void, flags = document["cell_void"], _flags(document)
    if not flags:
        return ""
    codes = ", ".join(dict.fromkeys(void or flags))
    if not void:
        return f"From a valid cell, flagged {codes}: {place(document)}"
    said = f"{mark(document)}  {place(document)}: {codes}"
    if set(void) == {OVERLOADED}:
        return f"{said}. The wait that it measured is a figure of its length."
    return f"{said}. What is computed from it means no more than it does: measure again first."


def notes_of_run(documents: list[Document]) -> Iterator[str]:
    """What is wrong with a run's cells, what they lack, and what their load holds where TPOT goes with the batch."""
    asked = [each for each in documents if "request_rate" in each]
    if len(documents) > 1:
        yield from filter(None, map(validity, asked))
    if any(each["slots_available"] is None for each in asked):
        yield "Slots are not known of this run: --max-num-seqs N, those of one decoder, gives use and waits."
    if len(documents) == 1 and any(each["slots_for_slo"] is not None for each in asked):
        slo = ms(asked[0]["slo_wait_p99_ms"])
        yield (
            f"max-num-seqs and the safe rate are for a p99 wait of {slo} (--slo-wait-p99); the report's advice is for a"
            " mean wait, which it names, and needs other slots."
        )
    for each in asked:
        if "steady_slots_needed" not in each:
            continue
        steady, told = each["steady_slots_needed"], figure(each["slots_needed"])
        if steady is None:
            yield f"{place(each)}: {told} slots at the TPOT measured, but the batch grows without end."
        elif figure(steady) != told:
            yield (
                f"{place(each)}: {told} slots at the TPOT measured; at the asked rate the batch comes to hold"
                f" {figure(steady)}, at a TPOT of {figure(each['steady_tpot_ms'])} ms."
            )


def figures(document: Document) -> list[tuple[str, ...]]:
    return list(_figures(document))


def _figures(document: Document) -> Iterator[tuple[str, ...]]:
    made_of = f"{figure(document['out_tokens'])} tokens x {figure(document['tpot_ms'])} ms"
    made_of += f", {ms(document['prefill_ms'])} of prefill" if "prefill_ms" in document else ""
    arithmetic = f"{figure(document['qps'])}/s x {figure(document['held_ms'] / 1000)} s held ({made_of})"
    if document["slots_needed"] is not None:
        yield "slots needed", figure(document["slots_needed"]), arithmetic
    for one in document.get("classes", []):
        yield (
            f"  {one['name']}",
            figure(one["slots_needed"]),
            f"{one['share']:.0%}; a request holds {ms(one['held_ms'])}",
        )
    if "kv" in document:
        kv = document["kv"]
        each = f", {kv['gib_per_slot']:.3g} GiB a slot on each GPU" if kv["gib_per_slot"] is not None else ""
        yield "KV pool", str(kv["slots"]), f"{kv['sequences']} sequences less {kv['staging']} for handoffs{each}"
    if document["wait_ms"] is not None:
        wait = document["wait_ms"]
        yield (
            "wait for a slot",
            ms(wait["mean"]),
            f"p50 {ms(wait['p50'])}, p90 {ms(wait['p90'])}, p99 {ms(wait['p99'])}",
        )
        yield "", "", f"and half a step, {ms(document['half_step_ms'])}: admission is between steps"
    if "finite" in document:
        yield from _finite(document["finite"])
    if "request_rate" in document:
        seen, came = document["measured_slot_wait_ms"], document["measured_qps"]
        how = "mean of the run itself" if seen is not None else "the run could not tell the wait for a slot"
        yield "measured", ms(seen), how + ("" if came is None else f", {figure(came)} req/s")
    if document["method"]:
        yield "method", "", f"{document['method']}: {document['method_error']}"
    yield from _safe(document)
    if "trace" in document:
        trace = document["trace"]
        yield (
            "fullest minute",
            figure(trace["peak_minute_slots_needed"]),
            f"slots, at {figure(trace['peak_minute_qps'])} req/s",
        )


def _finite(run: Document) -> Iterator[tuple[str, ...]]:
    wait = run["wait_ms"]
    spread = (
        f"+-{ms(run['mean_sd_ms'])} from run to run, p99 {ms(wait['p99'])}, last tenth {ms(run['last_tenth_mean_ms'])}"
    )
    yield f"{run['num_prompts']} prompts", ms(wait["mean"]), spread
    yield "", "", f"{figure(run['achieved_qps'])} req/s over {figure(run['makespan_s'])} s; {run['method']}"


def _safe(document: Document) -> Iterator[tuple[str, ...]]:
    slo = ms(document["slo_wait_p99_ms"])
    wanted = document["slots_for_slo"]
    if wanted is not None:
        fits = "" if document["recommended_max_num_seqs"] is not None else "; the KV pool does not hold them"
        each = " a decoder" if document["decoders"] > 1 else ""
        stays = _unchanged(document, ", if TPOT stays")
        yield "max-num-seqs", str(wanted), f"needed{each} for p99 wait <= {slo}{stays}{fits}"
    if document["max_qps"] is not None:
        use = f"{document['safe_utilisation']:.0%} of the slots in use"
        yield "safe rate", figure(document["max_qps"]), f"req/s as it is, for p99 wait <= {slo} ({use})"
        rule = document["rule_80"]
        yield "the 80 % rule", figure(rule["qps"]), f"req/s: {rule['verdict']} here, p99 wait {ms(rule['wait_p99_ms'])}"


def curve_rows(document: Document) -> list[tuple[str, ...]]:
    """One bar a utilisation, on a scale that the longest of them fills, and the load's own place among them."""
    points = [
        (point["utilisation"], point["p99_ms"], "") for point in document["curve"] if point["utilisation"] in DRAWN
    ]
    here = document["utilisation"]
    own = document["wait_ms"]["p99"] if document["wait_ms"] is not None else None
    points = [point for point in points if abs(point[0] - here) > 0.01]
    points.append((here, own, "<- you are here"))
    points.sort(key=lambda point: point[0])
    top = max((wait for _, wait, _ in points if wait is not None), default=0.0) or 1.0
    rows: list[tuple[str, ...]] = []
    for share, wait, mark in points:
        bar = "#" * BAR + " ..." if wait is None else "#" * round(BAR * wait / top)
        rows.append((f"{percent(share):>6}", "no end" if wait is None else ms(wait), f"{bar} {mark}".strip()))
    return rows


def cells_table(documents: list[Document]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    heads = ("req/s", "prompt", "need/have", "load", "P(wait)", "mean wait", "in this run", "measured")
    table.add_column("")
    for head in heads:
        table.add_column(head, justify="right", no_wrap=True)
    for each in documents:
        wait = each["wait_ms"] or {}
        table.add_row(
            mark(each),
            figure(each["qps"]),
            figure(each.get("prompt_len")),
            f"{figure(each['slots_needed'])}/{each['slots_available'] or '-'}",
            "-" if each["utilisation"] is None else percent(each["utilisation"]),
            "-" if each["p_wait"] is None else f"{each['p_wait']:.0%}",
            "no end" if each["overload"] else ms(wait.get("mean")),
            "-" if "finite" not in each else _spread(each["finite"]),
            ms(each.get("measured_slot_wait_ms")),
        )
    return table


def _spread(run: Document) -> str:
    """`338\u00b1259 ms`: the mean and its standard deviation from run to run, in one unit."""
    both = (run["wait_ms"]["mean"], run["mean_sd_ms"])
    scale, unit = (1000, "s") if max(both) >= 1000 else (1, "ms")
    mean, spread = (f"{value / scale:.{0 if value >= 10 * scale else 2}f}" for value in both)
    return f"{mean}\u00b1{spread} {unit}"


def figure(value: float | None) -> str:
    """Three significant digits."""
    if value is None:
        return "-"
    if value != 0 and not 1e-3 <= abs(value) < 1e6:
        return f"{value:.2e}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def percent(share: float) -> str:
    return f"{share:.0%}" if share < 100 else f"{figure(100 * share)}%"


def ms(value: float | None) -> str:
    """A time in ms, or in s from a second on."""
    if value is None:
        return "-"
    if value >= 1000:
        return f"{figure(value / 1000)} s"
    return f"{value:.3g} ms" if value >= 0.01 or value == 0 else "<0.01 ms"
