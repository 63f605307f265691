"""Does NEW leave more requests unanswered? Latencies are of the answered ones, and say nothing of those."""

from __future__ import annotations

from collections.abc import Sequence

from pdbench.report.compare.evidence import PAIRS_FOR_T
from pdbench.report.compare.gate import UNANSWERED, Change, Rules
from pdbench.report.compare.pairs import PairedCell, Repeat

MATTERS = 0.01  # of the requests, more than in base: from here on `admission` is a cause, too


def unanswered_change(cell: PairedCell, cells: int, rules: Rules) -> Change | None:
    """The share of requests that failed or were turned away, over the repeats that are valid on both sides; None where
    it has not risen.

    It fails where it rose by `MATTERS`, where Fisher's exact test of the counts says so (its chance of a false alarm
    shared by the cells), and where at least half of five or more repeats have more: a burst in one is a chance of its
    own. A smaller rise is not gated.
    """
    base, new = [pair[0] for pair in cell.pairs], [pair[1] for pair in cell.pairs]
    lost, of = [_unanswered(base), _unanswered(new)], [_ended(base), _ended(new)]
    if not of[0] or not of[1] or lost[1] / of[1] <= lost[0] / of[0]:
        return None
    share = (lost[0] / of[0], lost[1] / of[1])
    more = sum(_unanswered([b]) * _ended([a]) > _unanswered([a]) * _ended([b]) for a, b in cell.pairs)
    pairs, much = len(cell.pairs), share[1] - share[0] >= MATTERS
    sure = pairs >= PAIRS_FOR_T and 2 * more >= pairs and _chance(lost, of) <= rules.alpha / 2 / cells
    evidence = "worse" if sure else "none" if pairs >= PAIRS_FOR_T else "too few"
    gate = "failed" if sure and much else "undecided" if much else None
    needed = PAIRS_FOR_T - pairs if gate == "undecided" and pairs < PAIRS_FOR_T else None
    base_role, new_role = cell.roles
    note = f"{new_role} left {lost[1]:,} of {of[1]:,} requests unanswered, {base_role} {lost[0]:,} of {of[0]:,}"
    return Change(UNANSWERED, *share, pairs=pairs, evidence=evidence, gate=gate, more_repeats=needed, note=note)


def _chance(lost: Sequence[int], of: Sequence[int]) -> float:
    """P(at least so many of the unanswered requests are new's), given how many there are: hypergeometric."""
    from scipy.stats import hypergeom

    return float(hypergeom.sf(lost[1] - 1, sum(of), sum(lost), of[1]))


def _unanswered(repeats: Sequence[Repeat]) -> int:
    return sum(int(repeat.get("failed") or 0) + int(repeat.get("rejected") or 0) for repeat in repeats)


def _ended(repeats: Sequence[Repeat]) -> int:
    return _unanswered(repeats) + sum(int(repeat.get("completed") or 0) for repeat in repeats)
