"""The tables of report.html: cells in numbers, the split, validity, diagnosis."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pdbench.report import wording
from pdbench.report.columns import IN_HTML, Column
from pdbench.report.markup import Child, Markup, table, tag
from pdbench.report.wording import (
    NOT_MEASURED,
    TOO_FEW,
    CellSummary,
    clean,
    evidence,
    is_unsound,
    listed,
    place,
    share_in_words,
    tenths,
    verdict_mark,
    why_unsound,
)

MARK_WORDS = {
    "void": "void",
    "cut": "cut",
    "none": "no answer",
    "warn": "warn",
    "few": "valid, few requests",
    "ok": "valid",
}


def mark(cell: CellSummary) -> Markup:
    kind = verdict_mark(cell)
    if kind == "few":
        return tag("span", tag("span", "valid", class_="mark ok"), tag("span", " few", class_="quiet"))
    return tag("span", MARK_WORDS[kind], class_=f"mark {kind}")


def identity(cell: CellSummary) -> str:
    return f"#{cell.get('cell', '?')}"


def numbers(cells: Sequence[CellSummary], several_targets: bool) -> Markup:
    """Every cell with what was measured of it, what decides first; an unsound cell is struck and says why."""
    columns = [c for c in IN_HTML if any(c.forms[0](cell) != NOT_MEASURED for cell in cells)]
    outputs = {cell.get("output_len") for cell in cells}
    columns = [c for c in columns if c.head != ("out", "tokens") or len(outputs) > 1]
    units = ["streams" if wording.loop(cell) == "closed" else "req/s" for cell in cells]
    one_unit = len(set(units)) == 1
    heads: list[Child] = ["cell", "validity", *(["target"] if several_targets else [])]
    heads.append(tag("th", f"asked {units[0]}" if one_unit else "load", scope="col", class_="n"))
    heads += [tag("th", " ".join(filter(None, c.head)), scope="col", class_="n") for c in columns[1:]]
    rows = []
    for cell, unit in zip(cells, units, strict=True):
        said: Child = mark(cell)
        if is_unsound(cell):
            said = [said, *(tag("small", why) for why in why_unsound(cell).split(", "))]
        row: list[Child] = [identity(cell), tag("td", said)]
        row += [tag("td", clean(cell.get("target", ""), 60))] if several_targets else []
        row.append(tag("td", f"{columns[0].forms[0](cell)}{'' if one_unit else f' {unit}'}", class_="n"))
        row += [tag("td", column.forms[0](cell), class_=figure_class(column)) for column in columns[1:]]
        rows.append(row)
    caption = "Cells in numbers; latencies in ms"
    caption += f"; {cells[0]['output_len']:,} output tokens" if len(outputs) == 1 and outputs != {None} else ""
    return table(heads, rows, caption=caption, row_classes=_classes(cells))


def figure_class(column: Column) -> str:
    """What a void cell's servers did stays readable; what it says of their speed is struck out."""
    return "n untrusted" if column.head[0] in ("TTFT", "TPOT", "ITL", "E2EL", "good") else "n"


def split(cells: Sequence[CellSummary], several_targets: bool) -> Markup:
    known = [cell for cell in cells if wording.split(cell)]
    parts = sorted(
        dict.fromkeys(p for cell in known for p in wording.split(cell)), key=lambda part: part == "unexplained"
    )
    named = ["mean TTFT", *(wording.part_name(part) for part in parts)]
    heads: list[Child] = ["cell", "where", "validity", *(tag("th", name, scope="col", class_="n") for name in named)]
    rows = []
    for cell in known:
        values = [tag("td", tenths(wording.split(cell).get(part)), class_="n") for part in parts]
        mean = tag("td", tenths(wording.statistic(cell, "mean", "ttft")), class_="n")
        rows.append([identity(cell), place(cell, several_targets), tag("td", mark(cell)), mean, *values])
    return table(heads, rows, caption="Parts of the mean TTFT, ms", row_classes=_classes(known))


def _classes(cells: Sequence[CellSummary]) -> list[str]:
    return ["voided" if is_unsound(cell) else "" for cell in cells]


def validity(cells: Sequence[CellSummary], several_targets: bool) -> Markup:
    rows: list[list[Child]] = []
    few: list[list[Child]] = []
    for severity in ("void", "warn"):
        for cell in cells:
            for flag in wording.flags(cell, severity):
                quiet = flag.get("code") == TOO_FEW and severity == "warn"
                kind = tag(
                    "td", tag("span", "few" if quiet else severity, class_=f"mark {'few' if quiet else severity}")
                )
                code = tag("td", tag("code", clean(flag.get("code", "?"), 60)))
                said = tag("td", listed(flag.get("evidence", "")), class_="long")
                found = few if quiet else rows
                found.append([identity(cell), place(cell, several_targets), kind, code, said])
    rows += few
    if not rows:
        return tag("p", "No flag: every check that could be made passed.", class_="note")
    heads = ["cell", "where", "severity", "code", "evidence"]
    return table(heads, rows, caption="Validity flags")


def diagnosis(cells: Sequence[CellSummary], several_targets: bool) -> Markup:
    """One card a cause; the same cause with the same advice in several cells is one card."""
    cards: dict[tuple[str, str], list[tuple[CellSummary, dict[str, object]]]] = {}
    for cell in cells:
        for cause in cell.get("diagnosis") or []:
            key = (clean(cause.get("cause", "?"), 60), listed(cause.get("advice", "")))
            cards.setdefault(key, []).append((cell, cause))
    if not cards and any(wording.is_imported(cell) for cell in cells):
        return tag("p", "Causes could not be looked for: an imported run has no server pages.", class_="note")
    if not cards:
        return tag("p", "No cause stands out in what was measured.", class_="note")
    ranked = sorted(cards.items(), key=lambda item: -max(_rank(cause) for _, cause in item[1]))
    return tag(
        "div", [_card(cause, advice, found, several_targets) for (cause, advice), found in ranked], class_="cards"
    )


def _share(cause: dict[str, object]) -> float | None:
    share = cause.get("share")
    return float(share) if isinstance(share, int | float) else None


def _rank(cause: dict[str, object]) -> float:
    return 1.0 if wording.is_down(cause) else _share(cause) or 0.0


def _card(cause: str, advice: str, found: Sequence[tuple[CellSummary, dict[str, object]]], several: bool) -> Markup:
    rows = []
    for cell, record in sorted(found, key=lambda pair: -(_share(pair[1]) or 0)):
        share = share_in_words(record)
        where = tag("span", f"{identity(cell)} {place(cell, target=several)}", class_="where")
        rows.append(tag("li", where, f" {share}: " if share else " ", evidence(record)))
    confirm = next((listed(record["confirm"]) for _, record in found if record.get("confirm")), "")
    parts: list[Child] = [tag("h3", cause), tag("ul", rows[:6])]
    if len(rows) > 6:
        parts.append(
            tag(
                "details",
                tag("summary", f"{len(rows) - 6} more {'cell' if len(rows) == 7 else 'cells'}"),
                tag("ul", rows[6:]),
            )
        )
    if advice:
        parts.append(tag("p", tag("b", "Change first: "), advice))
    if confirm:
        parts.append(tag("p", tag("b", "What would confirm it: "), confirm))
    return tag("article", parts, class_="card")


def foreign(cells: Sequence[CellSummary], several_targets: bool) -> Markup | None:
    """Figures of another tool under its own definitions, as it named them."""
    rows: list[list[Child]] = [
        [identity(cell), place(cell, several_targets), clean(name, 60), _said(value)]
        for cell in cells
        for name, value in (cell.get("foreign") or {}).items()
    ]
    heads = ["cell", "where", "the tool's name", "the tool's figure"]
    return table(heads, rows, caption="Figures that the other tool defines in another way") if rows else None


def _said(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{clean(name, 40)} {_said(item)}" for name, item in value.items())
    return wording.number(float(value)) if isinstance(value, int | float) else clean(value, 60)


def definitions(pairs: Sequence[tuple[str, object]]) -> Markup:
    """Name and value, those that are known."""
    shown: Callable[[object], Child] = lambda value: value if isinstance(value, Markup) else clean(value, 2000)  # noqa: E731
    return tag(
        "dl", [[tag("dt", name), tag("dd", shown(value))] for name, value in pairs if value not in (None, "", [], {})]
    )
