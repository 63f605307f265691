"""Changes in HTML: grids and tables whose colour follows the evidence."""

from __future__ import annotations

from collections.abc import Sequence

from pdbench.report import wording
from pdbench.report.compare import said
from pdbench.report.compare.comparison import CellChange, Comparison
from pdbench.report.compare.gate import SHARES, Change, higher_is_better
from pdbench.report.compare.strip import Scale, axis, evidence_class, interval
from pdbench.report.markup import Child, Markup, table, tag
from pdbench.report.wording import clean, number

GATE_WORDS = {"failed": "failed", "passed": "passed", "undecided": "undecided", "void": "void"}
OPEN_ROWS = 80  # a longer table shows what tells and folds the rest


def maps(comparison: Comparison) -> list[Child]:
    """For each gated metric the grid with its changes, where a grid says more than the table."""
    if len(comparison.cells) < 3 or not all(cell.cell.in_grid for cell in comparison.cells):
        return []
    drawn: list[Child] = []
    groups: dict[tuple[str, object, str], list[CellChange]] = {}
    for cell in comparison.cells:
        base = cell.cell.base
        groups.setdefault((str(base.get("target", "")), base.get("output_len"), wording.loop(base)), []).append(cell)
    several = len(comparison.base.targets) > 1
    for metric in comparison.rules.gates:
        for (target, output, _), group in groups.items():
            names = [clean(target, 60)] if several else []
            names += [f"{wording.number_of_tokens(output)} output tokens"] if len({k[1] for k in groups}) > 1 else []  # type: ignore[arg-type]
            drawn.append(_map(metric, ", ".join([said.metric_name(metric), *names]), group))
    return [tag("div", drawn, class_="maps")]


def _map(metric: str, title: str, group: Sequence[CellChange]) -> Markup:
    at = {(wording.load(cell.cell.base), cell.cell.base.get("prompt_len")): cell for cell in group}
    loads = sorted({load for load, _ in at if load is not None})
    lens = sorted({length for _, length in at if length is not None}, reverse=True)
    unit = wording.load_unit(group[0].cell.base)
    top = tag("tr", tag("td"), tag("th", unit, scope="colgroup", colspan=max(len(loads), 1)))
    head = tag("tr", tag("th", "prompt tokens", scope="col"), [tag("th", wording.short(v), scope="col") for v in loads])
    rows = []
    for length in lens:
        fields = [_field(at.get((load, length)), metric) for load in loads]
        rows.append(tag("tr", tag("th", wording.number_of_tokens(length), scope="row"), fields))
    kind = "heat up" if higher_is_better(metric) else "heat"
    grid = tag("table", tag("caption", title), tag("thead", top, head), tag("tbody", rows), class_=kind)
    return tag("div", grid, class_="scroll map", tabindex="0", role="region", aria_label=title)


def _field(cell: CellChange | None, metric: str) -> Markup:
    change = next((change for change in cell.gates if change.metric == metric), None) if cell is not None else None
    if cell is None or change is None:
        why = cell.cell.why_not if cell is not None else ""
        return tag("td", tag("span", why or "not measured", class_="doubt"), class_="absent")
    words: list[Child] = [tag("b", said.signed(change.change))]
    words.append(tag("span", said.span(change) or change.evidence, class_="doubt"))
    if change.gate == "failed":
        words.append(tag("span", "failed", class_="mark failed"))
    return tag("td", words, class_=evidence_class(change), title=f"{cell.cell.name}: {said.change_sentence(change)}")


def change_tables(comparison: Comparison, gated: bool) -> list[Child]:
    pairs = [(cell, change) for cell in comparison.cells for change in (cell.gates if gated else cell.watched)]
    if not pairs:
        return [tag("p", "Nothing to compare here.", class_="note missing")]
    scale = Scale(change for _, change in pairs)
    caption = "Every gated change" if gated else "Changes without a gate: a family of their own"
    if len(pairs) <= OPEN_ROWS and gated:
        return [_table(comparison, pairs, scale, caption, gated)]
    telling = [pair for pair in pairs if pair[1].evidence in ("worse", "improved") or pair[1].gate == "failed"]
    rest = [pair for pair in pairs if pair not in telling]
    found: list[Child] = []
    too_few = all(change.evidence == "too few" for _, change in pairs)
    found.append(
        _table(comparison, telling, scale, f"{caption}: those with evidence", gated)
        if telling
        else tag("p", "Too few repeats to tell." if too_few else "No evidence of a change.", class_="note")
    )
    if rest:
        named = said.untold([change for _, change in rest], "figure")
        found.append(tag("details", tag("summary", named), _table(comparison, rest, scale, named, gated)))
    return found


def _table(
    comparison: Comparison, pairs: Sequence[tuple[CellChange, Change]], scale: Scale, caption: str, gated: bool
) -> Markup:
    roles = [tag("th", clean(side.role, 30), scope="col", class_="n") for side in (comparison.base, comparison.new)]
    heads: list[Child] = ["cell", "metric", *roles, tag("th", "change", scope="col", class_="n"), "interval"]
    heads += [tag("th", axis(scale), scope="col"), "evidence", *(["gate"] if gated else [])]
    return table(heads, [_row(cell, change, scale, comparison, gated) for cell, change in pairs], caption=caption)


def _row(cell: CellChange, change: Change, scale: Scale, comparison: Comparison, gated: bool) -> list[Child]:
    spoken = f"{cell.cell.name}: {said.change_sentence(change)}"
    kind = evidence_class(change)
    values: list[Child] = [tag("td", _value(change, value), class_="n") for value in (change.base, change.new)]
    drawn = interval(change, scale, comparison.rules.effect, spoken) if change.change is not None else None
    evidence = [tag("span", change.evidence, class_=f"mark {kind}"), tag("small", change.note) if change.note else None]
    row: list[Child] = [cell.cell.name, f"{said.metric_name(change.metric)}", *values]
    row += [tag("td", said.signed(change.change), class_=f"n {kind}"), said.span(change)]
    row += [tag("td", drawn), tag("td", evidence, class_="doubted")]
    if gated:
        gate = tag("span", GATE_WORDS[change.gate or ""], class_=f"mark {change.gate}")
        needs = tag("small", said.why_undecided(change)) if change.gate == "undecided" else None
        row.append(tag("td", gate, needs, class_="doubted"))
    return row


def _value(change: Change, value: float | None) -> str:
    if value is None:
        return wording.NOT_MEASURED
    return wording.percent(value) if change.metric in SHARES else f"{number(value)} {said.unit(change.metric)}".rstrip()
