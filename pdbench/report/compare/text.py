"""A comparison on the terminal: the changes in numbers, what explains them, and the verdict last."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.text import Text

from pdbench.report import wording
from pdbench.report.columns import Column, Layout, arrange
from pdbench.report.compare import said
from pdbench.report.compare.comparison import FAILED, REFUSED, CellChange, Comparison
from pdbench.report.compare.explain import measured_on
from pdbench.report.compare.gate import SHARES, Change
from pdbench.report.compare.pairs import name_of
from pdbench.report.text import MARK_WIDTH, hanging, printed
from pdbench.report.wording import clean, number, part_name

GATE_MARK = {"failed": "FAIL", "passed": "ok", "undecided": "?", "void": "VOID"}
GATE_STYLE = {"failed": "bold red", "passed": "green", "undecided": "yellow", "void": "bold red"}
ROWS_AT_MOST = 64
SPOKEN_FACTS = 8
EXPLAINED_CELLS = 6

Row = Mapping[str, Any]


def print_comparison(comparison: Comparison, console: Console) -> None:
    printed(comparison_text(comparison, console.width), console)


def comparison_text(comparison: Comparison, width: int) -> RenderableType:
    """Everything that `compare` says on a terminal, no line longer than `width`."""
    parts: list[RenderableType] = [*_sides(comparison)]
    if comparison.status != REFUSED:
        parts += [*_table(comparison, width), *_explained(comparison), *_watched(comparison)]
    for remark in said.remarks(comparison):
        parts.append(hanging(Text("note"), Text(remark)))
    simulated = ("SIMULATED. ", "bold magenta") if comparison.simulated else ""
    parts += [Text(), Text.assemble(simulated, (said.verdict(comparison), "bold"))]
    if step := said.next_step(comparison):
        parts.append(hanging(Text("->", style="bold"), Text(step)))
    return Group(*parts)


def difference(comparison: Comparison, width: int) -> list[RenderableType]:
    """What a sweep of two targets says of them: the part of a comparison between its sides and its verdict."""
    return [Text(), *_facts(comparison), *_table(comparison, width), *_explained(comparison)]


def _sides(comparison: Comparison) -> Iterator[RenderableType]:
    if comparison.simulated:
        yield Text("SIMULATED: these numbers come from the practice testbed, not from an engine.", style="bold magenta")
    for side in (comparison.base, comparison.new):
        where = clean(side.path, 200) if side.target is None else f"target of {clean(side.path, 200)}"
        line = " \N{MIDDLE DOT} ".join(filter(None, [where, measured_on(side)]))
        yield hanging(Text(clean(side.role, 12), style="bold"), Text(line))
    yield from _facts(comparison)


def _facts(comparison: Comparison) -> Iterator[RenderableType]:
    told = comparison.differs
    if told:
        facts = "; ".join(f"{fact.name}: {fact.base} -> {fact.new}" for fact in told[:SPOKEN_FACTS])
        more = f"; and {len(told) - SPOKEN_FACTS} more" if len(told) > SPOKEN_FACTS else ""
        yield Text(f"Not the same: {facts}{more}", style="dim")


def _table(comparison: Comparison, width: int) -> Iterator[RenderableType]:
    rows: list[dict[str, Any]] = [{"cell": cell, "change": change} for cell, change in comparison.gates]
    if not rows:
        return
    left_out: list[Change] = []
    if len(rows) > ROWS_AT_MOST:
        telling = [
            row for row in rows if row["change"].gate == FAILED or row["change"].evidence in ("worse", "improved")
        ]
        left_out, rows = [row["change"] for row in rows if row not in telling], telling
    yield Text()
    if rows:
        layout = arrange(_columns(rows, comparison), rows, width - MARK_WIDTH)
        for level in (0, 1):
            line = layout.line([head[level] for head in layout.heads])
            yield Text(" " * MARK_WIDTH + line, style="bold" if level else "", no_wrap=True, overflow="ignore")
        yield from _lines(rows, layout)
    if left_out:
        yield Text(f"... and {said.untold(left_out, 'gate')}: see --html or --json", style="dim")
    if method := said.method(comparison):
        yield hanging(Text(), Text(method, style="dim"))


def _lines(rows: list[dict[str, Any]], layout: Layout) -> Iterator[RenderableType]:
    for row, texts in zip(rows, layout.rows, strict=True):
        change: Change = row["change"]
        mark = Text(GATE_MARK[change.gate or ""].ljust(MARK_WIDTH), style=GATE_STYLE[change.gate or ""])
        yield Text.assemble(mark, (layout.line(texts), EVIDENCE_STYLE.get(change.evidence, "")))
        if change.note:
            yield hanging(Text(), Text(change.note))


EVIDENCE_STYLE = {"worse": "bold red", "improved": "green"}


def _columns(rows: list[dict[str, Any]], comparison: Comparison) -> list[Column]:
    """Place, metric, both sides, change, interval, evidence. A cell's place stands in its first row only."""
    first = {id(row["change"]) for row in rows if row is next(r for r in rows if r["cell"] is row["cell"])}

    def once(text: Any) -> Any:
        return lambda row: text(row["cell"].cell.base) if id(row["change"]) in first else ""

    def of(text: Any) -> Any:
        return lambda row: text(row["change"])

    if all(row["cell"].cell.in_grid for row in rows):
        places = _places(rows, comparison, once)
    else:
        places = [Column(("", "cell"), (once(name_of), once(lambda cell: name_of(cell)[:24])), 4, left=True)]
    return [*places, *_figures(comparison, of)]


def _places(rows: list[dict[str, Any]], comparison: Comparison, once: Any) -> list[Column]:
    several = len(comparison.base.targets) > 1
    unit = "streams" if all(wording.loop(row["cell"].cell.base) == "closed" for row in rows) else "req/s"
    columns = [Column(("", unit), (once(lambda cell: wording.short(wording.load(cell))),))]
    if several:
        columns.insert(0, Column(("", "target"), (once(lambda cell: clean(cell.get("target", ""), 12)),), left=True))
    columns.append(Column(("prompt", "tokens"), (once(lambda cell: wording.number_of_tokens(cell.get("prompt_len"))),)))
    return columns


def _figures(comparison: Comparison, of: Any) -> list[Column]:
    return [
        Column(("", "metric"), (of(lambda change: said.metric_name(change.metric)),), left=True),
        Column(("", clean(comparison.base.role, 10)), (of(_value("base")),)),
        Column(("", clean(comparison.new.role, 10)), (of(_value("new")),)),
        Column(("", "change"), (of(lambda change: said.signed(change.change)),)),
        Column((f"{said.level(comparison)} interval", "of the change"), (of(said.span),), 1),
        Column(("", "evidence"), (of(lambda change: change.evidence),), 2, left=True),
        Column(("needs", "more"), (of(_needs),), 3),
    ]


def _value(name: str) -> Any:
    def text(change: Change) -> str:
        value = getattr(change, name)
        return wording.percent(value) if change.metric in SHARES else number(value)

    return text


def _needs(change: Change) -> str:
    if change.gate != "undecided":
        return ""
    return "?" if change.more_repeats is None else f"{change.more_repeats}"


def _explained(comparison: Comparison) -> Iterator[RenderableType]:
    """Where the change of the mean TTFT lies, for cells in which something is more than noise."""
    told = [cell for cell in comparison.cells if _tells(cell)]
    if not told:
        return
    yield Text()
    yield Text("Where the change of the mean TTFT lies, ms", style="italic")
    for cell in told[:EXPLAINED_CELLS]:
        sure = [part for part in cell.parts if part.sure]
        parts = ", ".join(
            f"{part_name(part.name)} {said.signed_ms(part.change_ms)}"
            for part in sorted(sure, key=lambda p: -abs(p.change_ms))
        )
        line = f"{cell.cell.name}: {said.total_of(cell)}: {parts or 'no part for sure'}"
        yield hanging(Text(), Text("; ".join([line, *cell.causes])))


def _tells(cell: CellChange) -> bool:
    return bool(cell.parts) and any(change.evidence in ("worse", "improved") for change in cell.gates)


def _watched(comparison: Comparison) -> Iterator[RenderableType]:
    """Metrics without a gate that changed all the same."""
    seen = [
        f"{cell.cell.name}: {said.change_sentence(change)}"
        for cell in comparison.cells
        for change in cell.watched
        if change.metric in SHARES
        or (change.evidence in ("worse", "improved") and abs(change.change or 0.0) >= comparison.rules.effect)
    ]
    if seen:
        yield Text()
        yield Text("Also changed (not gated)", style="italic")
        for line in seen[:SPOKEN_FACTS]:
            yield hanging(Text(), Text(line))
        if len(seen) > SPOKEN_FACTS:
            yield Text(f"... and {len(seen) - SPOKEN_FACTS} more: see --html or --json", style="dim")
