"""What posting takes of TTFT: the post itself, and in push the wait for the one thread that posts.

A transfer that has been noticed late and one that was posted late look the same on decode. A turn of its loop explains
the first; for the second a prefill server's posting thread is a queue of its own, loaded by rate x post time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from pdbench.report.causes.case import Case, Part
from pdbench.report.demand import engine_gauge
from pdbench.report.split import Split
from pdbench.report.stages import LOADING, no_slot_free
from pdbench.report.statistics import Floats
from pdbench.report.window import Gauge


def turn_met_ms(case: Case) -> float:
    """What a healthy engine takes to notice: what is left of the turn in which the KV lands, the turn that admits, and
    in pull the posts of others that are made in the same turn as one's own.

    KV that lands at random meets long turns more often, and half of one is left on average. While no stream runs the
    loop looks all the time, but for the turns that post and that give new streams their first tokens. In pull a
    transfer shorter than a turn lands in the very turn that posted it, whatever holds up others.
    """
    turns, cell = case.turns, case.cell
    if turns is None:
        return 2 * (case.pace_ms or 0.0) + (posts_met_ms(case) if case.pull else 0.0)
    if case.pull and case.split.get("transfer") < turns.quiet_ms:
        return 2 * turns.mean_ms + posts_met_ms(case)
    busy = min(1.0, turns.busy_s / cell.send_s) if cell.send_s > 0 else 1.0
    first_s = (case.split.get("first_step") + (case.split.get("post") if case.pull else 0.0)) / 1000
    each_s = (cell.offered or 0.0) / max(1, cell.servers("decode"))
    met = busy * turns.met_ms + (1 - busy) * 1000 * each_s * turns.first_turns * first_s**2
    if case.pull:  # what lands after the turn that posted it may meet the whole of another post
        return met + turns.mean_ms + posts_met_ms(case)
    return met / 2 + turns.mean_ms


def posts_met_ms(case: Case) -> float:
    """Posts of others in the turn that makes one's own, on average, where they are made on decode's loop.

    A slot that becomes free starts the loads of all that wait, so that each meets the others. While slots are free a
    load begins with the turn after its request came: it meets those that came in the same turn. Loads that are merely
    noticed late are in progress together too, and make nobody wait.
    """
    cell, post_ms, moved_ms = case.cell, case.split.get("post"), case.split.get("transfer")
    turn_ms = case.turns.quiet_ms if case.turns is not None else case.pace_ms or 0.0
    met = begun = 0.0
    for segment, page in cell.window.pages("decode"):
        for engine in page.engines() or [""]:
            gauge = engine_gauge(page, engine, "kv_fetch_stage", stage=LOADING)
            if gauge is None:
                continue
            # A sample meets a burst of k loads the more often the longer its posts take one after the other.
            stay_s = (gauge.value * post_ms + moved_ms + turn_ms) / 1000
            loads = np.where(no_slot_free(cell, page, engine, gauge), gauge.value, 0.0) / np.maximum(stay_s, 1e-9)
            begun += Gauge(gauge.t, loads).integral(segment.start, segment.end)
            others = loads * np.maximum(gauge.value - 1, 0.0)
            met += Gauge(gauge.t, others).integral(segment.start, segment.end)
    sent, servers = np.sort(cell.answers.sent[cell.answers.ok]), max(1, cell.servers("decode"))
    together = _together([sent[k::servers] for k in range(servers)], post_ms / 1000, turn_ms / 1000)
    requests = max(1, len(sent))
    return post_ms * (met / requests + max(0.0, 1 - begun / requests) * together)


def _together(sent: Sequence[Floats], post_s: float, turn_s: float) -> float:
    """How many others a post shares its turn with: this run's own arrivals, each turn posting all that came before."""
    others = 0
    for mine in sent:
        t, i = 0.0, 0
        while i < len(mine):
            begin = max(t, float(mine[i]))
            here = int(np.searchsorted(mine, begin, side="right")) - i
            others += here * (here - 1)
            t, i = begin + here * post_s + turn_s, i + here
    return others / max(1, sum(len(mine) for mine in sent))


def wait_to_post(case: Case) -> Callable[[Split], float]:
    """What of `poll` beyond a turn is the wait for prefill's posting thread: at most what these very requests, one
    after the other, would have waited for it.

    0 in pull, where decode posts on its own loop and turns are the longer for it.
    """
    cell = case.cell
    posted, servers = cell.window.mean_s("prefill", "nixl_post_s"), cell.servers("prefill")
    if case.pull or case.colocated or posted is None or not servers:
        return lambda split: 0.0
    wait, turn = _queued_ms(np.sort(cell.answers.sent[cell.answers.ok]), posted, servers), turn_met_ms(case)
    return lambda split: min(max(0.0, split.get("poll") - turn), wait)


def _queued_ms(sent: Floats, each_s: float, servers: int) -> float:
    """Mean wait for one of `servers` that take turns and each need `each_s`: the queue that this run's own arrivals
    make (Lindley), which over a minute is easily twice or half of what M/D/1 expects."""
    waited = 0.0
    for mine in (sent[k::servers] for k in range(servers)):
        before = each_s * np.arange(len(mine))
        waited += float((np.maximum.accumulate(mine - before) + before - mine).sum())
    return 1000 * waited / max(len(sent), 1)


def posting(case: Case) -> Part:
    """The post with the wait for it; `None` where the post was not measured."""
    thread = wait_to_post(case)

    def whole(split: Split) -> float | None:
        post = split.parts.get("post")
        return None if post is None else post + thread(split)

    return whole
