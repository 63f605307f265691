"""What do requests wait for on decode: a slot, KV blocks, the transfer, or the engine's next look?

Decode's gauges count the requests in each stage of a handoff. The area under a gauge over the window, divided by the
requests, is the mean time in the stage (Little's law), whatever the arrivals are. Beside the gauges `running` and KV
usage it says what was missing at each moment: a slot, or blocks while slots were free.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pdbench.report.cell import Measured
from pdbench.report.demand import engine_gauge, engine_limit
from pdbench.report.window import Gauge, Page, Segment

POLL_STEPS = 4.0  # a rest this many decode steps long, seen by no gauge, is the wait for the engine's next look
SIGHTINGS = 5.0  # a wait must be expected this often in the samples before its absence there, or its share, says much
SEEN_SHARE = 0.5  # gauges that account for less than this share of a rest do not name all of it
MOSTLY = 0.5  # of the waiting beside free slots
WAITING, LOADING, LOADED = "waiting_to_start", "in_progress", "completed_waiting"


@dataclass(frozen=True, slots=True)
class Stages:
    """Request-seconds of decode's stages over the window, from its gauges."""

    slot: float  # waiting to start, and loaded but more of them than slots are free
    pool: float  # of `slot`, what passed while slots were free and KV blocks were not
    waiting: float  # waiting to start
    poll: float  # loaded and not admitted although a slot is free
    loading: float  # in progress
    loading_no_slot: float  # of that, what was more than slots are free
    samples: int
    step_s: float
    full: float  # share of the time with all slots taken, which is the share of requests that met it so
    sights: int  # scrapes that saw a request wait for a slot


@dataclass(frozen=True, slots=True)
class Waits:
    """Decode's queue time beyond prefill and transfer, divided; in ms a request, `None`: not known."""

    slot: float | None = None
    poll: float | None = None
    pool: float | None = None  # of `slot`: for KV blocks, not for a slot


def stages_of(cell: Measured) -> Stages | None:
    """Areas under decode's stage gauges; `None` where the engine has none."""
    slot = pool = waiting = poll = loading = loading_no_slot = 0.0
    full = watched = 0.0
    samples, sights, found = 0, 0, False
    for segment, page in cell.window.pages("decode"):
        for engine in page.engines() or [""]:
            start, moving, loaded = (
                engine_gauge(page, engine, "kv_fetch_stage", stage=stage) for stage in (WAITING, LOADING, LOADED)
            )
            if start is None or loaded is None or moving is None:
                continue
            found = True
            samples += len(start.t)
            running, limit = engine_gauge(page, engine, "running"), engine_limit(cell, page, engine)
            beyond = _beyond_free(loaded, running, limit)
            loaded_no_slot = _area(beyond, segment)
            short = short_of_blocks(cell, page, engine, start, limit)
            passed_over = _not_looked_for(start, moving, loaded, running, limit, short)
            unseen = _area(passed_over, segment)
            behind = _area(_behind_blocks(cell, page, engine, loaded, start, limit), segment)
            waiting += _area(start, segment)
            slot += _area(start, segment) - unseen + loaded_no_slot + behind
            sights += int(np.count_nonzero(start.value - passed_over.value + _held(beyond, start.t)))
            pool += _area(short, segment) + behind
            poll += _area(loaded, segment) - loaded_no_slot + unseen - behind
            loading += _area(moving, segment)
            loading_no_slot += _area(_beyond_free(moving, running, limit), segment)
            full += _area(_all_taken(start, running, limit), segment)
            watched += segment.end - segment.start
    step = cell.window.mean_s("decode", "itl_s") or (cell.answers.mean(cell.answers.tpot_ms) or 0.0) / 1000
    if not found:
        return None
    share = full / max(watched, 1e-9)
    return Stages(slot, pool, waiting, poll, loading, loading_no_slot, samples, step, share, sights)


def _area(gauge: Gauge, segment: Segment) -> float:
    return gauge.integral(segment.start, segment.end)


def _held(gauge: Gauge, t: NDArray[np.float64]) -> NDArray[np.float64]:
    """The gauge's last value at each time."""
    value: NDArray[np.float64] = gauge.value[np.clip(np.searchsorted(gauge.t, t, side="right") - 1, 0, None)]
    return value


def _beyond_free(loaded: Gauge, running: Gauge | None, limit: float | None) -> Gauge:
    """Requests beyond the free slots: they wait for a slot, the others to be noticed (all, without a limit)."""
    if running is None or limit is None or len(running.t) == 0:
        return Gauge(loaded.t, np.zeros_like(loaded.value))
    free = np.maximum(0.0, limit - _held(running, loaded.t))
    return Gauge(loaded.t, np.maximum(0.0, loaded.value - free))


def _all_taken(start: Gauge, running: Gauge | None, limit: float | None) -> Gauge:
    """1 while all slots are taken, else 0; 1 throughout where that is not known."""
    if running is None or limit is None or len(running.t) == 0:
        return Gauge(start.t, np.ones_like(start.value))
    return Gauge(running.t, np.where(running.value >= limit, 1.0, 0.0))


def _not_looked_for(
    start: Gauge, moving: Gauge, loaded: Gauge, running: Gauge | None, limit: float | None, short: Gauge
) -> Gauge:
    """Requests in `waiting_to_start` while there is a slot for every request on the server, and no want of blocks: the
    loop has not looked since they came, as when the posts of others hold it."""
    if running is None or limit is None or len(running.t) == 0:
        return Gauge(start.t, np.zeros_like(start.value))
    others = sum((_held(gauge, start.t) for gauge in (moving, loaded) if len(gauge.t)), _held(running, start.t))
    return Gauge(start.t, np.where((others + start.value <= limit) & (short.value <= 0), start.value, 0.0))


def _behind_blocks(cell: Measured, page: Page, engine: str, loaded: Gauge, start: Gauge, limit: float | None) -> Gauge:
    """Requests that are loaded and have a slot free, behind one that waits for blocks: the queue is served in its
    order, and the first is often one that was preempted, which no stage counts."""
    head = engine_gauge(page, engine, "waiting_by_reason", reason="capacity")
    short = short_of_blocks(cell, page, engine, start if head is None else head, limit)
    if not len(short.t):
        return Gauge(loaded.t, np.zeros_like(loaded.value))
    running = engine_gauge(page, engine, "running")
    free = loaded.value - _beyond_free(loaded, running, limit).value
    return Gauge(loaded.t, np.where(_held(short, loaded.t) > 0, free, 0.0))


def short_of_blocks(cell: Measured, page: Page, engine: str, waiting: Gauge, limit: float | None) -> Gauge:
    """`waiting` where slots were free and the pool had no room for one more request; 0 elsewhere.

    One more request needs the blocks of its prompt: as the server's pool is known, else what those that hold blocks
    have on average. The next in line may need more (it was preempted, its prompt is longer): where blocks were short in
    most of the waiting beside free slots, they were in all of it.
    """
    nothing = Gauge(waiting.t, np.zeros_like(waiting.value))
    running, usage = engine_gauge(page, engine, "running"), engine_gauge(page, engine, "kv_cache_usage")
    if running is None or usage is None or limit is None or not len(running.t) or not len(usage.t):
        return nothing
    used, ran = _held(usage, waiting.t), _held(running, waiting.t)
    need = prompt_share(cell, page.server)
    if need is None:
        holders = ran
        for stage in (LOADING, LOADED):
            if (gauge := engine_gauge(page, engine, "kv_fetch_stage", stage=stage)) is not None and len(gauge.t):
                holders = holders + _held(gauge, waiting.t)
        need_share = used / np.maximum(holders, 1.0)
    else:
        need_share = np.full_like(used, need)
    beside_free = np.where(ran < limit, waiting.value, 0.0)
    short = np.where(used + need_share > 1.0, beside_free, 0.0)
    return Gauge(waiting.t, beside_free if short.sum() > MOSTLY * beside_free.sum() else short)


def colocated_waits(cell: Measured) -> tuple[float, float] | None:
    """Shares of the queue on a co-located server that wait for a slot and for KV blocks; the rest waits for prefill.

    `None` where the number of slots is not known.
    """
    slots = blocks = whole = 0.0
    for segment, page in cell.window.pages("colocated"):
        for engine in page.engines() or [""]:
            waiting, running = engine_gauge(page, engine, "waiting"), engine_gauge(page, engine, "running")
            limit = engine_limit(cell, page, engine)
            if waiting is None or running is None or limit is None or not len(running.t):
                return None
            # One slot may just have been freed, to be taken in the next step; with more, slots are not what is short.
            full = np.where(_held(running, waiting.t) >= max(1.0, limit - 1.0), waiting.value, 0.0)
            whole += _area(waiting, segment)
            slots += _area(Gauge(waiting.t, full), segment)
            blocks += _area(short_of_blocks(cell, page, engine, waiting, limit), segment)
    return (slots / whole, blocks / whole) if whole > 0 else (0.0, 0.0)


def prompt_share(cell: Measured, server: str) -> float | None:
    """Share of a server's KV pool that one prompt takes; `None` where the pool's size is not known."""
    tokens = cell.answers.mean(cell.answers.prompt_tokens)
    for known in cell.deployment.get("servers", []):
        facts = known.get("facts") or {}
        blocks, size = facts.get("num_kv_blocks"), facts.get("block_size")
        if known.get("name") == server and tokens is not None and blocks and size:
            return float(math.ceil(tokens / float(size))) / float(blocks)
    return None


def divide_rest(cell: Measured, rest: float | None, moving: float | None, leg: float, notes: list[str]) -> Waits:
    """What is left of decode's queue time, divided in proportion to the stage gauges, in ms.

    `moving` is the transfer, `leg` what a request waits for prefill while decode has it already (push): together they
    are what stage in_progress holds beside polling. Without the gauges the rest is neither slot wait nor polling and
    stays in unexplained.
    """
    stages = stages_of(cell)
    requests = cell.window.delta("decode", "queue_s", "count")
    if rest is None or not requests:
        return Waits()
    if stages is None:
        notes.append(
            f"{rest:,.0f} ms of decode's queue time may be slot wait or polling: its page lacks kv_fetch_stage"
            " (vllm:num_requests_kv_fetch_by_stage, vLLM >= 0.32)."
        )
        return Waits()
    step_ms = stages.step_s * 1000
    slot_ms, poll_ms, pool_ms = (area / requests * 1000 for area in (stages.slot, stages.poll, stages.pool))
    if moving is not None and stages.loading > 0:
        # A load that takes longer than its transfer waits for the engine, or for others' loads where no slot is free.
        # A request that has waited for its slot in the meantime waits the less for prefill.
        still = max(0.0, leg - stages.waiting / requests * 1000)
        over = max(0.0, stages.loading / requests * 1000 - moving - still)
        no_slot = stages.loading_no_slot / stages.loading
        slot_ms, poll_ms = slot_ms + over * no_slot, poll_ms + over * (1 - no_slot)
    # The last step before admission is no wait for a slot: of who met full slots, or of all where few looks tell.
    waited = stages.full if stages.sights >= SIGHTINGS else 1.0
    noticing = min(slot_ms, step_ms * waited)
    slot_ms, poll_ms = slot_ms - noticing, poll_ms + noticing
    if rest <= 0:
        return Waits(0.0 if slot_ms == 0 else None)
    if slot_ms + poll_ms == 0:
        expected = stages.samples * (rest / 1000) * requests / max(cell.window.duration_s, 1e-9)
        if rest <= POLL_STEPS * step_ms:
            return Waits(0.0, rest)
        if expected >= SIGHTINGS:
            notes.append(f"{rest:,.0f} ms of decode's queue time show in none of its stage gauges.")
            return Waits(0.0)
        return Waits()
    seen = slot_ms + poll_ms
    if seen < SEEN_SHARE * rest and rest > POLL_STEPS * step_ms:
        notes.append(
            f"decode's stage gauges account for {seen:,.0f} of {rest:,.0f} ms of its queue time beyond the transfer."
        )
        return Waits(slot_ms, poll_ms, min(pool_ms, slot_ms))
    pool_ms = min(pool_ms, slot_ms) * rest / seen
    if pool_ms > 0.5 * rest:
        notes.append(f"{pool_ms:,.0f} ms of slot_wait passed with slots free and too few KV blocks.")
    return Waits(rest * slot_ms / seen, rest * poll_ms / seen, pool_ms)
