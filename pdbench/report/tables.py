"""The tables of report.html: cells in numbers, the split, validity, diagnosis."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pdbench.report import wording
from pdbench.report.columns import NUMBERS, Column
from pdbench.report.markup import Child, Markup, table, tag
from pdbench.report.wording import NOT_MEASURED, CellSummary, clean, listed, place, tenths, verdict_mark, void_codes

MARK_WORDS = {"void": "void", "warn": "warn", "ok": "ok", "none": "no answer"}


def mark(cell: CellSummary) -> Markup:
    kind = verdict_mark(cell)
    return tag("span", MARK_WORDS[kind], class_=f"mark {kind}")


def identity(cell: CellSummary) -> str:
    return f"#{cell.get('cell', '?')}"


def numbers(cells: Sequence[CellSummary], several_targets: bool) -> Markup:
    """Every cell with all that was measured of it; a void cell is struck and says why."""
    columns = [c for c in NUMBERS if any(c.forms[0](cell) != NOT_MEASURED for cell in cells)]
    heads: list[Child] = ["cell", "verdict", *(["target"] if several_targets else []), "load"]
    heads += [tag("th", " ".join(filter(None, c.head)), scope="col", class_="n") for c in columns[1:]]
    rows = []
    for cell in cells:
        said: Child = mark(cell)
        if verdict_mark(cell) == "void":
            said = [said, tag("small", void_codes(cell))]
        row: list[Child] = [identity(cell), tag("td", said)]
        row += [tag("td", clean(cell.get("target", ""), 60))] if several_targets else []
        unit = "streams" if wording.loop(cell) == "closed" else "req/s"
        row.append(tag("td", f"{columns[0].forms[0](cell)} {unit}", class_="n"))
        row += [tag("td", column.forms[0](cell), class_=_class(column)) for column in columns[1:]]
        rows.append(row)
    return table(heads, rows, caption="Cells in numbers; latencies in ms", row_classes=_classes(cells))


def _class(column: Column) -> str:
    """What a void cell's servers did stays readable; what it says of their speed is struck out."""
    return "n untrusted" if column.head[0] in ("TTFT", "TPOT", "ITL", "E2EL", "good") else "n"


def split(cells: Sequence[CellSummary]) -> Markup:
    known = [cell for cell in cells if wording.split(cell)]
    parts = sorted(
        dict.fromkeys(p for cell in known for p in wording.split(cell)), key=lambda part: part == "unexplained"
    )
    named = ["mean TTFT", *(wording.part_name(part) for part in parts)]
    heads: list[Child] = ["cell", "where", "verdict", *(tag("th", name, scope="col", class_="n") for name in named)]
    rows = []
    for cell in known:
        values = [tag("td", tenths(wording.split(cell).get(part)), class_="n") for part in parts]
        mean = tag("td", tenths(wording.statistic(cell, "mean", "ttft")), class_="n")
        rows.append([identity(cell), place(cell), tag("td", mark(cell)), mean, *values])
    return table(heads, rows, caption="Parts of the mean TTFT, ms", row_classes=_classes(known))


def _classes(cells: Sequence[CellSummary]) -> list[str]:
    return ["voided" if verdict_mark(cell) == "void" else "" for cell in cells]


def validity(cells: Sequence[CellSummary], several_targets: bool) -> Markup:
    rows, classes = [], []
    for severity in ("void", "warn"):
        for cell in cells:
            for flag in wording.flags(cell, severity):
                kind = tag("td", tag("span", severity, class_=f"mark {severity}"))
                code = tag("td", tag("code", clean(flag.get("code", "?"), 60)))
                where = place(cell, target=several_targets)
                rows.append(
                    [identity(cell), where, kind, code, tag("td", listed(flag.get("evidence", "")), class_="long")]
                )
                classes.append("")
    if not rows:
        return tag("p", "No flag: every check that could be made passed.", class_="note")
    heads = ["cell", "where", "severity", "code", "evidence"]
    return table(heads, rows, caption="Validity flags", row_classes=classes)


def diagnosis(cells: Sequence[CellSummary], several_targets: bool) -> Markup:
    """One card a cause; the same cause with the same advice in several cells is one card."""
    cards: dict[tuple[str, str], list[tuple[CellSummary, dict[str, object]]]] = {}
    for cell in cells:
        for cause in cell.get("diagnosis") or []:
            key = (clean(cause.get("cause", "?"), 60), listed(cause.get("advice", "")))
            cards.setdefault(key, []).append((cell, cause))
    if not cards:
        return tag("p", "No cause stands out in what was measured.", class_="note")
    ranked = sorted(cards.items(), key=lambda item: -max(_share(cause) or 0 for _, cause in item[1]))
    return tag(
        "div", [_card(cause, advice, found, several_targets) for (cause, advice), found in ranked], class_="cards"
    )


def _share(cause: dict[str, object]) -> float | None:
    share = cause.get("share")
    return float(share) if isinstance(share, int | float) else None


def _card(cause: str, advice: str, found: Sequence[tuple[CellSummary, dict[str, object]]], several: bool) -> Markup:
    rows = []
    for cell, record in sorted(found, key=lambda pair: -(_share(pair[1]) or 0)):
        share = _share(record)
        where = tag("span", f"{identity(cell)} {place(cell, target=several)}", class_="where")
        said = f" {wording.percent(share)} of TTFT: " if share is not None else " "
        rows.append(tag("li", where, said, listed(record.get("evidence", ""))))
    confirm = next((listed(record["confirm"]) for _, record in found if record.get("confirm")), "")
    parts: list[Child] = [tag("h3", cause), tag("ul", rows[:6])]
    if len(rows) > 6:
        parts.append(tag("details", tag("summary", f"{len(rows) - 6} more cells"), tag("ul", rows[6:])))
    if advice:
        parts.append(tag("p", tag("b", "Change first: "), advice))
    if confirm:
        parts.append(tag("p", tag("b", "What would confirm it: "), confirm))
    return tag("article", parts, class_="card")


def definitions(pairs: Sequence[tuple[str, object]]) -> Markup:
    """Name and value, those that are known."""
    shown: Callable[[object], Child] = lambda value: value if isinstance(value, Markup) else clean(value, 2000)  # noqa: E731
    return tag(
        "dl", [[tag("dt", name), tag("dd", shown(value))] for name, value in pairs if value not in (None, "", [], {})]
    )
