"""How many independent requests is a cell worth, for a percentile of a figure that each request has once?

Requests that wait together are alike: those that follow one another in a queue, those of a stream that keeps its place
among the others of a closed loop, those of one repeat. Each of these ways to cluster counts only where a test sees it,
so that independent requests keep the exact interval. The price is the design effect of `pdbench.report.clustered`.
Blocks of requests sent one after the other are correlated themselves, as a queue remembers longer than a block: their
variance is that of the long run, if they follow an AR(1) process.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pdbench.report.clustered import MANY_BLOCKS, student_975
from pdbench.report.statistics import Floats, percentile

Ints = NDArray[np.int64]
SURE = 2.576  # standard score: chance exceeds it in 0.5 % of the looks
REQUESTS_IN_BLOCK = 4  # in the shortest; in a closed loop as many as it has streams, so that each has a part in each
FEWEST_BLOCKS = 6
FEWEST_CLUSTERS = 3
DECIMALS = 6  # of ms: no clock tells less than 1 ns
STRONGEST = 0.98  # correlation of neighbouring blocks: beyond, a run is worth next to nothing in any case


@dataclass(frozen=True, slots=True)
class Alike:
    """Which requests may be alike, in the order of their sends. Labels are integers from 0 on."""

    repeat: Ints  # rising
    own: Ints | None = None  # the stream or the conversation that each is of; no two repeats share one
    turns: int = 0  # requests until each stream of a closed loop has sent another one

    def chosen(self, places: Ints) -> Alike:
        return Alike(self.repeat[places], None if self.own is None else self.own[places], self.turns)


def alike_of(repeat: Floats, stream: Floats, session: Floats) -> Alike:
    """From what is known of each request; NaN is not known, and where there are no streams there may be sessions."""
    _, repeats = np.unique(np.nan_to_num(repeat), return_inverse=True)
    own = stream if np.isfinite(stream).all() else session
    if not np.isfinite(own).all():
        return Alike(repeats)
    known, labels = np.unique(repeats * (own.max(initial=0.0) + 1) + own, return_inverse=True)
    turns = round(len(known) / (int(repeats.max(initial=0)) + 1)) if own is stream else 0
    return Alike(repeats, labels, turns)


def streams_of(sent: Floats, done: Floats) -> Floats:
    """The stream of each request of a closed loop: who is sent next takes over from the answer that ended first."""
    ends = [(float(done[i]), int(i)) for i in np.argsort(done, kind="stable") if math.isfinite(done[i])]
    stream = np.full(len(sent), -1.0)
    streams = taken = 0
    for i in np.argsort(sent, kind="stable"):
        if taken < len(ends) and ends[taken][0] <= sent[i] and stream[ends[taken][1]] >= 0:
            stream[i] = stream[ends[taken][1]]
            taken += 1
        else:
            stream[i] = streams
            streams += 1
    return stream


@dataclass(frozen=True, slots=True)
class Clusters:
    """Totals of the scores (rows) over clusters (columns)."""

    totals: Floats
    members: NDArray[np.signedinteger[Any]]
    follows: NDArray[np.bool_] | None = None  # which continue the one before, where they have an order


def independent_sizes(values: Floats, ordered: Floats, alike: Alike, quantiles: Sequence[float]) -> dict[float, float]:
    """How many independent values the share of them beyond each quantile is worth.

    `values` are in the order of their sends, censored ones infinite; `ordered` are the same, sorted.
    """
    n = len(values)
    # What differs by the rounding of times alone is equal: rounding follows the clock, and would look like a memory.
    scores, beyond = _scores(np.round(values, DECIMALS), np.round(ordered, DECIMALS), quantiles)
    variance = np.maximum(np.mean(scores**2, axis=1), 1e-300)
    worth = np.full(len(scores), float(n))
    blocks = list(_blocks(scores, alike))
    if any(_seen(each, beyond, variance) for each in blocks) or (blocks and _serial(scores, variance, alike)):
        worth = np.minimum.reduce([worth, *(_worth(each, variance) for each in blocks)])
    if alike.own is not None and _seen(own := _labelled(scores, alike.own), beyond, variance):
        # A stream that keeps its place is one observation, of the tail no less than of the middle.
        worth = np.minimum(worth, _worth(own, variance).min())
    if _seen(repeats := _labelled(scores, alike.repeat), beyond, variance):
        worth = np.minimum(worth, _worth(repeats, variance))
    return dict(zip(quantiles, worth[1:].tolist(), strict=True))


def _scores(values: Floats, ordered: Floats, quantiles: Sequence[float]) -> tuple[Floats, Ints]:
    """Ranks, in which a correlation shows wherever it is, then who lies beyond each quantile (or who does not, where
    these are fewer): each less its mean; and how many of them there are, 0 for ranks."""
    ranks = np.searchsorted(ordered, values, "left") + np.searchsorted(ordered, values, "right")
    rows: list[NDArray[Any]] = [ranks]
    counts = [0]
    for q in quantiles:
        point = percentile(ordered, q, ordered=True)
        point = math.inf if point is None else point
        beyond = values > point if ordered[-1] > point else values >= point
        rows.append(beyond if 2 * np.count_nonzero(beyond) <= len(values) else ~beyond)
        counts.append(int(np.count_nonzero(rows[-1])))
    table = np.stack(rows).astype(float)
    return table - table.mean(axis=1, keepdims=True), np.array(counts)


def _blocks(scores: Floats, alike: Alike) -> Iterator[Clusters]:
    """Requests sent one after the other: blocks of so many, of twice as many, and so on while many blocks remain."""
    _, begins, lengths = np.unique(alike.repeat, return_index=True, return_counts=True)
    size, fewest = alike.turns or REQUESTS_IN_BLOCK, FEWEST_BLOCKS
    while (counts := np.maximum(1, lengths // size)).sum() >= fewest:
        edges = np.concatenate([b + np.arange(c) * m // c for b, m, c in zip(begins, lengths, counts, strict=True)])
        members = np.diff(np.append(edges, scores.shape[1]))
        totals: Floats = np.add.reduceat(scores, edges, axis=1)
        yield Clusters(totals, members, ~np.isin(edges, begins))
        if size > lengths.max():
            return
        size, fewest = 2 * size, MANY_BLOCKS


def _labelled(scores: Floats, labels: Ints) -> Clusters:
    members = np.bincount(labels)
    totals: Floats = np.stack([np.bincount(labels, weights=score) for score in scores])
    return Clusters(totals[:, members > 0], members[members > 0])


def _seen(clusters: Clusters, beyond: Ints, variance: Floats) -> bool:
    """Whether clusters differ by more than chance lets them, in any of the scores."""
    members, k = clusters.members, len(clusters.members)
    if k < FEWEST_CLUSTERS:
        return False
    n = int(members.sum())
    dense = (beyond == 0) | (beyond >= k)
    spread = np.sum(clusters.totals**2 / members, axis=1)[dense] / variance[dense]
    if np.any(_chi_square_score(spread, k - 1) > SURE):
        return True
    # Where fewer lie beyond than there are clusters: how many pairs of these share one is Poisson.
    inside = clusters.totals[~dense] + np.outer(beyond[~dense] / n, members)
    pairs = np.sum(inside * (inside - 1), axis=1) / 2
    due = beyond[~dense] * (beyond[~dense] - 1) / 2 * float(np.sum((members / n) ** 2))
    return bool(np.any((pairs > 0.5) & (_chi_square_score(2 * due, 2 * np.maximum(pairs, 0.5)) < -SURE)))


def _chi_square_score(value: Floats, freedom: Floats | int) -> Floats:
    """The standard score of a chi-square variable (Wilson and Hilferty)."""
    part = 2 / (9 * freedom)
    score: Floats = (np.cbrt(value / freedom) - (1 - part)) / np.sqrt(part)
    return score


def _serial(scores: Floats, variance: Floats, alike: Alike) -> bool:
    """Whether requests are like the next one, in ranks or beyond p90. In a closed loop neighbours differ by their place
    in the wave alone."""
    if alike.turns:
        return False
    same = alike.repeat[1:] == alike.repeat[:-1]
    products = np.sum(scores[:, 1:] * scores[:, :-1] * same, axis=1) / variance
    return bool(np.any(products[[0, -2]] > SURE * math.sqrt(scores.shape[1])))


def _worth(clusters: Clusters, variance: Floats) -> Floats:
    """How many independent requests these clusters are worth, for each score."""
    n, k = int(clusters.members.sum()), len(clusters.members)
    squares = clusters.totals**2
    total, spread = squares.sum(axis=1), (squares**2).sum(axis=1)
    effect = k / (k - 1) * total / (n * variance)
    # As many degrees of freedom as clusters, fewer where some of them make most of the variance.
    few = np.minimum(k - 1, 3 * total**2 / np.maximum(spread, 1e-300) - 1)
    if clusters.follows is not None:
        products = np.sum(clusters.totals[:, 1:] * clusters.totals[:, :-1] * clusters.follows[1:], axis=1)
        near = (products / np.maximum(total, 1e-300) + 1 / k) / (1 - 4 / k)  # Kendall: it is estimated too low
        near = np.clip(np.minimum(near, near[0]), 0, STRONGEST)  # a tail forgets no later than ranks, and few are in it
        longer = (1 + near) / (1 - near)
        effect, few = effect * longer, np.minimum(few, k / longer - 1)
    # Few clusters tell little of what they add to the variance of independent ones: that part pays Student's price.
    price = np.array([max(1.0, student_975(int(freedom)) / student_975(n - 1)) for freedom in few])
    sizes: Floats = n / (1 + np.maximum(effect - 1, 0) * price**2)
    return sizes
