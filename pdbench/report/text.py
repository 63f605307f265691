"""The end of a sweep in the terminal: the verdict, the cells in numbers, where TTFT went, and what to doubt."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from pdbench.report.columns import NUMBERS, Layout, arrange, reach_of, split_columns
from pdbench.report.wording import (
    CellSummary,
    Summary,
    cell_sentence,
    clean,
    flags,
    listed,
    load_unit,
    loop,
    needed_requests,
    new_advice,
    notes,
    part_name,
    percent,
    place,
    sentence,
    split,
    statistic,
    targets,
    tenths,
    verdict_mark,
    void_codes,
    which,
)

MARK_STYLE = {"void": "bold red", "warn": "yellow", "ok": "green", "none": "bold red"}
MARK_TEXT = {"void": "VOID", "warn": "warn", "ok": "ok", "none": "none"}
MARK_WIDTH = 5
SPOKEN_CELLS = 12
_DOUBTED = (("TTFT p50", "p50", "ttft"), ("TTFT p99", "p99", "ttft"))


def print_summary(summary: Summary, console: Console) -> None:
    """Print the verdict and the tables. A terminal that knows no Unicode gets plain letters."""
    width = console.width
    with console.capture() as capture:
        console.print(final_table(summary, width))
    text = re.sub(r" +((?:\x1b\[[0-9;]*m)*)$", r"\1", capture.get(), flags=re.MULTILINE)
    try:
        text.encode(console.encoding or "utf-8")
    except (UnicodeEncodeError, LookupError):
        text = text.replace("\N{PLUS-MINUS SIGN}", "+-").encode("ascii", "replace").decode()
    console.file.write(text)
    console.file.flush()


def final_table(summary: Summary, width: int) -> RenderableType:
    """Everything that the end of a sweep says, no line longer than `width`."""
    cells: Sequence[CellSummary] = summary.get("cells") or []
    parts: list[RenderableType] = [*_verdict(summary, cells)]
    if cells:
        parts += [Text(), *_numbers(summary, cells, width)]
        parts += [*_split(cells, width), *_notes(cells), *_warnings(cells)]
    return Group(*parts)


def _verdict(summary: Summary, cells: Sequence[CellSummary]) -> Iterator[RenderableType]:
    if summary.get("simulated"):
        yield Text("SIMULATED: these numbers come from the practice testbed, not from an engine.", style="bold magenta")
    if any(loop(cell) == "closed" for cell in cells):
        yield Text("Closed loop: each stream waits for its answer, so the load gives way where servers slow down.")
    void = sum(verdict_mark(cell) == "void" for cell in cells)
    counted = f"{void} of {len(cells)} cells are void." if void else f"{len(cells)} cells measured."
    said = sentence(summary) or ("1 cell measured." if len(cells) == 1 else counted)
    yield Text(said if cells else "No cell was measured.", style="bold")
    spoken = [cell for cell in cells if verdict_mark(cell) in ("void", "none") or cell.get("diagnosis")]
    for cell in spoken[:SPOKEN_CELLS]:
        yield from _cell_verdict(cell, len(targets(summary)) > 1, said)
    if len(spoken) > SPOKEN_CELLS:
        yield Text(f"... and {len(spoken) - SPOKEN_CELLS} more cells like these: see report.html")


def _cell_verdict(cell: CellSummary, target: bool, run_verdict: str) -> Iterator[RenderableType]:
    """One line for a cell; a void one also gets the evidence of its causes."""
    mark = verdict_mark(cell)
    none = "no request was answered" if cell.get("completed") == 0 else "nothing was measured"
    said = cell_sentence(cell) or (void_codes(cell) if mark == "void" else none if mark == "none" else "")
    if said in run_verdict:
        said = void_codes(cell) if mark == "void" else ""
    line = Text.assemble((place(cell, target=target), "bold"), f": {said}" if said else "")
    yield _hanging(Text(MARK_TEXT[mark], style=MARK_STYLE[mark]), line)
    for cause in (cell.get("diagnosis") or [])[:2] if mark in ("void", "none") or not said else []:
        share = cause.get("share")
        head = clean(cause.get("cause", "?"), 40) + (f" ({percent(share)} of TTFT)" if share is not None else "")
        yield _hanging(Text(), Text(f"{head}: {listed(cause.get('evidence', ''))}"))
        if advice := new_advice(cause, f"{run_verdict} {clean(cell.get('verdict') or '', 2000)}"):
            yield _hanging(Text(), Text.assemble(("-> ", "bold"), advice))


def _hanging(mark: Text, line: Text) -> Table:
    """`line` beside its mark; what wraps stays in its column."""
    grid = Table.grid(padding=(0, 1, 0, 0))
    grid.add_column(width=MARK_WIDTH - 1, no_wrap=True)
    grid.add_column(overflow="fold")
    grid.add_row(mark, line)
    return grid


def _numbers(summary: Summary, cells: Sequence[CellSummary], width: int) -> Iterator[RenderableType]:
    layout = arrange(NUMBERS, cells, width - MARK_WIDTH)
    several = len(targets(summary)) > 1
    first = True
    for (target, output, unit), group in itertools.groupby(zip(cells, layout.rows, strict=True), _group):
        name = [clean(target, 40)] if several else []
        name += [f"asked in {unit}", "latencies in ms"] + ([f"{output} output tokens"] if output is not None else [])
        yield Text(" \N{MIDDLE DOT} ".join(name), style="italic")
        if first or several:
            yield from _heads(layout)
        first = False
        for cell, row in group:
            yield from _row(cell, row, layout)
    yield from _legend(layout, cells)


def _group(pair: tuple[CellSummary, Any]) -> tuple[str, Any, str]:
    return str(pair[0].get("target", "")), pair[0].get("output_len"), load_unit(pair[0])


def _heads(layout: Layout) -> Iterator[Text]:
    for level in (0, 1):
        cells = [head[level].rjust(size + layout.gap) for head, size in zip(layout.heads, layout.widths, strict=True)]
        yield Text(" " * MARK_WIDTH + "".join(cells), style="bold" if level else "", no_wrap=True, overflow="ignore")


def _row(cell: CellSummary, row: Sequence[str], layout: Layout) -> Iterator[RenderableType]:
    mark = verdict_mark(cell)
    numbers = "".join(text.rjust(size + layout.gap) for text, size in zip(row, layout.widths, strict=True))
    style = "dim" if mark == "void" else ""
    yield Text.assemble(
        (MARK_TEXT[mark].ljust(MARK_WIDTH), MARK_STYLE[mark]), (numbers, style), no_wrap=True, overflow="ignore"
    )
    if mark == "void":
        yield _hanging(Text(), Text(f"void: {void_codes(cell)}", style="red"))


def _legend(layout: Layout, cells: Sequence[CellSummary]) -> Iterator[RenderableType]:
    written = {text for row in layout.rows for text in row}
    said: list[str] = []
    if any("\N{PLUS-MINUS SIGN}" in text for text in written):
        said.append("\N{PLUS-MINUS SIGN}: reach of the 95% interval")
    if any(text.endswith("+?") for text in written):
        said.append("+?: too few requests to bound it from above")
    if any(text.startswith((">", "n<", "needs ")) for text in written):
        asks = sorted({f"{q} takes {n}" for cell in cells for q in ("p99", "p90", "p50") if (n := _asks(cell, q))})
        gaps = [n for cell in cells if (n := needed_requests(cell, "p99", "itl")) is not None]
        asks += [f"of ITL up to {max(gaps):,}"] if gaps else []
        said.append(f">: too few requests for this percentile ({', '.join(asks)}); here its 95% interval begins")
    if any(layout.heads[i][0] == "slots" for i in range(len(layout.heads))):
        said.append("slots: needed by the load / available")
    said += [
        f"{name}: {reach_of(quantile, metric, cells)}"
        for name, quantile, metric in _DOUBTED
        if name in layout.shortened and any(statistic(cell, quantile, metric) is not None for cell in cells)
    ]
    if layout.left_out:
        said.append(f"left out at this width: {', '.join(reversed(layout.left_out))}")
    for note in said:
        yield _hanging(Text(), Text(note, style="dim"))


def _asks(cell: CellSummary, quantile: str) -> int | None:
    return next((n for m in ("ttft", "e2el") if (n := needed_requests(cell, quantile, m)) is not None), None)


def _split(cells: Sequence[CellSummary], width: int) -> Iterator[RenderableType]:
    known = [cell for cell in cells if split(cell)]
    yield Text()
    if not known:
        yield Text("Where TTFT went: not measured (no metrics page of prefill or decode was scraped).", style="italic")
        return
    layout = arrange(split_columns(known), known, width - MARK_WIDTH)
    yield Text("Where the mean TTFT went, ms", style="italic")
    if layout.width > width - MARK_WIDTH:
        yield from _split_in_words(known)
        return
    yield from _heads(layout)
    for cell, row in zip(known, layout.rows, strict=True):
        yield from itertools.islice(_row(cell, row, layout), 1)


def _split_in_words(cells: Sequence[CellSummary]) -> Iterator[RenderableType]:
    """For a terminal too narrow for the table."""
    for cell in cells:
        mark = verdict_mark(cell)
        parts = " + ".join(f"{part_name(part)} {tenths(ms)}" for part, ms in split(cell).items())
        line = Text(f"{place(cell)}: {parts}", style="dim" if mark == "void" else "")
        yield _hanging(Text(MARK_TEXT[mark], style=MARK_STYLE[mark]), line)


def _notes(cells: Sequence[CellSummary]) -> Iterator[RenderableType]:
    """Remarks that doubt no number."""
    for index, (where, said) in enumerate(notes(cells)):
        if index == 0:
            yield Text()
        yield _hanging(Text("note"), Text(f"{where}: {said}", style="dim"))


def _warnings(cells: Sequence[CellSummary]) -> Iterator[RenderableType]:
    """Each warning once, with the cells that it concerns."""
    concerned: dict[str, list[tuple[CellSummary, str]]] = {}
    for cell in cells:
        for flag in flags(cell):
            if flag.get("severity") != "void":
                concerned.setdefault(clean(flag.get("code", "?"), 40), []).append(
                    (cell, listed(flag.get("evidence", "")))
                )
    for index, (code, found) in enumerate(concerned.items()):
        if index == 0:
            yield Text()
        where = which(len(found), len(cells), found[0][0])
        said = Text.assemble((code, "bold"), f" ({where}): {found[0][1]}")
        yield _hanging(Text(MARK_TEXT["warn"], style=MARK_STYLE["warn"]), said)
