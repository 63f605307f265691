"""Percentiles of observations that come in clusters: the gaps between tokens.

Nine thousand gaps are not nine thousand observations: gaps of concurrent streams stall together, and those of a slow
request are all slow. How many independent ones they are worth is estimated from the design effect: the variance of the
share of gaps beyond the percentile over clusters, against what independent gaps would have (Woodruff's interval with
the effective sample size of Korn and Graubard, whose factor of Student's t pays for few clusters).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pdbench.report.statistics import Floats, percentile, quantile_interval

if TYPE_CHECKING:
    from pdbench.report.events import Events

Labels = NDArray[np.int64]
Tally = tuple[NDArray[Any], NDArray[Any]]  # of each cluster: its observations that lie beyond, and all of them
Z_975 = 1.959964
MIN_CLUSTERS = 3
BLOCK_SCALES = (1, 2, 4)  # mean answers in a block: what lasts longer than one block shows in longer ones
MANY_BLOCKS = 12  # that a longer scale must have


def time_blocks(times: Floats, length: float) -> list[Labels]:
    """The block of time that each observation lies in, for each scale of blocks."""
    since = times - times.min()
    length = length or float(since.max()) or 1.0
    whole = float(since.max()) / length
    scales = [scale for scale in BLOCK_SCALES if scale == 1 or whole / scale >= MANY_BLOCKS]
    return [np.floor(since / (scale * length)).astype(np.int64) for scale in scales]


def effective_size(beyond: NDArray[np.bool_], clusters: Sequence[Labels]) -> float:
    """How many independent observations the share of `beyond` is worth: the least over the ways to cluster them.

    Labels are small integers from 0 on; one that no observation has is no cluster.
    """
    tallies = [(np.bincount(labels, weights=beyond), np.bincount(labels)) for labels in clusters]
    return size_of(len(beyond), int(np.count_nonzero(beyond)), tallies)


def size_of(n: int, beyond: int, clusters: Sequence[Tally]) -> float:
    """The same from counts: of `n` observations, `beyond` lie beyond; each tally says how many in each cluster."""
    share = beyond / n if n else 0.0
    if not 0.0 < share < 1.0:
        return float(n)
    sizes = []
    for of_cluster, members in clusters:
        k = int(np.count_nonzero(members))
        if k < MIN_CLUSTERS:
            return 0.0
        totals = of_cluster - share * members
        variance = k / (k - 1) * float(np.sum(totals**2)) / n**2
        effect = max(1.0, variance / (share * (1 - share) / n))
        squares = totals**2
        # As many degrees of freedom as clusters, fewer where some of them make most of the variance.
        spread = float((squares**2).sum())
        few = min(k - 1, max(1, int(3 * float(squares.sum()) ** 2 / spread) - 1)) if spread else k - 1
        sizes.append(n / effect * min(1.0, (student_975(n - 1) / student_975(few)) ** 2))
    return min([float(n), *sizes])


def gap_sizes(
    events: Events,
    sent: Floats,
    places: NDArray[np.int64],
    points_ms: Mapping[float, float],
    block_s: float,
    *,
    strictly: bool = True,
) -> dict[float, float]:
    """How many independent observations the gaps of these requests are worth, for the share of them beyond each point.

    Clusters are the requests, and blocks of time in which the gaps end (as `time_blocks` cuts it, `block_s` long).
    """
    begin, end = math.inf, -math.inf
    for _, _, ends in events.arrivals(places, sent):
        begin = min(begin, float(ends.min()))
        end = max(end, float(ends.max()))
    length = block_s or (end - begin) or 1.0
    blocks = int((end - begin) / length) + 1
    members, in_block = events.count[places], np.zeros(blocks)
    of_request = {q: np.zeros(len(places)) for q in points_ms}
    of_block = {q: np.zeros(blocks) for q in points_ms}
    done = 0
    for some, gaps, ends in events.arrivals(places, sent):
        heads = np.cumsum(events.count[some]) - events.count[some]
        block = ((ends - begin) / length).astype(np.int64)
        in_block += np.bincount(block, minlength=blocks)
        for q, point in points_ms.items():
            beyond = gaps * 1000 > point if strictly else gaps * 1000 >= point
            of_request[q][done : done + len(some)] = np.add.reduceat(beyond, heads, dtype=np.int64)
            of_block[q] += np.bincount(block, weights=beyond, minlength=blocks)
        done += len(some)
    whole = (end - begin) / length
    scales = [scale for scale in BLOCK_SCALES if scale == 1 or whole / scale >= MANY_BLOCKS]
    sizes = {
        q: size_of(
            int(members.sum()),
            int(of_request[q].sum()),
            [(of_request[q], members), *((_coarser(of_block[q], s), _coarser(in_block, s)) for s in scales)],
        )
        for q in points_ms
    }
    # Where no gap is longer than the point itself, those that are as long count.
    longest = {q: point for q, point in points_ms.items() if strictly and not of_request[q].any()}
    return sizes | (gap_sizes(events, sent, places, longest, block_s, strictly=False) if longest else {})


def _coarser(counts: Floats, scale: int) -> Floats:
    """Counts of blocks that are so many times as long."""
    joined: Floats = np.add.reduceat(counts, np.arange(0, len(counts), scale))
    return joined


def clustered_interval(
    values: Floats, q: float, clusters: Sequence[Labels]
) -> tuple[tuple[float | None, float | None], float]:
    """The 95 % interval of the `q` quantile, and the number of independent observations it rests on."""
    point = percentile(values, q)
    if point is None:
        return (None, None), 0.0
    beyond = values > point
    size = effective_size(beyond if beyond.any() else values >= point, clusters)
    return quantile_interval(values, q, int(size)), size


def student_975(freedom: int) -> float:
    """The 97.5 % quantile of Student's t (Cornish-Fisher: 3 % low at two degrees of freedom, 0.1 % from five on)."""
    z, v = Z_975, max(1, freedom)
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / v + second / v**2 + third / v**3
