"""How much of the time was KV under way, and how fast did the link carry it?

Pages count the handles that have ended and add up their times, so each scrape tells which ended since the last one and
how long they took. Bytes over the time in which any was under way (the union of those stretches) are what the link
carried. Bytes over the handles' own times are less as soon as handles wait for each other, in a line or by sharing: on
one link each takes the longer, the more others are under way with it; on paths of their own none does.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from pdbench.report.cell import Measured
from pdbench.report.handoffs import SERIES, handoffs_of
from pdbench.report.statistics import Floats
from pdbench.report.window import Gauge, Page, Segment

FEWEST = 20  # transfers, to say how their times go with the others under way
SHARED_R = 0.5  # correlation of a transfer's time with the number of others under way ...
SHARED_T = 3.0  # and its t value
SHARED_GROWTH = 0.3  # of the time of one without others, for each of the others; 1 where they take turns
EQUAL = 1e-6  # relative spread below which times are the same
INSTANT_S = 1e-9
WITHIN_POST = 0.9  # of a handle's time in its post: the bytes move there
NEAR = 0.8  # of what the link carries: from here on its queue is long


@dataclass(frozen=True, slots=True)
class LinkUse:
    """What the transfers of a cell say of their link, which each of `servers` has for itself; of whole requests, all
    their ranks together."""

    gb_s: float  # of one server's link, while anything was under way
    busy: float  # share of the sending with a transfer under way
    under_way: float  # mean number under way, while any was
    nbytes: float  # of a request
    each_ms: float  # of a request's transfer, from its post on, waits for other transfers included
    servers: int
    shared: bool  # each takes the longer, the more others it meets; else not known to
    asked: float | None  # req/s
    least: bool  # `gb_s` is a lower bound: nobody saw which of them were under way at the same time

    @property
    def alone_ms(self) -> float:
        """What one takes that has the link to itself."""
        return min(self.each_ms, self.nbytes / self.gb_s / 1e6)

    @property
    def queued_ms(self) -> float:
        """What others make it longer, on a link that is shared."""
        return self.each_ms - self.alone_ms if self.shared else 0.0

    @property
    def carries(self) -> float | None:
        """Requests a second; `None` where nothing shows that more at once are not faster together."""
        return self.servers * self.gb_s * 1e9 / self.nbytes if self.shared else None

    @property
    def used(self) -> float | None:
        """Asked of what is carried; above 1 no steady state exists."""
        return None if self.carries is None or self.asked is None else self.asked / self.carries

    @property
    def near(self) -> bool:
        return self.used is not None and self.used >= NEAR

    def document(self) -> dict[str, float | bool | None]:
        return {
            "gb_s": self.gb_s,
            "gb_s_is_least": self.least,
            "busy": self.busy,
            "under_way": self.under_way,
            "shared": self.shared,
            "each_ms": self.each_ms,
            "alone_ms": self.alone_ms if self.shared else None,
            "carries_rate": self.carries,
            "used": self.used,
        }


@dataclass(frozen=True, slots=True)
class Moves:
    """Transfers on one server's link in one repeat, by their start."""

    start: Floats
    end: Floats
    nbytes: Floats
    every_s: float  # between two scrapes
    apart: bool = False  # each began when the one before it had surely ended

    @property
    def seconds(self) -> Floats:
        return self.end - self.start

    def met(self) -> Floats:
        """How many others were under way during each, on average."""
        spent = _passed(self.start, self.end) - _passed(self.end, self.end)
        spent -= _passed(self.start, self.start) - _passed(self.end, self.start)
        return spent / np.maximum(self.seconds, INSTANT_S) - 1.0

    def union_s(self, low: float = -np.inf, high: float = np.inf) -> float:
        """Seconds between `low` and `high` in which at least one was under way."""
        start, end = np.clip(self.start, low, high), np.clip(self.end, low, high)
        reached = np.maximum.accumulate(end)
        before = np.concatenate(([-np.inf], reached[:-1]))
        return float(np.maximum(0.0, end - np.maximum(start, before)).sum())


def link_use(cell: Measured) -> LinkUse | None:
    """`None` where bytes or times are not counted."""
    found = list(_moves(cell))
    moves = [moved for _, _, moved in found]
    sending, union = sum(s.send_end - s.start for s, _, _ in found), sum(m.union_s() for m in moves)
    if sending <= 0 or union <= 0:
        return None
    whole, nbytes = sum(len(m.start) for m in moves), sum(float(m.nbytes.sum()) for m in moves)
    spent = sum(float(m.seconds.sum()) for m in moves)
    return LinkUse(
        gb_s=nbytes / union / 1e9,
        busy=sum(m.union_s(s.start, s.send_end) for s, _, m in found) / sending,
        under_way=spent / union,
        nbytes=nbytes / whole,
        each_ms=1000 * spent / whole,
        servers=max(1, len({server for _, server, _ in found})),
        shared=is_shared(moves),
        asked=cell.offered,
        least=_is_least(moves),
    )


def together_gb_s(cell: Measured, server: str) -> tuple[float, bool] | None:
    """What the handoffs of one server's page moved, over the time in which any was under way; and whether it may be
    more."""
    moves = [moved for _, name, moved in _moves(cell) if name == server]
    union = sum(m.union_s() for m in moves)
    return (sum(float(m.nbytes.sum()) for m in moves) / union / 1e9, _is_least(moves)) if union > 0 else None


def _is_least(moves: list[Moves]) -> bool:
    """Whether transfers shorter than the time between two scrapes may have met more often than their even distances
    show: the time in which any was under way is then shorter than it seems."""
    return any(not m.apart and float(np.mean(m.seconds)) < m.every_s for m in moves if len(m.start))


def is_shared(moves: list[Moves]) -> bool:
    """Whether transfers take the longer, the more others are under way; by their time a byte, since prompts may differ.

    Shorter ones than the time between two scrapes do not show when they met.
    """
    met, pace, seconds = (
        np.concatenate([value(m) for m in moves])
        for value in (Moves.met, lambda m: m.seconds / m.nbytes, lambda m: m.seconds)
    )
    seen_s = max(m.every_s for m in moves)
    if len(met) < FEWEST or np.mean(seconds) < seen_s or np.std(met) == 0 or np.std(pace) <= EQUAL * np.mean(pace):
        return False
    growth, alone = np.polyfit(met, pace, 1)
    r = float(np.corrcoef(met, pace)[0, 1])
    clear = r >= SHARED_R and r * (len(met) - 2) ** 0.5 >= SHARED_T * (1 - r * r) ** 0.5
    return bool(clear and growth >= SHARED_GROWTH * alone)


def _moves(cell: Measured) -> Iterator[tuple[Segment, str, Moves]]:
    """Of each repeat and server whose page counts the bytes and the times of handoffs."""
    handoffs = handoffs_of(cell)
    requests = cell.window.delta("decode", "queue_s", "count") or cell.answers.count("ok")
    if handoffs is None or not handoffs.nbytes or not handoffs.time_s or not requests:
        return
    time, nbytes, sign, _ = SERIES[handoffs.source]
    ranks = max(1, round(handoffs.transfers / requests))
    post_s = cell.window.delta(handoffs.role, "nixl_post_s", "sum")
    after_post = post_s is not None and post_s < WITHIN_POST * handoffs.time_s
    for segment, page in cell.window.pages(handoffs.role):
        count, spent, moved = _total(page, sign, "count"), _total(page, time, "sum"), _total(page, nbytes, "sum")
        if count is None or spent is None or moved is None:
            continue
        if after_post and (post := _total(page, "nixl_post_s", "sum")) is not None:
            spent = Gauge(count.t, _at(spent, count.t) - _at(post, count.t))
        yield segment, page.server, ended(count, spent, moved, ranks)


def ended(count: Gauge, spent: Gauge, moved: Gauge, ranks: int) -> Moves:
    """Those that ended between two scrapes are taken to have done so at even distances, each after as long."""
    t = count.t
    handles, seconds, nbytes = np.diff(count.value), np.diff(_at(spent, t)), np.diff(_at(moved, t))
    some = (handles > 0) & (seconds > 0) & (nbytes > 0)
    many = np.where(some, np.maximum(1, np.rint(handles / ranks)), 0).astype(int)
    of = np.repeat(np.arange(len(many)), many)
    place = np.arange(len(of)) - np.repeat(np.cumsum(many) - many, many)
    end = t[:-1][of] + (place + 0.5) / many[of] * np.diff(t)[of]
    start = end - seconds[of] / handles[of]
    order = np.argsort(start)
    every_s = float(np.median(np.diff(t))) if len(t) > 1 else 0.0
    ended = np.flatnonzero(many)
    # Between the last moment when one can have ended and the first when the next can have: scrapes are not even.
    between = t[ended[1:]] - t[ended[:-1] + 1]
    apart = bool(np.all(many <= 1) and np.all(between >= (seconds[ended] / handles[ended])[1:]))
    return Moves(start[order], end[order], (nbytes[of] / many[of])[order], every_s, apart)


def _total(page: Page, canonical: str, kind: str) -> Gauge | None:
    """A cumulative series of all engines and ranks of a page together; `None` where it lacks it or it went back."""
    found = [g for key, g in page.series.items() if key.canonical == canonical and key.kind == kind and len(g.t)]
    if not found:
        return None
    begun = min(gauge.t[0] for gauge in page.series.values() if len(gauge.t))
    # What is born within the window was 0 before.
    found = [g if g.t[0] <= begun else Gauge(np.append(begun, g.t), np.append(0.0, g.value)) for g in found]
    t = np.unique(np.concatenate([g.t for g in found]))
    whole = Gauge(t, np.sum([_at(g, t) for g in found], axis=0))
    return whole if np.all(np.diff(whole.value) >= -1e-6 * np.abs(whole.value[1:])) else None


def _passed(moments: Floats, t: Floats) -> Floats:
    """Seconds since each of `moments` that has passed, all together, at each time."""
    ordered = np.sort(moments)
    count = np.searchsorted(ordered, t)
    sums: Floats = np.concatenate(([0.0], np.cumsum(ordered)))[count]
    return count * t - sums


def _at(gauge: Gauge, t: Floats) -> Floats:
    """A counter's last value at each time."""
    value: Floats = gauge.value[np.clip(np.searchsorted(gauge.t, t, side="right") - 1, 0, None)]
    return value
