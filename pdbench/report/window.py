"""What the servers' pages say about one cell: counter deltas from edge to edge, gauges over time.

Counters and histogram sums and counts are differences between the last scrape before the cell and the first one after
its drain, per server and engine rank. A series that the page at the first edge lacks was born in the window and starts
at 0; a page that was not read is never 0. Several repeats of a cell are pooled by adding deltas and integrals.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pdbench.tables import Columns

Floats = NDArray[np.float64]
Rows = NDArray[np.int64]
CUMULATIVE = ("counter", "sum", "count")
STARTED_APART_S = 1.0  # start times of one process are nearer
RESET_SHARE = 1e-6  # of its value that a counter must lose to have gone back
LOG_SUFFIX = ".log"  # of a server's name: rows from its log
NOT_A_PAGE = ("up", "scrape_s", "scrape_dropped")


@dataclass(frozen=True, slots=True)
class Key:
    """A series on one server."""

    canonical: str
    kind: str
    engine: str
    labels: tuple[tuple[str, str], ...]

    def matches(self, canonical: str, labels: Mapping[str, str]) -> bool:
        return self.canonical == canonical and all((name, value) in self.labels for name, value in labels.items())


@dataclass(frozen=True, slots=True)
class Gauge:
    """A gauge's samples."""

    t: Floats
    value: Floats

    def integral(self, start: float, end: float) -> float:
        """Area from `start` to `end` (value x seconds): straight lines between samples, flat beyond the outer ones."""
        if end <= start:
            return 0.0
        inside = (self.t > start) & (self.t < end)
        t = np.concatenate(([start], self.t[inside], [end]))
        value = np.interp(t, self.t, self.value)
        return float(np.sum((value[1:] + value[:-1]) / 2 * np.diff(t)))

    def within(self, start: float, end: float) -> Gauge:
        inside = (self.t >= start) & (self.t <= end)
        return Gauge(self.t[inside], self.value[inside])


@dataclass(frozen=True, slots=True)
class Page:
    """One server's page over the window of one cell and repeat."""

    server: str
    role: str
    deltas: Mapping[Key, float]
    series: Mapping[Key, Gauge]  # gauges, and the samples of counters
    resets: tuple[str, ...] = ()
    restarted: bool = False
    scrapes: int = 0
    alternates: bool = False  # two processes answered in turn

    def engines(self) -> list[str]:
        return sorted({key.engine for key in self.series if key.canonical == "running"})


@dataclass(frozen=True, slots=True)
class Segment:
    """The pages of one cell and repeat. `start` to `send_end` is the send window, `end` includes the drain."""

    start: float
    send_end: float
    end: float
    pages: tuple[Page, ...] = ()
    silent: Mapping[str, float] = field(default_factory=dict)  # server -> second from which on no scrape worked

    def without(self, roles: Container[str]) -> Segment:
        """The same, but for the pages of these roles; what their logs say stays."""
        kept = (page for page in self.pages if page.role not in roles or page.server.endswith(LOG_SUFFIX))
        return replace(self, pages=tuple(kept))


@dataclass(frozen=True, slots=True)
class Window:
    """One or more segments of a cell, pooled. Every reading is `None` when no page had the series."""

    segments: tuple[Segment, ...]

    @property
    def duration_s(self) -> float:
        return sum(segment.end - segment.start for segment in self.segments)

    def pages(self, role: str | None = None) -> Iterator[tuple[Segment, Page]]:
        for segment in self.segments:
            for page in segment.pages:
                if role is None or page.role == role:
                    yield segment, page

    def roles(self) -> list[str]:
        """Roles with at least one page that was read."""
        return sorted({page.role for _, page in self.pages()})

    def delta(
        self, role: str | None, canonical: str, kind: str = "counter", server: str = "", **labels: str
    ) -> float | None:
        """Increase over the window: all servers of the role (or the one named), engines and matching labels."""
        found = [
            value
            for _, page in self.pages(role)
            if not server or page.server == server
            for key, value in page.deltas.items()
            if key.kind == kind and key.matches(canonical, labels)
        ]
        return sum(found) if found else None

    def mean_s(self, role: str, canonical: str, **labels: str) -> float | None:
        """Mean of a histogram's observations in the window, in its unit: sum over servers of sums by that of counts."""
        total = self.delta(role, canonical, "sum", **labels)
        count = self.delta(role, canonical, "count", **labels)
        return total / count if total is not None and count else None

    def mean_ms(self, role: str, canonical: str, **labels: str) -> float | None:
        mean = self.mean_s(role, canonical, **labels)
        return None if mean is None else mean * 1000

    def gauges(self, role: str | None, canonical: str, **labels: str) -> Iterator[tuple[Segment, Page, Key, Gauge]]:
        for segment, page in self.pages(role):
            for key, gauge in page.series.items():
                if key.kind == "gauge" and key.matches(canonical, labels) and len(gauge.t):
                    yield segment, page, key, gauge

    def silent_since(self, server: str) -> float | None:
        """Second of a cell from which on the server answered no scrape to its end; `None` when it did."""
        return next((s.silent[server] for s in self.segments if server in s.silent), None)

    def has(self, role: str, canonical: str) -> bool:
        return any(key.canonical == canonical for _, page in self.pages(role) for key in page.series)

    def integral(self, role: str | None, canonical: str, **labels: str) -> float | None:
        """Area of a gauge over the window incl. drain, all servers and engines: requests x wait, by Little's law."""
        found = [g.integral(s.start, s.end) for s, _, _, g in self.gauges(role, canonical, **labels)]
        return sum(found) if found else None

    def send_mean(self, role: str, canonical: str, average: bool = False, **labels: str) -> float | None:
        """Time average over the send window of the sum over servers and engines, or of their `average` (for shares)."""
        area: dict[int, list[float]] = {}
        for segment, _, _, gauge in self.gauges(role, canonical, **labels):
            area.setdefault(id(segment), []).append(gauge.integral(segment.start, segment.send_end))
        time = sum(s.send_end - s.start for s in self.segments if id(s) in area)
        if not area or time <= 0:
            return None
        return sum(float(np.mean(a)) if average else sum(a) for a in area.values()) / time

    def send_max(self, role: str, canonical: str, average: bool = False, **labels: str) -> float | None:
        """Largest value over the send window of the sum over servers and engines (or of any one, for shares)."""
        best: float | None = None
        for segment in self.segments:
            gauges = [g for s, _, _, g in self.gauges(role, canonical, **labels) if s is segment]
            inside = [g.within(segment.start, segment.send_end) for g in gauges]
            times = np.unique(np.concatenate([g.t for g in inside])) if inside else np.array([])
            if len(times) == 0:
                continue
            held = np.array([_held(gauge, times) for gauge in gauges])
            value = float((held.max(axis=0) if average else held.sum(axis=0)).max())
            best = value if best is None else max(best, value)
        return best


def _held(gauge: Gauge, times: Floats) -> Floats:
    """The gauge's last sample at each time (its first one before that)."""
    place = np.clip(np.searchsorted(gauge.t, times, side="right") - 1, 0, None)
    held: Floats = gauge.value[place]
    return held


@dataclass(frozen=True, slots=True)
class Sampled:
    """All samples of a series in a run, by time. `row`: the place of each in the table."""

    key: Key
    t: Floats
    value: Floats
    row: Rows


@dataclass(frozen=True, slots=True)
class Source:
    """What was read of one server over a whole run: its series, and when its page was read."""

    target: str
    server: str
    role: str
    sampled: tuple[Sampled, ...]
    times: Floats


class Metrics:
    """metrics.parquet of a run, ready to be cut into segments. `edges`: (start, end) of every cell and repeat."""

    def __init__(self, rows: Columns, edges: Sequence[tuple[float, float]] = ()) -> None:
        self.edges = edges
        self.sources = _sources(rows)

    def segment(self, target: str, start: float, send_end: float, end: float) -> Segment:
        """The pages of `target` over one cell, from the last scrape before it to the first after it."""
        before = max((e for _, e in self.edges if e <= start), default=-np.inf)
        after = min((s for s, _ in self.edges if s >= end), default=np.inf)
        mine = [source for source in self.sources if source.target == target]
        found = (_page(source, before, after, start, end) for source in mine)
        silent = {}
        for server in dict.fromkeys(source.server for source in mine):
            up = _joined([one for source in mine if source.server == server for one in source.sampled if _is_up(one)])
            some = (up.t >= before) & (up.t <= after)
            if (since := _silent_from(up.t[some], up.value[some], end)) is not None:
                silent[server] = max(0.0, since - start)
        return Segment(start, send_end, end, _without_repeated_logs([page for page in found if page]), silent)


def _sources(rows: Columns) -> list[Source]:
    """The table's rows by server and series. Servers come in the order in which the table names them."""
    t, value = rows["t"], rows["value"]
    names = ("target", "server", "role", "canonical", "kind", "engine", "labels")
    series = np.zeros(len(t), np.int64)
    for name in names:
        series = series * len(rows[name].words) + rows[name].codes % len(rows[name].words)
    order = np.lexsort((t, series))
    t, value, series = t[order], value[order], series[order]
    heads = np.flatnonzero(np.diff(series, prepend=-1, append=-1)).tolist()
    found: dict[tuple[int, ...], list[Sampled]] = {}
    for begin, until in itertools.pairwise(heads):
        codes = [int(rows[name].codes[order[begin]]) for name in names]
        if -1 in codes[:3]:
            continue
        canonical, kind, engine, labels = (
            rows[name].words[code] for name, code in zip(names[3:], codes[3:], strict=True)
        )
        key = Key(canonical or "", str(kind), engine or "", _labels(labels))
        sampled = Sampled(key, t[begin:until], value[begin:until], order[begin:until])
        found.setdefault(tuple(codes[:3]), []).append(sampled)
    sources = []
    for place, some in sorted(found.items()):
        target, server, role = (str(rows[name].words[code]) for name, code in zip(names[:3], place, strict=True))
        times = np.unique(np.concatenate([np.empty(0), *(one.t for one in some if _on_page(one))]))
        sources.append(Source(target, server, role, tuple(some), times))
    return sources


def _on_page(sampled: Sampled) -> bool:
    return sampled.key.canonical not in ("", *NOT_A_PAGE)


def _is_up(sampled: Sampled) -> bool:
    return sampled.key.canonical == "up"


def _joined(several: Sequence[Sampled]) -> Gauge:
    """The samples of several series, by time and then in the order of the table."""
    t, value, row = (np.concatenate([getattr(one, name) for one in several] or [[]]) for name in ("t", "value", "row"))
    order = np.lexsort((row, t))
    return Gauge(t[order], value[order])


def _silent_from(t: Floats, up: Floats, end: float) -> float | None:
    """When the last scrape that worked was followed by failed ones only, over the cell's end; else `None`."""
    if not len(t) or up[-1] > 0 or t[-1] < end:
        return None
    worked = np.flatnonzero(up > 0)
    return float(t[worked[-1] + 1] if len(worked) else t[0])


def _without_repeated_logs(pages: Sequence[Page]) -> tuple[Page, ...]:
    """Without the log of a server whose own page shows the transfers: they would count twice."""
    shown = {page.server for page in pages if any(key.canonical == "nixl_xfer_s" for key in page.series)}
    return tuple(page for page in pages if not (page.server.endswith(LOG_SUFFIX) and _bare(page) in shown))


def _bare(page: Page) -> str:
    return page.server.removesuffix(LOG_SUFFIX)


def _page(source: Source, before: float, after: float, start: float, end: float) -> Page | None:
    times = source.times[(source.times >= before) & (source.times <= after)]
    if len(times) == 0:
        return None
    first = times[times <= start][-1] if np.any(times <= start) else times[0]
    last = times[times >= end][0] if np.any(times >= end) else times[-1]
    if last <= first:
        return None  # one scrape is no window
    deltas: dict[Key, float] = {}
    series: dict[Key, Gauge] = {}
    resets: list[str] = []
    restarted = False
    for key, gauge in _between(source, first, last):
        series[key] = gauge
        if key.kind in CUMULATIVE:
            born = gauge.t[0] > first
            value = np.concatenate(([0.0], gauge.value)) if born else gauge.value
            steps = np.diff(value)
            # A sum may fall without a reset: by rounding, or by a negative observation.
            back = (steps < 0) & (value[1:] < (1 - RESET_SHARE) * value[:-1])
            # After a reset the counter starts again from 0, as in Prometheus' increase().
            deltas[key] = float(np.where(back, value[1:], steps).sum())
            if key.kind != "sum" and np.any(back):
                resets.append(key.canonical)
        elif key.canonical == "process_start_s" and float(np.ptp(gauge.value)) > STARTED_APART_S:
            restarted = True
    return Page(
        source.server,
        source.role,
        deltas,
        series,
        tuple(sorted(set(resets))),
        restarted,
        int(np.sum((times >= first) & (times <= last))),
        _alternates(series),
    )


def _alternates(series: Mapping[Key, Gauge]) -> bool:
    """Whether two processes answered in turn: a start time that goes back, or counters that go back again and again
    and are each time where they were before."""
    starts = [gauge.value for key, gauge in series.items() if key.canonical == "process_start_s"]
    if any(np.ptp(value) > STARTED_APART_S for value in starts):
        return any(float(np.diff(value).min()) < -STARTED_APART_S for value in starts)
    return any(_back_and_forth(gauge.value) for key, gauge in series.items() if key.kind in ("counter", "count"))


def _back_and_forth(value: Floats) -> bool:
    falls = np.flatnonzero(value[1:] < (1 - RESET_SHARE) * value[:-1])
    returns = [value[a + 1 : b + 1].max() >= value[a] for a, b in itertools.pairwise(falls)]
    return bool(returns) and all(returns)


def _between(source: Source, first: float, last: float) -> list[tuple[Key, Gauge]]:
    """The series of a page between two scrapes, in the order in which they appear there."""
    found = []
    for one in source.sampled:
        if one.key.kind != "bucket" and _on_page(one):
            low, high = one.t.searchsorted(first), one.t.searchsorted(last, side="right")
            if low < high:
                found.append((one.t[low], one.row[low], one.key, Gauge(one.t[low:high], one.value[low:high])))
    return [(key, gauge) for _, _, key, gauge in sorted(found, key=lambda each: each[:2])]


def _labels(text: Any) -> tuple[tuple[str, str], ...]:
    try:
        parsed = json.loads(text) if isinstance(text, str) and text else {}
    except ValueError:
        return ()
    return tuple(sorted((str(k), str(v)) for k, v in parsed.items())) if isinstance(parsed, dict) else ()
