"""Slots that stand empty while requests wait: not all of a wait for slots is for want of slots.

A slot that becomes free starts the loads of all that wait, and those take the slots that become free until the engine
looks again. Where it looks seldom, their KV has long arrived, slots empty one after the other, and the queue stands
still until the next look: what a request waits meanwhile is the late look's.
"""

from __future__ import annotations

import numpy as np

from pdbench.report.causes.case import NOTICED_MS, Case, Part
from pdbench.report.causes.posting import load_met_ms, wait_to_post
from pdbench.report.demand import engine_gauge, engine_limit
from pdbench.report.split import Split
from pdbench.report.stages import LOADED, LOADING, WAITING, stages_of
from pdbench.report.statistics import Floats

LATE = (
    0.5  # of the time until KV is noticed: what posts and turns must leave over, since they are reckoned, not measured
)
SHORT_OF_BLOCKS = 0.1  # of the wait: then slots are empty for want of blocks


def waits_for_a_look(case: Case) -> Part:
    """What of the wait for slots passed while slots were empty and KV that had arrived was not looked for."""
    empty = empty_share(case) if _late_beside_full_slots(case) else 0.0

    def late(split: Split) -> float | None:
        return None if split.for_slots is None else split.for_slots * empty

    return late


def waits_for_a_slot(case: Case) -> Part:
    """The rest of it."""
    late = waits_for_a_look(case)

    def whole(split: Split) -> float | None:
        return None if split.for_slots is None else split.for_slots - (late(split) or 0.0)

    return whole


def _late_beside_full_slots(case: Case) -> bool:
    """Whether loads last more than twice as long after their transfers as posts of others and turns explain, slots full
    or not: where they queue behind posts for seconds, an error of 5 % would be late by a tenth of a second."""
    stages, requests = stages_of(case.cell), case.cell.window.delta("decode", "queue_s", "count")
    split, slots = case.split, case.split.for_slots or 0.0
    if stages is None or not requests or not slots or case.expired:
        return False
    if split.get("slot_wait") - slots > SHORT_OF_BLOCKS * slots:
        return False
    leg = 0.0 if case.pull else split.get("prefill_queue") + split.get("prefill")
    known = split.get("post") + split.get("transfer") + max(0.0, leg - 1000 * stages.waiting / requests)
    until_noticed = 1000 * stages.loading / requests - known
    late = until_noticed - load_met_ms(case) - wait_to_post(case)(split)
    # Prefill's thread posts one after the other: of two loads that a freed slot starts the second waits for the first.
    in_line = 0.0 if case.pull else split.get("post")
    return late >= max(NOTICED_MS, LATE * until_noticed, in_line)


def empty_share(case: Case) -> float:
    """The share of decode's slots that were empty, over the time in which more requests waited than there are slots."""
    available = case.slots.available
    if not available or case.turns is None:
        return 0.0
    if case.cell.servers("decode") > 1 or "prefill" in case.cell.unread:
        # clients don't know to which of them a stream belongs, nor when a request came to decode
        return _by_gauges(case)
    answers = case.cell.answers
    step_s = case.split.get("first_step") / 1000
    first, last, sent = (values[answers.ok] for values in (answers.first, answers.last, answers.sent))
    leg_s = (case.split.get("proxy") + case.split.get("prefill_queue") + case.split.get("prefill")) / 1000
    begun = first - step_s
    edges = np.sort(np.concatenate((begun, last, sent + leg_s)))
    middle = (edges[1:] + edges[:-1]) / 2

    def since(times: Floats) -> Floats:
        found: Floats = np.searchsorted(np.sort(times), middle).astype(float)
        return found

    running, waiting = since(begun) - since(last), since(np.minimum(sent + leg_s, begun)) - since(begun)
    return _share(waiting, 1 - running / available, np.diff(edges), available)


def _by_gauges(case: Case) -> float:
    waited = empty = 0.0
    for _, page in case.cell.window.pages("decode"):
        for engine in page.engines() or [""]:
            gauges = [engine_gauge(page, engine, "kv_fetch_stage", stage=stage) for stage in (WAITING, LOADING, LOADED)]
            running, limit = engine_gauge(page, engine, "running"), engine_limit(case.cell, page, engine)
            if running is None or not limit or any(g is None or len(g.t) != len(running.t) for g in gauges):
                continue
            waiting = sum((g.value for g in gauges if g is not None), np.zeros(len(running.t)))
            beyond = np.where(waiting >= limit, waiting, 0.0)
            waited += float(beyond.sum())
            empty += float((beyond * np.clip(1 - running.value / limit, 0.0, 1.0)).sum())
    return empty / waited if waited > 0 else 0.0


def _share(waiting: Floats, empty: Floats, length: Floats, available: float) -> float:
    weight = np.where(waiting >= available, waiting, 0.0) * length
    total = float(weight.sum())
    return float((weight * np.clip(empty, 0.0, 1.0)).sum()) / total if total > 0 else 0.0
