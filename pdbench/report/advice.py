"""How many slots, or which rate, would make the wait for a slot acceptable: at most 10 % of what a request takes.

The wait is that of M/M/c (Erlang C) scaled by (CV^2 of the gaps between arrivals + CV^2 of the holding times) / 2, as
Allen and Cunneen do; with Poisson arrivals and answers of one length it is half of M/M/c's.
"""

from __future__ import annotations

import math

import numpy as np

from pdbench.littles_law.slots import mean_wait_s
from pdbench.report.cell import Measured
from pdbench.report.demand import Slots

WAIT_SHARE = 0.10  # of the mean E2EL without the wait for a slot
HEADROOM = 0.75  # slot use to plan for; no universal threshold exists
RATE_STEPS = 200


def slot_advice(cell: Measured, slots: Slots, wait_ms: float | None) -> str:
    """The first thing to change where slots are short. No rate is named unless one below the asked rate would do."""
    kv = cell.window.send_max(cell.decoder, "kv_cache_usage", average=True)
    full = "at most 1%" if kv is not None and kv < 0.01 else f"at most {kv or 0.0:.0%}"
    memory = "check KV memory first" if kv is None else f"its KV cache was {full} full"
    demand, rate = slots.demand, cell.rate
    if not demand or slots.available is None or not cell.offered:
        return f"Raise --max-num-seqs on {slots.where} ({memory}), or lower the load."
    held_s = demand / cell.offered
    variability = _variability(cell)
    e2el = cell.answers.mean(cell.answers.e2el_ms)
    alone_s = max(held_s, ((e2el or 0.0) - (wait_ms or 0.0)) / 1000)

    def acceptable(load: float, count: int) -> bool:
        wait = mean_wait_s(load, count, held_s)
        return wait is not None and wait * variability <= WAIT_SHARE * alone_s

    wanted = max(int(demand / HEADROOM) + 1, slots.available + 1)
    while not acceptable(demand, wanted):
        wanted += 1
    text = f"Raise --max-num-seqs on {slots.where} to {wanted}"
    if rate is not None:
        most = min(demand, slots.available)
        fits = [k / RATE_STEPS for k in range(1, RATE_STEPS) if acceptable(most * k / RATE_STEPS, slots.available)]
        highest = _two_digits(max(fits) * most / held_s) if fits else 0.0
        if 0 < highest < rate:
            text += f" or lower the rate to {highest:g} req/s, where the mean wait for a slot is at most 10% of E2EL"
    return f"{text} ({memory})."


def expected_wait_s(cell: Measured, demand: float, slots: int, held_s: float) -> float | None:
    """The mean wait of a steady state at this demand; `None` where there is none."""
    wait = mean_wait_s(demand, slots, held_s)
    return None if wait is None else wait * _variability(cell)


def _variability(cell: Measured) -> float:
    """(CV^2 of gaps between arrivals + CV^2 of holding times) / 2."""
    kind = str(cell.plan.get("arrivals", "poisson"))
    gaps = {"constant": 0.0, "gamma": 1 / float(cell.plan.get("burstiness") or 1.0)}.get(kind, 1.0)
    held = (cell.answers.last - cell.answers.first)[cell.answers.ok]
    held = held[np.isfinite(held)]
    mean = float(held.mean()) if len(held) else 0.0
    return (gaps + (float(held.std()) / mean) ** 2 if mean > 0 else gaps) / 2


def _two_digits(value: float) -> float:
    """Rounded down, so that what is promised of it holds."""
    if value <= 0:
        return 0.0
    unit = 10.0 ** (math.floor(math.log10(value)) - 1)
    return round(math.floor(value / unit + 1e-9) * unit, 6)
