"""Named causes of a bad TTFT, each with its share of the mean, its evidence and the first thing to change.

The largest cause is named first, then the cell is judged again as if that part were gone, until what remains is
healthy: two causes may hold at once, and a backlog that grows with the run's length hides no other. What is then left
of the handoff, too much for silence and too little to name, is said to be so. When a part is a
cause is said in `causes/case.py`; where the series that would decide were not scraped, the cause is
`not-distinguishable` and says what to scrape: doubt is never made a verdict.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from pdbench.report.before import before_it_went, still_true
from pdbench.report.causes import decode, handoff, loop, outside, prefill, unknown, unread
from pdbench.report.causes.case import Case, Cause, Taken, case_of
from pdbench.report.causes.down import gone, server_down
from pdbench.report.causes.failures import FAILURES
from pdbench.report.cell import Measured
from pdbench.report.finding import Finding
from pdbench.report.split import split_of

Judge = Callable[[Case], Iterator[tuple[Cause, Taken | None]]]

CAUSES: tuple[Judge, ...] = (
    decode.decode_slots,
    decode.decode_kv_pool,
    decode.completion_polling,
    unknown.unnamed_wait,
    unknown.unnamed_slots,
    unknown.unnamed_post,
    unknown.unnamed_leg,
    prefill.prefill_queue,
    prefill.prefill_compute,
    handoff.transfer_bandwidth,
    handoff.transfer_fragmentation,
    loop.engine_loop_blocking,
    outside.proxy,
    outside.admission,
    outside.client,
)

LAST: tuple[Callable[[Case, Mapping[str, Cause]], Iterator[tuple[Cause, Taken | None]]], ...] = (
    unread.unread_roles,
    unknown.unnamed_rest,
)


def diagnose(cell: Measured, case: Case | None, found: Sequence[Finding]) -> list[Cause]:
    """Failures, which spoil the latencies of the rest, then the causes that hold, the largest share first.

    With a server gone that is the first cause, and the others are those of the time before: slots, queues and counters
    of the whole mix it with the time after, when requests end early or wait for nobody.
    """
    if stopped := gone(cell):
        first = next((each.name for each in stopped if not each.refused), None)  # a proxy has no page to go by
        return [*server_down(cell), *(_before(cell, first, case, found) if first is not None else [])]
    failures = [cause for judge in FAILURES for cause in judge(cell.as_read, found)]
    return failures + _latencies(case, silent=bool(failures))


def _before(cell: Measured, server: str, case: Case | None, found: Sequence[Finding]) -> list[Cause]:
    """Causes of a long TTFT up to the last scrape that the server answered. Their shares are of that time's TTFT, so
    they are said in the evidence and not as shares of the cell's."""
    earlier = before_it_went(cell, server) if case is not None else None
    if case is None or earlier is None:
        return []
    judged = _latencies(case_of(earlier, split_of(earlier), still_true(found), case.peers))
    until = f"up to second {earlier.window.duration_s:.0f}, before {server} went"
    return [
        replace(c, share=None, share_interval=None, made_of=None, evidence=f"{until}: {c.evidence}") for c in judged
    ]


def _latencies(case: Case | None, silent: bool = False) -> list[Cause]:
    """The causes of a long TTFT; `silent`: none for what is left over."""
    named: dict[str, Cause] = {}
    while case is not None:
        fresh = [(c, t) for judge in CAUSES for c, t in judge(case) if c.cause not in named]
        if not fresh:
            break
        cause, taken = max(fresh, key=lambda pair: pair[1].ms if pair[1] is not None else -1.0)
        named[cause.cause] = cause
        if taken is not None:
            case = case.less(taken)
    if case is not None and not silent:
        for judge in LAST:
            for cause, _ in judge(case, named):
                named.setdefault(cause.cause, cause)
    return sorted(named.values(), key=lambda cause: -(cause.share if cause.share is not None else 1.0))
