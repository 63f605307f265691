"""Where the mean TTFT goes: disjoint parts that sum to `mean_ttft_ms`, with what is not measured in `unexplained`.

Means add, so each part is a mean over one cell: differences of the servers' sums and counts, and for the stages that
have only a gauge its area over the whole window divided by the requests (Little's law). What each engine's series mean
is said once, in the functions named in `SPLITS`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from pdbench.report.cell import COLOCATED, PULL, PUSH, Measured
from pdbench.report.demand import engine_gauge, engine_limit, reached
from pdbench.report.statistics import Floats
from pdbench.report.window import Gauge

PARTS = ("proxy", "prefill_queue", "prefill", "slot_wait", "post", "transfer", "poll", "first_step", "unexplained")
POLL_STEPS = 4.0  # a rest this many decode steps long, seen by no gauge, is the wait for the engine's next look
SIGHTINGS = 5.0  # a wait must be expected this often in the samples before its absence there says anything
WAIT_IN_ESTIMATE = 0.5  # of Dynamo's transfer estimate: beyond, it tells nothing of the transfer
GAUGE_SIGMAS = 3.0  # a sampled gauge further off than this contradicts a counter
SEEN_SHARE = 0.5  # gauges that account for less than this share of a rest do not name all of it
RECOMPUTED_TOKENS = 2.0  # per request beyond which decode's local prompt tokens are no longer one step's
RECOMPUTED_SHARE = 0.05


@dataclass(frozen=True, slots=True)
class Split:
    """The parts in ms under the contract's names; `notes` say what could not be told apart and why."""

    parts: dict[str, float]
    notes: tuple[str, ...] = field(default_factory=tuple)

    def get(self, name: str) -> float:
        return self.parts.get(name, 0.0)


@dataclass(frozen=True, slots=True)
class Stages:
    """Request-seconds of decode's stages over the window, from its gauges."""

    slot: float  # waiting to start, and loaded but more of them than slots are free
    poll: float  # loaded and not admitted although a slot is free
    loading: float  # in progress
    loading_no_slot: float  # of that, what was more than slots are free
    samples: int
    step_s: float


def split_of(cell: Measured) -> Split | None:
    """The TTFT split of a cell; `None` when no request was answered."""
    mean = cell.answers.mean(cell.answers.ttft_ms)
    if mean is None:
        return None
    notes: list[str] = []
    parts: dict[str, float | None] = SPLITS[_dialect(cell)](cell, notes)
    known = {name: float(parts[name]) for name in PARTS if parts.get(name) is not None}  # type: ignore[arg-type]
    known["unexplained"] = mean - sum(known.values())
    return Split(known, tuple(notes))


def _dialect(cell: Measured) -> str:
    if cell.dynamo and not cell.window.delta(cell.decoder, "queue_s", "count"):
        return "dynamo-colocated" if cell.mode == COLOCATED else "dynamo"
    return cell.mode or "unknown"


def _from_sent_ms(cell: Measured) -> float | None:
    return cell.answers.mean((cell.answers.first - cell.answers.sent) * 1000)


def _minus(value: float | None, *others: float | None) -> float | None:
    """A difference of means, when all of them are there."""
    if value is None or any(other is None for other in others):
        return None
    return value - sum(other for other in others if other is not None)


def _pull(cell: Measured, notes: list[str]) -> dict[str, float | None]:
    """Prefill, then decode: decode's queue time is slot wait + transfer + the wait to be noticed."""
    window = cell.window
    queue = window.mean_ms("decode", "queue_s")
    post, xfer = _nixl(cell, "decode")
    rest = _minus(queue, xfer)
    slot, poll = divide_rest(cell, rest, xfer, notes)
    return {
        "proxy": _minus(_from_sent_ms(cell), window.mean_ms("prefill", "e2e_s"), window.mean_ms("decode", "ttft_s")),
        "prefill_queue": window.mean_ms("prefill", "queue_s"),
        "prefill": window.mean_ms("prefill", "prefill_s"),
        "slot_wait": slot,
        "post": post,
        "transfer": _minus(xfer, post) if post is not None else xfer,
        "poll": poll,
        "first_step": first_step(cell, notes),
    }


def _push(cell: Measured, notes: list[str]) -> dict[str, float | None]:
    """Both sides asked at once: decode's queue time also contains the prefill leg; the NIXL series are prefill's."""
    window = cell.window
    queue, prefill = window.mean_ms("prefill", "queue_s"), window.mean_ms("prefill", "prefill_s")
    post, xfer = _nixl(cell, "prefill")
    rest = _minus(window.mean_ms("decode", "queue_s"), queue, prefill, xfer)
    slot, poll = divide_rest(cell, rest, None, notes)
    return {
        "proxy": _minus(_from_sent_ms(cell), window.mean_ms("decode", "ttft_s")),
        "prefill_queue": queue,
        "prefill": prefill,
        "slot_wait": slot,
        "post": post,
        "transfer": _minus(xfer, post) if post is not None else xfer,
        "poll": poll,
        "first_step": first_step(cell, notes),
    }


def _colocated(cell: Measured, notes: list[str]) -> dict[str, float | None]:
    window = cell.window
    return {
        "proxy": _minus(_from_sent_ms(cell), window.mean_ms("colocated", "ttft_s")),
        "prefill_queue": window.mean_ms("colocated", "queue_s"),
        "prefill": window.mean_ms("colocated", "prefill_s"),
    }


def _dynamo(cell: Measured, notes: list[str]) -> dict[str, float | None]:
    """The transfer ends before decode is asked, so all that waits at decode waits for a slot."""
    window = cell.window
    parts = _dynamo_prefill(cell, notes)
    gauge, error = gauge_wait_ms(cell, "decode")
    ttft, step = window.mean_ms("decode", "ttft_s"), window.mean_ms("decode", "itl_s")
    step = cell.answers.mean(cell.answers.tpot_ms) if step is None else step
    if ttft is None or step is None:
        return {**parts, "slot_wait": gauge}
    # Decode's own TTFT there is slot wait + first step, exactly counted; the sampled gauge is only a witness.
    slot = ttft - step
    parts["transfer"] = _dynamo_transfer(cell, ttft, slot, notes)
    if slot <= step and not reached(cell):
        return {**parts, "slot_wait": 0.0, "first_step": ttft}  # the wait for the step under way, with slots free
    slot = max(0.0, slot)
    if gauge is not None and abs(gauge - slot) > max(step, GAUGE_SIGMAS * error):
        notes.append(f"decode's waiting gauge says {gauge:,.0f} ms of slot wait, its TTFT counter {slot:,.0f} ms.")
    return {**parts, "slot_wait": slot, "first_step": ttft - slot}


def _dynamo_transfer(cell: Measured, ttft: float, slot: float, notes: list[str]) -> float | None:
    """Dynamo's estimate lasts up to decode's first token: without decode's own TTFT it is the transfer.

    Only where the wait for a slot is the smaller part of it: else the transfer is lost in the wait's scatter.
    """
    told = _told_ms(cell, cell.answers.told_transfer)
    if told is None:
        return None
    if slot > WAIT_IN_ESTIMATE * told:
        notes.append(f"Dynamo's transfer estimate ({told:,.0f} ms) is mostly the wait for a decode slot: not shown.")
        return None
    return max(0.0, told - ttft)


def _dynamo_prefill(cell: Measured, notes: list[str]) -> dict[str, float | None]:
    """Dynamo tells prefill's queue and compute as one time; where no two requests met there, it is compute."""
    told, most = _told_ms(cell, cell.answers.told_prefill), cell.window.send_max("prefill", "inflight")
    if told is not None and most is not None and most <= 1:
        return {"prefill_queue": 0.0, "prefill": told}
    together = f" (together {told:,.0f} ms)" if told is not None else ""
    leg = cell.window.mean_ms("prefill", "prefill_leg_s")
    legs = f" (prefill leg {leg:,.0f} ms a request)" if leg is not None and not together else ""
    notes.append(f"Dynamo does not tell prefill's queue and its compute apart{together}: in unexplained{legs}.")
    return {}


def _told_ms(cell: Measured, told_s: Floats) -> float | None:
    """Mean of what Dynamo's answers say of themselves."""
    told = cell.answers.mean(told_s)
    return None if told is None else told * 1000


def gauge_wait_ms(cell: Measured, role: str) -> tuple[float | None, float]:
    """Mean wait by the area under `waiting` (Little's law), and the standard error of what its samples missed."""
    waited, requests = cell.window.integral(role, "waiting"), int(cell.answers.ok.sum())
    if waited is None or not requests:
        return None, 0.0
    missed = [np.diff(g.value) * np.diff(g.t) for _, _, _, g in cell.window.gauges(role, "waiting")]
    return waited / requests * 1000, float(sum(np.sum(m**2) for m in missed)) ** 0.5 / 2 / requests * 1000


def _nothing(cell: Measured, notes: list[str]) -> dict[str, float | None]:
    """Neither told nor seen whether KV is pulled or pushed: only what has the same meaning in both."""
    window = cell.window
    if window.roles():
        notes.append(
            "pull or push is not known, so decode's queue time cannot be divided: give --mode pull or --mode push."
        )
    return {
        "prefill_queue": window.mean_ms("prefill", "queue_s"),
        "prefill": window.mean_ms("prefill", "prefill_s"),
        "first_step": first_step(cell, notes),
    }


SPLITS: dict[str, Callable[[Measured, list[str]], dict[str, float | None]]] = {
    PULL: _pull,
    PUSH: _push,
    COLOCATED: _colocated,
    "dynamo": _dynamo,
    "dynamo-colocated": _colocated,
    "unknown": _nothing,
}


def _nixl(cell: Measured, role: str) -> tuple[float | None, float | None]:
    """Mean post and transfer time of a handle in ms: TP ranks move theirs side by side, so it is the request's."""
    return cell.window.mean_ms(role, "nixl_post_s"), cell.window.mean_ms(role, "nixl_xfer_s")


def recomputed(cell: Measured) -> tuple[float, float] | None:
    """Prompt tokens that decode computed itself, per request and as a share of all it got; `None` when not measured."""
    local = cell.window.delta("decode", "prompt_tokens_by_source", source="local_compute")
    moved = cell.window.delta("decode", "prompt_tokens_by_source", source="external_kv_transfer")
    cached = cell.window.delta("decode", "prompt_tokens_by_source", source="local_cache_hit")
    requests = cell.window.delta("decode", "queue_s", "count") or cell.answers.count("ok")
    if (local is None and moved is None) or not requests:
        return None
    total = sum(value or 0.0 for value in (local, moved, cached))
    return (local or 0.0) / requests, (local or 0.0) / total if total else 0.0


def decode_recomputed(cell: Measured) -> bool:
    found = recomputed(cell)
    return found is not None and found[0] > RECOMPUTED_TOKENS and found[1] > RECOMPUTED_SHARE


def first_step(cell: Measured, notes: list[str]) -> float | None:
    """Decode's scheduled-to-first-token time: one step when the KV came by transfer, a prefill when it did not."""
    step = cell.window.mean_ms("decode", "prefill_s")
    if step is not None and decode_recomputed(cell):
        notes.append(
            f"decode computed prompts itself: its {step:,.0f} ms before the first token are no step"
            " and lie in unexplained."
        )
        return None
    return step


def stages_of(cell: Measured) -> Stages | None:
    """Areas under decode's stage gauges; `None` where the engine has none."""
    slot = poll = loading = loading_no_slot = 0.0
    samples, found = 0, False
    for segment, page in cell.window.pages("decode"):
        for engine in page.engines() or [""]:
            start = engine_gauge(page, engine, "kv_fetch_stage", stage="waiting_to_start")
            loaded = engine_gauge(page, engine, "kv_fetch_stage", stage="completed_waiting")
            moving = engine_gauge(page, engine, "kv_fetch_stage", stage="in_progress")
            if start is None or loaded is None or moving is None:
                continue
            found = True
            samples += len(start.t)
            slot += start.integral(segment.start, segment.end)
            running, limit = engine_gauge(page, engine, "running"), engine_limit(cell, page, engine)
            no_slot = _beyond_free(loaded, running, limit).integral(segment.start, segment.end)
            slot += no_slot
            poll += loaded.integral(segment.start, segment.end) - no_slot
            loading += moving.integral(segment.start, segment.end)
            loading_no_slot += _beyond_free(moving, running, limit).integral(segment.start, segment.end)
    step = cell.window.mean_s("decode", "itl_s") or (cell.answers.mean(cell.answers.tpot_ms) or 0.0) / 1000
    return Stages(slot, poll, loading, loading_no_slot, samples, step) if found else None


def _beyond_free(loaded: Gauge, running: Gauge | None, limit: float | None) -> Gauge:
    """Requests beyond the free slots: they wait for a slot, the others to be noticed (all, without a limit)."""
    if running is None or limit is None or len(running.t) == 0:
        return Gauge(loaded.t, np.zeros_like(loaded.value))
    place = np.clip(np.searchsorted(running.t, loaded.t, side="right") - 1, 0, None)
    free = np.maximum(0.0, limit - running.value[place])
    return Gauge(loaded.t, np.maximum(0.0, loaded.value - free))


def divide_rest(
    cell: Measured, rest: float | None, xfer: float | None, notes: list[str]
) -> tuple[float | None, float | None]:
    """What is left of decode's queue time, divided into slot wait and poll in proportion to the stage gauges, in ms.

    Without the gauges it is neither: it stays in unexplained. `xfer` is the transfer's part of stage in_progress (None
    when that stage says nothing of polling, as in push, where it also holds the wait for prefill).
    """
    stages = stages_of(cell)
    requests = cell.window.delta("decode", "queue_s", "count")
    if rest is None or not requests:
        return None, None
    if stages is None:
        notes.append(
            f"{rest:,.0f} ms of decode's queue time may be slot wait or polling: its page lacks kv_fetch_stage"
            " (vllm:num_requests_kv_fetch_by_stage, vLLM >= 0.32)."
        )
        return None, None
    step_ms = stages.step_s * 1000
    slot_ms, poll_ms = stages.slot / requests * 1000, stages.poll / requests * 1000
    if xfer is not None and stages.loading > 0:
        # A load that takes longer than its transfer waits for the engine, or for others' loads where no slot is free.
        over = max(0.0, stages.loading / requests * 1000 - xfer)
        no_slot = stages.loading_no_slot / stages.loading
        slot_ms, poll_ms = slot_ms + over * no_slot, poll_ms + over * (1 - no_slot)
    noticing = min(slot_ms, step_ms)  # the last step before admission is no wait for a slot
    slot_ms, poll_ms = slot_ms - noticing, poll_ms + noticing
    if rest <= 0:
        return (0.0 if slot_ms == 0 else None), None
    if slot_ms + poll_ms == 0:
        expected = stages.samples * (rest / 1000) * requests / max(cell.window.duration_s, 1e-9)
        if rest <= POLL_STEPS * step_ms:
            return 0.0, rest
        if expected >= SIGHTINGS:
            notes.append(f"{rest:,.0f} ms of decode's queue time show in none of its stage gauges.")
            return 0.0, None
        return None, None
    seen = slot_ms + poll_ms
    if seen < SEEN_SHARE * rest and rest > POLL_STEPS * step_ms:
        notes.append(
            f"decode's stage gauges account for {seen:,.0f} of {rest:,.0f} ms of its queue time beyond the transfer."
        )
        return slot_ms, poll_ms
    return rest * slot_ms / seen, rest * poll_ms / seen
