"""The end of a sweep in the terminal: the verdict, the cells in numbers, where TTFT went, and what to doubt."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from pdbench.report.capacity.text import probe_tables
from pdbench.report.columns import NUMBERS, Column, Layout, arrange, reach_of, split_columns, target_column
from pdbench.report.leg_tables import drive_column, leg_lines
from pdbench.report.part_tables import part_lines
from pdbench.report.sent_rate import GOT, not_the_servers
from pdbench.report.wording import (
    TOO_FEW,
    CellSummary,
    Summary,
    cell_sentence,
    clean,
    counted,
    cut_short,
    evidence,
    first_change,
    flags,
    for_readers,
    is_cut,
    is_unsound,
    listed,
    load_unit,
    loop,
    most_needed,
    named,
    needed_requests,
    new_advice,
    notes,
    part_name,
    place,
    queue_note,
    sentence,
    share_in_words,
    slos,
    split,
    statistic,
    targets,
    tenths,
    verdict_mark,
    void_codes,
    which,
    why_unsound,
)

MARK_STYLE = {
    **dict.fromkeys(("void", "none"), "bold red"),
    **dict.fromkeys(("warn", "cut"), "yellow"),
    **dict.fromkeys(("ok", "few"), "cyan"),  # no green: a cell may be measured well on servers that are not well
}
MARK_TEXT = {"void": "VOID", "warn": "warn", "few": "few", "ok": "valid", "none": "none", "cut": "cut"}
MARK_WIDTH = 6
SPOKEN_CELLS = 12
_DOUBTED = (("TTFT p50", "p50", "ttft"), ("TTFT p99", "p99", "ttft"))


def print_summary(summary: Summary, console: Console) -> None:
    """Print the verdict and the tables."""
    printed(final_table(summary, console.width), console)


def printed(text: RenderableType, console: Console) -> None:
    """Print without blanks at the ends of lines. A terminal that knows no Unicode gets plain letters."""
    with console.capture() as capture:
        console.print(text)
    plain = re.sub(r" +((?:\x1b\[[0-9;]*m)*)$", r"\1", capture.get(), flags=re.MULTILINE)
    try:
        plain.encode(console.encoding or "utf-8")
    except (UnicodeEncodeError, LookupError):
        plain = plain.replace("\N{PLUS-MINUS SIGN}", "+-").encode("ascii", "replace").decode()
    console.file.write(plain)
    console.file.flush()


def final_table(summary: Summary, width: int) -> RenderableType:
    """Everything that the end of a sweep says, no line longer than `width`; the verdict last, where the eye is."""
    summary = for_readers(summary)
    cells: Sequence[CellSummary] = summary.get("cells") or []
    several = len(targets(summary)) > 1
    said = _run_verdict(summary, cells)
    parts: list[RenderableType] = [*_cell_verdicts(summary, cells, said)]
    if cells:
        leading, meant = target_column(targets(summary)) if several else (None, {})
        first = [*([leading] if leading is not None else []), *drive_column(cells)]
        parts += [*_blank(parts), *_numbers(summary, cells, first, meant, width), *part_lines(cells, several, width)]
        parts += [*_split(cells, first, several, width), *leg_lines(cells, several)]
        parts += [*_notes(cells, several), *_warnings(cells, several, said)]
        parts += probe_tables(summary)
        parts += _difference(summary, width) if several and not summary.get("capacity") else []
    simulated = ("SIMULATED. ", "bold magenta") if summary.get("simulated") else ""
    return Group(*parts, *_blank(parts), Text.assemble(simulated, (said, "bold")))


def _difference(summary: Summary, width: int) -> list[RenderableType]:
    """The two targets of the run against each other, last before the verdict that it leads."""
    from pdbench.report.compare.between import between_targets
    from pdbench.report.compare.text import difference

    comparison = between_targets(summary)
    return difference(comparison, width) if comparison is not None else []


def _blank(before: Sequence[RenderableType]) -> list[RenderableType]:
    return [Text()] if before else []


def _run_verdict(summary: Summary, cells: Sequence[CellSummary]) -> str:
    void = sum(verdict_mark(cell) == "void" for cell in cells)
    are = "is" if void == 1 else "are"
    size = (
        f"{void} of {counted(len(cells), 'cell')} {are} void." if void else f"{counted(len(cells), 'cell')} measured."
    )
    return (sentence(summary) or size) if cells else "No cell was measured."


def _cell_verdicts(summary: Summary, cells: Sequence[CellSummary], said: str) -> Iterator[RenderableType]:
    if summary.get("simulated"):
        yield Text("SIMULATED: these numbers come from the practice testbed, not from an engine.", style="bold magenta")
    if any(loop(cell) == "closed" for cell in cells):
        yield Text("Closed loop: each stream waits for its answer, so the load gives way where servers slow down.")
    spoken = [cell for cell in cells if is_unsound(cell) or verdict_mark(cell) == "none" or cell.get("diagnosis")]
    for cell in spoken[:SPOKEN_CELLS]:
        yield from _cell_verdict(cell, len(targets(summary)) > 1, said)
    if (more := len(spoken) - SPOKEN_CELLS) > 0:
        yield Text(f"... and {more} more {'cell' if more == 1 else 'cells'} like these: see report.html")


def _cell_verdict(cell: CellSummary, target: bool, run_verdict: str) -> Iterator[RenderableType]:
    """One line for a cell; an unsound one also gets the evidence of its causes. The arrow stands at the first change of
    the first cause, and at no other; else nothing is said twice."""
    mark = verdict_mark(cell)
    none = "no request was answered" if cell.get("completed") == 0 else "nothing was measured"
    said = cell_sentence(cell) or (void_codes(cell) if mark == "void" else none if mark == "none" else "")
    spoken = f"{run_verdict} {said}"
    explained = mark in ("void", "none") or said in run_verdict  # "" is in it
    causes = (cell.get("diagnosis") or [])[:2] if explained else []
    if said in run_verdict:
        told = [named(cause) for cause in causes if _spoken(cause, spoken)]
        above = f"{', '.join(told)}: see the verdict below" if told else ""
        said = "; ".join(filter(None, [why_unsound(cell), above]))
    elif causes and evidence(causes[0]).rstrip(".") not in said:
        said = said.removesuffix(first_change(causes[0])).rstrip()  # it comes below, with the arrow
    line = Text.assemble((place(cell, target), "bold"), f": {said}" if said else "")
    yield hanging(Text(MARK_TEXT[mark], style=MARK_STYLE[mark]), line)
    for rank, cause in enumerate(causes):
        if _spoken(cause, spoken):
            continue
        head = clean(cause.get("cause", "?"), 40) + (f" ({share})" if (share := share_in_words(cause)) else "")
        yield hanging(Text(), Text(f"{head}: {evidence(cause)}"))
        if rank == 0 and (advice := listed(cause.get("advice") or "")):
            yield hanging(Text(), Text.assemble(("-> ", "bold"), advice))
        elif advice := new_advice(cause, f"{run_verdict} {clean(cell.get('verdict') or '', 2000)}"):
            yield hanging(Text(), Text(f"then: {advice}"))


def _spoken(cause: Mapping[str, Any], said: str) -> bool:
    """Whether the evidence of a cause was said already."""
    found = evidence(cause)
    return bool(found) and found.rstrip(".") in said


def hanging(mark: Text, line: Text, width: int = MARK_WIDTH) -> Table:
    """`line` beside its mark; what wraps stays in its column."""
    grid = Table.grid(padding=(0, 1, 0, 0))
    grid.add_column(width=width - 1, no_wrap=True)
    grid.add_column(overflow="fold")
    grid.add_row(mark, line)
    return grid


def _numbers(
    summary: Summary, cells: Sequence[CellSummary], leading: Sequence[Column], meant: dict[str, str], width: int
) -> Iterator[RenderableType]:
    layout = arrange([*leading, *NUMBERS], cells, width - MARK_WIDTH)
    first = True
    for (output, unit), group in itertools.groupby(zip(cells, layout.rows, strict=True), _group):
        name = [f"asked in {unit}", "latencies in ms"] + ([f"{output:,} output tokens"] if output is not None else [])
        yield Text(" \N{MIDDLE DOT} ".join(name), style="italic")
        if first:
            yield from _heads(layout)
        first = False
        for cell, row in group:
            yield from _row(cell, row, layout)
    said = [f"{short}: {name}" for short, name in meant.items() if any(short in row for row in layout.rows)]
    heads = {" ".join(head).strip() for head in layout.heads}
    said += [note] if "got req/s" in heads and (note := not_the_servers(summary)) else []
    for note in [*said, *_legend(layout, cells, slos(summary))]:
        yield hanging(Text(), Text(note, style="dim"))


def _group(pair: tuple[CellSummary, Any]) -> tuple[Any, str]:
    return pair[0].get("output_len"), load_unit(pair[0])


def _heads(layout: Layout) -> Iterator[Text]:
    for level in (0, 1):
        line = layout.line([head[level] for head in layout.heads])
        yield Text(" " * MARK_WIDTH + line, style="bold" if level else "", no_wrap=True, overflow="ignore")


def _row(cell: CellSummary, row: Sequence[str], layout: Layout) -> Iterator[RenderableType]:
    mark = verdict_mark(cell)
    style = "dim" if is_unsound(cell) else ""
    yield Text.assemble(
        (MARK_TEXT[mark].ljust(MARK_WIDTH), MARK_STYLE[mark]),
        (layout.line(row), style),
        no_wrap=True,
        overflow="ignore",
    )
    if is_unsound(cell):
        codes = [f"void: {void_codes(cell)}"] if void_codes(cell) else []
        yield hanging(Text(), Text("; ".join([cut_short(cell)] * is_cut(cell) + codes), style="red"))


def _legend(layout: Layout, cells: Sequence[CellSummary], slo: str) -> list[str]:
    written = {text for row in layout.rows for text in row}
    heads = {" ".join(head).strip() for head in layout.heads}
    said: list[str] = [GOT] if "got req/s" in heads else []
    if any(verdict_mark(cell) == "warn" for cell in cells):
        said.append("warn: valid, with something to keep in mind: see the flags")
    if any(verdict_mark(cell) == "few" for cell in cells):
        said.append("few: valid, with too few requests for some percentile")
    if any("\N{PLUS-MINUS SIGN}" in text for text in written):
        said.append("\N{PLUS-MINUS SIGN}: reach of the 95% interval")
    if any(text.endswith("+?") for text in written):
        said.append("+?: too few requests to bound it from above")
    if any(text.startswith((">", "n<", "needs ")) for text in written):
        asked = {q: sorted({n for cell in cells if (n := _asks(cell, q))}) for q in ("p50", "p90", "p99")}
        asks = [
            f"{q} takes {' to '.join(f'{n:,}' for n in dict.fromkeys((of[0], of[-1])))}"
            for q, of in asked.items()
            if of
        ]
        gaps = [n for cell in cells if (n := needed_requests(cell, "p99", "itl")) is not None]
        asks += [f"p99 of ITL takes up to {max(gaps):,}"] if gaps else []
        asks[:1] = [f"{first} requests or more" for first in asks[:1]]
        signs = [
            meaning
            for sign, meaning in ((">", "> is where its 95% interval begins"), ("n<", "n<N that it takes N"))
            if any(text.startswith(sign) for text in written)
        ]
        said.append("; ".join([f"too few requests for a percentile ({', '.join(asks)})", *signs]))
    if "slots need/have" in heads:
        said.append("slots: needed by the load / available")
        if any(text.endswith("/?") for text in written):
            said.append(
                "?: slots not known: pdbench slots --from-run RUN --max-num-seqs N (or sweep with --max-num-seqs)"
            )
    if slo and "good req/s" in heads:
        said.append(f"good: {slo}")
    said += [
        f"{name}: reach of its 95% interval: {reach}"
        for name, quantile, metric in _DOUBTED
        if name in layout.shortened and any(statistic(cell, quantile, metric) is not None for cell in cells)
        if (reach := reach_of(quantile, metric, cells))
    ]
    if layout.left_out:
        said.append(f"left out at this width: {', '.join(reversed(layout.left_out))}")
    return said


def _asks(cell: CellSummary, quantile: str) -> int | None:
    """Of what the table shows: E2EL has its p99 alone there."""
    shown = ("ttft", "e2el") if quantile == "p99" else ("ttft",)
    return next((n for m in shown if (n := needed_requests(cell, quantile, m)) is not None), None)


def _split(
    cells: Sequence[CellSummary], leading: Sequence[Column], several: bool, width: int
) -> Iterator[RenderableType]:
    known = [cell for cell in cells if split(cell)]
    yield Text()
    if not known:
        yield Text("Where TTFT went: not measured (no metrics page of prefill or decode was scraped).", style="italic")
        return
    layout = arrange([*leading, *split_columns(known)], known, width - MARK_WIDTH)
    yield Text("Where the mean TTFT went, ms", style="italic")
    if layout.width > width - MARK_WIDTH:
        yield from _split_in_words(known, several)
    else:
        yield from _heads(layout)
        for cell, row in zip(known, layout.rows, strict=True):
            yield from itertools.islice(_row(cell, row, layout), 1)
    if note := queue_note(known):
        yield hanging(Text(), Text(note, style="dim"))


def _split_in_words(cells: Sequence[CellSummary], several: bool) -> Iterator[RenderableType]:
    """For a terminal too narrow for the table."""
    for cell in cells:
        mark = verdict_mark(cell)
        parts = " + ".join(f"{part_name(part)} {tenths(ms)}" for part, ms in split(cell).items())
        line = Text(f"{place(cell, several)}: {parts}", style="dim" if is_unsound(cell) else "")
        yield hanging(Text(MARK_TEXT[mark], style=MARK_STYLE[mark]), line)


def _notes(cells: Sequence[CellSummary], several: bool) -> Iterator[RenderableType]:
    """Remarks that doubt no number."""
    for index, (where, said) in enumerate(notes(cells, several)):
        if index == 0:
            yield Text()
        yield hanging(Text("note"), Text(f"{where}: {said}", style="dim"))


def _warnings(cells: Sequence[CellSummary], several: bool, verdict: str) -> Iterator[RenderableType]:
    """Each warning once, with the cells that it concerns; the one that nearly every short run has comes last, for the
    cell that lacks most, and not for void ones, which more requests do not help. Where no cell is valid, first what
    voids them, as far as the verdict does not say it."""
    nothing_valid = all(is_unsound(cell) or verdict_mark(cell) == "none" for cell in cells)
    concerned: dict[tuple[str, bool], list[tuple[CellSummary, str]]] = {}
    for cell in cells:
        for flag in flags(cell):
            code, found, void = (
                clean(flag.get("code", "?"), 40),
                listed(flag.get("evidence", "")),
                flag.get("severity") == "void",
            )
            if code == TOO_FEW and is_unsound(cell):
                continue
            if not void or (nothing_valid and found.partition(". ")[0] not in verdict):
                concerned.setdefault((code, void), []).append((cell, found))
    for index, (code, void) in enumerate(sorted(concerned, key=lambda key: (not key[1], key[0] == TOO_FEW))):
        if index == 0:
            yield Text()
        of = concerned[code, void]
        mark = "void" if void else "few" if code == TOO_FEW else "warn"
        cell, found, like = *of[0], "such as"
        if code == TOO_FEW:
            (cell, found), like = max(of, key=lambda each: most_needed(each[0])), "most of all"
        where = which(len(of), len(cells), cell, several, like)
        said = Text.assemble((code, "bold"), f" ({where}): {found}")
        yield hanging(Text(MARK_TEXT[mark], style=MARK_STYLE[mark]), said)
