"""How many slots, or which rate, would make the wait for a slot acceptable: at most 10 % of what a request takes.

The wait is that of M/M/c (Erlang C) scaled by (CV^2 of the gaps between arrivals + CV^2 of the holding times) / 2, as
Allen and Cunneen do; with Poisson arrivals and answers of one length it is half of M/M/c's. Where each handoff holds
decode's loop, a batch of b streams has b handoffs in the time of an answer, and TPOT grows with it by stall/tokens a
stream: more slots then lengthen every answer, and from rate x stall >= 1 on no number of them is enough. The same holds
on a co-located server, where the steps that compute a prompt are the stall, and the prompt holds a slot meanwhile.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

import numpy as np

from pdbench.littles_law.batch import Batch, Closed, Tpot, batch_waits, closed_loop, running_without_limit
from pdbench.littles_law.slots import mean_wait_s
from pdbench.report.causes.case import NOTICED_MS, NOTICED_TURNS
from pdbench.report.causes.case import WAIT_SHARE as NAMED_SHARE
from pdbench.report.cell import Measured
from pdbench.report.demand import Slots, prefill_hold_s, slots_by_server

WAIT_SHARE = 0.10  # of the mean E2EL without the wait for a slot
HEADROOM = 0.75  # slot use to plan for; no universal threshold exists
RATE_STEPS = 200
SLOTS_LIMIT = "limit: slots"  # each rate that is advised says what limits it
LARGER = 8  # times as many slots: more would be another deployment

Pools = list[tuple[float, int]]  # of each server its share of the requests and its slots


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
    limit_s = acceptable_s(cell, wait_ms)
    if loop is not None and slots.available and cell.rate is not None and not cell.stages:
        return _beside_held_loop(cell, slots, loop, limit_s)
    kv = cell.window.send_max(cell.decoder, "kv_cache_usage", average=True)
    full = "at most 1%" if kv is not None and kv < 0.01 else f"at most {kv or 0.0:.0%}"
    memory = "check KV memory first" if kv is None else f"its KV cache was {full} full"
    if cell.stages:  # no number fits all rates, and the mean rate's is too low for the highest
        most = max(max(stage["start"], stage["end"]) for stage in cell.stages)
        return (
            f"Raise --max-num-seqs on {slots.where} ({memory}), or lower the highest rate; for a number sweep that"
            f" rate by itself (--rates {most:g})."
        )
    if cell.streams is not None and slots.available and wait_ms is not None:
        return _in_closed_loop(cell, slots, wait_ms, limit_s, memory)
    tpot = prompts if prompts is not None else _growing(cell, slots)
    if tpot is None or not slots.available or not cell.offered:
        return f"Raise --max-num-seqs on {slots.where} ({memory}), or lower the load."
    enough = wait_ms is not None and wait_ms <= 1000 * limit_s
    return _slots_or_rate(cell, slots, tpot, limit_s, memory, enough)


def _keeps(limit_s: float) -> str:
    """The criterion by which slots and rates are advised here, as it stands beside them: a figure of the queueing
    model, not one that was measured. `pdbench slots` has another: the p99 of the wait."""
    return f"mean wait for a slot about {1000 * limit_s:,.0f} ms or less by the model"


def acceptable_s(cell: Measured, wait_ms: float | None) -> float:
    """The mean wait for a slot to aim at: 10 % of what a request takes otherwise, and half of what would make it a
    cause again, since the mean of one run is easily twice that of all."""
    answers, pace = cell.answers, cell.turns.quiet_ms if cell.turns is not None else None
    e2el, ttft, tpot = (answers.mean(v) or 0.0 for v in (answers.e2el_ms, answers.ttft_ms, answers.tpot_ms))
    if wait_ms is None:
        return WAIT_SHARE * e2el / 1000
    named = NAMED_SHARE / 2
    rest = max(0.0, ttft - wait_ms) * named / (1 - named)
    noticed = min(NOTICED_MS, NOTICED_TURNS * (pace or tpot)) / 2
    return min(WAIT_SHARE * (e2el - wait_ms), max(rest, noticed)) / 1000


def raised(cell: Measured, slots: Slots, each: int) -> str:
    """The flag, which is of each server, where `each` of them needs so many slots: those with more keep them."""
    if (servers := _servers(cell)) == 1:
        return f"--max-num-seqs on {slots.where} to {each}"
    has, _ = slots_by_server(cell)
    short = {name: has[name] for name in sorted(has) if has[name] < each}
    if not short or len(short) == len(has):
        return f"--max-num-seqs to {each} on each of the {servers} {cell.decoder} servers"
    those = ", ".join(f"{name} (has {own})" for name, own in short.items())
    return f"--max-num-seqs to {each} on {those}"


def _growing(cell: Measured, slots: Slots) -> Tpot | None:
    """TPOT of any batch: as measured, and by how much a turn grows with each further stream, where the turns are those
    that TPOT is made of: on a busy machine something else makes it, and the growth is not known."""
    tokens, turns = cell.answers.mean(cell.answers.output_tokens), cell.turns
    if not slots.demand or not cell.offered or not tokens:
        return None
    tpot_ms = 1000 * slots.demand / cell.offered / tokens
    if turns is None or not turns.slope_ms or turns.quiet_ms < HEADROOM * turns.mean_ms:
        return Tpot(tpot_ms)
    slope_ms = turns.slope_ms / _servers(cell)
    return Tpot.measured(tpot_ms, min(slope_ms, tpot_ms / turns.streams), turns.streams)


def _in_closed_loop(cell: Measured, slots: Slots, wait_ms: float, limit_s: float, memory: str) -> str:
    """Streams that wait for each other have no rate of their own: slots for those that are at decode, or fewer streams.

    Shorter waits bring requests sooner, so that the rate rises with the slots. As many slots as streams always do.
    """
    streams, available = cell.streams or 0, slots.available or 0

    def waits(count: int, sending: int) -> bool:
        found = closed_cell(cell, slots, wait_ms, count, sending)
        return found is not None and found.wait_s > limit_s

    servers = _servers(cell)
    larger = range(available + servers, streams, servers)
    enough = next((c for c in larger if not waits(c, streams)), max(streams, available + servers))
    text = f"Raise {raised(cell, slots, math.ceil(enough / servers))} for {streams} streams in closed loop"
    if (found := closed_cell(cell, slots, wait_ms, enough, streams)) is not None:
        text += f", of which {found.held:.1f} then hold a slot on average"
        text += f" ({_keeps(limit_s)})" if found.wait_s <= limit_s else ""
    fits = next((n for n in range(streams - 1, 0, -1) if not waits(available, n)), 0)
    if fits:
        text += f"; or lower it to {fits} streams ({_keeps(limit_s)})"
    return f"{text} ({memory})."


def closed_cell(cell: Measured, slots: Slots, wait_ms: float, count: int, streams: int) -> Closed | None:
    """What `streams` in closed loop would come to with `count` slots; `None` where the cell does not tell.

    Each of several servers has its part of both.
    """
    tokens, turns, servers = cell.answers.mean(cell.answers.output_tokens), cell.turns, cell.servers(cell.decoder) or 1
    tpot, e2el = cell.answers.mean(cell.answers.tpot_ms), cell.answers.mean(cell.answers.e2el_ms)
    if not tokens or not tpot or not e2el:
        return None
    own_ms = 1000 * (prefill_hold_s(cell) or 0.0)
    elsewhere_s = max(0.0, e2el - wait_ms - tokens * tpot - own_ms) / 1000
    slope = turns.slope_ms if turns is not None and turns.slope_ms else 0.0
    batch = turns.streams / servers if turns is not None else 1.0
    line = Tpot.measured(tpot + own_ms / tokens, slope, batch)
    one = closed_loop(math.ceil(streams / servers), elsewhere_s, tokens, line, max(1, count // servers))
    return Closed(one.wait_s, one.rate * servers, one.held * servers)


def slots_beside(cell: Measured, slots: Slots, loop: HeldLoop, limit_s: float) -> str | None:
    """What more slots do while the loop stays held; `None` where no number is known to be enough."""
    rate, tokens = cell.rate or 0.0, cell.answers.mean(cell.answers.output_tokens) or 1.0
    running = running_without_limit(rate, tokens, loop.tpot)
    pools = _pools(cell)
    larger = range(_least(pools) + 1, LARGER * math.ceil((slots.available or 0) / _servers(cell)) + 1)
    fits = next((c for c in larger if _acceptable(cell, pools, loop.tpot, rate, c, limit_s)), None)
    # How TPOT grows with the batch is little known where the slots were full all the time.
    if loop.share >= 1 or fits is None or running is None:
        return None
    batch, total = _batch(cell, loop.tpot, 1 / _servers(cell), rate, fits), fits * _servers(cell)
    slower = loop.tpot.at(min(total, batch.running * _servers(cell) if batch is not None else total))
    where = raised(cell, slots, fits)
    return f"raise {where} ({_keeps(limit_s)}), at a TPOT of about {slower:,.1f} ms"


def _beside_held_loop(cell: Measured, slots: Slots, loop: HeldLoop, limit_s: float) -> str:
    """Where the loop is held, first of all what holds it; then what more slots would do, which may be nothing."""
    what = "posting transfers" if loop.posting else "what each handoff does there"
    move = "push, or a connector that posts on a thread of its own" if loop.posting else "profile a step that admits"
    text = (
        f"Free decode's loop of {what} ({move}): each handoff holds it for {loop.stall_ms:,.0f} ms, which at the asked"
        f" rate is {loop.share:.0%} of its time"
    )
    if loop.share >= 1:
        text += ", and no number of slots carries it"
    elif (more := slots_beside(cell, slots, loop, limit_s)) is not None:
        text += f"; or leave it as it is and {more}"
    else:
        text += "; whether more slots would do cannot be said from the batch sizes that were seen"
    highest = _highest(cell, _pools(cell), loop.tpot, limit_s)
    return f"{text}." + (f" As it is, {highest:g} req/s fit ({SLOTS_LIMIT}; {_keeps(limit_s)})." if highest else "")


def _slots_or_rate(cell: Measured, slots: Slots, tpot: Tpot, limit_s: float, memory: str, enough: bool) -> str:
    """Each slot more makes the batch larger and, co-located, admits prompts that slow down all others: there may be no
    number that is enough, and none is named where batches would grow almost without end.

    No lower rate is named where the wait that was measured is acceptable already (`enough`).
    """
    rate, tokens = cell.offered or 0.0, cell.answers.mean(cell.answers.output_tokens) or 1.0
    growth, pools = rate * tokens * tpot.slope_ms / 1000, _pools(cell)
    running = running_without_limit(rate, tokens, tpot)
    carries = 0 if running is None else math.ceil((int(running / HEADROOM) + 1) / len(pools))
    least = max(_least(pools) + 1, carries)
    larger = range(least, LARGER * least + 1) if growth <= HEADROOM else range(0)
    fits = next((c for c in larger if _acceptable(cell, pools, tpot, rate, c, limit_s)), None)
    highest = 0.0 if enough or cell.rate is None else _highest(cell, pools, tpot, limit_s)
    lower = f"ower the rate to {highest:g} req/s ({SLOTS_LIMIT})"
    if fits is not None:
        text = f"Raise {raised(cell, slots, fits)}" + (f" or l{lower}" if highest else "")
        return f"{text}: {_keeps(limit_s)} ({memory})."
    why = f"more slots are a risk: what streams and prompts add makes {growth:.0%} of each turn at the asked rate"
    return (
        f"L{lower} ({_keeps(limit_s)}), or add a server; {why}."
        if highest
        else f"Add a server or lower the rate; {why}."
    )


def _acceptable(cell: Measured, pools: Pools, tpot: Tpot, qps: float, each: int, limit_s: float) -> bool:
    """Whether the mean wait for a slot is acceptable where TPOT grows with the batch and every server has `each` slots,
    or more where it has more already: several servers are no common pool, but where the router always knows the
    emptiest."""
    mean_s = 0.0
    for (share, slots), alike in Counter(pools).items():
        batch = _batch(cell, tpot, share, qps, max(slots, each))
        if batch is None:
            return False
        mean_s += alike * share * batch.waits.mean_s
    return mean_s * _variability(cell) <= limit_s


def _pools(cell: Measured) -> Pools:
    """Each server's share of the requests and its slots: equal shares where all have as many, else those seen."""
    has, _ = slots_by_server(cell)
    sent = {name: cell.window.delta(cell.decoder, "ttft_s", "count", server=name) or 0.0 for name in has}
    total = sum(sent.values())
    if len(set(has.values())) <= 1 or not all(sent.values()):
        return [(1 / len(has), slots) for slots in has.values()]
    return [(sent[name] / total, has[name]) for name in has]


def _batch(cell: Measured, tpot: Tpot, share: float, qps: float, slots: int) -> Batch | None:
    """What one server comes to with its share of the rate."""
    tokens = cell.answers.mean(cell.answers.output_tokens) or 1.0
    return batch_waits(qps * share, tokens, Tpot(tpot.alone_ms, tpot.slope_ms * _servers(cell)), slots)


def _least(pools: Pools) -> int:
    """Slots of the server that has the fewest."""
    return min((own for _, own in pools), default=0)


def _servers(cell: Measured) -> int:
    return max(1, cell.servers(cell.decoder))


def _highest(cell: Measured, pools: Pools, tpot: Tpot, limit_s: float) -> float:
    """The highest rate below the asked one whose wait is acceptable as it is; 0 where there is none."""
    lower = ((cell.rate or 0.0) * k / RATE_STEPS for k in range(RATE_STEPS - 1, 0, -1))
    return next((_two_digits(qps) for qps in lower if _acceptable(cell, pools, tpot, qps, 0, limit_s)), 0.0)


def expected_wait_s(cell: Measured, demand: float, held_s: float) -> float | None:
    """The mean wait of a steady state at this demand of all servers together; `None` where there is none."""
    mean_s = 0.0
    for (share, slots), alike in Counter(_pools(cell)).items():
        wait = mean_wait_s(demand * share, slots, held_s)
        if wait is None:
            return None
        mean_s += alike * share * wait
    return mean_s * _variability(cell)


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
