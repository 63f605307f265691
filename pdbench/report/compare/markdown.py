"""A comparison as a pull-request comment: the verdict, what tells, and everything else folded away."""

from __future__ import annotations

import re
from collections.abc import Sequence

from pdbench.report import wording
from pdbench.report.compare import said
from pdbench.report.compare.comparison import CellChange, Comparison
from pdbench.report.compare.gate import VALIDITY, Change
from pdbench.report.wording import clean, number

HEADS = {
    "failed": "gate failed",
    "passed": "gate passed",
    "undecided": "gate undecided",
    "refused": "comparison refused",
    "meaningless": "nothing to compare",
}
MARKS = {"failed": "**FAIL**", "passed": "ok", "undecided": "?"}
COMMENT_LIMIT = 60_000  # characters; a comment on GitHub holds 65,536
_MARKUP = re.compile(r"://|[&<>|@`*_\[\]~#!\\]")


def render_markdown(comparisons: Sequence[Comparison]) -> str:
    """The comment; every foreign string is text in it, not markup, mention or link."""
    return "\n".join(_comment(comparison) for comparison in comparisons)


def plain(text: object) -> str:
    """Foreign text whose characters mean nothing to Markdown."""
    return _MARKUP.sub(lambda found: f"&#{ord(found[0][0])};{found[0][1:]}", clean(text, 400))


def _comment(comparison: Comparison) -> str:
    simulated = "SIMULATED: " if comparison.simulated else ""
    lines = [f"### {simulated}pdbench: {HEADS[comparison.status]}", "", plain(said.verdict(comparison)), ""]
    if step := said.next_step(comparison):
        lines += [f"Next: {plain(step)}", ""]
    telling = [(cell, change) for cell, change in comparison.gates if _tells(change)]
    rest = [pair for pair in comparison.gates if pair not in telling]
    lines += _table(comparison, telling)
    lines += _folded(f"{wording.counted(len(rest), 'gate')} without evidence of a change", _table(comparison, rest))
    lines += _folded("What explains it", _parts(comparison))
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
    level = f"{1 - comparison.rules.alpha:.0%}"
    lines = [f"| gate | cell | metric | {roles[0]} | {roles[1]} | change | {level} interval | evidence |"]
    lines.append("|---|---|---|--:|--:|--:|---|---|")
    for cell, change in gates:
        values = [_value(change, change.base), _value(change, change.new), said.signed(change.change)]
        doubt = said.span(change) or plain(change.note)
        evidence = f"**{change.evidence}**" if _tells(change) else change.evidence
        if change.gate == "undecided":
            evidence += f", {said.why_undecided(change)}"
        row = [
            MARKS[change.gate or ""],
            plain(cell.cell.name),
            said.metric_name(change.metric),
            *values,
            doubt,
            evidence,
        ]
        lines.append(f"| {' | '.join(row)} |")
    return [*lines, ""]


def _value(change: Change, value: float | None) -> str:
    if value is None:
        return wording.NOT_MEASURED
    return (
        wording.percent(value) if change.metric == VALIDITY else f"{number(value)} {said.unit(change.metric)}".rstrip()
    )


def _parts(comparison: Comparison) -> list[str]:
    lines = []
    for cell in comparison.cells:
        sure = [part for part in cell.parts if part.sure]
        if (sure or cell.causes) and any(_tells(change) for change in cell.gates):
            parts = ", ".join(f"{wording.part_name(part.name)} {said.signed_ms(part.change_ms)}" for part in sure)
            total = said.signed_ms(sum(part.change_ms for part in cell.parts))
            told = "; ".join(filter(None, [f"mean TTFT {total} ms: {parts}" if parts else "", *cell.causes]))
            lines.append(f"- {plain(cell.cell.name)}: {plain(told)}")
    return lines


def _folded(title: str, lines: Sequence[str]) -> list[str]:
    return [f"<details><summary>{title}</summary>", "", *lines, "", "</details>", ""] if lines else []
