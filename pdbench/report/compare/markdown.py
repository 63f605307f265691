"""A comparison as a pull-request comment: the verdict, what tells, and everything else folded away."""

from __future__ import annotations

from collections.abc import Sequence

from pdbench.report import wording
from pdbench.report.compare import said
from pdbench.report.compare.comparison import UNDECIDED, CellChange, Comparison
from pdbench.report.compare.gate import SHARES, Change
from pdbench.report.markdown import COMMENT_LIMIT, folded, plain, table
from pdbench.report.wording import number

HEADS = {
    "failed": "gate failed",
    "passed": "gate passed",
    "undecided": "gate undecided",
    "refused": "comparison refused",
    "meaningless": "nothing to compare",
}
MARKS = {"failed": "**FAIL**", "passed": "ok", "undecided": "?", "void": "**VOID**"}


def render_markdown(comparisons: Sequence[Comparison]) -> str:
    """The comment; every foreign string is text in it, not markup, mention or link."""
    return "\n".join(_comment(comparison) for comparison in comparisons)


def _comment(comparison: Comparison) -> str:
    simulated = "SIMULATED: " if comparison.simulated else ""
    lines = [f"### {simulated}pdbench: {HEADS[comparison.status]}", "", plain(said.verdict(comparison)), ""]
    if step := said.next_step(comparison):
        lines += [f"Next: {plain(step)}", ""]
    if comparison.status == UNDECIDED:
        lines += [plain(said.STRICT), ""]
    telling = [(cell, change) for cell, change in comparison.gates if _tells(change)]
    rest = [pair for pair in comparison.gates if pair not in telling]
    lines += _table(comparison, telling)
    lines += folded(said.untold([change for _, change in rest], "gate"), _table(comparison, rest))
    lines += folded("What explains it", _parts(comparison))
    remarks = [f"- {plain(remark)}" for remark in said.remarks(comparison)]
    remarks += [f"- not the same: {plain(f'{fact.name}: {fact.base} -> {fact.new}')}" for fact in comparison.differs]
    lines += [*remarks, ""] if remarks else []
    about = f"{plain(comparison.base.path)} against {plain(comparison.new.path)}"
    lines.append(f"<sub>{'. '.join(filter(None, [about, plain(said.method(comparison))]))}</sub>")
    text = "\n".join(lines) + "\n"
    if len(text) > COMMENT_LIMIT:
        kept = text[:COMMENT_LIMIT].rpartition("\n")[0]
        text = f"{kept}\n\nCut here; the rest is in the HTML page and the JSON.\n"
    return text


def _tells(change: Change) -> bool:
    return change.gate == "failed" or change.evidence in ("worse", "improved")


def _table(comparison: Comparison, gates: Sequence[tuple[CellChange, Change]]) -> list[str]:
    if not gates:
        return []
    roles = (plain(comparison.base.role), plain(comparison.new.role))
    heads = ["gate", "cell", "metric", *roles, "change", f"{said.level(comparison)} interval", "evidence"]
    return table(heads, [_row(cell, change) for cell, change in gates], numbers_from=len(heads))


def _row(cell: CellChange, change: Change) -> list[str]:
    values = [_value(change, change.base), _value(change, change.new), said.signed(change.change)]
    evidence = f"**{change.evidence}**" if _tells(change) else change.evidence
    if change.gate == "undecided":
        evidence += f", {plain(said.why_undecided(change))}"
    name = plain(said.metric_name(change.metric))
    doubt = said.span(change) or plain(change.note)
    return [MARKS[change.gate or ""], plain(cell.cell.name), name, *values, doubt, evidence]


def _value(change: Change, value: float | None) -> str:
    if value is None:
        return wording.NOT_MEASURED
    return wording.percent(value) if change.metric in SHARES else f"{number(value)} {said.unit(change.metric)}".rstrip()


def _parts(comparison: Comparison) -> list[str]:
    lines = []
    for cell in comparison.cells:
        sure = [part for part in cell.parts if part.sure]
        if (sure or cell.causes) and any(_tells(change) for change in cell.gates):
            parts = ", ".join(f"{wording.part_name(part.name)} {said.signed_ms(part.change_ms)}" for part in sure)
            told = "; ".join(filter(None, [f"{said.total_of(cell)}: {parts}" if parts else "", *cell.causes]))
            lines.append(f"- {plain(cell.cell.name)}: {plain(told)}")
    return lines
