"""What the figures draw, taken from the run's tables and made small first: gauges over time and the shape of ITL."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pdbench.report.events import Events, Gaps
from pdbench.report.window import Metrics, Source
from pdbench.run import Run

MAX_POINTS = 500  # a line's; few screens have more than twice as many columns
CURVE_POINTS = 120
ONE_READ_MS = 0.1  # gaps below this are events that one read of the socket brought: the client's time, not the server's
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Line:
    """One gauge of one role over time, summed over its `servers` servers."""

    target: str
    role: str
    gauge: str
    servers: int
    t_s: Floats
    value: Floats


@dataclass(frozen=True, slots=True)
class Window:
    """When one cell was measured."""

    cell: int
    repeat: int
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class GapCurve:
    """Share of a cell's gaps between tokens that are longer than `ms`; `gaps` says of how many.

    `in_one_read` is the share of those below ONE_READ_MS.
    """

    cell: int
    gaps: int
    ms: Floats
    longer: Floats
    in_one_read: float


def windows(run: Run) -> list[Window]:
    """The cells in the order in which they were measured; one that was cut short ends where its sends ended."""
    found = []
    for entry in run.document.get("cell_runs", []):
        start = entry.get("start_s")
        end = entry.get("end_s") or entry.get("send_end_s")
        if start is not None and end is not None and end > start:
            found.append(Window(int(entry["cell"]), int(entry.get("repeat", 0)), float(start), float(end)))
    return sorted(found, key=lambda window: window.start_s)


def gauge_lines(
    metrics: Metrics, gauges: tuple[str, ...] = ("waiting", "running"), limit: int | None = MAX_POINTS
) -> list[Line]:
    """Each gauge summed over the servers of a role, thinned to `limit` points so that peaks stay."""
    lines = []
    for target, role in sorted({(source.target, source.role) for source in metrics.sources}):
        sources = [source for source in metrics.sources if (source.target, source.role) == (target, role)]
        for gauge in gauges:
            series = [sampled for source in sources if len((sampled := _of_server(source, gauge))[0])]
            if series:
                t, value = _summed(series)
                points = thinned(t, value, limit) if limit else (t, value)
                lines.append(Line(target, role, gauge, len(series), *points))
    # What is drawn last lies on top: waiting.
    return sorted(lines, key=lambda line: gauges.index(line.gauge), reverse=True)


def _of_server(source: Source, gauge: str) -> tuple[Floats, Floats]:
    """A gauge summed over the engines and labels of one server."""
    mine = [one for one in source.sampled if (one.key.canonical, one.key.kind) == (gauge, "gauge")]
    t, place = np.unique(np.concatenate([np.empty(0), *(one.t for one in mine)]), return_inverse=True)
    value = np.zeros(len(t))
    np.add.at(value, place, np.concatenate([np.empty(0), *(one.value for one in mine)]))
    return t, value


def _summed(series: list[tuple[Floats, Floats]]) -> tuple[Floats, Floats]:
    """The sum of step functions sampled at different times, from when all of them are known."""
    if len(series) == 1:
        return series[0]
    t = np.unique(np.concatenate([times for times, _ in series]))
    t = t[t >= max(times[0] for times, _ in series)]
    total = np.zeros(len(t))
    for times, values in series:
        total += values[np.searchsorted(times, t, side="right") - 1]
    return t, total


def thinned(t: Floats, value: Floats, limit: int = MAX_POINTS) -> tuple[Floats, Floats]:
    """At most `limit` points: the lowest and the highest of each stretch, in their order."""
    if len(t) <= limit:
        return t, value
    kept: list[int] = []
    for stretch in np.array_split(np.arange(len(t)), limit // 2):
        kept += sorted({int(stretch[np.argmin(value[stretch])]), int(stretch[np.argmax(value[stretch])])})
    index = np.array(kept)
    return t[index], value[index]


def gap_curves(cells: Floats, events: Events) -> dict[int, GapCurve]:
    """For each cell the tail of its inter-token latencies, over all repeats, at no more than CURVE_POINTS points.

    `cells` are those of the requests that the events belong to.
    """
    with_gaps = events.count > 0
    return {
        int(cell): _curve(int(cell), events.gathered_ms(np.flatnonzero(with_gaps & (cells == cell))))
        for cell in np.unique(cells[with_gaps])
    }


def _curve(cell: int, ordered: Gaps) -> GapCurve:
    n = len(ordered)
    ordered.sort()
    # Ranks evenly spread in the logarithm of the tail share, so that the tail keeps its detail.
    tail = np.unique(np.rint(np.geomspace(1, n, CURVE_POINTS)).astype(int))
    ms = ordered[n - tail][::-1]
    return GapCurve(
        cell,
        n,
        np.maximum(ms.astype(np.float64), 1e-3),
        (tail / n)[::-1],
        float(np.searchsorted(ordered, ordered.dtype.type(ONE_READ_MS))) / n,  # of their type, or all are copied
    )
