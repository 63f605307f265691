"""What posting takes of TTFT: the post itself, and in push the wait for the one thread that posts.

A transfer that has been noticed late and one that was posted late look the same on decode. A turn of its loop explains
the first; for the second a prefill server's posting thread is a queue of its own, loaded by rate x post time.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from pdbench.report.causes.case import Case, Part
from pdbench.report.demand import engine_gauge
from pdbench.report.split import Split
from pdbench.report.stages import LOADING, no_slot_free
from pdbench.report.statistics import Floats


def turn_met_ms(case: Case) -> float:
    """What a healthy engine takes at most to notice: one turn of its loop, of the kind that is met at random, and in
    pull the posts of others that begin before one's own or together with it.

    While no stream runs the loop looks all the time, but for the turns that give new streams their first tokens.
    """
    turns = case.turns
    if turns is None:
        turn = case.pace_ms or 0.0
    else:
        busy = min(1.0, turns.busy_s / case.cell.send_s) if case.cell.send_s > 0 else 1.0
        first_s = case.split.get("first_step") / 1000
        turn = busy * turns.met_ms + (1 - busy) * 1000 * (case.cell.offered or 0.0) * first_s**2
    return turn + (posts_met_ms(case) if case.pull else 0.0)


def posts_met_ms(case: Case) -> float:
    """Posts of others that a load meets, on average, where they are made on decode's loop.

    A slot that becomes free starts the loads of all that wait, so that each meets the others. While slots are free a
    load begins when its request comes: then it meets what the queue for the loop has, before its own post and after.
    Loads that are merely noticed late are in progress together too, and make nobody wait.
    """
    cell, post_ms = case.cell, case.split.get("post")
    together = loads = free = 0.0
    for _, page in cell.window.pages("decode"):
        for engine in page.engines() or [""]:
            gauge = engine_gauge(page, engine, "kv_fetch_stage", stage=LOADING)
            if gauge is None:
                continue
            full = no_slot_free(cell, page, engine, gauge)
            together += float((gauge.value * np.maximum(gauge.value - 1, 0.0))[full].sum())
            loads += float(gauge.value.sum())
            free += float(gauge.value[~full].sum())
    if loads <= 0:
        return 0.0
    queued_ms = _queued_ms(np.sort(cell.answers.sent[cell.answers.ok]), post_ms / 1000, max(1, cell.servers("decode")))
    return (together * post_ms + free * 2 * queued_ms) / loads


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
