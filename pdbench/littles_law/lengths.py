"""How long a request holds a slot: the law of output lengths, scaled to a mean of 1."""

from __future__ import annotations

import math
from typing import NamedTuple

LAWS = ("gamma", "lognormal")


class Lengths(NamedTuple):
    """`cv` 0 is equal lengths, whatever the law; gamma with cv 1 is exponential.

    With `values` (classes, or the lengths of a trace) a length is one of them, drawn with its share, times the law.
    """

    cv: float = 0.0
    law: str = "gamma"
    values: tuple[float, ...] = ()
    shares: tuple[float, ...] | None = None  # None: equal

    @property
    def mixed(self) -> bool:
        return len(set(self.values)) > 1

    @property
    def between_mean(self) -> float:
        return math.fsum(share * value for share, value in self._weighted()) if self.values else 1.0

    @property
    def between_cv(self) -> float:
        mean = self.between_mean
        spread = math.fsum(share * (value - mean) ** 2 for share, value in self._weighted())
        return math.sqrt(spread) / mean if mean > 0 else 0.0

    @property
    def total_cv(self) -> float:
        return math.sqrt((1 + self.cv**2) * (1 + self.between_cv**2) - 1)

    @property
    def overlap(self) -> float:
        """E min(S1, S2) / E S of two independent lengths: what of a burst is still there a length later."""
        return _law_overlap(self.cv, self.law) if not self.mixed else _law_overlap(self.total_cv, "lognormal")

    @property
    def kind(self) -> str:
        """The law in a reader's words."""
        if self.mixed:
            return f"mixed lengths, CV {self.total_cv:.2f}"
        if self.cv == 0:
            return "equal lengths"
        return "exponential lengths" if self.law == "gamma" and self.cv == 1 else f"{self.law} lengths, CV {self.cv:g}"

    def _weighted(self) -> list[tuple[float, float]]:
        shares = self.shares or (1 / len(self.values),) * len(self.values) if self.values else ()
        return list(zip(shares, self.values, strict=True))


def _law_overlap(cv: float, law: str) -> float:
    if cv == 0:
        return 1.0
    if law == "lognormal":
        return 1 - math.erf(math.sqrt(math.log1p(cv**2)) / 2)
    # From Gini's mean difference of a gamma law of shape 1/cv^2.
    shape = 1 / cv**2
    return 1 - math.exp(math.lgamma(shape + 0.5) - math.lgamma(shape + 1)) / math.sqrt(math.pi)
