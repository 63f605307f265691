"""Is the mean of a cell a property of the deployment, or of how long the cell ran?

A rising TTFT alone proves nothing: the waits of a healthy queue are correlated over dozens of requests, so by chance they
often rise through a short run. Such a rise has a witness against it: while a healthy queue is backed up it lets requests
out *faster* than the load brings them (capacity above the asked rate). In an overload it lets them out more slowly, and
the backlog never drains. So a cell is called not steady when TTFT (or E2EL) rises with the request index beyond chance,
by an amount that matters, and answers leave the backlog no faster than the asked rate; or when nearly all requests of
the cell are in flight at once. `benchmarks/steady_state_errors.py` measures both kinds of error.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pdbench.report.answers import Answers, in_flight
from pdbench.report.statistics import Floats, block_medians, mann_kendall_z, theil_sen

MIN_REQUESTS = 20  # below, a trend test says nothing
BLOCKS = 20
BLOCK_AT_LEAST = 3
TREND_Z = 2.33  # one-sided 1 % for independent blocks; the witness keeps correlated waits from firing
RISE_SHARE = 0.3  # of the mean: a smaller rise through the run does not make the mean a figure of its length
BACKLOG_LEVEL = 0.25  # a request is in the backlog when its value is this far from the low to the high of the run
CAPACITY_SHARE = 0.95  # asked rate / rate out of the backlog: at or above, the backlog does not drain in such a run
WARM_IN_SHARE = 0.2  # of the send window, at most
WARM_IN_SHARE_E2EL = 0.5
PEAK_SHARE_OPEN = 0.8  # of the cell's requests in flight at once
PEAK_SHARE_CLOSED = 0.5  # a stream that sends two requests measures its own start
PEAK_MIN_REQUESTS = 5
CLOSED_WARM_IN_TURNS = 2


@dataclass(frozen=True, slots=True)
class Trend:
    """How a latency moved with the request index after warm-in."""

    requests: int
    slope_ms: float  # per request
    z: float
    rise_share: float  # slope x requests / mean
    load: float | None  # asked rate / rate out of the backlog; None without a rate or a backlog

    @property
    def grows(self) -> bool:
        return (
            self.z >= TREND_Z and self.rise_share >= RISE_SHARE and (self.load is None or self.load >= CAPACITY_SHARE)
        )


@dataclass(frozen=True, slots=True)
class Steadiness:
    """The judgement of one cell and repeat, with what it rests on."""

    ttft: Trend | None
    e2el: Trend | None
    peak_in_flight: int
    requests: int
    closed: bool

    @property
    def grows(self) -> Trend | None:
        """The trend that voids the cell, if one does; TTFT's before E2EL's."""
        return next((t for t in (self.ttft, self.e2el) if t is not None and t.grows), None)

    @property
    def one_burst(self) -> bool:
        """Nearly all requests were in flight at once."""
        share = PEAK_SHARE_CLOSED if self.closed else PEAK_SHARE_OPEN
        enough = self.requests >= PEAK_MIN_REQUESTS and self.peak_in_flight > 1
        return enough and self.peak_in_flight >= share * self.requests

    @property
    def steady(self) -> bool:
        return self.grows is None and not self.one_burst


def judge(
    answers: Answers, start: float, send_end: float, rate: float | None, streams: int | None = None
) -> Steadiness:
    """Judge one cell and repeat. `rate` is the asked rate of an open loop, `streams` the concurrency of a closed one."""
    _, flying = in_flight(answers)
    peak = int(flying.max()) if len(flying) else 0
    mean_e2el_s = (answers.mean(answers.e2el_ms) or 0.0) / 1000
    window = send_end - start
    settled = {
        "ttft": answers.intended >= start + min(mean_e2el_s, WARM_IN_SHARE * window),
        "e2el": answers.intended >= start + min(mean_e2el_s, WARM_IN_SHARE_E2EL * window),
    }
    if streams is not None:
        settled = {name: np.arange(len(answers)) >= CLOSED_WARM_IN_TURNS * streams for name in settled}
    trends: dict[str, Trend | None] = {}
    for name, value, leaves in (("ttft", answers.ttft_ms, answers.first), ("e2el", answers.e2el_ms, answers.last)):
        kept = settled[name] & answers.ok & np.isfinite(value)
        trends[name] = trend(value[kept], leaves[kept], rate) if kept.sum() >= MIN_REQUESTS else None
    return Steadiness(trends["ttft"], trends["e2el"], peak, len(answers), streams is not None)


def trend(value_ms: Floats, leaves_s: Floats, rate: float | None) -> Trend:
    """The trend of a latency over requests in order, `leaves_s` being when each left the stage that the latency ends."""
    n = len(value_ms)
    index = np.arange(n, dtype=float)
    slope = theil_sen(index, value_ms) or 0.0
    blocks = block_medians(value_ms, min(BLOCKS, n // BLOCK_AT_LEAST))
    mean = float(value_ms.mean())
    share = slope * n / mean if mean > 0 else 0.0
    return Trend(n, slope, mann_kendall_z(blocks), share, _load(value_ms, leaves_s, rate))


def _load(value_ms: Floats, leaves_s: Floats, rate: float | None) -> float | None:
    """Asked rate over the rate at which requests leave the longest backlog of the run."""
    if rate is None:
        return None
    smooth = _running_median(value_ms)
    low, high = float(smooth.min()), float(smooth.max())
    start, end = _longest_run(smooth > low + BACKLOG_LEVEL * (high - low))
    leaving = np.sort(leaves_s[start:end])
    if len(leaving) < 3 or leaving[-1] <= leaving[0]:
        return None
    return rate * float(leaving[-1] - leaving[0]) / (len(leaving) - 1)


def _running_median(value: Floats, width: int = 5) -> Floats:
    padded = np.pad(value, width // 2, mode="edge")
    medians: Floats = np.median(np.lib.stride_tricks.sliding_window_view(padded, width), axis=1)
    return medians


def _longest_run(flags: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> tuple[int, int]:
    """Start and end of the longest stretch of True."""
    edges = np.diff(np.concatenate(([0], flags.astype(int), [0])))
    starts, ends = np.flatnonzero(edges == 1), np.flatnonzero(edges == -1)
    if len(starts) == 0:
        return 0, 0
    best = int(np.argmax(ends - starts))
    return int(starts[best]), int(ends[best])
