"""An SLO on a statistic of a cell, and how a cell's requests stand to it.

Whether p99 TTFT is at most 500 ms is the question whether at most 1 % of the requests take longer: a share, hence a
mean, whose error is known from how batches of requests scatter. So each request brings two numbers, `over` and `of`;
their sums' ratio is 1 where the SLO is just met, below where it holds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from pdbench.report.answers import Answers, good
from pdbench.report.statistics import Floats, percentile

BATCHES = 10  # of consecutive requests
ATTAINED = "attained"


@dataclass(frozen=True, slots=True)
class Slo:
    """`statistic` is `mean` or a percentile (`p99`); `limit` in ms. Of `attained` the limit is the least share of the
    requests that meet `goodput_ms`."""

    metric: str  # ttft, tpot, itl, e2el, attained
    statistic: str
    limit: float
    goodput_ms: Mapping[str, float] | None = None

    @property
    def allowed(self) -> float:
        """The share of requests (of gaps, for ITL) that may miss the limit."""
        return 1 - self.limit if self.metric == ATTAINED else 1 - self.quantile

    @property
    def most(self) -> float:
        """The ratio of `standing` when every request misses the limit; a mean knows no bound."""
        return math.inf if self.statistic == "mean" else 1 / self.allowed

    @property
    def quantile(self) -> float:
        return float(self.statistic.removeprefix("p")) / 100

    def text(self) -> str:
        """`TTFT p99 <= 500 ms`."""
        if self.metric == ATTAINED:
            limits = " and ".join(f"{name} {limit:g} ms" for name, limit in (self.goodput_ms or {}).items())
            return f"{self.limit * 100:.4g}% of requests within {limits}"
        return f"{self.metric.upper()} {self.statistic} <= {self.limit:,.10g} ms"

    def said(self, value: float | None) -> str:
        """A measured value in words."""
        if value is None:
            return "not measured"
        return f"{value:.2%}" if self.metric == ATTAINED else f"{value:,.3g} ms" if value < 100 else f"{value:,.0f} ms"

    def document(self) -> dict[str, Any]:
        return {key: value for key, value in asdict(self).items() if value is not None}


def slo_of(document: Mapping[str, Any], goodput_ms: Mapping[str, float]) -> Slo:
    """From a plan's search, where `attained` is of its goodput."""
    metric = str(document["metric"])
    own = {str(k): float(v) for k, v in goodput_ms.items()} if metric == ATTAINED else None
    return Slo(metric, str(document.get("statistic") or ""), float(document["limit"]), own)


def standing(answers: Answers, slo: Slo) -> tuple[Floats, Floats]:
    """`over` and `of`, one of each a request, in the order of their intended sends."""
    if slo.metric == ATTAINED:
        asked = ~np.isin(answers.status, ("rejected", "cancelled"))
        return (asked & ~good(answers, slo.goodput_ms or {})) / slo.allowed, asked.astype(float)
    if slo.metric == "itl":
        return _gaps(answers, slo)
    value = _values(answers, slo.metric)
    if slo.statistic == "mean":
        known = answers.ok & np.isfinite(value)
        return np.where(known, value, 0.0) / slo.limit, known.astype(float)
    # A request that ran into its deadline is slower than all that were answered.
    known = (answers.ok & np.isfinite(value)) | answers.timed_out
    beyond = known & (answers.timed_out | (value > slo.limit))
    return beyond / slo.allowed, known.astype(float)


def _values(answers: Answers, metric: str) -> Floats:
    return {"ttft": answers.ttft_ms, "tpot": answers.tpot_ms, "e2el": answers.e2el_ms}[metric]


def _gaps(answers: Answers, slo: Slo) -> tuple[Floats, Floats]:
    """The same of gaps: a request counts with as many as it has."""
    over, of = np.zeros(len(answers)), np.zeros(len(answers))
    events = answers.events
    for some, gaps in events.pieces(answers.with_gaps):
        count = events.count[some]
        worth = gaps * 1000 / slo.limit if slo.statistic == "mean" else (gaps * 1000 > slo.limit) / slo.allowed
        over[some] = np.add.reduceat(worth, np.cumsum(count) - count, dtype=np.float64)
        of[some] = count
    return over, of


def batched(values: Sequence[Floats]) -> list[Floats]:
    """Sums over batches of consecutive requests."""
    return [np.array([part.sum() for part in np.array_split(each, BATCHES)]) for each in values]


def statistic(answers: Answers, slo: Slo) -> float | None:
    """The statistic itself, as in summary.json: ms, or a share."""
    if slo.metric == ATTAINED:
        over, of = standing(answers, slo)
        return 1 - float(over.sum() * slo.allowed / of.sum()) if of.any() else None
    if slo.metric == "itl":
        places = answers.with_gaps
        values = np.asarray(answers.events.gathered_ms(places), float) if len(places) else np.array([])
        late = 0
    else:
        own = _values(answers, slo.metric)
        values, late = own[answers.ok & np.isfinite(own)], answers.count("timeout")
    if not len(values):
        return None
    if slo.statistic == "mean":
        return float(values.mean())
    return percentile(np.concatenate((values, np.full(late, np.inf))), slo.quantile)
