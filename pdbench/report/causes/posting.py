"""What posting takes of TTFT: the post itself, and in push the wait for the one thread that posts.

A transfer that has been noticed late and one that was posted late look the same on decode. A turn of its loop explains
the first; for the second a prefill server's posting thread is a queue of its own, loaded by rate x post time.
"""

from __future__ import annotations

from collections.abc import Callable

from pdbench.littles_law.crossover import queue_wait_ms
from pdbench.report.causes.case import Case, Part
from pdbench.report.split import Split


def turn_met_ms(case: Case) -> float:
    """What a healthy engine takes at most to notice: one turn of its loop, of the kind that is met at random."""
    return case.turns.met_ms if case.turns is not None else (case.pace_ms or 0.0)


def wait_to_post(case: Case) -> Callable[[Split], float]:
    """What of `poll` beyond a turn is the wait for prefill's posting thread: M/D/1's wait, beyond capacity all of it.

    0 in pull, where decode posts on its own loop and turns are the longer for it.
    """
    cell = case.cell
    posted, rate, servers = cell.window.mean_ms("prefill", "nixl_post_s"), cell.offered, cell.servers("prefill")
    if case.pull or case.colocated or posted is None or rate is None or not servers:
        return lambda split: 0.0
    wait, turn = queue_wait_ms(rate / servers, posted), turn_met_ms(case)

    def of_poll(split: Split) -> float:
        beyond = max(0.0, split.get("poll") - turn)
        return beyond if wait is None else min(beyond, wait)

    return of_poll


def posting(case: Case) -> Part:
    """The post with the wait for it; `None` where the post was not measured."""
    thread = wait_to_post(case)

    def whole(split: Split) -> float | None:
        post = split.parts.get("post")
        return None if post is None else post + thread(split)

    return whole
