"""A comparison as one page without network: verdict, both sides, evidence for each change, what explains it."""

from __future__ import annotations

from collections.abc import Sequence

from pdbench.report import facts, wording
from pdbench.report.compare import said
from pdbench.report.compare.changes_html import GATE_WORDS, change_tables, maps
from pdbench.report.compare.comparison import REFUSED, Comparison
from pdbench.report.compare.explain import NOT_KNOWN, measured_on
from pdbench.report.compare.parts_html import explained
from pdbench.report.markup import Child, Markup, table, tag
from pdbench.report.page import page, part, section
from pdbench.report.tables import definitions
from pdbench.report.wording import clean

_TERMS = (
    ("worse, improved", "the interval of the change excludes zero, and the change reaches the effect of interest"),
    ("small", "the interval excludes zero, and the change is below the effect of interest"),
    ("none", "no evidence: the interval includes zero, which does not show that nothing changed"),
    ("interval", "of the relative change, for all changes of its table together, from repeats with the same arrivals"),
    ("failed", "worse for sure, and by the effect of interest or more"),
    ("passed", "the interval excludes a change for the worse as large as the effect of interest"),
    ("undecided", "neither: more repeats are needed, and how many"),
    ("band", "the shaded part of a strip is smaller than the effect of interest"),
)


def render_html(comparisons: Sequence[Comparison]) -> str:
    """The whole page."""
    several = len(comparisons) > 1
    body: list[Child] = [tag("h2", "Verdict", id="verdict", class_="seen-by-few")]
    for place, comparison in enumerate(comparisons):
        front = f"{comparison.new.role}: " if several else ""
        body += [_verdict(comparison), *_sections(comparison, front, f"{place}" if several else "")]
    first = comparisons[0]
    names = [clean(first.base.role, 60), *(clean(each.new.role, 60) for each in comparisons)]
    simulated = "SIMULATED · " if any(each.simulated for each in comparisons) else ""
    heading = f"{' and '.join(names[1:])} against {names[0]}"
    size = wording.counted(len(first.cells), "cell")
    return page(f"{simulated}pdbench · {heading}", heading, size, body, style=part("compare.css"))


def _sections(comparison: Comparison, front: str, mark: str) -> list[Markup]:
    sides = section(f"sides{mark}", f"{front}Side by side", _sides(comparison))
    if comparison.status == REFUSED:
        return [sides]
    return [
        section(f"gates{mark}", f"{front}The gates", [*maps(comparison), *change_tables(comparison, gated=True)]),
        section(f"parts{mark}", f"{front}What explains it", explained(comparison)),
        section(f"watched{mark}", f"{front}Not gated", change_tables(comparison, gated=False)),
        sides,
        section(f"how{mark}", f"{front}How it was judged", _method(comparison)),
    ]


def difference(comparison: Comparison) -> list[Markup]:
    """What report.html shows of a run with two targets, after its verdict."""
    names = f"{clean(comparison.new.role, 60)} against {clean(comparison.base.role, 60)}"
    parts = [*maps(comparison), *change_tables(comparison, gated=True), *_method(comparison)]
    return [
        section("difference", names, parts),
        section("explained", "What explains the difference", explained(comparison)),
    ]


def _verdict(comparison: Comparison) -> Markup:
    parts: list[Child] = [tag("p", said.verdict(comparison), class_="sentence")]
    if comparison.simulated:
        text = " These numbers come from a simulated engine, not from a real one."
        parts.append(tag("p", tag("b", "SIMULATED"), text, class_="banner"))
    if step := said.next_step(comparison):
        parts.append(tag("p", tag("b", "Next: "), step))
    for refusal in comparison.refused[1:]:
        parts.append(tag("p", f"{refusal.why} {refusal.next_step}"))
    if remarks := list(said.remarks(comparison)):
        parts.append(tag("ul", [tag("li", remark) for remark in remarks], class_="note"))
    counts = [f"{count} {name}" for name in GATE_WORDS if (count := comparison.count(name))]
    parts.append(tag("p", f"Gates: {', '.join(counts)}." if counts else "No gate was judged.", class_="note"))
    return tag("div", parts, class_=f"verdict {comparison.status}")


def _sides(comparison: Comparison) -> list[Child]:
    base, new = comparison.base, comparison.new
    rows: list[list[Child]] = [["from", clean(base.path, 300), clean(new.path, 300)]]
    if any(measured_on(side) for side in (base, new)):
        rows.append(["measured, UTC", *(measured_on(side) or NOT_KNOWN for side in (base, new))])
    olds, news = facts.flat(base.summary, base.target), facts.flat(new.summary, new.target)
    for name in dict.fromkeys((*olds, *news)):
        pair = [olds.get(name, NOT_KNOWN), news.get(name, NOT_KNOWN)]
        kind = "differs" if pair[0] != pair[1] else None
        rows.append([name, *(tag("td", clean(value, 120), class_=kind) for value in pair)])
    heads = ["", clean(base.role, 40), clean(new.role, 40)]
    shown = table(heads, rows, caption="What was measured; bold where the two are not the same")
    return [tag("div", shown, class_="sides")]


def _method(comparison: Comparison) -> list[Child]:
    return [tag("p", f"{said.method(comparison) or 'Nothing was judged'}."), definitions(_TERMS)]
