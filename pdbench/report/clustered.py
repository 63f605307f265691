"""Percentiles of observations that come in clusters: the gaps between tokens.

Nine thousand gaps are not nine thousand observations: gaps of concurrent streams stall together, and those of a slow
request are all slow. How many independent ones they are worth is estimated from the design effect: the variance of the
share of gaps beyond the percentile over clusters, against what independent gaps would have (Woodruff's interval with
the effective sample size of Korn and Graubard, whose factor of Student's t pays for few clusters).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pdbench.report.statistics import Floats, percentile, quantile_interval

Labels = NDArray[np.int64]
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
    n = len(beyond)
    share = float(beyond.mean()) if n else 0.0
    if not 0.0 < share < 1.0:
        return float(n)
    sizes = []
    for labels in clusters:
        k = int(np.count_nonzero(np.bincount(labels)))
        if k < MIN_CLUSTERS:
            return 0.0
        totals = np.bincount(labels, weights=beyond - share)
        variance = k / (k - 1) * float(np.sum(totals**2)) / n**2
        effect = max(1.0, variance / (share * (1 - share) / n))
        squares = totals**2
        # As many degrees of freedom as clusters, fewer where some of them make most of the variance.
        few = min(k - 1, max(1, int(3 * float(squares.sum()) ** 2 / float((squares**2).sum())) - 1))
        sizes.append(n / effect * min(1.0, (student_975(n - 1) / student_975(few)) ** 2))
    return min([float(n), *sizes])


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
