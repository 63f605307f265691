"""How many slots, or which rate, would make the wait for a slot acceptable: at most 10 % of what a request takes.

The wait is that of M/M/c (Erlang C) scaled by (CV^2 of the gaps between arrivals + CV^2 of the holding times) / 2, as
Allen and Cunneen do; with Poisson arrivals and answers of one length it is half of M/M/c's. Where each handoff holds
decode's loop, a batch of b streams has b handoffs in the time of an answer, and TPOT grows with it by stall/tokens a
stream: more slots then lengthen every answer, and from rate x stall >= 1 on no number of them is enough. The same holds
on a co-located server, where the steps that compute a prompt are the stall, and the prompt holds a slot meanwhile.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from pdbench.littles_law.batch import Tpot, batch_waits, running_without_limit
from pdbench.littles_law.slots import mean_wait_s
from pdbench.report.cell import Measured
from pdbench.report.demand import Slots

WAIT_SHARE = 0.10  # of the mean E2EL without the wait for a slot
HEADROOM = 0.75  # slot use to plan for; no universal threshold exists
RATE_STEPS = 200
LARGER = 8  # times as many slots: more would be another deployment


@dataclass(frozen=True, slots=True)
class HeldLoop:
    """What handoffs do to decode's loop: `share` of its time at the asked rate, and the TPOT of any batch with it."""

    stall_ms: float  # a handoff
    share: float
    tpot: Tpot
    posting: bool  # it is posting that holds the loop


def slot_advice(
    cell: Measured, slots: Slots, wait_ms: float | None, loop: HeldLoop | None = None, prompts: Tpot | None = None
) -> str:
    """The first thing to change where slots are short. No rate is named unless one below the asked rate would do.

    `prompts`: co-located, the TPOT of any batch beside its own prompts.
    """
    if loop is not None and slots.available and cell.rate is not None:
        return _beside_held_loop(cell, slots.available, loop)
    kv = cell.window.send_max(cell.decoder, "kv_cache_usage", average=True)
    full = "at most 1%" if kv is not None and kv < 0.01 else f"at most {kv or 0.0:.0%}"
    memory = "check KV memory first" if kv is None else f"its KV cache was {full} full"
    if prompts is not None and slots.available and cell.rate is not None:
        return _beside_prompts(cell, slots.available, prompts, wait_ms, memory)
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


def _beside_held_loop(cell: Measured, available: int, loop: HeldLoop) -> str:
    """Where the loop is held, first of all what holds it; then what more slots would do, which may be nothing."""
    rate, tokens = cell.rate or 0.0, cell.answers.mean(cell.answers.output_tokens) or 1.0
    what = "posting transfers" if loop.posting else "what each handoff does there"
    move = "push, or a connector that posts on a thread of its own" if loop.posting else "profile a step that admits"
    text = (
        f"Free decode's loop of {what} ({move}): {loop.stall_ms:,.0f} ms a handoff would hold it for"
        f" {loop.share:.0%} of its time at this rate"
    )
    larger = range(available + 1, LARGER * available + 1)
    fits = next((c for c in larger if _acceptable(cell, loop.tpot, rate, c)), None)
    if loop.share >= 1:
        text += ", and no number of slots carries it"
    elif fits is None or running_without_limit(rate, tokens, loop.tpot) is None:
        # How TPOT grows with the batch is little known where the slots were full all the time.
        text += "; whether more slots would do cannot be said from the batch sizes that were seen"
    else:
        running = batch_waits(rate, tokens, loop.tpot, fits)
        slower = loop.tpot.at(min(fits, running.running if running is not None else fits))
        text += f"; with about {fits} slots (--max-num-seqs) the wait for one ends, at a TPOT of {slower:,.1f} ms"
    highest = _highest(cell, loop.tpot, available)
    return f"{text}." + (f" As it is, {highest:g} req/s have a mean wait of at most 10% of E2EL." if highest else "")


def _beside_prompts(cell: Measured, available: int, tpot: Tpot, wait_ms: float | None, memory: str) -> str:
    """Co-located: each slot more admits prompts that slow down all others, so there may be no number that is enough.

    No lower rate is named where the wait that was measured is acceptable already.
    """
    rate, tokens = cell.rate or 0.0, cell.answers.mean(cell.answers.output_tokens) or 1.0
    running = running_without_limit(rate, tokens, tpot)
    least = available + 1 if running is None else max(available + 1, int(running / HEADROOM) + 1)
    larger = range(least, LARGER * available + 1) if running is not None else range(0)
    fits = next((c for c in larger if _acceptable(cell, tpot, rate, c)), None)
    e2el_ms = cell.answers.mean(cell.answers.e2el_ms) or 0.0
    short_wait = wait_ms is not None and wait_ms <= WAIT_SHARE * (e2el_ms - wait_ms)
    highest = 0.0 if short_wait else _highest(cell, tpot, available)
    lower = f"ower the rate to {highest:g} req/s, where the mean wait for a slot is at most 10% of E2EL"
    if fits is not None:
        text = f"Raise --max-num-seqs on the server to {fits}"
        return f"{text} or l{lower} ({memory})." if highest else f"{text} ({memory})."
    why = "no number of slots carries" if running is None else f"{LARGER * available} slots would not carry"
    why += " the asked rate, as far as these batch sizes tell: each prompt and each stream slows down all others"
    return f"L{lower}; {why}." if highest else f"Add a server or lower the rate; {why}."


def _acceptable(cell: Measured, tpot: Tpot, qps: float, count: int) -> bool:
    """Whether the wait for one of `count` slots is acceptable where TPOT grows with the batch."""
    tokens = cell.answers.mean(cell.answers.output_tokens) or 1.0
    batch = batch_waits(qps, tokens, tpot, count)
    if batch is None:
        return False
    return batch.waits.mean_s * _variability(cell) <= WAIT_SHARE * tpot.held_s(tokens, batch.running)


def _highest(cell: Measured, tpot: Tpot, available: int) -> float:
    """The highest rate below the asked one whose wait is acceptable as it is; 0 where there is none."""
    lower = ((cell.rate or 0.0) * k / RATE_STEPS for k in range(RATE_STEPS - 1, 0, -1))
    return next((_two_digits(qps) for qps in lower if _acceptable(cell, tpot, qps, available)), 0.0)


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
