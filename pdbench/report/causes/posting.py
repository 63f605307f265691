"""What posting takes of TTFT: the post itself, in pull the posts of others, in push the wait for the posting thread.

In pull decode posts on its own loop (vLLM's NIXL connector does), so that the posts of handoffs that come together
follow each other, and each waits for its own and for others'. Streams that run beside show it by the tokens they miss;
streams in lockstep, as a closed loop makes them, miss none: all of them wait for their first token then.

A transfer that has been noticed late and one that was posted late look the same on decode. A turn of its loop explains
the first; for the second a prefill server's posting thread is a queue of its own, loaded by rate x post time.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from pdbench.report.causes.case import Case, Part
from pdbench.report.split import Split
from pdbench.report.statistics import Floats
from pdbench.report.turns import Turns

EXPLAINS = 0.5  # of the time that streams lose: what handoffs must account for to be its cause
SEEN = 0.1  # of the time that posting would take from streams on their loop: below, it is not there
TELLING = 0.02  # of streams' time: posts beside them that would take less say nothing by their absence


def posted_share(case: Case) -> float:
    """Share of decode's loops that posting takes where it runs there: handoffs/s of a server x post time."""
    posted = case.cell.window.mean_s("decode", "nixl_post_s") if case.pull else None
    servers = max(1, case.cell.servers("decode"))
    return (posted or 0.0) * case.turns.handoffs_s / servers if case.turns is not None else 0.0


def posts_on_loop(case: Case) -> bool:
    """In pull, unless something else holds the loop, or streams that ran beside posts did not miss them: then a thread
    posts."""
    if case.turns is None:  # no gaps between tokens: then the wait to be noticed has to show the posts of others
        met = case.posts
        if met is None or met.others_ms <= 0:
            return False
        most_ms = (met.late_ms + (case.turn_ms or 0.0)) / EXPLAINS
        return EXPLAINS * met.late_ms <= case.split.get("poll") <= most_ms
    if not posted_share(case):
        return False
    lost, beside = case.turns.lost.value, case.posts.lost if case.posts is not None else 0.0
    return posted_share(case) >= EXPLAINS * lost and not (beside >= TELLING and lost < SEEN * min(1.0, beside))


def turn_met_ms(case: Case) -> float:
    """What a healthy engine takes to notice: what is left of the turn in which the KV lands, and the turn that admits;
    where posts are made on its loop, those of others too (`posts_met`).

    KV that lands at random meets long turns more often, and half of one is left on average.
    """
    turns = case.turns
    if case.posts is not None and (turns is None or posts_on_loop(case)):
        return case.posts.late_ms + (turns.mean_ms if turns is not None else case.turn_ms or 0.0)
    return 2 * (case.pace_ms or 0.0) if turns is None else _met_ms(case, turns) / 2 + turns.mean_ms


def load_met_ms(case: Case) -> float:
    """The same of loads that a freed slot starts, whether or not there is a slot when their KV has landed: they begin
    with a turn that also admits, and wait for all of it."""
    expected = turn_met_ms(case)
    if case.posts is not None and posts_on_loop(case):
        return expected + case.posts.loading_ms - case.posts.late_ms
    admits_ms = 0.0 if case.turns is None else case.split.get("first_step") + case.turns.mean_ms
    return max(expected, admits_ms)


def _met_ms(case: Case, turns: Turns) -> float:
    """The turn that a moment at random falls into. While no stream runs the loop looks all the time, but for the turns
    that give new streams their first tokens."""
    cell, first_s = case.cell, case.split.get("first_step") / 1000
    busy = min(1.0, turns.busy_s / cell.send_s) if cell.send_s > 0 else 1.0
    each_s = (cell.offered or 0.0) / max(1, cell.servers("decode"))
    return busy * turns.met_ms + (1 - busy) * 1000 * each_s * turns.first_turns * first_s**2


def behind_posts(case: Case) -> Callable[[Split], float]:
    """What a request waits for the posts of others, in ms: of what is longer than quiet turns in the wait to be noticed
    and in the first step as large a share as this run's requests explain by meeting; 0 where posts hold no loop."""
    quiet_ms, met = case.turn_ms, case.posts if posts_on_loop(case) else None
    if quiet_ms is None or met is None:
        return lambda split: 0.0
    looked_ms = 2 * quiet_ms if case.turns is not None else 0.0  # a loop of answers so short stands still between them

    def longer(split: Split) -> float:
        return max(0.0, split.get("poll") - looked_ms) + max(0.0, split.get("first_step") - quiet_ms)

    explained = min(1.0, (met.others_ms + met.first_ms) / max(longer(case.split), 1e-9))
    return lambda split: explained * longer(split)


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
    """The post with the wait for it and for others'; `None` where the post was not measured."""
    thread, behind = wait_to_post(case), behind_posts(case)

    def whole(split: Split) -> float | None:
        post = split.parts.get("post")
        return None if post is None else post + thread(split) + behind(split)

    return whole
