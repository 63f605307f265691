"""Do a role's pages tell of all of this cell? An old copy of a page, or the pages of some of the servers, do not.

Pages that tell of other requests than ours make wrong figures, and the rest of TTFT then looks like the proxy's. So a
role in doubt is taken for one that was not read, and the doubt is said (`metrics-missing`, `server-restarted`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pdbench.report.answers import Answers
from pdbench.report.window import LOG_SUFFIX, Page, Segment

FEWER_SHARE = 0.02  # of our answers that pages may count less: what ends as the last page is read
FEWER_REQUESTS = 2
STILL_SCRAPES = 3  # that show the same as the one before, in a row
STILL_S = 5.0  # an exporter's cache is refreshed within this
STILL_SHARE = 0.05  # of our answers that began meanwhile
RESTART, STILL, FEWER, TURNS = "restart", "still", "fewer", "turns"


@dataclass(frozen=True, slots=True)
class Doubt:
    """Why a role's pages do not tell of the cell. `kind`: one of the four above."""

    role: str
    kind: str
    text: str
    advice: str

    @property
    def of_others(self) -> bool:
        """Whether the role may have servers that were not named: how many slots there are is then unknown."""
        return self.kind in (FEWER, TURNS)


def doubts_of(answers: Answers, segment: Segment, deployment: Mapping[str, Any]) -> tuple[Doubt, ...]:
    """At most one for each role of the engines that was read."""
    found = []
    for role in ("prefill", "decode", "colocated"):
        pages = [page for page in segment.pages if page.role == role and not page.server.endswith(LOG_SUFFIX)]
        named = {str(one.get("name")) for one in deployment.get("servers", []) if one.get("role") == role}
        if pages and (doubt := next(_doubts(role, pages, named, answers, segment), None)) is not None:
            found.append(doubt)
    return tuple(found)


def _doubts(role: str, pages: Sequence[Page], named: set[str], answers: Answers, segment: Segment) -> Iterator[Doubt]:
    for page in pages:
        if page.alternates:
            text = f"{page.server}: its counters go back and forth, as if two servers answered at one URL in turn"
            yield Doubt(role, TURNS, text, f"give the URL of each {role} server itself, not that of a load balancer")
        elif page.resets or page.restarted:
            yield Doubt(role, RESTART, f"{page.server} restarted during the cell", "find out why it ended")
    if not named <= {page.server for page in pages} or named & set(segment.silent):
        return  # a server whose page failed is named for it
    if role != "prefill" or not _decode_computes(segment):
        yield from _still(role, pages, answers, segment)
    if role != "prefill":  # not every request needs a prefill server: some deployments compute short prompts on decode
        yield from _fewer(role, pages, answers)


def _decode_computes(segment: Segment) -> bool:
    """Whether decode computed prompts itself: prefill may then have had nothing to do."""
    local, moved = (
        sum(
            value
            for page in segment.pages
            if page.role == "decode"
            for key, value in page.deltas.items()
            if key.matches("prompt_tokens_by_source", {"source": source})
        )
        for source in ("local_compute", "external_kv_transfer")
    )
    return local > STILL_SHARE * (local + moved)


def _still(role: str, pages: Sequence[Page], answers: Answers, segment: Segment) -> Iterator[Doubt]:
    """The longest time in which nothing moved on any page of the role, while our answers began."""
    if all(key.kind == "gauge" for page in pages for key in page.series):
        return  # a queue that is empty whenever it is looked at stands still too
    moved, read = [], []
    for page in pages:
        begun = min(gauge.t[0] for gauge in page.series.values())
        for gauge in page.series.values():
            moved.append(gauge.t[np.concatenate(([gauge.t[0] > begun], np.diff(gauge.value) != 0))])
            read.append(gauge.t)
    times = np.unique(np.concatenate(read))
    change = np.searchsorted(np.unique(np.concatenate(moved)), times, side="right")  # the last one, at each scrape
    same = max((times[change == k] for k in np.unique(change)), key=lambda t: t[-1] - t[0])
    if len(same) <= STILL_SCRAPES or same[-1] - same[0] < STILL_S:
        return
    # What began after the first of them, and was answered before the last but one, must show on the last.
    since, until = same[0], same[-2]
    begun_then = (answers.sent if role == "prefill" else answers.first) > since
    ours = answers.ok & begun_then & (answers.first <= until)
    if ours.sum() <= max(FEWER_REQUESTS, STILL_SHARE * answers.ok.sum()):
        return
    which = f"{role}'s page" if len(pages) == 1 else f"all pages of {role}"
    text = (
        f"{which} stood still from second {max(0.0, since - segment.start):.0f} to {same[-1] - segment.start:.0f} while"
        f" {int(ours.sum()):,} of our {int(answers.ok.sum()):,} answers began: an old copy, or another server's"
    )
    advice = f"read {role}'s metrics from the server itself (no cache, no gateway between)"
    yield Doubt(role, STILL, text, advice)


def _fewer(role: str, pages: Sequence[Page], answers: Answers) -> Iterator[Doubt]:
    """Fewer requests ended than we had answered between the first and the last scrape."""
    for canonical, kind in (("e2e_s", "count"), ("request_success", "counter")):
        keys = [(page, key) for page in pages for key in page.deltas if (key.canonical, key.kind) == (canonical, kind)]
        theirs = sum(page.deltas[key] for page, key in keys)
        if not theirs:  # some engines show the series and never fill it
            continue
        last = min(max(gauge.t[-1] for gauge in page.series.values()) for page in pages)
        first = max(min(gauge.t[0] for gauge in page.series.values()) for page in pages)
        ours = int(np.sum(answers.ok & (answers.sent >= first) & (answers.done <= last)))
        if theirs < ours * (1 - FEWER_SHARE) - FEWER_REQUESTS:
            text = (
                f"{role}'s pages ended {theirs:,.0f} requests of the {ours:,} that we had answered"
                f" (limit {FEWER_SHARE:.0%} less): a server was not named, or a page is an old copy"
            )
            yield Doubt(role, FEWER, text, f"name all {role} servers, each by its own URL")
        return
