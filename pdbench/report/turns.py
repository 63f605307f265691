"""How long are the turns of decode's loop, and do handoffs hold it? From the gaps between the tokens that clients saw.

Every running stream gets one token a turn, so a gap is a turn. Most turns hold no handoff: their length at each batch
size is the median of the gaps seen at it (the quiet turn). What gaps are longer by is time lost. Whether handoffs lose
it is a regression over blocks of time: handoffs come at random, so some blocks have more of them than others. Where the
loop is held in the very turn that gives the new stream its first token, the turns with a first token say so alone, and
a few dozen requests are enough.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pdbench.report.answers import Answers
from pdbench.report.clustered import student_975
from pdbench.report.events import Ints
from pdbench.report.statistics import Floats

MIN_GAPS = 200
MOST_GAPS = 1_000_000
MIN_BLOCKS = 20
TURNS_IN_BLOCK = 20.0  # a block is at least so many turns, and a median is one of so many gaps ...
BLOCK_S = 0.5  # ... and so long
OFTEN = 1 / 3  # handoffs a turn from which on the median is no quiet turn any more: then the regression alone tells
LAGS_IN_BLOCK = 10.0  # ... and so many times the way from a handoff's start to its first token
Sizes = NDArray[np.int32]  # of batches


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value with its 95 % interval."""

    value: float
    low: float
    high: float


def of_the_second_ms(x: Floats, y: Floats) -> Estimate | None:
    """What one more of the second column of `x` adds to `y` (s), in ms, by least squares without a constant.

    `None` where the two columns cannot be told apart. Errors are heteroscedasticity-consistent (HC3, MacKinnon and
    White 1985).
    """
    if np.linalg.matrix_rank(x) < 2:
        return None
    inverse = np.linalg.inv(x.T @ x)
    found = inverse @ x.T @ y
    leverage = np.einsum("ij,jk,ik->i", x, inverse, x)
    rest = (y - x @ found) / np.maximum(1 - leverage, 1e-6)
    meat = (x * rest[:, None] ** 2).T @ x
    error = float(np.sqrt((inverse @ meat @ inverse)[1, 1])) * 1000
    value, reach = float(found[1]) * 1000, student_975(len(y) - 2) * error
    return Estimate(value, value - reach, value + reach)


@dataclass(frozen=True, slots=True)
class Turns:
    """Means over turns as streams see them (by token)."""

    mean_ms: float
    quiet_ms: float  # at the same batch sizes, without what holds the loop now and then
    met_ms: float  # length of the turn that a moment at random falls into: long ones are met more often
    lost: Estimate  # share of the streams' time that is more than quiet turns
    lost_at_first: Estimate  # of that, what passed in turns that end with the first token of another stream
    first_turns: float  # such turns a handoff: 1 where no two come together
    stall_ms: Estimate | None  # per handoff, by the regression
    handoffs_s: float  # handoffs a second while streams ran
    streams: float  # running, mean over the time in which any ran
    busy_s: float  # time in which any ran; infinite where only a part of the cell was looked at
    slope_ms: float | None  # by which a quiet turn grows with each further stream; `None` at one batch size


def turns_of(answers: Answers, lag_s: float) -> Turns | None:
    """`lag_s`: from what a handoff does to the loop to its first token. `None` with too few gaps to say anything."""
    kept = np.flatnonzero(answers.ok & (answers.events.count > 0))
    total = np.cumsum(answers.events.count[kept])
    if len(kept) == 0 or total[-1] < MIN_GAPS:
        return None
    # Of a very long cell a first part is looked at, up to where streams begin that are left out.
    kept = kept[: int(np.searchsorted(total, MOST_GAPS)) + 1]
    until = np.inf if total[-1] <= MOST_GAPS else answers.sent[kept[-1]]
    ends, gaps = _by_time(answers, kept, until)
    first, last = np.sort(answers.first[kept]), np.minimum(np.sort(answers.last[kept]), until)
    first = first[first <= until]
    quiet, slope = _quiet(gaps, _batch(ends, first, last))
    busy = _busy_s(first, last)
    alone = first[np.diff(first, prepend=-np.inf) > float(np.median(gaps))]  # what comes together comes of one turn
    blocks = _Blocks(ends, gaps, quiet, first - lag_s, first, last, lag_s)
    mean_ms, quiet_ms = float(gaps.mean()) * 1000, float(quiet.mean()) * 1000
    lost, stall, rate = blocks.lost(), blocks.stall_ms(), len(first) / busy
    often = rate * mean_ms / 1000 >= OFTEN and stall is not None and stall.low > 0
    if often and stall is not None and rate * stall.value < 1000:  # else most of them came while no stream ran
        lost = Estimate(*(rate * ms / 1000 for ms in (stall.value, stall.low, stall.high)))
        quiet_ms = mean_ms * max(0.0, 1 - lost.value)
    return Turns(
        mean_ms=mean_ms,
        quiet_ms=quiet_ms,
        met_ms=float((gaps**2).sum() / gaps.sum()) * 1000,
        lost=lost,
        lost_at_first=_lost_at_first(ends, gaps, quiet, alone),
        first_turns=len(alone) / len(first),
        stall_ms=stall,
        handoffs_s=rate,
        streams=float(gaps.sum()) / busy,
        busy_s=busy if np.isinf(until) else np.inf,
        slope_ms=None if slope is None else slope * 1000,
    )


def _by_time(answers: Answers, places: Ints, until: float) -> tuple[Floats, Floats]:
    """When the gaps of these requests end, in that order and up to `until`, and how long they are."""
    total = int(answers.events.count[places].sum())
    ends, gaps = np.empty(total), np.empty(total)
    at = 0
    for _, some, ended in answers.events.arrivals(places, answers.sent):
        ends[at : at + len(some)], gaps[at : at + len(some)] = ended, some
        at += len(some)
    order = np.argsort(ends, kind="stable")
    ends = ends[order]
    gaps = gaps[order]
    within = int(np.searchsorted(ends, until, side="right"))
    return ends[:within], gaps[:within]


def _batch(ends: Floats, first: Floats, last: Floats) -> Sizes:
    """How many streams ran in the turn that ended then; at least the one that tells."""
    running = np.searchsorted(first, ends, side="left").astype(np.int32)
    running -= np.searchsorted(last, ends, side="left").astype(np.int32)
    found: Sizes = np.maximum(running, 1, out=running)
    return found


def _quiet(gaps: Floats, batch: Sizes) -> tuple[Floats, float | None]:
    """For each gap the median at its batch size, on a straight line through the sizes; and the slope of that line.

    A turn with fewer streams takes no longer than one with more. Where it seems to, its gaps were mostly held up: full
    slots have a free one just when a handoff comes.
    """
    of_size = np.bincount(batch)
    sizes = np.flatnonzero(of_size)
    counts = of_size[sizes]
    together = np.split(gaps[np.argsort(batch, kind="stable")], np.cumsum(counts)[:-1])
    medians = np.array([np.partition(some, len(some) // 2)[len(some) // 2] for some in together])
    often = np.where(counts >= TURNS_IN_BLOCK, medians, np.inf)
    medians = np.minimum(medians, np.minimum.accumulate(often[::-1])[::-1])
    rise: float | None = None
    if len(sizes) > 1:
        slope, level = np.polyfit(sizes, medians, 1, w=np.sqrt(counts))
        rise = max(0.0, float(slope))
        medians = np.maximum(level + rise * sizes, medians.min())
    by_size = np.zeros(len(of_size))
    by_size[sizes] = medians
    quiet: Floats = by_size[batch]
    return quiet, rise


def _lost_at_first(ends: Floats, gaps: Floats, quiet: Floats, first: Floats) -> Estimate:
    """Share of the streams' time lost in turns that end when another stream gets its first token.

    All streams get their tokens of a turn together, up to a reading client's jitter. What is lost is a sum over
    handoffs that came at random (a compound Poisson one): its variance is the sum of their squares.
    """
    near = float(np.median(gaps)) / 2
    lost = np.concatenate(([0.0], np.cumsum(gaps - quiet)))
    each = lost[np.searchsorted(ends, first + near)] - lost[np.searchsorted(ends, first - near)]
    share = float(each.sum() / gaps.sum())
    reach = 1.96 * float(np.sqrt((each**2).sum()) / gaps.sum())
    return Estimate(share, share - reach, share + reach)


def _busy_s(first: Floats, last: Floats) -> float:
    """Time in which at least one stream ran; both sorted."""
    starts = np.concatenate((first, last))
    change = np.concatenate((np.ones(len(first)), -np.ones(len(last))))
    order = np.lexsort((-change, starts))
    running, times = np.cumsum(change[order]), starts[order]
    return max(float(np.diff(times)[running[:-1] > 0].sum()), 1e-9)


def _since(begun: Floats, t: Floats) -> Floats:
    """Time that has passed since each of `begun` (sorted), summed over those before t."""
    before = np.searchsorted(begun, t)
    passed: Floats = before * t - np.concatenate(([0.0], np.cumsum(begun)))[before]
    return passed


class _Blocks:
    """Sums over blocks of time."""

    def __init__(
        self, ends: Floats, gaps: Floats, quiet: Floats, handoffs: Floats, first: Floats, last: Floats, lag_s: float
    ) -> None:
        length = max(BLOCK_S, TURNS_IN_BLOCK * float(np.median(gaps)), LAGS_IN_BLOCK * lag_s)
        edges = np.arange(ends[0], ends[-1] + length, length)

        def summed(times: Floats, weights: Floats | None = None) -> Floats:
            return np.histogram(times, edges, weights=weights)[0].astype(float)

        running = np.diff(_since(first, edges) - _since(last, edges))
        some = running > 0
        self.time = summed(ends, gaps)[some]
        self.quiet = summed(ends, quiet)[some]
        self.handoffs = summed(handoffs)[some]
        # Not the sum of gaps, which a long one at a block's edge would carry from one block into the next.
        self.running = running[some]
        self.batch = self.running / length

    def lost(self) -> Estimate:
        """Share of the time beyond quiet turns: a ratio of sums over blocks, with the interval of a ratio."""
        total, lost = self.time.sum(), self.time - self.quiet
        share = float(lost.sum() / total) if total > 0 else 0.0
        n = len(self.time)
        if n < 2:
            return Estimate(share, -np.inf, np.inf)
        error = float(np.sqrt(n / (n - 1) * np.sum((lost - share * self.time) ** 2)) / total)
        reach = student_975(n - 1) * error
        return Estimate(share, share - reach, share + reach)

    def stall_ms(self) -> Estimate | None:
        """What each handoff takes from every stream beside it: time lost in a block against its handoffs.

        Both are counted over fixed stretches of time, beside a share of the time that is lost whatever is admitted:
        per turn they would rise together wherever turns are few.
        """
        n = len(self.running)
        if n < MIN_BLOCKS or self.handoffs.sum() < MIN_BLOCKS / 2:
            return None
        x, y = np.column_stack((self.running, self.handoffs * self.batch)), self.time - self.quiet
        return of_the_second_ms(x, y)
