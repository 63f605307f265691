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
from pdbench.report.demand import reached
from pdbench.report.stages import colocated_waits, divide_rest
from pdbench.report.statistics import Floats

PARTS = ("proxy", "prefill_queue", "prefill", "slot_wait", "post", "transfer", "poll", "first_step", "unexplained")
WAIT_IN_ESTIMATE = 0.5  # of Dynamo's transfer estimate: beyond, it tells nothing of the transfer
GAUGE_SIGMAS = 3.0  # a sampled gauge further off than this contradicts a counter
RECOMPUTED_TOKENS = 2.0  # per request beyond which decode's local prompt tokens are no longer one step's
RECOMPUTED_SHARE = 0.05


@dataclass(frozen=True, slots=True)
class Split:
    """The parts in ms under the contract's names; `notes` say what could not be told apart and why.

    `for_slots`, `for_blocks` and `for_prefill` say what the waits among them were for: `slot_wait` for a slot or, with
    slots free, for KV blocks; co-located, `prefill_queue` for any of the three. `None`: not known.
    """

    parts: dict[str, float]
    notes: tuple[str, ...] = field(default_factory=tuple)
    for_slots: float | None = None
    for_blocks: float | None = None
    for_prefill: float | None = None

    def get(self, name: str) -> float:
        return self.parts.get(name, 0.0)


def split_of(cell: Measured) -> Split | None:
    """The TTFT split of a cell; `None` when no request was answered."""
    mean = cell.answers.mean(cell.answers.ttft_ms)
    if mean is None:
        return None
    notes: list[str] = []
    parts: dict[str, float | None] = SPLITS[_dialect(cell)](cell, notes)
    known = {name: float(parts[name]) for name in PARTS if parts.get(name) is not None}  # type: ignore[arg-type]
    if cell.cut and known.get("proxy", 0.0) < 0:  # servers count those without an answer too: no time is below zero
        del known["proxy"]
    known["unexplained"] = mean - sum(known.values())
    return Split(known, tuple(notes), *_what_for(cell, known, parts.get("kv_pool")))


def _what_for(
    cell: Measured, parts: dict[str, float], blocks: float | None
) -> tuple[float | None, float | None, float | None]:
    """Waits for slots, for KV blocks and for prefill, in ms."""
    queue, slots = parts.get("prefill_queue"), parts.get("slot_wait")
    if cell.mode != COLOCATED or queue is None:
        return (None if slots is None else slots - (blocks or 0.0)), blocks, queue
    shares = colocated_waits(cell)
    if shares is None:
        return None, None, queue
    return queue * shares[0], queue * shares[1], queue * (1 - shares[0] - shares[1])


def _dialect(cell: Measured) -> str:
    if cell.renders_only:
        return "render-only"
    if cell.dynamo and not cell.window.delta(cell.decoder, "queue_s", "count"):
        return "dynamo-colocated" if cell.mode == COLOCATED else "dynamo"
    if cell.deployment.get("engine") == "sglang" and cell.mode != COLOCATED:
        return "sglang"
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
    waits = divide_rest(cell, rest, xfer, 0.0, notes)
    return {
        "proxy": _minus(_from_sent_ms(cell), window.mean_ms("prefill", "e2e_s"), window.mean_ms("decode", "ttft_s")),
        "prefill_queue": window.mean_ms("prefill", "queue_s"),
        "prefill": window.mean_ms("prefill", "prefill_s"),
        "slot_wait": waits.slot,
        "kv_pool": waits.pool,
        "post": post,
        "transfer": _minus(xfer, post) if post is not None else xfer,
        "poll": waits.poll,
        "first_step": first_step(cell, notes),
    }


def _push(cell: Measured, notes: list[str]) -> dict[str, float | None]:
    """Both sides asked at once: decode's queue time also contains the prefill leg; the NIXL series are prefill's."""
    window = cell.window
    queue, prefill = window.mean_ms("prefill", "queue_s"), window.mean_ms("prefill", "prefill_s")
    post, xfer = _nixl(cell, "prefill")
    rest = _minus(window.mean_ms("decode", "queue_s"), queue, prefill, xfer)
    waits = divide_rest(cell, rest, xfer, (queue or 0.0) + (prefill or 0.0), notes)
    return {
        "proxy": _minus(_from_sent_ms(cell), window.mean_ms("decode", "ttft_s")),
        "prefill_queue": queue,
        "prefill": prefill,
        "slot_wait": waits.slot,
        "kv_pool": waits.pool,
        "post": post,
        "transfer": _minus(xfer, post) if post is not None else xfer,
        "poll": waits.poll,
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


def _sglang(cell: Measured, notes: list[str]) -> dict[str, float | None]:
    """Both sides are asked at once. Decode makes room first (its prealloc queue), only then does prefill take the
    request from its bootstrap queue into its waiting queue; so the wait for room is before the prefill, not after it.

    Decode's transfer queue holds a request through prefill's queue, compute and transfer: none of its time is shown
    twice. Once the KV is there, what keeps it in decode's waiting queue is a slot, or the engine's next look.
    """
    window = cell.window

    def stage(role: str, name: str) -> float | None:
        return window.mean_ms(role, "stage_s", stage=name)

    room, loaded = stage("decode", "decode_bootstrap"), stage("decode", "decode_waiting")
    if room is None and (area := window.integral("decode", "kv_fetch_stage", stage="waiting_to_start")) is not None:
        room = area / max(1, cell.answers.count("ok")) * 1000
    full = loaded is not None and reached(cell)
    moved = stage("prefill", "prefill_transfer_kv_cache")
    return {
        "proxy": _minus(_from_sent_ms(cell), window.mean_ms("decode", "ttft_s")),
        "prefill_queue": window.mean_ms("prefill", "queue_s"),
        "prefill": stage("prefill", "prefill_forward"),
        "slot_wait": None if room is None else room + (loaded or 0.0) * full,
        "transfer": window.mean_ms("prefill", "kv_transfer_s") if moved is None else moved,
        "poll": None if full else loaded,
    }


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
        "transfer": window.mean_ms("decode", "kv_transfer_s") or window.mean_ms("prefill", "kv_transfer_s"),
        "first_step": first_step(cell, notes),
    }


SPLITS: dict[str, Callable[[Measured, list[str]], dict[str, float | None]]] = {
    PULL: _pull,
    PUSH: _push,
    COLOCATED: _colocated,
    "dynamo": _dynamo,
    "dynamo-colocated": _colocated,
    "sglang": _sglang,
    "unknown": _nothing,
    "render-only": lambda cell, notes: {},
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
            f"decode computed the prompts itself, so the {step:,.0f} ms before its first token are not one decode step:"
            " they are counted as unexplained."
        )
        return None
    return step
