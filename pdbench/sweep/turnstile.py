"""Whose turn is it, where very many would send at once? Sockets are read in between, so that no read comes late."""

from __future__ import annotations

import asyncio
import time
from collections import deque

_AT_ONCE = 8  # opening a connection and sending takes some 0.1 ms
_BUSY_NS = 2_000_000  # a turn of the loop that took longer had much to read


class Turnstile:
    """Lets a few pass in each turn of the event loop, in their order; only one while sockets keep the loop busy."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._passing = 0  # in this turn
        self._turned_ns = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def passed(self) -> None:
        if self._passing == 0:
            self._turned_ns = time.monotonic_ns()
            self._loop.call_soon(self._turn)
        if self._passing < _AT_ONCE and not self._waiting:
            self._passing += 1
        else:
            self._waiting.append(self._loop.create_future())
            await self._waiting[-1]

    def _turn(self) -> None:
        now_ns = time.monotonic_ns()
        most = 1 if now_ns - self._turned_ns > _BUSY_NS else _AT_ONCE
        self._passing, self._turned_ns = 0, now_ns
        while self._waiting and self._passing < most:
            place = self._waiting.popleft()
            if not place.done():  # nobody waits for a cancelled one
                place.set_result(None)
                self._passing += 1
        if self._passing:
            self._loop.call_soon(self._turn)
