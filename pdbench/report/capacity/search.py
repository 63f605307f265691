"""Which rate is probed next, for how many requests, and when is the search at its end? Pure: probes in, a step out.

First short probes double the rate until one fails, then halve what lies between. Short runs overstate what a queue
holds, since it needs time to build (docs/capacity.md), so they only say where to look. What decides are probes of
200 rho / (1 - rho)^2 requests, many relaxation times of the queue, a little below and a little above the rate in
question, until the interval is narrow and one rate is known to hold and another, 10 % higher, to fail.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pdbench.report.capacity.fit import Crossing, crossing, rising
from pdbench.report.capacity.probe import Probe

FIRST_REQUESTS = 40  # of the first probe, and of those on the way down
COARSE_AT_MOST = 400
COARSE_SHARE = 0.2  # of what a deciding probe takes
RELAXATIONS = 200.0
FEWEST, MOST_REQUESTS = 400, 8000
FEWEST_STAYS = (
    160  # times as long as one request stays: with many slots 8,000 requests pass before a queue has built up
)
UNKNOWN_USE = 0.8  # of what the deployment carries, while that is not known
BUSIEST = 0.95
ABOVE = 1.25  # times what the tiers should carry: surely too much
GROWS = 2.0
SHRINKS = 4.0
CLOSE = 1.3  # a bracket so narrow is left to deciding probes
SIDE = 0.05  # they lie so far below and above
WINDOW = 0.2  # of the rate: the fit takes probes so near
SPAN = 2.0  # of ln ratio: where the ratio rises steeply it takes only nearer ones, since no curve is straight for long
NEAREST = 0.03  # but not nearer
ASKED_SPAN = 1.1  # of ln ratio: probes lie so far from the rate in question, at most SIDE
CLOSEST_SIDE = 0.01
WITHIN = 0.05  # half the interval over the rate at which the search ends
FAILS_WITHIN = 1.13  # 1.1, and room for rounded rates
ALONE = 0.05  # requests in flight on average: below, a lower rate changes nothing
MOST_PROBES = 60
DOUBTS = 3
CARRIED_WITHIN = 1.01  # what came out of an overload says so well what is carried
OVERLOAD_REQUESTS = 2000  # are enough to see whether a rate is kept up
LONGER_AFTER = 6  # deciding probes: the next ones are longer, by as much again each time


@dataclass(frozen=True, slots=True)
class Step:
    """The next probe."""

    rate: float
    requests: int


@dataclass(frozen=True, slots=True)
class Found:
    """What the probes say so far. Rates in requests/s; None: not known.

    `rate` with its interval `low` to `high`: the capacity. `holds` and `fails`: the highest rate that held and the
    lowest that failed by the monotone fit over all probes. `limit`: from there on a probe was no evidence.
    """

    rate: float | None = None
    low: float | None = None
    high: float | None = None
    holds: float | None = None
    fails: float | None = None
    limit: float | None = None
    bounded: bool = False
    deciding: int = 0
    slope: float | None = None

    @property
    def narrow(self) -> bool:
        if not self.bounded or self.rate is None or self.low is None or self.high is None:
            return False
        return (self.high - self.low) / 2 <= WITHIN * self.rate * 1.02  # rounded rates

    @property
    def bracketed(self) -> bool:
        return self.holds is not None and self.fails is not None and self.fails <= FAILS_WITHIN * self.holds

    @property
    def settled(self) -> bool:
        return self.narrow and self.bracketed


def found(probes: Sequence[Probe]) -> Found:
    """What the probes say: bracket, capacity and interval."""
    sound = sorted((probe for probe in probes if not probe.doubt), key=lambda probe: probe.rate)
    limit = _limit(probes)
    if not sound:
        return Found(limit=limit)
    levels = rising(np.array([p.level for p in sound]), np.array([float(p.requests) for p in sound]))
    holds = max((p.rate for p, level in zip(sound, levels, strict=True) if level <= 0), default=None)
    fails = min((p.rate for p, level in zip(sound, levels, strict=True) if level > 0), default=None)
    near = _middle(holds, fails)
    if near is None:
        return Found(holds=holds, fails=fails, limit=limit)
    decided = [p for p in sound if is_deciding(p, sound) and abs(math.log(p.rate / near)) <= WINDOW]
    fit = _crossing_near([p for p in decided if not p.overloaded])
    if fit is not None and abs(math.log(fit.rate / near)) <= WINDOW:
        bounded = fit.low is not None and fit.high is not None
        return Found(fit.rate, fit.low, fit.high, holds, fails, limit, bounded, len(decided), fit.slope)
    if only_overload(sound) and holds is not None and fails is not None:
        # Just below what is carried the length of a run decides whether it looks steady: that may be held yet.
        high = max(fails, CARRIED_WITHIN * (carried(sound) or 0.0))
        return Found(math.sqrt(holds * high), holds, high, holds, fails, limit, True, len(decided))
    return Found(near, None, None, holds, fails, limit, False, len(decided))


def only_overload(probes: Sequence[Probe]) -> bool:
    """Every probe that failed did so because the deployment no longer kept up: no SLO is missed before."""
    failed = [probe for probe in probes if not probe.doubt and not probe.holds]
    return bool(failed) and not any(probe.misses for probe in failed)


def _limit(probes: Sequence[Probe]) -> float | None:
    """From which rate on probes were no evidence: the lowest doubtful one above all that were sound.

    Near that rate some are sound and some are not; several doubtful ones are then taken at their word.
    """
    highest = max((probe.rate for probe in probes if not probe.doubt), default=0.0)
    doubtful = [probe.rate for probe in probes if probe.doubt]
    above = [rate for rate in doubtful if rate > highest]
    return min(above or (doubtful if len(doubtful) >= DOUBTS else []), default=None)


def _middle(holds: float | None, fails: float | None) -> float | None:
    return None if holds is None or fails is None else math.sqrt(holds * fails)


def _crossing_near(probes: Sequence[Probe]) -> Crossing | None:
    """The crossing by all of these probes, and then by those near it."""
    wide = _lowest_crossing(probes)
    if wide is None:
        return None
    reach = max(NEAREST, SPAN / wide.slope)
    return _lowest_crossing([p for p in probes if abs(math.log(p.rate / wide.rate)) <= reach]) or wide


def _lowest_crossing(probes: Sequence[Probe]) -> Crossing | None:
    """The rate at which the first SLO is missed."""
    fits = [crossing(some) for some in zip(*(probe.batches for probe in probes), strict=True)]
    return min((fit for fit in fits if fit is not None), key=lambda fit: fit.rate, default=None)


def carried(probes: Sequence[Probe]) -> float | None:
    """Requests/s that the deployment completes at most: as seen in overload, else as its tiers say, else None."""
    seen = [p.achieved for p in probes if p.overloaded and p.achieved is not None and not p.doubt]
    if seen:
        return float(np.median(seen))
    told = [p for p in probes if p.carries is not None and not p.doubt]
    return max(told, key=lambda p: p.rate).carries if told else None


def needed_requests(rate: float, probes: Sequence[Probe]) -> int:
    """Requests of a probe at this rate that lets the queue show itself."""
    most = carried(probes)
    use = UNKNOWN_USE if most is None else min(rate / most, BUSIEST)
    alone_s = min((p.request_s for p in probes if p.request_s is not None), default=0.0)
    enough = max(MOST_REQUESTS, FEWEST_STAYS * rate * alone_s)
    return math.ceil(min(max(RELAXATIONS * use / (1 - use) ** 2, FEWEST), enough))


def is_deciding(probe: Probe, probes: Sequence[Probe]) -> bool:
    """Long enough for its result to be that of the deployment and not of its own length."""
    return probe.requests >= 0.5 * needed_requests(probe.rate, probes)


def next_step(probes: Sequence[Probe], left_s: float) -> Step | str:
    """The next probe, or why there is none: `settled`, `budget`, `lowest`, `limit`, `probes`, or `nothing` measured."""
    if not probes:
        return "nothing"
    if len(probes) >= MOST_PROBES:
        return "probes"
    so_far = found(probes)
    if so_far.settled:
        return "settled"
    wanted = _wanted(probes, so_far)
    if isinstance(wanted, str):
        return wanted
    step = Step(_new_rate(wanted.rate, probes), wanted.requests)
    takes_s = step.requests / step.rate
    if takes_s > left_s:
        affordable = int(left_s * step.rate)
        if affordable < max(FIRST_REQUESTS, step.requests // 2):
            return "budget"
        step = Step(step.rate, affordable)
    return step


def _wanted(probes: Sequence[Probe], so_far: Found) -> Step | str:
    holds, fails, limit = so_far.holds, so_far.fails, so_far.limit
    guess = carried(probes)
    if holds is None:
        return _lower(probes, fails, limit)
    if fails is None:
        top = ABOVE * guess if guess is not None else GROWS * holds
        rate = max(top, GROWS * holds) if guess is None or top <= CLOSE * holds else top
        if limit is not None and rate >= 0.9 * limit:
            if limit <= CLOSE * holds:
                return "limit"
            rate = math.sqrt(holds * limit)
        return Step(rate, _coarse(rate, probes))
    if fails > CLOSE * holds:
        rate = math.sqrt(holds * fails)
        return Step(rate, _coarse(rate, probes))
    if so_far.slope is None and not only_overload(probes) and (halfway := _between_decided(probes)) is not None:
        return Step(halfway, needed_requests(halfway, probes))
    near = so_far.rate or math.sqrt(holds * fails)
    decided = [probe.rate for probe in probes if not probe.doubt and is_deciding(probe, probes)]
    side = SIDE if so_far.slope is None else min(SIDE, max(CLOSEST_SIDE, ASKED_SPAN / so_far.slope))
    below = sum(near * (1 - 2 * side) <= rate < near for rate in decided)
    above = sum(near <= rate <= near * (1 + 2 * side) for rate in decided)
    rate = near * (1 - side) if below <= above else near * (1 + side)
    requests = needed_requests(rate, probes)
    if only_overload(probes):
        return Step(rate, min(requests, OVERLOAD_REQUESTS))
    return Step(rate, requests * (1 + so_far.deciding // LONGER_AFTER))


def _between_decided(probes: Sequence[Probe]) -> float | None:
    """Between the highest rate that held for sure and the lowest that failed: a tail so steep that all probes have
    either nothing over the limit or nearly everything crosses there."""
    decided = [probe for probe in probes if not probe.doubt and is_deciding(probe, probes)]
    holds = max((probe.rate for probe in decided if probe.holds), default=None)
    fails = min((probe.rate for probe in decided if not probe.holds), default=None)
    return math.sqrt(holds * fails) if holds is not None and fails is not None and holds < fails else None


def _lower(probes: Sequence[Probe], fails: float | None, limit: float | None) -> Step | str:
    """No rate held so far: further down, as long as requests still meet each other."""
    lowest = fails if fails is not None else limit
    assert lowest is not None
    alone = min((p.request_s for p in probes if p.request_s is not None), default=None)
    if alone is not None and lowest * alone <= ALONE:
        return "lowest"
    if fails is None and len(probes) >= 4:
        return "limit"
    rate = lowest / SHRINKS
    guess = carried(probes)
    if guess is not None and fails is not None and guess < fails:
        rate = max(rate, 0.7 * guess) if not any(p.rate <= 0.75 * guess for p in probes) else rate
    return Step(rate, FIRST_REQUESTS)


def _coarse(rate: float, probes: Sequence[Probe]) -> int:
    return max(150, min(COARSE_AT_MOST, math.ceil(COARSE_SHARE * needed_requests(rate, probes))))


def _new_rate(rate: float, probes: Sequence[Probe]) -> float:
    """Of three digits, and none that was asked before: a rate is one cell, and its arrivals are drawn from it."""
    asked = {probe.rate for probe in probes}
    rounded = _three_digits(rate)
    step = 10.0 ** (math.floor(math.log10(rate)) - 2)
    while rounded in asked:
        rounded = _three_digits(rounded + step)
    return rounded


def _three_digits(rate: float) -> float:
    return float(f"{rate:.3g}")
