"""The story of a comparison: which cells, what forbids it, how sure each change is, what explains it, the gate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pdbench.report.compare import capacities, transfers
from pdbench.report.compare.explain import Part, Told, causes, differing_facts, parts_of_change
from pdbench.report.compare.gate import WATCHED, Change, Rules, changes, validity_change
from pdbench.report.compare.pairs import PairedCell, paired_cells
from pdbench.report.compare.refusals import Refusal, refusals, refusals_of_searches
from pdbench.report.compare.sides import Side
from pdbench.report.compare.unanswered import unanswered_change

FAILED, PASSED, UNDECIDED, REFUSED, MEANINGLESS = "failed", "passed", "undecided", "refused", "meaningless"
VOID = "void"  # of a gate, where nothing can be compared: it says what was seen and decides nothing


@dataclass(frozen=True, slots=True)
class CellChange:
    """What changed in one cell. `gates` are judged together with those of all cells, `watched` likewise."""

    cell: PairedCell
    gates: tuple[Change, ...]
    watched: tuple[Change, ...]
    parts: tuple[Part, ...]  # of the change of the mean TTFT
    causes: tuple[str, ...]  # named on one side only


@dataclass(frozen=True, slots=True)
class Comparison:
    """NEW against BASE."""

    base: Side
    new: Side
    rules: Rules
    cells: tuple[CellChange, ...]
    not_compared: tuple[str, ...]
    refused: tuple[Refusal, ...]
    differs: tuple[Told, ...]  # versions and facts that are not the same on both sides
    status: str

    @property
    def gates(self) -> list[tuple[CellChange, Change]]:
        return [(cell, change) for cell in self.cells for change in cell.gates]

    @property
    def simulated(self) -> bool:
        return self.base.simulated or self.new.simulated

    @property
    def searched(self) -> bool:
        """Whether the changes are of what two searches found, and not of repeats."""
        return capacities.is_search(self.base.summary) and capacities.is_search(self.new.summary)

    def count(self, status: str) -> int:
        return sum(change.gate == status for _, change in self.gates)


def compare(base: Side, new: Side, rules: Rules) -> Comparison:
    """Judge NEW against BASE. What forbids the comparison is in `refused`, and then nothing else is judged."""
    if capacities.is_search(base.summary) and capacities.is_search(new.summary):
        return _compare_searches(base, new, rules)
    paired, only = paired_cells(base, new)
    forbidden = refusals(base, new, paired, rules.gates)
    differs = tuple(differing_facts(base, new))
    if forbidden:
        return Comparison(base, new, rules, (), tuple(only), tuple(forbidden), differs, REFUSED)
    gates = changes(paired, rules.gates, rules, gated=True)
    seen_too = transfers.WATCHED if transfers.is_transfer(base.summary) else WATCHED
    watched = changes(paired, [name for name in seen_too if name not in rules.gates], rules, gated=False)
    cells, without = [], []
    for cell, judged, seen in zip(paired, gates, watched, strict=True):
        lost = [validity_change(cell, len(paired), rules), unanswered_change(cell, len(paired), rules)]
        if not cell.pairs:
            without.append(f"{cell.name}: {cell.why_not}")
        own = [change for change in lost if change is not None]
        all_gates = (*(change for change in own if change.gate is not None), *judged)
        seen = [*(change for change in own if change.gate is None), *seen]
        cells.append(
            CellChange(cell, all_gates, tuple(seen), tuple(parts_of_change(cell)), tuple(causes(cell, base, new)))
        )
    status = status_of(cells)
    if status == MEANINGLESS:
        cells = [replace(cell, gates=tuple(replace(change, gate=VOID) for change in cell.gates)) for cell in cells]
    return Comparison(base, new, rules, tuple(cells), tuple([*without, *only]), (), differs, status)


def _compare_searches(base: Side, new: Side, rules: Rules) -> Comparison:
    """What was searched for is the one gate of each search."""
    metric = capacities.metric_of(base)
    rules = replace(rules, gates=(metric,))
    paired, only = capacities.paired_answers(base, new)
    differs = tuple(differing_facts(base, new))
    if forbidden := refusals_of_searches(base, new, paired):
        return Comparison(base, new, rules, (), tuple(only), tuple(forbidden), differs, REFUSED)
    judged = capacities.changes(paired, metric, rules)
    cells = [CellChange(cell, (change,), (), (), ()) for cell, change in zip(paired, judged, strict=True)]
    return Comparison(base, new, rules, tuple(cells), tuple(only), (), differs, status_of(cells))


def status_of(cells: Sequence[CellChange]) -> str:
    """Of all gates together. A cell that NEW alone has void is undecided at best, never passed; what BASE could not
    hold itself is no gate."""
    found = {change.gate for cell in cells for change in cell.gates}
    if not any(cell.cell.pairs for cell in cells):
        return MEANINGLESS
    if FAILED in found:
        return FAILED
    lost = any(not cell.cell.pairs and cell.cell.void_base < cell.cell.planned for cell in cells)
    return UNDECIDED if UNDECIDED in found or lost else PASSED
