"""The answer of `pdbench slots` on a terminal: the verdict first, then the figures, the curve and what to doubt."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

Document = dict[str, Any]

WIDTH = 80
BAR = 30
DRAWN = (0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95)  # utilisations with a bar: one screen
NOTE_INDENT = "  "


def print_answers(documents: list[Document], page: Path | None) -> None:
    console = Console(highlight=False, markup=False, emoji=False, soft_wrap=False)
    if not console.is_terminal:
        console.width = WIDTH
    with console.capture() as captured:
        if len(documents) > 1:
            console.print("Mean wait for a slot: in the steady state, in a run of this length, and as measured")
            console.print(cells_table(documents))
        for document in documents[:1] if len(documents) == 1 else ():
            _print(console, document)
        for note in notes_of_run(documents):
            console.print(note)
        if page is not None:
            console.print(f"page  {page}", soft_wrap=True)
    console.file.write(re.sub(r" +$", "", captured.get(), flags=re.MULTILINE))


def _print(console: Console, document: Document) -> None:
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
            else f" max-num-seqs {wanted} keeps the p99 wait within {ms(document['slo_wait_p99_ms'])}."
        )
        return f"The load holds {figure(needed)} slots on average.{enough}"
    use = percent(document["utilisation"])
    full = f"{figure(needed)} of {available} slots ({use}{' of capacity' if 'tpot_slope_ms' in document else ''})"
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


def notes_of_run(documents: list[Document]) -> Iterator[str]:
    """What a run's cells lack, and where their demand is not the report's."""
    asked = [each for each in documents if "request_rate" in each]
    if any(each["slots_available"] is None for each in asked):
        yield "Slots are not known of this run: --max-num-seqs N, those of one decoder, gives use and waits."
    if len(documents) == 1 and any(each["slots_for_slo"] is not None for each in asked):
        slo = ms(asked[0]["slo_wait_p99_ms"])
        yield (
            f"max-num-seqs and the safe rate are for a p99 wait of {slo} (--slo-wait-p99); the report's advice is for a"
            " mean wait, which it names, and needs other slots."
        )
    for each in asked:
        needed, told = each["slots_needed"], each["report_slots_needed"]
        if "tpot_slope_ms" not in each:
            continue
        place = f"{figure(each['qps'])} req/s x {figure(each['prompt_len'])} tokens"
        if needed is not None and told is not None and figure(needed) != figure(told):
            yield (
                f"{place}: the report says {figure(told)} slots, at the TPOT measured; here it is the TPOT that goes"
                f" with the batch at the asked rate, {figure(each['tpot_ms'])} ms."
            )
        if each["utilisation"] is not None and not each["overload"]:
            yield (
                f"{place}: use is of the rate that full slots complete, at a TPOT of"
                f" {figure(each['tpot_full_batch_ms'])} ms; it is not needed / slots."
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
        yield "max-num-seqs", str(wanted), f"needed{each} for p99 wait <= {slo}{fits}"
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
    for head in ("req/s", "prompt", "needed", "slots", "use", "P(wait)", "mean wait", "in this run", "measured"):
        table.add_column(head, justify="right")
    for each in documents:
        wait = each["wait_ms"] or {}
        table.add_row(
            figure(each["qps"]),
            figure(each.get("prompt_len")),
            figure(each["slots_needed"]),
            str(each["slots_available"] or "-"),
            "-" if each["utilisation"] is None else f"{each['utilisation']:.0%}",
            "-" if each["p_wait"] is None else f"{each['p_wait']:.0%}",
            "no end" if each["overload"] else ms(wait.get("mean")),
            "-" if "finite" not in each else _spread(each["finite"]),
            ms(each.get("measured_slot_wait_ms")),
        )
    return table


def _spread(run: Document) -> str:
    return f"{ms(run['wait_ms']['mean'])} +-{ms(run['mean_sd_ms'])}"


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
