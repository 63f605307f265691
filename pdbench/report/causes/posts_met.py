"""Posts that meet: what requests wait for where decode posts on its own loop, as this run's own requests make it.

In pull decode posts between its turns (vLLM's NIXL connector does so). At the start of a turn it notices what has
landed and gives it the slots that are free; if one is left it starts the loads of all that came before, one post after
the other; then every stream gets its token. When requests came and when they left their slots is known, so the loop is
replayed between the two, in turns as long as quiet ones. That holds in open and in closed loop, for slots that are free
and for slots that are taken, and has nothing to fit.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np

from pdbench.report.cell import Measured
from pdbench.report.demand import slots_of
from pdbench.report.split import Split
from pdbench.report.statistics import Floats

MOST_REQUESTS = 100_000  # the first of a very long cell tell enough
SAME_S = 1e-6
FIRST_STEPS = 4  # times that the length of a turn is put right
SHORTEST_TURN = 0.1  # of the first step


@dataclass(frozen=True, slots=True)
class PostsMet:
    """Means over requests, in ms, on a loop that looks for what has landed at every turn."""

    late_ms: float  # until the loop looks and while it posts others, from arrival to admission; 0 behind a slot's wait
    loading_ms: float  # by which a load outlasts its own post and transfer, whether a slot is free then or not
    others_ms: float  # of `late_ms`, while the loop posts others
    first_ms: float  # by which posts of others lengthen the first step
    lost: float  # share of their time that posts take from the streams beside them


class _Times(NamedTuple):
    """Seconds, of each request: from when a slot did not keep it, the turn that posts it, its post, the arrival of its
    KV, the turn that notices that, and the one that admits it with the posts made in that; and all turns that post."""

    ready: Floats
    begun: Floats
    posted: Floats
    landed: Floats
    noticed: Floats
    admitted: Floats
    beside: Floats
    turns: Floats  # their start and the end of their posts
    lost_s: float  # by all streams together


def posts_met(cell: Measured, split: Split, turn_ms: float | None) -> PostsMet | None:
    """`None` where posts were not measured, or in a cell without turns."""
    answers = cell.answers
    order = np.argsort(answers.sent[answers.ok], kind="stable")[:MOST_REQUESTS]
    sent, first, last = (values[answers.ok][order] for values in (answers.sent, answers.first, answers.last))
    if not split.parts.get("post") or not turn_ms or not len(sent):
        return None
    servers, come = max(1, cell.servers("decode")), _come(cell, split, sent)
    slots = max(1, (slots_of(cell).available or len(sent) * servers) // servers)
    found = []
    for k in range(min(servers, len(sent))):
        by_arrival = np.argsort(come[k::servers], kind="stable")
        each = (split.get("post") / 1000, split.get("transfer") / 1000, turn_ms / 1000)
        found.append(_replayed(come[k::servers][by_arrival], last[k::servers][by_arrival], *each, slots))
    n, streams_s = len(sent), max(float((last - first).sum()), SAME_S)
    late, loading, others, beside = (1000 / n * sum(each) for each in zip(*map(_sums, found), strict=True))
    return PostsMet(late, loading, others, beside, sum(times.lost_s for times in found) / streams_s)


def turn_of_first_steps(cell: Measured, split: Split) -> float | None:
    """How long a turn is where answers are too short for their gaps to tell, in ms: the first step, less the posts of
    others that the replay finds in it. A shorter turn meets fewer of them, so this is repeated."""
    step_ms = split.parts.get("first_step")
    turn_ms = step_ms
    for _ in range(FIRST_STEPS):
        met = posts_met(cell, split, turn_ms)
        if met is None or step_ms is None:
            return turn_ms
        turn_ms = max(step_ms - met.first_ms, SHORTEST_TURN * step_ms)
    return turn_ms


def _come(cell: Measured, split: Split, sent: Floats) -> Floats:
    """When requests come to decode: they leave their prefill server one after the other."""
    come, each_s, servers = np.array(sent), split.get("prefill") / 1000, max(1, cell.servers("prefill"))
    for k in range(servers):
        before = each_s * np.arange(len(sent[k::servers]))
        come[k::servers] = np.maximum.accumulate(sent[k::servers] - before) + before + each_s
    return come


def _replayed(come: Floats, last: Floats, post_s: float, moved_s: float, turn_s: float, slots: int) -> _Times:
    """The loop of one server, from turn to turn in which something happens."""
    ready, begun, posted, landed, noticed, admitted, beside = (np.zeros(len(come)) for _ in range(7))
    waiting: deque[int] = deque()
    loading: deque[int] = deque()
    loaded: deque[int] = deque()
    ends: list[float] = []
    turns: list[float] = []
    t, full_at, lost_s, i = float(come[0]), -math.inf, 0.0, 0
    while i < len(come) or waiting or loading or loaded:
        while ends and ends[0] <= t + turn_s / 2:  # with a turn, whatever clients see it later by
            heappop(ends)
        while i < len(come) and come[i] <= t + SAME_S:
            waiting.append(i)
            i += 1
        while loading and landed[loading[0]] <= t + SAME_S:
            noticed[loading[0]] = t
            loaded.append(loading.popleft())
        streams, fresh, posts_s = len(ends), [], 0.0
        while loaded and len(ends) < slots:
            fresh.append(loaded.popleft())
            heappush(ends, float(last[fresh[-1]]))
        if len(ends) >= slots:
            full_at = t
        while waiting and len(ends) < slots:
            k = waiting.popleft()
            ready[k], begun[k], posted[k] = t if come[k] <= full_at else come[k], t, t + posts_s
            posts_s += post_s
            landed[k] = t + posts_s + moved_s
            loading.append(k)
        admitted[fresh], beside[fresh] = t, posts_s
        if posts_s:
            turns += [t, t + posts_s]
        lost_s += posts_s * streams
        t += posts_s + (turn_s if ends else 0.0)
        event = min(come[i] if i < len(come) else math.inf, landed[loading[0]] if loading else math.inf)
        if ends:  # turns in which nothing happens
            t += turn_s * max(0, math.ceil((min(event, ends[0] - turn_s / 2) - SAME_S - t) / turn_s))
        elif event < math.inf:
            t = max(t, float(event))
    return _Times(ready, begun, posted, landed, noticed, admitted, beside, np.array(turns), lost_s)


def _sums(times: _Times) -> tuple[float, float, float, float]:
    """The seconds of `late_ms`, `loading_ms`, `others_ms` and `first_ms`, over all requests of a server."""
    spent = np.concatenate(([0.0], np.cumsum(np.diff(times.turns) * (np.arange(len(times.turns) - 1) % 2 == 0))))

    def posting(since: Floats, until: Floats) -> Floats:
        found: Floats = np.interp(until, times.turns, spent) - np.interp(since, times.turns, spent)
        return found

    free = times.admitted <= times.noticed + SAME_S  # else it waited for a slot, whatever the loop did meanwhile
    loading = times.posted - times.begun + times.noticed - times.landed
    late = loading + times.begun - times.ready
    others = posting(times.ready, times.posted) + posting(times.landed, times.noticed)
    return float(late[free].sum()), float(loading.sum()), float(others[free].sum()), float(times.beside.sum())
