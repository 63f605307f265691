"""Is one server slow a token where the others are not, and have slots free?

Its slots fill first, and over all servers slots look short; but what is short is that server's speed. A batch that is
larger makes tokens slower too, so a server is called slow only where it makes no more of them than another does: two
alike that are sent as much hold as much.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from pdbench.report.cell import Measured
from pdbench.report.demand import engine_gauge, engine_limit
from pdbench.report.one_full import ROOM
from pdbench.report.window import Page, Segment
from pdbench.report.wording import number, short

SLOWER = 1.5  # times the time a token of every other server, in both halves of sending
AS_MANY = 1.05  # times the tokens of the busiest other: a server that makes more may be slow for that
AS_LONG = 1.25  # times the others' prompts: attention over longer ones takes longer
FEW_GAPS = 100  # between tokens in half of the sending: below, a mean says nothing of a server


@dataclass(frozen=True, slots=True)
class Pace:
    """One server over some time: the gaps between tokens that it made, and their sum."""

    gaps: float
    sum_s: float

    @property
    def ms(self) -> float:
        return 1000 * self.sum_s / self.gaps

    def __add__(self, other: Pace) -> Pace:
        return Pace(self.gaps + other.gaps, self.sum_s + other.sum_s)


@dataclass(frozen=True, slots=True)
class Slow:
    """`others_ms`: the quickest and the slowest of the others; `used`: the most slots that one of them used on average,
    of `slots`."""

    server: str
    token_ms: float
    others_ms: tuple[float, float]
    used: float
    slots: float

    def text(self) -> str:
        low, high = (number(ms) for ms in self.others_ms)
        return (
            f"{self.server} is slow: {number(self.token_ms)} ms a token (mean ITL on its page) where the others take"
            f" {low if low == high else f'{low} to {high}'} and make as many or more, with at most {number(self.used)}"
            f" of {short(self.slots)} slots in use on average"
        )

    def advice(self) -> str:
        return (
            f"Find out why {self.server} is slow before adding slots, of which the others have free ones: compare its"
            " GPU's clocks, what else runs there, and its flags with theirs. If it must stay as it is, send it fewer"
            " requests, or give more slots to it alone."
        )

    def confirm(self) -> str:
        return f"With {self.server} as fast as the others waiting falls to 0 at the same rate."


def slow_server(cell: Measured) -> Slow | None:
    """The one server of those that make the tokens that is slow; `None` where that is not sure."""
    halves = [_paces(cell, segment, half) for segment in cell.window.segments for half in (0, 1)]
    names = set(halves[0]) if halves else set()
    if len(names) < max(2, cell.servers(cell.decoder)) or any(set(half) != names for half in halves):
        return None
    slowest = max(names, key=lambda name: halves[0][name].ms)
    others = sorted(names - {slowest})
    whole = {name: sum((half[name] for half in halves), Pace(0.0, 0.0)) for name in names}
    if any(half[slowest].ms < SLOWER * half[other].ms for half in halves for other in others):
        return None
    if whole[slowest].gaps > AS_MANY * max(whole[other].gaps for other in others) or _longer(cell, slowest, others):
        return None
    room = [_use(cell, name) for name in others]
    if any(each is None or each[0] > ROOM * each[1] for each in room):
        return None
    used, slots = max(each for each in room if each is not None)
    paces = [whole[other].ms for other in others]
    return Slow(slowest, whole[slowest].ms, (min(paces), max(paces)), used, slots)


def _paces(cell: Measured, segment: Segment, half: int) -> Mapping[str, Pace]:
    """Each server's pace in one half of the sending; those that restarted or made few tokens are left out."""
    length = (segment.send_end - segment.start) / 2
    start = segment.start + half * length
    pages = [page for page in segment.pages if page.role == cell.decoder and "itl_s" not in page.resets]
    found = {
        page.server: Pace(*(_rise(page, kind, start, start + length) for kind in ("count", "sum"))) for page in pages
    }
    return {name: pace for name, pace in found.items() if pace.gaps >= FEW_GAPS}


def _rise(page: Page, kind: str, start: float, end: float) -> float:
    """By how much ITL's sum or count grew, all ranks of the server together."""
    rises = [
        float(np.diff(np.interp([start, end], series.t, series.value))[0])
        for key, series in page.series.items()
        if key.canonical == "itl_s" and key.kind == kind
    ]
    return sum(rises)


def _longer(cell: Measured, slowest: str, others: list[str]) -> bool:
    """Whether its prompts are longer than all others', as far as the pages tell."""

    def prompt(name: str) -> float | None:
        tokens = cell.window.delta(None, "prompt_tokens", server=name)
        answers = cell.window.delta(None, "ttft_s", "count", server=name)
        return tokens / answers if tokens is not None and answers else None

    own, theirs = prompt(slowest), [length for name in others if (length := prompt(name)) is not None]
    return own is not None and bool(theirs) and own > AS_LONG * max(theirs)


def _use(cell: Measured, server: str) -> tuple[float, float] | None:
    """Slots that a server used on average while requests were sent, and those that it has; `None`: not known."""
    used = time = slots = 0.0
    for segment, page in cell.window.pages(cell.decoder):
        if page.server != server:
            continue
        limits = [engine_limit(cell, page, engine) for engine in page.engines()]
        running = [engine_gauge(page, engine, "running") for engine in page.engines()]
        if not limits or None in limits:
            return None
        slots = sum(limit for limit in limits if limit is not None)
        used += sum(gauge.integral(segment.start, segment.send_end) for gauge in running if gauge is not None)
        time += segment.send_end - segment.start
    return (used / time, slots) if time > 0 else None
