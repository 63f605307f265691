"""Is one server full while others of its role have room?

Demand over all slots then looks like enough, and half of the requests wait in a queue that has no end.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pdbench.report.cell import Measured
from pdbench.report.demand import engine_gauge, engine_limit, fewer_than_said, slot_waiters
from pdbench.report.window import Gauge, Page, Segment
from pdbench.report.wording import counted

FULL = 0.95  # of its slots taken over the second half of sending
ROOM = 0.85  # of its slots taken by another over the same time
RISE = 1.5  # what waits in the second half against the first


@dataclass(frozen=True, slots=True)
class Held:
    """One server's engine: its slots, how many were taken in the second half of sending, who waited in each half."""

    server: str
    slots: float
    taken: float
    waited: tuple[float, float]
    fewer: tuple[int, int] | None  # slots that its server runs, and is said to have, where it runs fewer

    @property
    def full(self) -> bool:
        first, second = self.waited
        return self.taken >= FULL * self.slots and second >= max(self.slots, RISE * first)


def one_full(cell: Measured) -> str | None:
    """The server whose queue grows beside one with room, in words."""
    for segment in cell.window.segments:
        held = [each for page in segment.pages if page.role == cell.decoder for each in _of_page(cell, segment, page)]
        room = min((each for each in held if each.taken <= ROOM * each.slots), key=_use, default=None)
        full = max((each for each in held if each.full), key=lambda each: each.waited[1], default=None)
        if room is not None and full is not None:
            first, second = full.waited
            said = f" ({full.fewer[1]} are said to be there)" if full.fewer is not None else ""
            return (
                f"{full.server} alone is full: on average {second:,.0f} requests waited for its"
                f" {counted(round(full.slots), 'slot')}{said} in the second half of sending,"
                f" {first:,.0f} in the first, while {room.server} used"
                f" {room.taken:.1f} of {room.slots:,.0f}"
            )
    return None


def _use(held: Held) -> float:
    return held.taken / held.slots


def _of_page(cell: Measured, segment: Segment, page: Page) -> Iterator[Held]:
    middle = (segment.start + segment.send_end) / 2
    for engine in page.engines():
        slots = engine_limit(cell, page, engine)
        running, waiting = engine_gauge(page, engine, "running"), slot_waiters(page, engine)
        if slots and running is not None and waiting is not None and segment.send_end > segment.start:
            waited = (_mean(waiting, segment.start, middle), _mean(waiting, middle, segment.send_end))
            taken = _mean(running, middle, segment.send_end)
            yield Held(page.server, slots, taken, waited, fewer_than_said(cell, page))


def _mean(gauge: Gauge, start: float, end: float) -> float:
    return gauge.integral(start, end) / (end - start) if len(gauge.t) else 0.0
