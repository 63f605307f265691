"""How sure is a part of the split? The same figure without one block of the cell's time, for each block (jackknife).

Requests of one block wait together, so a cell is worth as many observations as it has blocks, not as it has requests.
A repeat is cut into equal stretches of time; counters are taken between their ends, gauges integrated over the rest,
and a request belongs to the block in which its first token came, as it does in the servers' own TTFT.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from pdbench.report.cell import Measured
from pdbench.report.clustered import student_975
from pdbench.report.statistics import Floats
from pdbench.report.turns import Estimate
from pdbench.report.window import CUMULATIVE, Gauge, Page, Segment, Window

MOST_BLOCKS = 10
FEWEST_BLOCKS = 5
SAMPLES_IN_BLOCK = 3
REQUESTS_IN_BLOCK = 4


def without_each_block(cell: Measured) -> Iterator[Measured]:
    """The cell less one block, for each block; nothing where it is too short to be cut."""
    samples = min((page.scrapes for _, page in cell.window.pages()), default=0)
    most = min(MOST_BLOCKS, samples // SAMPLES_IN_BLOCK, len(cell.answers) // (REQUESTS_IN_BLOCK * len(cell.parts)))
    if most < FEWEST_BLOCKS or len(cell.parts) != len(cell.window.segments):
        return
    for place in range(len(cell.parts)):
        yield from _without_blocks(cell, place, most)


def _without_blocks(cell: Measured, place: int, count: int) -> Iterator[Measured]:
    """The cell less each of `count` blocks of one repeat."""
    segment, others = cell.window.segments[place], list(cell.window.segments)
    del others[place]
    before = sum(len(part.load.answers) for part in cell.parts[:place])
    own = np.zeros(len(cell.answers), dtype=bool)
    own[before : before + len(cell.parts[place].load.answers)] = True
    edges = np.linspace(segment.start, segment.end, count + 1)
    came = np.nan_to_num(cell.answers.first, nan=segment.end)
    for k in range(count):
        low, high = edges[k], edges[k + 1]
        inside = own & (came >= (low if k else -np.inf)) & (came < (high if k < count - 1 else np.inf))
        kept = [stretch(segment, segment.start, low, first=True)] if k else []
        kept += [stretch(segment, high, segment.end, last=True)] if k < count - 1 else []
        yield replace(cell, answers=cell.answers.chosen(~inside), window=Window((*others, *kept)))


def stretch(segment: Segment, start: float, end: float, first: bool = False, last: bool = False) -> Segment:
    """A part of a segment. Its outer ends keep what the scrapes at the cell's edges saw."""
    pages = tuple(_between(page, -np.inf if first else start, np.inf if last else end) for page in segment.pages)
    return Segment(start, min(max(segment.send_end, start), end), end, pages)


def _between(page: Page, start: float, end: float) -> Page:
    begun = min((gauge.t[0] for gauge in page.series.values()), default=start)
    deltas = {key: _grown(gauge, start, end, begun) for key, gauge in page.series.items() if key.kind in CUMULATIVE}
    return replace(page, deltas=deltas)


def _grown(gauge: Gauge, start: float, end: float, begun: float) -> float:
    born = 0.0 if gauge.t[0] > begun else float(gauge.value[0])  # a series that appears later was 0 before
    at_start, at_end = np.interp([start, end], gauge.t, gauge.value, left=born)
    return float(at_end - at_start)


def jackknife(value: float, without: Sequence[float | None]) -> Estimate | None:
    """A figure's 95 % interval from what it is without each block; `None` where it cannot be had without some."""
    known: Floats = np.array([v for v in without if v is not None], dtype=float)
    n = len(known)
    if n < FEWEST_BLOCKS or n < len(without):
        return None
    error = float(np.sqrt((n - 1) / n * np.sum((known - known.mean()) ** 2)))
    reach = student_975(n - 1) * error
    return Estimate(value, value - reach, value + reach)
