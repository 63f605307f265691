"""Waiting for an instant of CLOCK_MONOTONIC, more finely than the event loop's own timers.

Event loops round timers to a millisecond; a decode step lasts six.  A timerfd wakes within tens of microseconds and
costs no CPU.
"""

import asyncio
import contextlib
import ctypes
import os
import sys
import time

_TFD_NONBLOCK = os.O_NONBLOCK
_TFD_TIMER_ABSTIME = 1


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _Itimerspec(ctypes.Structure):
    _fields_ = (("interval", _Timespec), ("value", _Timespec))


class Alarm:
    """One waiter's clock: `until` an instant, or `wait` for an instant or a `wake`, whichever comes first."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._future: asyncio.Future[None] | None = None
        self._woken = False
        self._fd = -1
        if sys.platform == "linux":
            self._libc = ctypes.CDLL(None, use_errno=True)
            self._fd = self._libc.timerfd_create(time.CLOCK_MONOTONIC, _TFD_NONBLOCK)
        if self._fd >= 0:
            self._loop.add_reader(self._fd, self._rang)

    def wake(self) -> None:
        """End the current `wait`, or the next one if nobody waits now."""
        self._woken = True
        if self._future is not None and not self._future.done():
            self._future.set_result(None)

    async def until(self, instant_s: float) -> None:
        """Return at `instant_s`, whatever wakes; always lets other tasks run once."""
        await asyncio.sleep(0)
        while (now := time.monotonic()) < instant_s:
            await self._sleep(instant_s, now)

    async def wait(self, instant_s: float | None) -> None:
        """Return at `instant_s` (None is never) or as soon as `wake` was called since the last `wait` returned."""
        while not self._woken and (instant_s is None or time.monotonic() < instant_s):
            await self._sleep(instant_s, time.monotonic())
        self._woken = False

    async def _sleep(self, instant_s: float | None, now_s: float) -> None:
        self._future = self._loop.create_future()
        timer: asyncio.TimerHandle | None = None
        if instant_s is not None:
            if self._fd >= 0:
                self._set(instant_s)
            else:
                timer = self._loop.call_later(instant_s - now_s, self._rang)
        try:
            await self._future
        finally:
            self._future = None
            if timer is not None:
                timer.cancel()

    def _set(self, instant_s: float) -> None:
        seconds = int(instant_s)
        spec = _Itimerspec(_Timespec(0, 0), _Timespec(seconds, max(1, int((instant_s - seconds) * 1e9))))
        self._libc.timerfd_settime(self._fd, _TFD_TIMER_ABSTIME, ctypes.byref(spec), None)

    def _rang(self) -> None:
        if self._fd >= 0:
            with contextlib.suppress(BlockingIOError):
                os.read(self._fd, 8)
        if self._future is not None and not self._future.done():
            self._future.set_result(None)
