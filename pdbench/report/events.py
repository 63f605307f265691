"""The arrivals of output events, flat: as many requests as there are, some bytes an event and none beside.

A run of a million answers of a hundred tokens has a hundred million gaps. They are kept once, in the order of the file;
requests say where theirs begin. What is asked of them is answered in pieces of some thousand requests at a time.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pdbench.report.statistics import Floats
from pdbench.tables import arrow

if TYPE_CHECKING:
    import pyarrow

    from pdbench.run import Run

EXACT_UP_TO = 5_000_000  # gaps; more of them have 4 bytes each, which is 60 ns in a second
AT_ONCE = 1 << 16  # gaps, of whole requests: an array of them is half a megabyte
Ints = NDArray[np.int64]
Gaps = NDArray[Any]  # of float64 or float32


@dataclass(frozen=True, slots=True, eq=False)
class Events:
    """Of request i: `first_s[i]`, its first event from its send (NaN: it had none), then `count[i]` gaps, in `gaps_s`
    from `start[i]` on. Several may share one `gaps_s`."""

    gaps_s: Gaps
    start: Ints
    count: Ints
    first_s: Floats

    def __len__(self) -> int:
        return len(self.start)

    def chosen(self, places: Ints | slice) -> Events:
        return Events(self.gaps_s, self.start[places], self.count[places], self.first_s[places])

    def gaps(self, place: int) -> Gaps:
        """The gaps of one request, in s."""
        start = self.start[place]
        return self.gaps_s[start : start + self.count[place]]

    def pieces(self, places: Ints) -> Iterator[tuple[Ints, Gaps]]:
        """The gaps of these requests, some at a time: of which, and all their gaps."""
        whole = np.cumsum(self.count[places])
        begin = 0
        while begin < len(places):
            most = AT_ONCE + (int(whole[begin - 1]) if begin else 0)
            until = max(begin + 1, int(np.searchsorted(whole, most, side="right")))
            some = places[begin:until]
            begin = until
            start, count = self.start[some], self.count[some]
            ends = np.cumsum(count)
            where = np.arange(int(ends[-1])) + np.repeat(start - (ends - count), count)
            yield some, self.gaps_s[where]

    def gathered_ms(self, places: Ints) -> Gaps:
        """All gaps of these requests as a new array, in ms."""
        found = np.empty(int(self.count[places].sum()), self.gaps_s.dtype)
        at = 0
        for _, gaps in self.pieces(places):
            np.multiply(gaps, 1000, out=found[at : at + len(gaps)])
            at += len(gaps)
        return found

    def mean_gap_ms(self) -> Floats:
        """Of each request; NaN where it has no gap."""
        sums = np.full(len(self), np.nan)
        for some, gaps in self.pieces(np.flatnonzero(self.count)):
            sums[some] = np.add.reduceat(gaps, np.cumsum(self.count[some]) - self.count[some], dtype=np.float64)
        mean: Floats = np.divide(sums, self.count, out=sums, where=self.count > 0) * 1000
        return mean

    def arrivals(self, places: Ints, sent: Floats) -> Iterator[tuple[Ints, Gaps, Floats]]:
        """As `pieces`, with the times at which the gaps end; `sent` has one entry for each request of this object."""
        for some, gaps in self.pieces(places):
            count = self.count[some]
            since = np.cumsum(gaps, dtype=np.float64)
            before = np.concatenate(([0.0], since))[np.cumsum(count) - count]
            yield some, gaps, since + np.repeat(sent[some] + self.first_s[some] - before, count)

    def quiet_times(self, sent: Floats, longer_than_s: float) -> list[tuple[float, float]]:
        """From when to when no request had an event, where that is longer than so many seconds: before the first event
        from -inf on, and after the last one to inf. Without any event: nothing."""
        some = np.flatnonzero(np.isfinite(self.first_s) & np.isfinite(sent))
        if len(some) == 0:
            return []
        firsts = sent[some] + self.first_s[some]
        begin, width = float(firsts.min()), longer_than_s / 2
        earliest: dict[int, float] = {}
        latest: dict[int, float] = {}
        ends_of_gaps = (ends for _, _, ends in self.arrivals(some[self.count[some] > 0], sent))
        for piece in itertools.chain([firsts], ends_of_gaps):
            order = np.argsort(piece)
            ordered = piece[order]
            bins = np.floor((ordered - begin) / width).astype(np.int64)
            heads = np.flatnonzero(np.diff(bins, prepend=bins[0] - 1))
            tails = np.append(heads[1:], len(bins)) - 1
            for number, low, high in zip(
                bins[heads].tolist(), ordered[heads].tolist(), ordered[tails].tolist(), strict=True
            ):
                earliest[number] = min(low, earliest.get(number, low))
                latest[number] = max(high, latest.get(number, high))
        known = sorted(earliest)
        between = [(latest[a], earliest[b]) for a, b in itertools.pairwise(known)]
        quiet = [(a, b) for a, b in between if b - a > longer_than_s]
        return [(-np.inf, earliest[known[0]]), *quiet, (latest[known[-1]], np.inf)]


def joined(parts: Sequence[Events]) -> Events:
    """Several as one, in their order."""
    if all(part.gaps_s is parts[0].gaps_s for part in parts):
        gaps, shifts = parts[0].gaps_s, [0] * len(parts)
    else:
        gaps = np.concatenate([part.gaps_s for part in parts])
        shifts = np.cumsum([0, *(len(part.gaps_s) for part in parts)])[:-1].tolist()
    start = np.concatenate([part.start + shift for part, shift in zip(parts, shifts, strict=True)])
    count, first = (np.concatenate([getattr(part, name) for part in parts]) for name in ("count", "first_s"))
    return Events(gaps, start, count, first)


def of_offsets(ids: Sequence[str], offsets: Mapping[str, Floats]) -> Events:
    """The events of these requests, from the arrivals of each in s from its send."""
    each = [np.asarray(offsets.get(name, ()), dtype=np.float64) for name in ids]
    gaps = [np.diff(one) for one in each]
    count = np.array([len(one) for one in gaps], dtype=np.int64)
    first = np.array([one[0] if len(one) else np.nan for one in each])
    return Events(np.concatenate([np.empty(0), *gaps]), np.cumsum(count) - count, count, first)


def of_run(run: Run, known: pyarrow.ChunkedArray) -> Events:
    """The events of the requests with these ids, from the run's chunks."""
    import pyarrow.compute as pc

    start, count = np.zeros(len(known), np.int64), np.zeros(len(known), np.int64)
    first = np.full(len(known), np.nan)
    kept: Gaps = np.empty(0)
    # All at once, since each call puts all that is known into a table first.
    whose = pc.fill_null(pc.index_in(run.ids("chunks"), value_set=known), -1).to_numpy()
    at = 0
    for piece in run.pieces("chunks", ("offset_s",)):
        places = whose[at : at + len(piece)]
        at += len(piece)
        lists = piece["offset_s"].combine_chunks()
        values, bounds = np.asarray(lists.values, np.float64), np.asarray(lists.offsets, np.int64)
        gaps, counts = _differences(values, bounds)
        mine = places >= 0
        rows, total = places[mine], len(kept)
        start[rows], count[rows] = (total + np.cumsum(counts) - counts)[mine], counts[mine]
        some = mine & (np.diff(bounds) > 0)
        first[places[some]] = values[bounds[:-1][some]]
        if total + len(gaps) > EXACT_UP_TO:
            kept = kept.astype(np.float32, copy=False)
        kept.resize(total + len(gaps), refcheck=False)  # in place: twice as much would be too much
        kept[total:] = gaps
    arrow().default_memory_pool().release_unused()
    return Events(kept, start, count, first)


def _differences(values: Floats, bounds: Ints) -> tuple[Floats, Ints]:
    """The gaps within each list of a flat array, and how many each has."""
    counts = np.maximum(np.diff(bounds) - 1, 0)
    if bounds[-1] - bounds[0] < 2:
        return np.empty(0), counts
    inside = np.ones(
        bounds[-1] - bounds[0] - 1, dtype=bool
    )  # a difference that does not lead from one list to the next
    edges = np.unique(bounds[1:-1]) - bounds[0] - 1
    inside[edges[(edges >= 0) & (edges < len(inside))]] = False
    return np.diff(values[bounds[0] : bounds[-1]])[inside], counts
