"""The story of a history: series of each cell and metric, their changes as events between two runs, drift of slots."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pdbench.report.compare.explain import Told, differing_facts
from pdbench.report.compare.gate import EFFECT, GATED, higher_is_better
from pdbench.report.compare.pairs import Place, figure, is_valid, name_of, place_of, repeats_of, void_codes
from pdbench.report.compare.sides import Side
from pdbench.report.history.change_points import (
    ALPHA,
    FEWEST_RUNS,
    Floats,
    memory_beside_trends,
    trend_spread,
    with_memory,
)
from pdbench.report.statistics import mann_kendall_z, theil_sen
from pdbench.report.wording import CellSummary

SURE_Z = 2.58  # of Mann and Kendall's trend: 1 % two-sided
CAPACITY = "capacity"
OVERLOAD = "not-steady-state"


@dataclass(frozen=True, slots=True)
class Series:
    """One metric of one cell over all runs; None where a run has no valid value. `levels` begin at a run each."""

    cell: str
    metric: str
    values: tuple[float | None, ...]
    levels: tuple[tuple[int, float], ...]  # (first run, geometric mean), oldest first


@dataclass(frozen=True, slots=True)
class Shift:
    """A series that changed its level."""

    series: Series
    before: float
    after: float

    @property
    def change(self) -> float:
        return self.after / self.before - 1

    @property
    def worse(self) -> bool:
        return (self.change < 0) == higher_is_better(self.series.metric)


@dataclass(frozen=True, slots=True)
class Event:
    """What changed between run `at - 1` and run `at`, and what is not the same in the two."""

    at: int
    shifts: tuple[Shift, ...]
    differs: tuple[Told, ...]


@dataclass(frozen=True, slots=True)
class Drift:
    """The trend of a capacity: requests/s that the slots allow, from the busiest cell of one shape.

    `below_qps` is the rate of that cell where its slots were not full: its TPOT is then one of a smaller batch, and the
    values are upper bounds. `None` where they were.
    """

    shape: str
    values: tuple[float | None, ...]
    per_run: float | None  # share of the median, a run
    sure: bool
    below_qps: float | None = None


@dataclass(frozen=True, slots=True)
class History:
    runs: tuple[Side, ...]
    left_out: tuple[str, ...]
    series: tuple[Series, ...]
    events: tuple[Event, ...]
    drifts: tuple[Drift, ...]
    metrics: tuple[str, ...]
    effect: float
    memory: float = 0.0  # share of a run's deviation that the next run has too

    @property
    def simulated(self) -> bool:
        return any(run.simulated for run in self.runs)

    @property
    def too_short(self) -> bool:
        return len(self.runs) < FEWEST_RUNS

    @property
    def ended_worse(self) -> list[Shift]:
        """Series whose newest change is for the worse."""
        last = {id(shift.series): shift for event in self.events for shift in event.shifts}
        return [shift for shift in last.values() if shift.worse]


def tell(
    runs: Sequence[Side], left_out: Sequence[str], metrics: Sequence[str] = GATED, effect: float = EFFECT
) -> History:
    """Series, events and drifts of these runs, oldest first. Below ten runs there are no events."""
    cells = _cells(runs)
    raw = [(name, metric, _values(found, metric)) for name, found in cells for metric in metrics]
    raw = [one for one in raw if any(value is not None for value in one[2])]
    logs = [np.array([math.log(v) if v else math.nan for v in values]) for _, _, values in raw]
    points, memory = with_memory(logs, ALPHA)
    kept = memory_beside_trends(logs, points)
    series = [Series(*one, levels_of(log, at, effect)) for one, log, at in zip(raw, logs, points, strict=True)]
    return History(
        tuple(runs), tuple(left_out), tuple(series), tuple(_events(runs, series)), tuple(_drifts(runs, cells, kept)),
        tuple(metrics), effect, memory,
    )  # fmt: skip


def _cells(runs: Sequence[Side]) -> list[tuple[str, list[CellSummary | None]]]:
    """Every place of the grids with its cell in each run."""
    several = any(len(run.targets) > 1 for run in runs)
    at: list[dict[Place, CellSummary]] = [{place_of(cell, several): cell for cell in run.cells} for run in runs]
    places = list(dict.fromkeys(place for cells in at for place in cells))
    found = []
    for place in places:
        cells = [each.get(place) for each in at]
        name = next(name_of(cell, several) for cell in cells if cell is not None)
        found.append((name, cells))
    return found


def _values(cells: Sequence[CellSummary | None], metric: str) -> tuple[float | None, ...]:
    """The geometric mean over a run's valid repeats; None where it has none."""
    found: list[float | None] = []
    for cell in cells:
        known = [figure(each, metric) for each in repeats_of(cell) if is_valid(each)] if cell is not None else []
        good = [value for value in known if value is not None and value > 0]
        found.append(math.exp(sum(map(math.log, good)) / len(good)) if good else None)
    return tuple(found)


def levels_of(logs: Floats, points: Sequence[int], effect: float) -> tuple[tuple[int, float], ...]:
    """Levels between the change points; neighbours that differ by less than the effect of interest are one."""
    points = list(points)
    while True:
        starts = [0, *points]
        means = [float(np.nanmean(part)) for part in np.split(logs, points)] if np.isfinite(logs).any() else []
        steps = [abs(math.expm1(after - before)) for before, after in itertools.pairwise(means)]
        if not steps or min(steps) >= effect:
            return tuple((start, math.exp(mean)) for start, mean in zip(starts, means, strict=False))
        points.pop(int(np.argmin(steps)))


def _events(runs: Sequence[Side], series: Sequence[Series]) -> Iterator[Event]:
    at: dict[int, list[Shift]] = {}
    for each in series:
        for (_, before), (start, after) in itertools.pairwise(each.levels):
            at.setdefault(start, []).append(Shift(each, before, after))
    for start in sorted(at):
        shifts = sorted(at[start], key=lambda shift: -abs(math.log(shift.after / shift.before)))
        yield Event(start, tuple(shifts), tuple(differing_facts(runs[start - 1], runs[start])))


def _drifts(
    runs: Sequence[Side], cells: Sequence[tuple[str, list[CellSummary | None]]], memory: float
) -> Iterator[Drift]:
    """For each shape the rate at which its slots would be full, from its busiest cell that is mostly valid."""
    shapes: dict[tuple[Any, ...], list[list[CellSummary | None]]] = {}
    for _, found in cells:
        first = next(cell for cell in found if cell is not None)
        if first.get("request_rate") is not None:
            shapes.setdefault((first.get("prompt_len"), first.get("output_len")), []).append(found)
    for (prompt, output), grids in shapes.items():
        known = [(_rate(found), [_full_at(cell) for cell in found]) for found in grids]
        known = [one for one in known if sum(value is not None for value in one[1]) >= 0.8 * len(runs)]
        if known:
            qps, values = max(known, key=lambda one: one[0])
            full = sum(value is not None and value <= qps for value in values) > len(values) / 2
            drift = _drift(f"{prompt:,} prompt, {output:,} output tokens", tuple(values), memory)
            yield drift if full else replace(drift, below_qps=qps)


def _rate(found: Sequence[CellSummary | None]) -> float:
    return max(float(cell.get("request_rate") or 0.0) for cell in found if cell is not None)


def _full_at(cell: CellSummary | None) -> float | None:
    """Requests/s at which the slots would be full, at this cell's TPOT and output lengths (Little's law).

    A cell that is void for nothing but its overload has the very TPOT that counts, that of a full batch: one of a lower
    load would promise too much.
    """
    slots: Mapping[str, Any] = (cell or {}).get("slots") or {}
    needed, available, rate = slots.get("needed"), slots.get("available"), (cell or {}).get("request_rate")
    known = cell is not None and any(is_valid(each) or void_codes(each) == [OVERLOAD] for each in repeats_of(cell))
    return float(rate) * float(available) / float(needed) if known and needed and available and rate else None


def _drift(shape: str, values: tuple[float | None, ...], memory: float) -> Drift:
    """Runs that resemble their neighbours wander, which looks like a trend: that much further it has to go."""
    known = [(place, value) for place, value in enumerate(values) if value is not None]
    if len(known) < FEWEST_RUNS:
        return Drift(shape, values, None, False)
    x, y = (np.array(column, dtype=float) for column in zip(*known, strict=True))
    slope = theil_sen(x, y)
    share = None if slope is None else slope / float(np.median(y))
    return Drift(shape, values, share, abs(mann_kendall_z(y)) >= SURE_Z * trend_spread(len(y), memory))
