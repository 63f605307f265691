"""From probes at several rates to the rate at which an SLO is just met, with its interval.

Every probe brings batches of consecutive requests, and of each batch two sums whose ratio is 1 where the SLO is just
met (`slo.standing`). Their ratio is modelled as exp(a + b ln rate) near the rate in question: a log-linear model of
counts or sums, fitted by its estimating equations (McCullagh and Nelder, Generalized Linear Models, ch. 9). Waits come
in bursts, so how much a batch scatters is not taken from a law of counts but from the batches (variance proportional to
the mean, which holds for a queue near its capacity: docs/capacity.md). The interval is Fieller's: all rates at which
the model does not exclude a ratio of 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pdbench.report.clustered import student_975
from pdbench.report.statistics import Floats

STEPS = 60
REACH = 0.5  # of ln rate: how far from the centre the interval is looked for
GRID = 2001
CAUTION = (
    1.1  # times the error: a search ends when its interval is narrow, so narrow ones are too often those by chance
)
STEEPEST = 200.0


@dataclass(frozen=True, slots=True)
class Crossing:
    """The rate at which the ratio is 1, and its 95 % interval; an end is None where the data do not bound it.

    `slope` is b: by how much ln ratio rises with ln rate there.
    """

    rate: float
    low: float | None
    high: float | None
    slope: float


@dataclass(frozen=True, slots=True)
class Batches:
    """The batches of one probe. `most` is the ratio when every request misses the limit of a percentile."""

    rate: float
    over: Floats
    of: Floats
    most: float = math.inf

    @property
    def ratio(self) -> float | None:
        of = float(self.of.sum())
        return float(self.over.sum()) / of if of > 0 else None

    @property
    def saturated(self) -> bool:
        """More than half miss it: such a share bends towards 1, and no longer grows with the rate as below."""
        return self.ratio is not None and self.ratio > self.most / 2


def crossing(probes: Sequence[Batches]) -> Crossing | None:
    """Where the ratio crosses 1; None where the probes do not say: one rate, nothing over, no rise with the rate.

    Saturated probes say on which side they are, which the bracket knows, and nothing of where the line crosses.
    """
    probes = [probe for probe in probes if not probe.saturated]
    if len({probe.rate for probe in probes}) < 2 or not any(probe.over.any() for probe in probes):
        return None
    centre = math.exp(float(np.mean([math.log(probe.rate) for probe in probes])))
    x = np.concatenate([np.full(len(probe.of), math.log(probe.rate / centre)) for probe in probes])
    over, of = (np.concatenate([getattr(probe, name) for probe in probes]) for name in ("over", "of"))
    found = _fitted(x, over, of)
    if found is None or found[0][1] <= 0:
        return None
    (a, b), spread = found
    grid = np.linspace(-REACH, REACH, GRID)
    line = a + b * grid
    error = np.sqrt(np.maximum(spread[0, 0] + 2 * grid * spread[0, 1] + grid**2 * spread[1, 1], 0.0))
    inside = np.abs(line) <= CAUTION * student_975(max(1, len(x) - 2)) * error
    place = int(np.argmin(np.abs(line)))
    low = high = place
    while low > 0 and inside[low - 1]:
        low -= 1
    while high < GRID - 1 and inside[high + 1]:
        high += 1
    root = float(np.clip(-a / b, -REACH, REACH))
    return Crossing(
        centre * math.exp(root),
        centre * math.exp(min(grid[low], root)) if low > 0 else None,
        centre * math.exp(max(grid[high], root)) if high < GRID - 1 else None,
        float(b),
    )


def _fitted(x: Floats, over: Floats, of: Floats) -> tuple[Floats, Floats] | None:
    """(a, b) of over = of exp(a + b x), and their covariance; None where the equations have no sound solution."""
    design = np.stack([np.ones_like(x), x], axis=1)
    theta = np.array([math.log(over.sum() / of.sum()), 0.0])
    for _ in range(STEPS):
        mean = of * np.exp(design @ theta)
        bread = design.T @ (design * mean[:, None])
        try:
            step = np.linalg.solve(bread, design.T @ (over - mean))
        except np.linalg.LinAlgError:
            return None
        step *= min(1.0, 2.0 / max(float(np.abs(step[0])), float(np.abs(step[1])) / 10, 1e-9))
        theta = theta + step
        if not np.isfinite(theta).all() or abs(theta[1]) > STEEPEST:
            return None
        if float(np.abs(step).max()) < 1e-9:
            break
    mean = of * np.exp(design @ theta)
    try:
        inverse = np.linalg.inv(design.T @ (design * mean[:, None]))
    except np.linalg.LinAlgError:
        return None
    known = mean > 0
    clumping = float(np.sum((over - mean)[known] ** 2 / mean[known])) / max(1, int(known.sum()) - 2)
    return theta, clumping * inverse


def rising(values: Floats, weights: Floats) -> Floats:
    """The nearest values that nowhere fall, in the order given (pool adjacent violators; Barlow et al., 1972)."""
    pools: list[tuple[float, float, int]] = []  # value, weight, how many
    for value, weight in zip(values, weights, strict=True):
        pools.append((float(value), float(weight), 1))
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            (v1, w1, n1), (v2, w2, n2) = pools[-2:]
            pools[-2:] = [((v1 * w1 + v2 * w2) / (w1 + w2), w1 + w2, n1 + n2)]
    found: Floats = np.concatenate([np.full(n, value) for value, _, n in pools]) if pools else np.array([])
    return found
