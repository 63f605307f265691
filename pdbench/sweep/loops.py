"""When does each request leave? At its time, whatever the answers do (open loop), or when a stream is free (closed)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from typing import Any

import aiohttp
import numpy as np

from pdbench.sweep.alarm import Alarm
from pdbench.sweep.arrivals import Offsets
from pdbench.sweep.client import send
from pdbench.sweep.health import Health
from pdbench.sweep.recorder import Recorder
from pdbench.sweep.stock import Stock

_FAST_FAILURE_S = 0.1  # a closed-loop stream that fails sooner than this waits as long before it asks again


class Flight:
    """A cell's requests in the air. `halted` is set to end it early: by Ctrl-C, a lost recorder or a bug of ours."""

    def __init__(
        self, session: aiohttp.ClientSession, timeout_s: float, stock: Stock, recorder: Recorder, health: Health
    ) -> None:
        self._session, self._timeout_s, self._stock = session, timeout_s, stock
        self._recorder, self._health = recorder, health
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._landed: asyncio.Future[None] = self._loop.create_future()
        self._sending = True
        self._over = False
        self.halted: asyncio.Future[BaseException | None] = self._loop.create_future()
        self.sent = 0

    async def open_loop(self, offsets: Offsets, start_ns: int, end_ns: int | None, alarm: Alarm) -> None:
        """Each request at its place on the absolute schedule, then wait for `end_ns`: a process that sends for a
        minute lasts a minute. One that is late leaves late; none is dropped."""
        for due_ns in (start_ns + np.rint(offsets * 1e9).astype(np.int64)).tolist():
            if due_ns > time.monotonic_ns():
                await alarm.until(due_ns)
            # What is overdue leaves in one go: one send a turn of a busy loop would never catch up.
            self._launch(self._one(due_ns))
        if end_ns is not None:
            await alarm.until(end_ns)

    async def closed_loop(
        self, streams: int, most: int | None, start_ns: int, end_ns: int | None, alarm: Alarm
    ) -> None:
        """Streams that each send their next request when their last answer has ended, at most `most` until `end_ns`."""
        taken = 0
        exhausted: asyncio.Future[None] = self._loop.create_future()

        async def stream() -> None:
            nonlocal taken
            free_ns = start_ns
            while not self._over and (end_ns is None or free_ns < end_ns):
                if taken == most:
                    break
                taken += 1
                if taken == most:
                    exhausted.set_result(None)
                if await self._exchange(free_ns):
                    await asyncio.sleep(_FAST_FAILURE_S)
                free_ns = time.monotonic_ns()

        await alarm.until(start_ns)
        for _ in range(streams if most is None else min(streams, most)):
            self._launch(stream())
        if end_ns is None:
            await exhausted
            return
        bell = self._loop.create_task(alarm.until(end_ns))
        try:
            await asyncio.wait({bell, exhausted}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            bell.cancel()

    async def land(self) -> None:
        """Sends are over: wait until all answers are in, or, once halted, end each request and keep its row."""
        self._sending = False
        if self._tasks:
            either: set[asyncio.Future[Any]] = {self._landed, self.halted}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        await self.end_all()

    async def end_all(self) -> None:
        """Leave nothing in the air: what still flies ends as `cancelled`."""
        self._over = True
        while self._tasks:
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(self._tasks, timeout=1.0)

    def halt(self, error: BaseException | None = None) -> None:
        """End the cell early; `error` is a bug of ours that whoever waits for the cell must see."""
        if not self.halted.done():
            self.halted.set_result(error)

    async def _one(self, due_ns: int) -> None:
        await self._exchange(due_ns)

    async def _exchange(self, intended_ns: int) -> bool:
        """One request and its answer; true when it failed at once."""
        self._health.begins()
        raw = await send(self._session, self._stock.take(), intended_ns, self._timeout_s)
        self._health.ends(raw.sent_ns - intended_ns)
        self.sent += 1
        self._recorder.record(raw)
        return raw.http_status != 200 and (raw.done_ns or 0) - raw.sent_ns < _FAST_FAILURE_S * 1e9

    def _launch(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._land_one)

    def _land_one(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.halt(error)
        if not self._sending and not self._tasks and not self._landed.done():
            self._landed.set_result(None)
