"""Did a cell last long enough, for the queue at its slots and for the queue at its link? Neither says anything of the
other, so what is said of one replaces nothing of the other."""

from __future__ import annotations

from collections.abc import Sequence

from pdbench.littles_law.batch import Tpot
from pdbench.report.cell import Measured
from pdbench.report.finding import VOID, WARN, Finding
from pdbench.report.link_load import LinkLoad, link_load
from pdbench.report.short_run import TELLING, ShortRun, short_run

CODE = "not-steady-state"
SENSIBLE = 30_000  # requests; an hour at 8 req/s
OR_SHORT = "or take its figures for those of a short run (pdbench slots --from-run)"


def whole_cell(cell: Measured, line: Tpot | None, found: Sequence[Finding]) -> tuple[ShortRun | None, list[Finding]]:
    """Whether the cell is a short run, and its findings with that: those of its repeats know no `line`, and what one
    repeat lacks by chance another has."""
    short, kept = short_run(cell, line), list(found)
    if cell.stages or any(one.code == CODE and one.severity == VOID for one in kept):
        return short, kept
    kept = [*too_short(short, link_load(cell)), *(one for one in kept if one.code != CODE)]
    return short, sorted(kept, key=lambda one: one.severity != VOID)


def too_short(short: ShortRun | None, link: LinkLoad | None) -> list[Finding]:
    """One finding for both; none where neither is short."""
    if short is None and link is None:
        return []
    said, advice = [] if short is None else [short.text()], f"{_longer(short)}, {OR_SHORT}"
    both = _with_both_ms(short, link)
    if both is not None:
        said[0] += " with that queue alone"
    if link is not None:
        said.append(link.text())
        advice = "Run longer, or lower the rate" if link.document() else "Lower the rate, or see what the link is"
    text = "; and of the link: ".join(said) + ("" if both is None else f"; with both queues {both:,.0f} ms or more")
    return [Finding(CODE, WARN, f"{text}. {advice}.")]


def _longer(short: ShortRun | None) -> str:
    if short is None or short.steady_requests is None:
        return "Run longer"
    if short.steady_requests > SENSIBLE:
        return (
            f"It would take about {short.steady_requests:,} requests to hold mean TTFT to {TELLING:.0%}: lower the rate"
        )
    return f"Run longer (about {short.steady_requests:,} requests hold mean TTFT to {TELLING:.0%})"


def short_document(short: ShortRun | None, link: LinkLoad | None) -> dict[str, float] | None:
    """Key `short_run` of a cell; `None` where neither is short."""
    if short is None or link is None:
        one = link if short is None else short
        return None if one is None else one.document()
    both = _with_both_ms(short, link)
    together = link.document() | short.document()
    return together if both is None else together | {"steady_mean_ttft_ms": both}


def _with_both_ms(short: ShortRun | None, link: LinkLoad | None) -> float | None:
    """The mean TTFT of a steady state of both queues, which a request waits in one after the other; the least, as it is
    of the link. `None` where one of them has no steady state, or is not short."""
    if short is None or link is None or short.steady_slot_wait_ms is None or link.steady_mean_ttft_ms is None:
        return None
    return link.steady_mean_ttft_ms + short.steady_slot_wait_ms - (short.slot_wait_ms or 0.0)
