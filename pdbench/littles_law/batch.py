"""Waits when TPOT rises with the batch, TPOT(b) = a + d b: a birth-death chain on the number of requests.

mu(n) = min(n, c) / (N (a + d min(n, c))). Exact for exponential-like lengths; the mean number running does not depend
on the lengths' law while n <= c. Times in seconds here, since the holding time is no longer one number.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from pdbench.littles_law.waits import NO_WAIT, Waits, exponential_tail

NEGLIGIBLE = 1e-30


class Tpot(NamedTuple):
    """Time per output token in ms as a function of the requests running: `alone_ms + slope_ms * running`."""

    alone_ms: float
    slope_ms: float = 0.0

    @classmethod
    def measured(cls, tpot_ms: float, slope_ms: float, at_batch: float) -> Tpot:
        """The line with `slope_ms` through `tpot_ms` at `at_batch` running."""
        return cls(tpot_ms - slope_ms * at_batch, slope_ms)

    def at(self, running: float) -> float:
        return self.alone_ms + self.slope_ms * running

    def held_s(self, out_tokens: float, running: float) -> float:
        """Seconds that a request of `out_tokens` holds a slot while `running` requests run."""
        return out_tokens * self.at(running) / 1000


def running_without_limit(qps: float, out_tokens: float, tpot: Tpot) -> float | None:
    """Requests running if slots never ran out; `None` where the batch slows down faster than it grows."""
    per_token = qps * out_tokens / 1000
    if per_token * tpot.slope_ms >= 1:
        return None
    return per_token * tpot.alone_ms / (1 - per_token * tpot.slope_ms)


class Batch(NamedTuple):
    """Waits and the mean number running of the birth-death chain, and how likely each number below `slots` is."""

    waits: Waits
    running: float
    chances: Mapping[int, float]

    def joins_within(self, most: float) -> float:
        """The share of requests that make a batch of at most `most` when they join. Arrivals see time averages."""
        return min(1.0, math.fsum(chance for n, chance in self.chances.items() if n + 1 <= most))

    def joined(self, share: float) -> int:
        """The batch, itself included, that `share` of the requests do not exceed; `slots` where the others wait."""
        so_far, slots = 0.0, max(self.chances, default=0) + 1
        for n in sorted(self.chances):
            so_far += self.chances[n]
            if so_far >= share:
                return n + 1
        return slots


def batch_waits(qps: float, out_tokens: float, tpot: Tpot, slots: int) -> Batch | None:
    """The steady state; `None` when the rate is at or beyond what the full batch completes."""
    full = slots / tpot.held_s(out_tokens, slots)
    if qps >= full:
        return None
    if qps == 0:
        return Batch(NO_WAIT, 0.0, {0: 1.0})
    weights = _weights(qps, out_tokens, tpot, slots)
    beyond = weights.pop(slots, 0.0) / (1 - qps / full)  # n >= c
    mass = math.fsum(weights.values()) + beyond
    p_wait = beyond / mass
    running = (math.fsum(n * weight for n, weight in weights.items()) + slots * beyond) / mass
    chances = {n: weight / mass for n, weight in weights.items()}
    return Batch(exponential_tail(p_wait, p_wait / (full - qps)), running, chances)


def _weights(qps: float, out_tokens: float, tpot: Tpot, slots: int) -> dict[int, float]:
    """P(n) for n <= c relative to where the chain mostly is, outwards to both sides until nothing is left."""
    usual = min(slots, math.floor(running_without_limit(qps, out_tokens, tpot) or 0.0))
    weights = {usual: 1.0}
    weight = 1.0
    for n in range(usual, 0, -1):
        weight *= n / (qps * tpot.held_s(out_tokens, n))
        weights[n - 1] = weight
        if weight < NEGLIGIBLE:
            break
    weight = 1.0
    for n in range(usual + 1, slots + 1):
        weight *= qps * tpot.held_s(out_tokens, n) / n
        weights[n] = weight
        if weight < NEGLIGIBLE:
            break
    return weights


class Closed(NamedTuple):
    """What a closed loop comes to: the mean wait for a slot, the rate that it makes, and the slots held."""

    wait_s: float
    rate: float
    held: float


def closed_loop(streams: int, elsewhere_s: float, out_tokens: float, tpot: Tpot, slots: int) -> Closed:
    """The steady state of `streams` that each send their next request when the last is answered.

    A request spends `elsewhere_s` outside decode's slots and their queue (thinking, prefill, transfer). With n requests
    at decode (machine-repair queue): n rises at (N - n)/Z, and falls at min(n, c)/(N_tokens TPOT(min(n, c))). Exact for
    exponential-like times; waits of answers of one length are shorter.
    """
    logs = [0.0]
    for n in range(1, streams + 1):
        busy = min(n, slots)
        up, down = (streams - n + 1) / max(elsewhere_s, 1e-9), busy / tpot.held_s(out_tokens, busy)
        logs.append(logs[-1] + math.log(up / down))
    most = max(logs)
    weights = [math.exp(value - most) for value in logs]
    mass = math.fsum(weights)
    here = math.fsum(n * weight for n, weight in enumerate(weights)) / mass
    held = math.fsum(min(n, slots) * weight for n, weight in enumerate(weights)) / mass
    rate = math.fsum(
        min(n, slots) / tpot.held_s(out_tokens, min(n, slots)) * weight for n, weight in enumerate(weights) if n
    )
    rate /= mass
    return Closed((here - held) / rate, rate, held)
