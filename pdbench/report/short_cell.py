"""Did a cell last long enough, for the queue at its slots and for the queue at its link? Neither says anything of the
other, so what is said of one replaces nothing of the other."""

from __future__ import annotations

from collections.abc import Sequence

from pdbench.littles_law.batch import Tpot
from pdbench.report.cell import Measured
from pdbench.report.finding import VOID, WARN, Finding
from pdbench.report.link_load import LinkLoad, link_load
from pdbench.report.short_run import ShortRun, short_run

CODE = "not-steady-state"
LONGER = "Run longer, or take its figures for those of a short run (pdbench slots --from-run)"


def whole_cell(cell: Measured, line: Tpot | None, found: Sequence[Finding]) -> tuple[ShortRun | None, list[Finding]]:
    """Whether the cell is a short run, and its findings with that: those of its repeats know no `line`."""
    short, kept = short_run(cell, line), list(found)
    if line is None or short is None or any(one.code == CODE and one.severity == VOID for one in kept):
        return short, kept
    kept = [*too_short(short, link_load(cell)), *(one for one in kept if one.code != CODE)]
    return short, sorted(kept, key=lambda one: one.severity != VOID)


def too_short(short: ShortRun | None, link: LinkLoad | None) -> list[Finding]:
    """One finding for both; none where neither is short."""
    said = [one.text() for one in (short, link) if one is not None]
    if not said:
        return []
    advice = LONGER
    if link is not None:
        advice = "Run longer, or lower the rate" if link.document() else "Lower the rate, or see what the link is"
    return [Finding(CODE, WARN, f"{'; and of the link: '.join(said)}. {advice}.")]
