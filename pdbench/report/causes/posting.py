"""What posting takes of TTFT: the post itself, in pull the posts of others, in push the wait for the posting thread.

In pull decode posts on its own loop (vLLM's NIXL connector does), so that the posts of handoffs that come together
follow each other, and each waits for its own and for others'. Streams that run beside show it by the tokens they miss;
streams in lockstep, as a closed loop makes them, miss none: all of them wait for their first token then.

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
    if case.turns is None or not posted_share(case):
        return False
    lost, beside = case.turns.lost.value, _beside_posts(case)
    return posted_share(case) >= EXPLAINS * lost and not (beside >= TELLING and lost < SEEN * min(1.0, beside))


def _beside_posts(case: Case) -> float:
    """Share of streams' time that posting would take on their loop, at least: from those that ran already when a
    request was sent and still did at its first token, on the same server by chance."""
    answers = case.cell.answers
    sent, first, last = (values[answers.ok] for values in (answers.sent, answers.first, answers.last))
    running = float(np.nansum(last - first))
    if not running > 0:
        return 0.0
    # Streams that began before a request was sent, less those that ended before its first token: none begin between.
    through = np.searchsorted(np.sort(first), sent) - np.searchsorted(np.sort(last), first)
    servers = max(1, case.cell.servers("decode"))
    return float(np.maximum(through, 0).sum()) * case.split.get("post") / 1000 / servers / running


def turn_met_ms(case: Case) -> float:
    """What a healthy engine takes to notice, with the posts of others on its loop (`_turns_met_ms`): as streams saw
    turns, or as this run's own requests make posts meet (`posts_of_others_ms`), the longer of the two."""
    found, turns = _turns_met_ms(case), case.turns
    if turns is None or not posts_on_loop(case):
        return found
    stalled = max(0.0, case.split.get("first_step") - turns.quiet_ms)
    return max(found, 2 * turns.quiet_ms + max(0.0, posts_of_others_ms(case) - stalled))


def _turns_met_ms(case: Case) -> float:
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


def posts_of_others_ms(case: Case) -> float:
    """What a request waits for the posts of others on its loop, on average, from its arrival at decode on.

    From this run's own requests, which leave prefill one after the other: each turn posts all that came before it, then
    a turn follows that notices what has landed and posts what came meanwhile.
    """
    cell, split, turns = case.cell, case.split, case.turns
    sent, servers = np.sort(cell.answers.sent[cell.answers.ok]), max(1, cell.servers("decode"))
    if turns is None or not len(sent):
        return 0.0
    come, each_s, prefills = np.array(sent), split.get("prefill") / 1000, max(1, cell.servers("prefill"))
    for k in range(prefills):
        before = each_s * np.arange(len(sent[k::prefills]))
        come[k::prefills] = np.maximum.accumulate(sent[k::prefills] - before) + before + each_s
    times_s = (split.get("post") / 1000, split.get("transfer") / 1000, turns.quiet_ms / 1000)
    return 1000 * sum(_met_s(np.sort(come[k::servers]), *times_s) for k in range(servers)) / len(sent)


def _met_s(come: Floats, post_s: float, moved_s: float, turn_s: float) -> float:
    """Time that all of these wait for posts of others: in the turn in which they come, in the one that posts their own,
    and from when their KV has landed up to the turn that admits them."""
    begins: list[float] = []
    counts: list[int] = []
    met, t, i = 0.0, -np.inf, 0
    while i < len(come):
        begin = max(t, float(come[i]))
        here = int(np.searchsorted(come, begin, side="right")) - i
        before = counts[-1] * post_s if counts else 0.0
        met += float(np.clip(begin - come[i : i + here] - turn_s, 0.0, before).sum())
        begins.append(begin)
        counts.append(here)
        t, i = begin + here * post_s + turn_s, i + here
    first, count = np.repeat(begins, counts), np.repeat(counts, counts)
    place = np.arange(len(come)) - np.repeat(np.cumsum(counts) - counts, counts)
    after = np.maximum(0.0, (count - place - 1) * post_s - moved_s)  # the KV moves while the next are posted
    landed = np.maximum(first + count * post_s, first + (place + 1) * post_s + moved_s)
    starts, long = np.append(begins, np.inf), np.append(np.array(counts) * post_s, 0.0)
    now = np.searchsorted(starts[:-1] + long[:-1], landed + 1e-9)  # the posts under way when it lands, or the next
    under_way = starts[now] <= landed
    rest = np.where(under_way, starts[now] + long[now] - landed, 0.0)
    then = np.minimum(now + under_way, len(begins))
    soon = starts[then] <= landed + rest + turn_s + 1e-9
    return met + float((place * post_s + after + rest + np.where(soon, long[then], 0.0)).sum())


def behind_posts(case: Case) -> Part:
    """What a request waits for the posts of others: what is longer than quiet turns in the wait to be noticed and in
    the first step, up to what this run's requests explain; 0 where posts hold no loop."""
    turns, most = case.turns, posts_of_others_ms(case) if posts_on_loop(case) else 0.0

    def behind(split: Split) -> float | None:
        if turns is None:
            return 0.0
        late = max(0.0, split.get("poll") - 2 * turns.quiet_ms)
        return min(most, late + max(0.0, split.get("first_step") - turns.quiet_ms))

    return behind


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
        return None if post is None else post + thread(split) + (behind(split) or 0.0)

    return whole
