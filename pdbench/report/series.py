"""What the figures draw, taken from the run's tables and made small first: gauges over time and the shape of ITL."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pdbench.report.events import Events, Gaps
from pdbench.run import Run

if TYPE_CHECKING:
    import pandas

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
    run: Run, gauges: tuple[str, ...] = ("waiting", "running"), limit: int | None = MAX_POINTS
) -> list[Line]:
    """Each gauge summed over the servers of a role, thinned to `limit` points so that peaks stay."""
    frame = run.table("metrics")
    frame = frame[(frame["kind"] == "gauge") & frame["canonical"].isin(gauges)]
    lines = []
    for (target, role, gauge), part in frame.groupby(["target", "role", "canonical"], observed=True):
        of_server = part.groupby(["server", "t"], observed=True)["value"].sum()
        series = [of_server[name] for name in of_server.index.unique("server")]
        t, value = _summed([(s.index.to_numpy(np.float64), s.to_numpy(np.float64)) for s in series])
        lines.append(
            Line(str(target), str(role), str(gauge), len(series), *(thinned(t, value, limit) if limit else (t, value)))
        )
    # What is drawn last lies on top: waiting.
    return sorted(lines, key=lambda line: gauges.index(line.gauge), reverse=True)


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


def gap_curves(requests: pandas.DataFrame, events: Events) -> dict[int, GapCurve]:
    """For each cell the tail of its inter-token latencies, over all repeats, at no more than CURVE_POINTS points."""
    cells = requests["cell"].to_numpy()
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
