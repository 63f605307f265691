"""Whose turn is it, where very many would send at once? Sockets are read in between, so that no read comes late."""

from __future__ import annotations

import asyncio
from collections import deque

_FEWEST, _MOST, _SHARED = 2, 16, 4096


def a_turn(streams: int) -> int:
    """How many of so many streams open or send in one turn of the event loop, some 0.1 ms each. Several, since what
    leaves together speaks together, and a token that is read among others costs less CPU than one that wakes us. But
    the more there are, the longer the others wait to be read: with 32 a turn 1,024 streams are read late."""
    return min(_MOST, max(_FEWEST, _SHARED // max(1, streams)))


class Turnstile:
    """Lets `most` pass in each turn of the event loop, in their order."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._loop = asyncio.get_running_loop()
        self._passed = 0  # in this turn
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def passed(self) -> None:
        if self._passed == self._most or self._waiting:
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
        while self._waiting and self._passed < self._most:
            place = self._waiting.popleft()
            if not place.done():  # nobody waits for a cancelled one
                place.set_result(None)
                self._pass()
