"""Drives an engine in real time along an absolute schedule.

A step starts when the one before it was due to end, not when the machine got round to it, so scheduling noise of the
machine delays single tokens a little but never adds up.  A loop that falls too far behind starts afresh from now, and
says so in the truth log.
"""

import time
from collections.abc import Callable
from typing import Any

from pdbench.testbed.clock import Alarm
from pdbench.testbed.engine import Engine

BEHIND_S = 0.25  # further behind than this, the schedule is given up


class Stall:
    """A planted fault: nothing is computed from `at_s` after the first request on, for `length_s`."""

    def __init__(self, at_s: float, length_s: float) -> None:
        self._at_s = at_s
        self._length_s = length_s
        self._origin_s: float | None = None

    def begin(self, t: float) -> None:
        """The first request arrived at `t`; later calls change nothing."""
        if self._origin_s is None:
            self._origin_s = t

    def shift(self, t: float) -> float:
        """`t`, or the end of the stall if `t` lies in it."""
        if self._origin_s is None or not self._length_s:
            return t
        start = self._origin_s + self._at_s
        return start + self._length_s if start <= t < start + self._length_s else t


async def drive(engine: Engine, alarm: Alarm, stall: Stall, log: Callable[[dict[str, Any]], None]) -> None:
    """Run the engine until cancelled; `alarm.wake` tells an idle loop that something arrived."""
    t = time.monotonic()
    while True:
        if (resumed := stall.shift(t)) > t:
            log({"event": "stall", "start": t, "end": resumed})
            await alarm.until(resumed)
            t = resumed
        step = engine.begin_step(t)
        if step is None:
            look = engine.next_look(t)
            await alarm.wait(look)
            now = time.monotonic()
            t = look if look is not None and look <= now else max(t, now)
            continue
        end = t + step.duration_s
        await alarm.until(end)
        behind = time.monotonic() - end
        if behind > BEHIND_S:
            log({"event": "overrun", "at": end, "behind": behind})
            end += behind
        engine.end_step(step, end)
        t = end
