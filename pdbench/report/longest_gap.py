"""Did streams stand still for long, though not long enough, or not all of them, for the cell to be void as a stall?"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pdbench.report.cell import Measured
from pdbench.report.client_checks import stall_limit_s
from pdbench.report.finding import VOID, Finding
from pdbench.report.window import Floats

TELLING_S = 1.0
USUAL_TTFTS = 3.0  # times the median TTFT: silence up to this long is a wait for first tokens like others
TOGETHER = 0.9  # of the longest gap: streams that stood still as long stood still with it


def longest_gap(cell: Measured, validity: Sequence[Finding]) -> list[str]:
    """A note on the longest gap between two tokens of a stream where it is more than a second, 20 x TPOT and what a
    co-located prompt or decode's posts explain. The first gap of a stream is another matter: with a first token that
    comes from prefill it holds the handoff. Nothing where `stall` alone voids the cell, which says it."""
    if {finding.code for finding in validity if finding.severity == VOID} == {"stall"}:
        return []
    answers, limit_s = cell.answers, stall_limit_s(cell, TELLING_S)
    begins, ends = _long_gaps(cell, limit_s)
    if len(ends) == 0:
        return _silence(cell, limit_s)
    longest = int(np.argmax(ends - begins))
    begin, end = float(begins[longest]), float(ends[longest])
    still = int(np.sum((begins < end) & (ends > begin) & (ends - begins >= TOGETHER * (end - begin))))
    under_way = int(np.sum((answers.first <= begin) & (answers.last >= end)))
    streams = f"all {still} streams" if still >= under_way > 1 else f"{still} of {max(still, under_way)} streams"
    tpot = f", {1000 * (end - begin) / mean:,.0f} times TPOT" if (mean := answers.mean(answers.tpot_ms)) else ""
    return [
        f"the longest gap between tokens is {end - begin:.1f} s{tpot}: from {_second(cell, begin)} on {streams} under"
        " way stood still. Look into the servers' logs at that time."
    ]


def _silence(cell: Measured, limit_s: float) -> list[str]:
    """Where no stream was under way a server that stands still shows in the wait for first tokens alone."""
    answers = cell.answers
    usual = answers.ttft_ms[answers.ok & np.isfinite(answers.ttft_ms)]
    if len(usual) == 0:
        return []
    limit_s = max(limit_s, USUAL_TTFTS * float(np.median(usual)) / 1000)
    found = []
    for begin, end in answers.events.quiet_times(answers.sent, limit_s)[1:-1]:
        waiting = answers.sent[(answers.sent < end) & (answers.first >= end)]
        since = max(begin, float(waiting.min())) if len(waiting) else end
        if end - since > limit_s:
            found.append((end - since, since, int(np.sum(waiting < end - limit_s / 2))))
    if not found:
        return []
    lasted, since, waiting_then = max(found)
    requests = "a request" if waiting_then == 1 else f"{waiting_then} requests"
    return [
        f"nobody got a token for {lasted:.1f} s from {_second(cell, since)} on, while {requests} waited for a first one"
        f" (median TTFT {float(np.median(usual)):,.0f} ms). Look into the servers' logs at that time."
    ]


def _second(cell: Measured, at_s: float) -> str:
    part = max((part for part in cell.parts if part.load.start <= at_s), key=lambda part: part.load.start)
    return f"second {at_s - part.load.start:.0f}" + (f" of repeat {part.repeat}" if len(cell.parts) > 1 else "")


def _long_gaps(cell: Measured, longer_than_s: float) -> tuple[Floats, Floats]:
    """From when to when streams had no token for so long, between their second token and their last one."""
    answers, begins, ends = cell.answers, [np.empty(0)], [np.empty(0)]
    several = np.flatnonzero((answers.events.count > 1) & np.isfinite(answers.sent))
    for some, gaps, until in answers.events.arrivals(several, answers.sent):
        count = answers.events.count[some]
        later = np.ones(len(gaps), bool)
        later[np.cumsum(count) - count] = False
        found = later & (gaps > longer_than_s)
        begins.append(until[found] - gaps[found])
        ends.append(until[found])
    return np.concatenate(begins), np.concatenate(ends)
