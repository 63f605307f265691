"""Waking at an absolute time. Event loops count their timers in whole milliseconds, which is too coarse for a schedule.

A timerfd wakes the loop within some tens of microseconds, without spinning. Where there is none the loop's own timers
serve, and the lateness that is reported says how well.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import sys
import time

_CLOCK_MONOTONIC = 1
_TFD_NONBLOCK_CLOEXEC = os.O_NONBLOCK | getattr(os, "O_CLOEXEC", 0)
_TFD_TIMER_ABSTIME = 1


class _TimerSpec(ctypes.Structure):
    """struct itimerspec: the interval (unused) and the time of the first ring."""

    _fields_ = (
        ("interval_s", ctypes.c_long),
        ("interval_ns", ctypes.c_long),
        ("value_s", ctypes.c_long),
        ("value_ns", ctypes.c_long),
    )


class Alarm:
    """For one waiting task at a time. Must be closed."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._fd = -1
        self._rung: asyncio.Future[None] | None = None
        if sys.platform == "linux":
            self._libc = ctypes.CDLL(None, use_errno=True)
            self._fd = self._libc.timerfd_create(_CLOCK_MONOTONIC, _TFD_NONBLOCK_CLOEXEC)
        if self._fd >= 0:
            self._loop.add_reader(self._fd, self._ring)

    def _ring(self) -> None:
        try:
            os.read(self._fd, 8)
        except BlockingIOError:
            return
        if self._rung is not None and not self._rung.done():
            self._rung.set_result(None)

    async def until(self, due_ns: int) -> None:
        """Return at `due_ns` on CLOCK_MONOTONIC; at once, but after letting others run, when that is past."""
        if due_ns <= time.monotonic_ns():
            await asyncio.sleep(0)
        elif self._fd < 0:
            await asyncio.sleep((due_ns - time.monotonic_ns()) / 1e9)
        else:
            self._rung = self._loop.create_future()
            spec = _TimerSpec(0, 0, due_ns // 1_000_000_000, due_ns % 1_000_000_000)
            self._libc.timerfd_settime(self._fd, _TFD_TIMER_ABSTIME, ctypes.byref(spec), None)
            await self._rung

    def close(self) -> None:
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1
