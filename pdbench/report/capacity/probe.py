"""One probe of a search: a cell of one rate, and whether it held the SLOs."""

from __future__ import annotations

import math
from dataclasses import dataclass

from pdbench.report.capacity.fit import Batches

KEEPS_UP = 0.95  # achieved over asked rate: a probe that is not steady and below has more than it can carry
LEAST, MOST = 0.05, 20.0  # a ratio is no further from 1: one probe must not outweigh all others in a monotone fit
NOT_STEADY = 2.0  # the least ratio of a probe whose mean is a figure of its length


@dataclass(frozen=True, slots=True)
class Probe:
    """`ratios`: by SLO, what was measured over what is allowed; None where no request has the value.

    `doubt` says why the probe is no evidence for or against the deployment (client, rejections, a void cell).
    """

    cell: int
    rate: float
    requests: int
    spent_s: float  # from the first send to the last answer
    batches: tuple[Batches, ...]  # by SLO
    values: tuple[float | None, ...]  # by SLO: the statistic itself, in the SLO's unit
    steady: bool
    achieved: float | None  # requests/s
    request_s: float | None  # mean E2EL
    carries: float | None  # requests/s that all tiers carry by what this probe measured of them
    doubt: str = ""

    @property
    def ratios(self) -> tuple[float | None, ...]:
        return tuple(each.ratio for each in self.batches)

    @property
    def overloaded(self) -> bool:
        """More was asked than the deployment carries."""
        return not self.steady and self.achieved is not None and self.achieved < KEEPS_UP * self.rate

    @property
    def level(self) -> float:
        """ln of the worst ratio, bounded: 0 and below holds. What is not steady does not hold."""
        known = [ratio for ratio in self.ratios if ratio is not None]
        worst = min(max([LEAST, *known]), MOST)
        if not self.steady:
            worst = MOST if self.overloaded else max(worst, NOT_STEADY)
        return math.log(worst)

    @property
    def misses(self) -> bool:
        """Whether an SLO was missed, apart from whether it kept up."""
        return any(ratio is not None and ratio > 1 for ratio in self.ratios)

    @property
    def holds(self) -> bool:
        return self.level <= 0
