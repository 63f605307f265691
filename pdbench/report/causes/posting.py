"""What posting takes of TTFT: the post itself, and in push the wait for the one thread that posts.

A transfer that has been noticed late and one that was posted late look the same on decode. A turn of its loop explains
the first; for the second a prefill server's posting thread is a queue of its own, loaded by rate x post time.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from pdbench.report.causes.case import Case, Part
from pdbench.report.split import Split
from pdbench.report.stages import LOADING
from pdbench.report.statistics import Floats


def turn_met_ms(case: Case) -> float:
    """What a healthy engine takes at most to notice: one turn of its loop, of the kind that is met at random, and in
    pull the posts of others that began together with one's own."""
    turn = case.turns.met_ms if case.turns is not None else (case.pace_ms or 0.0)
    return turn + (posts_met(case) * case.split.get("post") if case.pull else 0.0)


def posts_met(case: Case) -> float:
    """Loads of others that a load finds in progress, on average: most start together, when a slot becomes free."""
    met = loads = 0.0
    for _, _, _, gauge in case.cell.window.gauges("decode", "kv_fetch_stage", stage=LOADING):
        met, loads = met + float((gauge.value**2).sum()), loads + float(gauge.value.sum())
    return max(0.0, met / loads - 1) if loads > 0 else 0.0


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
