"""Whose turn is it, where very many would send at once? Sockets are read in between, so that no read comes late."""

from __future__ import annotations

import asyncio
from collections import deque

A_TURN = 2  # opening or sending takes some 0.1 ms. With more 1,024 streams are read late; with 1 a few cost more CPU


class Turnstile:
    """Lets a few pass in each turn of the event loop, in their order."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._passed = 0  # in this turn
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def passed(self) -> None:
        if self._passed == A_TURN or self._waiting:
            self._waiting.append(self._loop.create_future())
            await self._waiting[-1]
        else:
            self._pass()

    def _pass(self) -> None:
        if self._passed == 0:
            self._loop.call_soon(self._turn)
        self._passed += 1

    def _turn(self) -> None:
        self._passed = 0
        while self._waiting and self._passed < A_TURN:
            place = self._waiting.popleft()
            if not place.done():  # nobody waits for a cancelled one
                place.set_result(None)
                self._pass()
