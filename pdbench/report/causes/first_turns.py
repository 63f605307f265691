"""Do handoffs that come to one turn of decode's loop hold each other? Then they hold it, whoever runs beside them.

Streams tell that a loop is held when they stand still (`turns`), and short answers or rare notices leave few streams
beside a handoff. But those that come to one turn give their first tokens together, and where each holds the loop the
first step of k of them is k times as long. Decode counts the sum of first steps, from scrape to scrape, and clients
know which first tokens came together:

    sum of first steps = requests x what each has for itself + stall x sum of the company of each, itself included
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from pdbench.report.causes.case import Case
from pdbench.report.statistics import Floats
from pdbench.report.turns import Estimate, of_the_second_ms
from pdbench.report.window import Page, Segment

MIN_INTERVALS = 10  # between scrapes, with requests


def stall_together_ms(case: Case) -> Estimate | None:
    """What each handoff holds the others of its turn for, with its 95 % interval; `None` where nothing tells."""
    if case.turns is None or case.colocated:
        return None
    rows = np.array([row for segment in case.cell.window.segments for row in _intervals(case, segment)], dtype=float)
    return of_the_second_ms(rows[:, :2], rows[:, 2]) if len(rows) >= MIN_INTERVALS else None


def _intervals(case: Case, segment: Segment) -> Iterator[tuple[float, float, float]]:
    """From scrape to scrape: requests that ended, their company in the turn of the first token, their first steps in s.

    An engine counts a request's first step when the request ends. Stretches in which clients and decode disagree on how
    many ended are left out.
    """
    answers, turns = case.cell.answers, case.turns
    pages = [page for page in segment.pages if page.role == "decode"]
    if turns is None or not pages:
        return
    mine = answers.ok & (answers.sent >= segment.start) & (answers.sent <= segment.end)
    order = np.argsort(answers.first[mine], kind="stable")
    first, last = answers.first[mine][order], answers.last[mine][order]
    turn = np.cumsum(np.diff(first, prepend=-np.inf) > turns.quiet_ms / 2000)
    company = np.bincount(turn)[turn]
    times = _longest([_counter(page, "count")[0] for page in pages])
    ended, steps = (np.diff(_total(pages, kind, times)) for kind in ("count", "sum"))
    place = np.searchsorted(times, last, side="left") - 1
    for k in range(len(times) - 1):
        here = place == k
        if here.any() and here.sum() == round(float(ended[k])):
            yield float(here.sum()), float(company[here].sum()), float(steps[k])


def _counter(page: Page, kind: str) -> tuple[Floats, Floats]:
    for key, gauge in page.series.items():
        if key.canonical == "prefill_s" and key.kind == kind:
            return gauge.t, gauge.value
    return np.zeros(0), np.zeros(0)


def _longest(times: list[Floats]) -> Floats:
    return max(times, key=len)


def _total(pages: list[Page], kind: str, times: Floats) -> Floats:
    """The counters of all servers, as they stood at these times."""
    total = np.zeros(len(times))
    for page in pages:
        t, value = _counter(page, kind)
        if len(t):
            total += value[np.clip(np.searchsorted(t, times, side="right") - 1, 0, None)]
    return total
