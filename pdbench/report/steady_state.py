"""Is the mean of a cell a property of the deployment, or of how long the cell ran?

A rising TTFT alone proves nothing: the waits of a healthy queue are correlated over dozens of requests, so by chance
they often rise through a short run. Such a rise has a witness against it: while a healthy queue is backed up it lets
requests out *faster* than the load brings them (capacity above the asked rate). In an overload it lets them out more
slowly, and the backlog never drains. So a cell is called not steady when
- TTFT rises with the request index beyond chance, by an amount that matters, and answers leave the backlog no faster
  than the asked rate;
- or one backlog holds most of the cell, and answers leave it more slowly than asked, rising or not;
- or the requests in flight grow after the ramp and fewer answers come out than chance allows (where streams pile up
  without a slot limit, TTFT may stay flat);
- or nearly all requests of the cell are in flight at once.
`benchmarks/steady_state_errors.py` measures both kinds of error.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pdbench.report.answers import Answers, in_flight
from pdbench.report.statistics import Floats, block_medians, mann_kendall_z, theil_sen

MIN_REQUESTS = 20  # below, a trend test says nothing
BLOCKS = 20
BLOCK_AT_LEAST = 3
TREND_Z = 2.33  # one-sided 1 % for independent blocks; the witness keeps correlated waits from firing
RISE_SHARE = 0.3  # of the mean: a smaller rise through the run does not make the mean a figure of its length
BACKLOG_LEVEL = 0.25  # a request is in the backlog when its value is this far from the low to the high of the run
CAPACITY_SHARE = 0.95  # asked rate / rate out of the backlog: at or above, the backlog does not drain in such a run
LOAD_SIGMAS = 1.0  # that rate is known only so well when slots are held for random times
STRONG_Z = 4.0  # and is taken at its word beside a rise this clear
STRONG_RISE = 1.0
LOAD_BATCHES = 8
BACKLOG_SHARE = 0.5  # of the requests in one backlog
BACKLOG_TIMES = 3.0  # highest over lowest TTFT (running medians): below, it is no backlog but noise
WARM_IN_SHARE = 0.2  # of the send window, at most
RAMP_E2ELS = 1.5  # requests in flight have settled after this many E2ELs of the first requests
RAMP_OF_FIRST = 0.1  # share of the requests that are the first ones
RAMP_AT_MOST = 0.7  # of the send window; a longer ramp leaves nothing to judge
FLIGHT_TIMES = 1.5  # in flight at the end over at the start
MISSING_SHARE = 0.1  # of the answers that should have come out
MISSING_SIGMAS = 3.0  # in Poisson's standard deviations
PEAK_SHARE_OPEN = 0.8  # of the cell's requests in flight at once
PEAK_SHARE_CLOSED = 0.5  # a stream that sends two requests measures its own start
PEAK_MIN_REQUESTS = 5
CLOSED_WARM_IN_TURNS = 2


@dataclass(frozen=True, slots=True)
class Backlog:
    """The longest stretch of requests with a raised latency."""

    share: float  # of the requests
    times: float  # highest over lowest value of the run
    load: float  # asked rate / rate at which requests leave it
    load_error: float  # its standard error

    @property
    def never_drains(self) -> bool:
        lasting = self.share >= BACKLOG_SHARE and self.times >= BACKLOG_TIMES
        return lasting and self.load - LOAD_SIGMAS * self.load_error >= 1.0


@dataclass(frozen=True, slots=True)
class Trend:
    """How a latency moved with the request index after warm-in."""

    requests: int
    slope_ms: float  # per request
    z: float
    rise_share: float  # slope x requests / mean
    backlog: Backlog | None  # None without an asked rate

    @property
    def grows(self) -> bool:
        if self.z < TREND_Z or self.rise_share < RISE_SHARE:
            return False
        if self.backlog is None:
            return True
        strong = self.z >= STRONG_Z and self.rise_share >= STRONG_RISE
        doubt = 0.0 if strong else LOAD_SIGMAS * self.backlog.load_error
        return self.backlog.load - doubt >= CAPACITY_SHARE


@dataclass(frozen=True, slots=True)
class Flight:
    """Requests in flight over the send window after the ramp, and the answers that came out in that time."""

    first: float  # in flight, mean of the first fifth of the time
    last: float  # of the last fifth
    z: float
    due: float  # answers at the asked rate
    seen: int

    @property
    def grows(self) -> bool:
        missing = self.due - self.seen
        fewer = missing > MISSING_SHARE * self.due and missing > MISSING_SIGMAS * self.due**0.5
        return fewer and self.z >= TREND_Z and self.last >= FLIGHT_TIMES * self.first


@dataclass(frozen=True, slots=True)
class Steadiness:
    """The judgement of one cell and repeat, with what it rests on."""

    ttft: Trend | None
    flight: Flight | None
    backlog: Backlog | None  # of TTFT over the whole run
    peak_in_flight: int
    requests: int
    closed: bool
    rate: float | None

    @property
    def one_burst(self) -> bool:
        """Nearly all requests were in flight at once."""
        share = PEAK_SHARE_CLOSED if self.closed else PEAK_SHARE_OPEN
        enough = self.requests >= PEAK_MIN_REQUESTS and self.peak_in_flight > 1
        return enough and self.peak_in_flight >= share * self.requests

    @property
    def ttft_grows(self) -> bool:
        return self.ttft is not None and self.ttft.grows

    @property
    def flight_grows(self) -> bool:
        return self.flight is not None and self.flight.grows

    @property
    def never_drains(self) -> bool:
        return self.backlog is not None and self.backlog.never_drains

    @property
    def growth_ms(self) -> float | None:
        """Growth of TTFT in ms per request: the slope seen, or what a backlog's rates imply where none is clear."""
        if self.ttft is not None and self.ttft_grows:
            return self.ttft.slope_ms
        if self.backlog is not None and self.never_drains and self.rate:
            return (self.backlog.load - 1) / self.rate * 1000
        return None

    @property
    def steady(self) -> bool:
        return not (self.ttft_grows or self.flight_grows or self.never_drains or self.one_burst)


def judge(
    answers: Answers,
    start: float,
    send_end: float,
    rate: float | None,
    streams: int | None = None,
    *,
    even: bool = True,
) -> Steadiness:
    """Judge one cell and repeat: `rate` is the asked rate of an open loop, `streams` a closed one's concurrency.

    Not `even`: a trace, whose rate is only its mean. In sessions TTFT grows with the turn, since the history does; what
    is judged is each turn against its like.
    """
    if rate is not None and len(answers):
        rate *= 1 - answers.count("rejected") / len(answers)  # what is turned away is no load
    _, flying = in_flight(answers)
    if streams is not None:
        settled = np.arange(len(answers)) >= CLOSED_WARM_IN_TURNS * streams
    else:
        mean_e2el_s = (answers.mean(answers.e2el_ms) or 0.0) / 1000
        settled = answers.intended >= start + min(mean_e2el_s, WARM_IN_SHARE * (send_end - start))
    kept = settled & answers.ok
    ttft, enough = like_for_like(answers), int(answers.ok.sum()) >= MIN_REQUESTS
    return Steadiness(
        ttft=trend(ttft[kept], answers.first[kept], rate) if kept.sum() >= MIN_REQUESTS else None,
        flight=flight(answers, start, send_end, rate, even) if enough and rate is not None else None,
        backlog=backlog(ttft[answers.ok], answers.first[answers.ok], rate) if enough and rate is not None else None,
        peak_in_flight=int(flying.max()) if len(flying) else 0,
        requests=len(answers),
        closed=streams is not None,
        rate=rate,
    )


def like_for_like(answers: Answers) -> Floats:
    """TTFT in ms, with the turns of sessions brought to one level: each in proportion to the median of its turn."""
    ttft = answers.ttft_ms
    measured = answers.ok & np.isfinite(ttft)
    if not np.isfinite(answers.turn).any() or not measured.any():
        return ttft
    level = ttft.copy()
    whole = float(np.median(ttft[measured]))
    for turn in np.unique(answers.turn[measured]):
        of = answers.turn == turn
        level[of] *= whole / max(float(np.median(ttft[of & measured])), 1e-9)
    return level


def flight(answers: Answers, start: float, send_end: float, rate: float, even: bool) -> Flight | None:
    """Requests in flight after the ramp; `None` when the run is too short to have an after."""
    e2el = answers.e2el_ms[answers.ok] / 1000
    ramp = RAMP_E2ELS * float(np.median(e2el[: max(5, int(RAMP_OF_FIRST * len(e2el)))]))
    if ramp > RAMP_AT_MOST * (send_end - start):
        return None
    times, flying = in_flight(answers)
    at = np.linspace(start + ramp, send_end, BLOCKS + 1)[1:]
    held = flying[np.clip(np.searchsorted(times, at, side="right") - 1, 0, None)].astype(float)
    fifth = BLOCKS // 5
    ended = answers.done[np.isfinite(answers.done)]
    seen = int(((ended > start + ramp) & (ended <= send_end)).sum())
    asked = answers.intended
    due = rate * (send_end - start - ramp) if even else float(((asked > start) & (asked <= send_end - ramp)).sum())
    return Flight(float(held[:fifth].mean()), float(held[-fifth:].mean()), mann_kendall_z(held), due, seen)


def trend(value_ms: Floats, leaves_s: Floats, rate: float | None) -> Trend:
    """The trend of a latency over requests in order; `leaves_s` is when each left the stage that the latency ends."""
    n = len(value_ms)
    slope = theil_sen(np.arange(n, dtype=float), value_ms) or 0.0
    blocks = block_medians(value_ms, min(BLOCKS, n // BLOCK_AT_LEAST))
    mean = float(value_ms.mean())
    share = slope * n / mean if mean > 0 else 0.0
    held = None if rate is None else backlog(value_ms, leaves_s, rate)
    return Trend(n, slope, mann_kendall_z(blocks), share, held)


def backlog(value_ms: Floats, leaves_s: Floats, rate: float) -> Backlog | None:
    """The longest backlog of the run; `None` when it is too short to have a rate."""
    smooth = _running_median(value_ms)
    low, high = float(smooth.min()), float(smooth.max())
    start, end = _longest_run(smooth > low + BACKLOG_LEVEL * (high - low))
    leaving = np.sort(leaves_s[start:end])
    if len(leaving) < 3 or leaving[-1] <= leaving[0]:
        return None
    gaps = np.diff(leaving)
    batches = np.array([part.mean() for part in np.array_split(gaps, min(LOAD_BATCHES, len(gaps)))])
    error = float(batches.std(ddof=1)) / len(batches) ** 0.5
    times = high / low if low > 0 else np.inf
    return Backlog((end - start) / len(value_ms), times, rate * float(gaps.mean()), rate * error)


def _running_median(value: Floats, width: int = 5) -> Floats:
    padded = np.pad(value, width // 2, mode="edge")
    medians: Floats = np.median(np.lib.stride_tricks.sliding_window_view(padded, width), axis=1)
    return medians


def _longest_run(flags: NDArray[np.bool_]) -> tuple[int, int]:
    """Start and end of the longest stretch of True."""
    edges = np.diff(np.concatenate(([0], flags.astype(int), [0])))
    starts, ends = np.flatnonzero(edges == 1), np.flatnonzero(edges == -1)
    if len(starts) == 0:
        return 0, 0
    best = int(np.argmax(ends - starts))
    return int(starts[best]), int(ends[best])
