"""Given requests on c slots, first come first served, one by one: for traces, and where TPOT follows the batch.

Plain Python, since a trace is one long run that cannot be vectorised. Times in seconds.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence

from pdbench.littles_law.batch import Tpot
from pdbench.littles_law.waits import Waits


def replay(arrivals_s: Sequence[float], held_s: Sequence[float], slots: int) -> list[float]:
    """Each request's wait for a slot. `arrivals_s` rises."""
    free = [0.0] * min(slots, max(1, len(arrivals_s)))
    waits = []
    take = heapq.heapreplace
    for arrival, held in zip(arrivals_s, held_s, strict=True):
        first = free[0]
        if first > arrival:
            waits.append(first - arrival)
            take(free, first + held)
        else:
            waits.append(0.0)
            take(free, arrival + held)
    return waits


def replay_batch(arrivals_s: Sequence[float], tokens: Sequence[float], tpot: Tpot, slots: int) -> list[float]:
    """As `replay`, where every running request makes tokens at the batch's own pace, TPOT(running)."""
    waits: list[float] = []
    running: list[float] = []  # the count of tokens at which each running request ends
    made, now = 0.0, 0.0  # tokens that a request would have made that ran from the start
    for arrival, length in zip(arrivals_s, tokens, strict=True):
        start = max(now, arrival)
        while running:
            pace = tpot.at(len(running)) / 1000
            end = now + (running[0] - made) * pace
            if end > arrival and len(running) < slots:
                break
            made, now = running[0], end
            heapq.heappop(running)
            if now >= arrival and len(running) < slots:
                break
        start = max(now, arrival)
        if running:
            made += (start - now) * 1000 / tpot.at(len(running))
        now = start
        heapq.heappush(running, made + length)
        waits.append(start - arrival)
    return waits


def summed(waits: Sequence[float]) -> Waits:
    """The figures of a list of waits; a percentile is the smallest wait that its share does not exceed."""
    ordered = sorted(waits)
    p50, p90, p99 = (ordered[max(0, math.ceil(q * len(ordered)) - 1)] for q in (0.5, 0.9, 0.99))
    waited = sum(1 for wait in ordered if wait > 0)
    return Waits(waited / len(ordered), math.fsum(ordered) / len(ordered), p50, p90, p99)
