"""An event loop whose clock jumps to the next timer instead of waiting for it, so that a minute takes a second.

`virtual_time()` also replaces the clock functions that the code under test reads. Nothing inside may wait for the
outside world (processes, threads, sockets): time would run away from it.
"""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest import mock

BEGIN_NS = 10**12
BEGIN_UNIX_S = 1.7e9


class Clock:
    """Now, in ns. `problem` is an exception that a callback of the loop raised: nobody waits for those."""

    def __init__(self) -> None:
        self.now_ns = BEGIN_NS
        self.problem: BaseException | None = None

    def seconds(self) -> float:
        return self.now_ns / 1e9


class Stuck(RuntimeError):
    """Everybody waits and no timer is set."""


class _Jumping(selectors.SelectSelector):
    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if self._clock.problem is not None:
            raise self._clock.problem
        if timeout is None:
            raise Stuck("everybody waits, and no timer is set")
        if timeout > 0:
            self._clock.now_ns += max(1, round(timeout * 1e9))
        return []


@contextmanager
def virtual_time() -> Iterator[Clock]:
    """Time functions read the virtual clock; timers that the kernel would keep are the loop's own."""
    clock = Clock()
    without_timerfd = SimpleNamespace(platform="virtual")
    with (
        mock.patch.object(time, "monotonic", clock.seconds),
        mock.patch.object(time, "perf_counter", clock.seconds),
        mock.patch.object(time, "monotonic_ns", lambda: clock.now_ns),
        mock.patch.object(time, "time", lambda: BEGIN_UNIX_S + (clock.now_ns - BEGIN_NS) / 1e9),
        mock.patch.object(time, "process_time", lambda: 0.0),
        mock.patch.object(time, "thread_time", lambda: 0.0),
        mock.patch("pdbench.sweep.health._PROBE_S", 0.25),  # its lag is 0 here; looking for it each 5 ms takes a while
        mock.patch("pdbench.testbed.clock.sys", without_timerfd),
        mock.patch("pdbench.sweep.alarm.sys", without_timerfd),
    ):
        yield clock


def run_virtually(clock: Clock, work: Coroutine[Any, Any, None]) -> None:
    """Run to the end on a jumping loop."""

    def broken(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        clock.problem = clock.problem or context.get("exception") or RuntimeError(context["message"])

    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(_Jumping(clock))) as runner:
        runner.get_loop().set_exception_handler(broken)
        runner.run(work)
