"""What was wrong before a server went? The cell up to then, as far as its pages and its requests tell.

Slots, queues and counters of a cell in which a server stops mix two deployments. Up to the last scrape that the server
answered there was one: requests that ended by then, counters and gauges as they stood then.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pdbench.report.blocks import stretch
from pdbench.report.cell import Measured, Part, measured
from pdbench.report.finding import Finding
from pdbench.report.steady_state import MIN_REQUESTS
from pdbench.report.window import Page

STILL_TRUE = ("client-saturated",)  # of the findings of the whole cell


def before_it_went(cell: Measured, server: str) -> Measured | None:
    """The cell up to the last scrape that the server answered in each repeat; `None` where too few requests had ended.

    A request that was under way then is left out, as it would be had the cell been stopped there.
    """
    parts = [short for part in cell.parts if (short := _until(cell, part, server)) is not None]
    if not parts:
        return None
    short_cell = measured(cell.plan, cell.cell, cell.deployment, parts)
    return short_cell if short_cell.answers.count("ok") >= MIN_REQUESTS else None


def still_true(found: Sequence[Finding]) -> list[Finding]:
    """Findings of the whole cell that hold for its first part: KV that a dead server never reads expires later."""
    return [finding for finding in found if finding.code in STILL_TRUE]


def _until(cell: Measured, part: Part, server: str) -> Part | None:
    since_s = part.segment.silent.get(server)
    if since_s is None:
        return part
    start, load = part.segment.start, part.load
    # Pages are read at the interval on average, and up to half as much later.
    end = start + since_s - 1.5 * float(cell.plan.get("sample_interval_s") or 1.0)
    if end <= start:
        return None
    kept = replace(load, answers=load.answers.chosen(load.answers.done <= end), send_end=min(load.send_end, end))
    segment = stretch(part.segment, start, end, first=True)
    return replace(
        part, load=kept, segment=replace(segment, pages=tuple(_seen_by(page, end) for page in segment.pages))
    )


def _seen_by(page: Page, end: float) -> Page:
    series = {key: gauge.within(-float("inf"), end) for key, gauge in page.series.items()}
    return replace(page, series={key: gauge for key, gauge in series.items() if len(gauge.t)})
