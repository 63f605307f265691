"""A comparison as JUnit XML: one test a gate, skipped where it is undecided, an error where nothing was compared."""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree import ElementTree as Xml

from pdbench.report.compare import said
from pdbench.report.compare.comparison import MEANINGLESS, REFUSED, CellChange, Comparison
from pdbench.report.compare.gate import Change
from pdbench.report.wording import clean

SUITE = "pdbench compare"


def render_junit(comparisons: Sequence[Comparison]) -> str:
    """The XML text, a suite for each comparison."""
    root = Xml.Element("testsuites", name=SUITE)
    for comparison in comparisons:
        _suite(root, comparison)
    for count in ("tests", "failures", "errors", "skipped"):
        root.set(count, str(sum(int(suite.get(count, "0")) for suite in root)))
    Xml.indent(root)
    return Xml.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _suite(root: Xml.Element, comparison: Comparison) -> None:
    suite = Xml.SubElement(root, "testsuite", name=f"{SUITE}: {clean(comparison.new.path, 200)}")
    about = Xml.SubElement(suite, "properties")
    facts = {
        "base": clean(comparison.base.path, 200),
        "new": clean(comparison.new.path, 200),
        "simulated": str(comparison.simulated).lower(),
        "verdict": _marked(comparison, said.verdict(comparison)),
    }
    for name, value in facts.items():
        Xml.SubElement(about, "property", name=name, value=value)
    if comparison.status in (REFUSED, MEANINGLESS):
        case = Xml.SubElement(suite, "testcase", classname="pdbench.gate", name="comparison")
        Xml.SubElement(case, "error", message=_marked(comparison, said.verdict(comparison))).text = said.next_step(
            comparison
        )
    for cell, change in comparison.gates:
        _case(suite, comparison, cell, change)
    for without in () if comparison.refused else comparison.not_compared:
        case = Xml.SubElement(suite, "testcase", classname="pdbench.cell", name=without.rpartition(": ")[0])
        Xml.SubElement(case, "skipped", message=without)
    cases = suite.findall("testcase")
    suite.set("tests", str(len(cases)))
    for count, kind in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(count, str(sum(case.find(kind) is not None for case in cases)))


def _case(suite: Xml.Element, comparison: Comparison, cell: CellChange, change: Change) -> None:
    name = f"{cell.cell.name}: {said.metric_name(change.metric)}"
    case = Xml.SubElement(suite, "testcase", classname=f"pdbench.gate.{change.metric}", name=name)
    told = _marked(comparison, said.change_sentence(change) if change.base is not None else change.note)
    if change.gate == "failed":
        failure = Xml.SubElement(case, "failure", type="regression", message=told)
        failure.text = "\n".join([told, said.method(comparison), *cell.causes])
    elif change.gate == "void":  # the suite's error says that nothing was compared
        Xml.SubElement(case, "skipped", message=told)
    elif change.gate == "undecided":
        Xml.SubElement(case, "skipped", message=f"{told}; {said.why_undecided(change)}. {said.STRICT}")
    else:
        Xml.SubElement(case, "system-out").text = told


def _marked(comparison: Comparison, text: str) -> str:
    return f"SIMULATED. {text}" if comparison.simulated else text
