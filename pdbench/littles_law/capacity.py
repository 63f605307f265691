"""From waits to advice: how many slots, how high a rate, and what the 80 % rule would have said.

`WaitsAt` gives the waits at a rate on a number of slots, None in overload: a formula, a simulation or a replay.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from pdbench.littles_law.demand import Demand
from pdbench.littles_law.slots_question import MOST_SLOTS
from pdbench.littles_law.waits import Waits

WaitsAt = Callable[[float, int], Waits | None]

RULE = 0.8  # the rule of thumb: keep mean slot use below 80 %
CURVE = (0.3, 0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95)
FINE_CURVE = tuple(sorted({*CURVE, *(percent / 100 for percent in range(24, 97, 2))}))
RATE_STEP = 0.0005
CLOSE = 0.02  # of utilisation: how near to 80 % the safe rate may be for the rule to be called right


class Point(NamedTuple):
    """One point of the curve of waits against utilisation."""

    utilisation: float
    qps: float
    waits: Waits


def keeps(waits: Waits | None, slo_s: float) -> bool:
    return waits is not None and waits.p99_s <= slo_s


def fewest_slots(demand: Demand, slo_s: float, waits_at: WaitsAt, *, near: int | None = None) -> int | None:
    """The fewest slots whose p99 wait keeps the SLO; `None` where more slots never suffice.

    `near` is a first guess that spares most of the search when each evaluation is a simulation.
    """
    least = _fewest_stable(demand)
    if least is None:
        return None
    low, high = least - 1, max(least, near or least)  # low does not keep it, high is tried
    step = 1
    while not keeps(waits_at(demand.qps, high), slo_s):
        low, high, step = high, high + step, 2 * step
        if high > MOST_SLOTS:
            return None
    if near is not None:
        step = 1
        while high - step > low and keeps(waits_at(demand.qps, high - step), slo_s):
            high, step = high - step, 2 * step
        low = max(low, high - step)
    while high - low > 1:
        middle = (low + high) // 2
        if keeps(waits_at(demand.qps, middle), slo_s):
            high = middle
        else:
            low = middle
    return high


def _fewest_stable(demand: Demand) -> int | None:
    per_token = demand.qps * demand.out_tokens / 1000
    if per_token * demand.tpot.slope_ms >= 1:
        return None
    least = per_token * demand.tpot.alone_ms / (1 - per_token * demand.tpot.slope_ms)
    return None if least > MOST_SLOTS else max(1, math.floor(least) + 1)


def highest_rate(points: Sequence[Point], capacity: float, slo_s: float, waits_at: WaitsAt, slots: int) -> float:
    """The highest rate whose p99 wait keeps the SLO, within 0.1 % of the pool's capacity; 0 where none does."""
    low = max((point.utilisation for point in points if keeps(point.waits, slo_s)), default=0.0)
    high = min((point.utilisation for point in points if point.utilisation > low), default=1.0)
    while high - low > RATE_STEP:
        middle = (low + high) / 2
        if keeps(waits_at(middle * capacity, slots), slo_s):
            low = middle
        else:
            high = middle
    return low * capacity


def highest_rate_between(
    points: Sequence[Point], capacity: float, slo_s: float, waits_at: WaitsAt, slots: int
) -> float:
    """The same from a curve that was simulated: read between its points, then tried, and lowered until it holds."""
    low, high = Point(0.0, 0.0, points[0].waits.scaled(0.0)), None
    for point in points:
        if keeps(point.waits, slo_s):
            low = point
        else:
            high = point
            break
    if high is None:
        return low.qps
    rise = high.waits.p99_s - low.waits.p99_s
    share = (slo_s - low.waits.p99_s) / rise if rise > 0 else 0.0
    qps = low.qps + min(1.0, max(0.0, share)) * (high.qps - low.qps)
    for _ in range(4):
        if qps <= low.qps or keeps(waits_at(qps, slots), slo_s):
            break
        qps -= 0.02 * capacity
    return max(low.qps, qps)


def curve(demand: Demand, slots: int, waits_at: WaitsAt, utilisations: Sequence[float]) -> list[Point]:
    """Waits against utilisation on these slots."""
    capacity = demand.capacity_qps(slots)
    found = [(share, share * capacity, waits_at(share * capacity, slots)) for share in utilisations]
    return [Point(share, qps, waits) for share, qps, waits in found if waits is not None]


def rule_verdict(safe_utilisation: float) -> str:
    """What the 80 % rule is for a pool whose safe utilisation is this."""
    if safe_utilisation < RULE - CLOSE:
        return "too loose"
    return "too strict" if safe_utilisation > RULE + CLOSE else "about right"
