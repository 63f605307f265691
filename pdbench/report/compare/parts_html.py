"""What explains a change, in HTML: the split of both sides above each other, and each part's difference."""

from __future__ import annotations

from pdbench.report import wording
from pdbench.report.compare import said
from pdbench.report.compare.comparison import CellChange, Comparison
from pdbench.report.compare.strip import stacks
from pdbench.report.markup import Child, Markup, table, tag
from pdbench.report.split_figures import PART_COLOURS
from pdbench.report.wording import clean, part_name, tenths

EXPLAINED = 24


def explained(comparison: Comparison) -> list[Child]:
    """The split of both sides above each other, and each part's difference."""
    known = [cell for cell in comparison.cells if cell.parts]
    if not known:
        return [tag("p", "The parts of TTFT were not measured on both sides.", class_="note missing")]
    telling = [cell for cell in known if any(change.evidence in ("worse", "improved") for change in cell.gates)]
    shown = (telling or known)[:EXPLAINED]
    longest = max(sum(max(value, 0.0) for value in side) for cell in shown for side in _values(cell))
    parts = list(dict.fromkeys(part.name for cell in shown for part in cell.parts))
    keys = [tag("li", tag("i", style=f"background:{_colour(name)}"), part_name(name)) for name in parts]
    found: list[Child] = [
        tag("ul", keys, class_="keys"),
        tag("div", [_card(c, comparison, longest) for c in shown], class_="cards"),
    ]
    if len(known) > len(shown):
        found.append(
            tag("p", f"{wording.counted(len(known) - len(shown), 'more cell')} without evidence.", class_="note")
        )
    return found


def _values(cell: CellChange) -> tuple[list[float], list[float]]:
    return [part.base_ms for part in cell.parts], [part.new_ms for part in cell.parts]


def _colour(name: str) -> str:
    return PART_COLOURS.get(name, "var(--muted)")


def _card(cell: CellChange, comparison: Comparison, longest: float) -> Markup:
    roles = (clean(comparison.base.role, 30), clean(comparison.new.role, 30))
    bars = [[(_colour(p.name), value) for p, value in zip(cell.parts, side, strict=True)] for side in _values(cell)]
    spoken = f"parts of the mean TTFT of {cell.cell.name}: {roles[0]} above, {roles[1]} below"
    heads: list[Child] = [
        "part",
        *(tag("th", text, scope="col", class_="n") for text in (*roles, "change")),
        "95% interval",
    ]
    rows: list[list[Child]] = []
    for each in cell.parts:
        doubt = (
            ""
            if each.low_ms is None or each.high_ms is None
            else f"{said.signed_ms(each.low_ms)} to {said.signed_ms(each.high_ms)}"
        )
        change = tag("b", said.signed_ms(each.change_ms)) if each.sure else said.signed_ms(each.change_ms)
        values = (tag("td", tenths(each.base_ms), class_="n"), tag("td", tenths(each.new_ms), class_="n"))
        rows.append([part_name(each.name), *values, tag("td", change, class_="n"), doubt])
    head = tag("h3", f"{cell.cell.name}: {said.total_of(cell)}")
    causes = tag("p", "; ".join(cell.causes)) if cell.causes else None
    listed = table(heads, rows, caption="Parts of the mean TTFT, ms; bold where more than noise")
    return tag("article", head, stacks(bars, longest, spoken), causes, listed, class_="card")
