"""When does each request leave? At its time, whatever the answers do (open loop), or when a stream is free (closed)."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Coroutine, Iterator, Sequence
from typing import Any

import numpy as np

from pdbench.sweep.alarm import Alarm
from pdbench.sweep.arrivals import Offsets
from pdbench.sweep.client import Client, Opening, RawAnswer, Request
from pdbench.sweep.health import Health
from pdbench.sweep.recorder import Recorder
from pdbench.sweep.sessions import Conversation
from pdbench.sweep.stock import Stock
from pdbench.sweep.turnstile import Turnstile, a_turn

_FAST_FAILURE_S = 0.1  # a closed-loop stream that fails sooner than this waits as long before it asks again
_CONNECT_PATIENCE_S = 1.0  # a closed-loop stream's latency counts from its connection, but not from one so slow


class Flight:
    """A cell's requests in the air. `halted` is set to end it early: by Ctrl-C, a lost recorder or a bug of ours."""

    def __init__(self, client: Client, timeout_s: float, stock: Stock, recorder: Recorder, health: Health) -> None:
        self._client, self._timeout_s, self._stock = client, timeout_s, stock
        self._recorder, self._health = recorder, health
        self._loop = asyncio.get_running_loop()
        self._streams: set[asyncio.Task[None]] = set()
        self._flying: set[asyncio.Future[RawAnswer]] = set()
        self._landed: asyncio.Future[None] = self._loop.create_future()
        self._sending = True
        self._over = False
        self.halted: asyncio.Future[BaseException | None] = self._loop.create_future()
        self.sent = 0

    async def open_loop(self, offsets: Offsets, start_ns: int, end_ns: int | None, alarm: Alarm) -> None:
        """Each request at its place on the absolute schedule, then wait for `end_ns`: a process that sends for a
        minute lasts a minute. One that is late leaves late; none is dropped. Connections are opened ahead."""
        dues_ns: list[int] = (start_ns + np.rint(offsets * 1e9).astype(np.int64)).tolist()
        ready: deque[tuple[Request, Opening | None]] = deque()
        opened = 0
        for due_ns in dues_ns:
            while opened < len(dues_ns) and (ahead_ns := dues_ns[opened] - self._client.lead_ns) < due_ns:
                await _reach(ahead_ns, alarm)
                request = self._stock.take()
                ready.append((request, self._client.open(request)))
                opened += 1
            await _reach(due_ns, alarm)
            if ready:
                self._start(*ready.popleft(), due_ns)
            else:
                opened += 1
                self._start(self._stock.take(), None, due_ns)
        if end_ns is not None:
            await alarm.until(end_ns)

    async def closed_loop(
        self, streams: int, most: int | None, start_ns: int, end_ns: int | None, alarm: Alarm
    ) -> None:
        """Streams that each send their next request when their last answer has ended, at most `most` until `end_ns`.
        Their first connections are opened ahead."""
        taken, together = 0, a_turn(streams)
        opens, sends = Turnstile(together), Turnstile(together)
        started = asyncio.Event()
        exhausted: asyncio.Future[None] = self._loop.create_future()
        if most == 0:
            exhausted.set_result(None)

        async def stream() -> None:
            nonlocal taken
            free_ns = start_ns
            while not self._over and (end_ns is None or free_ns < end_ns):
                if taken == most:
                    break
                taken += 1
                if taken == most:
                    exhausted.set_result(None)
                await opens.passed()
                request = self._stock.take()
                opening = self._client.open(request)
                if opening is not None:
                    await opening.settled(_CONNECT_PATIENCE_S)
                await started.wait()
                await sends.passed()
                if self._over:
                    break
                answer = self._start(request, opening, time.monotonic_ns())
                if _failed_fast(await answer):
                    await asyncio.sleep(_FAST_FAILURE_S)
                free_ns = time.monotonic_ns()

        for _ in range(streams if most is None else min(streams, most)):
            self._run(stream())
        await alarm.until(start_ns)
        started.set()
        await _first_of(exhausted, end_ns, alarm)

    async def sessions(
        self, clients: Sequence[Iterator[Conversation]], start_ns: int, end_ns: int | None, alarm: Alarm
    ) -> None:
        """Clients that each think, ask, hear the answer, and think again, one conversation after the other."""
        asking = len(clients)
        exhausted: asyncio.Future[None] = self._loop.create_future()

        def asked_last() -> None:
            nonlocal asking
            asking -= 1
            if asking == 0 and not exhausted.done():
                exhausted.set_result(None)

        async def client(conversations: Iterator[Conversation]) -> None:
            conversation = next(conversations, None)
            while conversation is not None:
                pause_ns = int(conversation.think_s * 1e9)
                if self._over or (end_ns is not None and time.monotonic_ns() + pause_ns >= end_ns):
                    break
                await asyncio.sleep(pause_ns / 1e9)
                heard = await self._turn(conversation)
                following = conversation if heard and conversation.turns_left else next(conversations, None)
                conversation = following
            asked_last()

        await alarm.until(start_ns)
        for each in clients:
            self._run(client(each))
        if not clients:
            exhausted.set_result(None)
        await _first_of(exhausted, end_ns, alarm)

    async def _turn(self, conversation: Conversation) -> bool:
        """Ask, and take the answer into the history; whether the conversation can go on."""
        request = conversation.request()
        opening = self._client.open(request)
        if opening is not None:
            await opening.settled(_CONNECT_PATIENCE_S)
        if self._over:
            return False
        recorded = self._recorder.hear(request.index)
        answer = self._start(request, opening, time.monotonic_ns())
        await asyncio.wait({answer})
        if answer.cancelled():
            return False
        if _failed_fast(answer.result()):
            await asyncio.sleep(_FAST_FAILURE_S)
        row, said = await recorded
        if row.status != "ok":
            return False
        conversation.hear(row, said)
        return True

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._streams.add(task)
        task.add_done_callback(self._ended)

    async def land(self) -> None:
        """Sends are over: wait until all answers are in, or, once halted, end each request and keep its row."""
        self._sending = False
        if self._streams or self._flying:
            either: set[asyncio.Future[Any]] = {self._landed, self.halted}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        await self.end_all()

    async def end_all(self) -> None:
        """Leave nothing in the air: what still flies ends as `cancelled`."""
        self._over = True
        while self._streams or self._flying:
            self._client.end_all()
            if self._flying:
                await asyncio.wait(self._flying, timeout=1.0)
            for task in self._streams:
                task.cancel()
            await asyncio.sleep(0)

    def halt(self, error: BaseException | None = None) -> None:
        """End the cell early; `error` is a bug of ours that whoever waits for the cell must see."""
        if not self.halted.done():
            self.halted.set_result(error)

    def _start(self, request: Request, opening: Opening | None, due_ns: int) -> asyncio.Future[RawAnswer]:
        self._health.begins()
        answer = self._client.start(request, due_ns, self._timeout_s, opening)
        self._flying.add(answer)
        answer.add_done_callback(self._arrived)
        return answer

    def _arrived(self, answer: asyncio.Future[RawAnswer]) -> None:
        self._flying.discard(answer)
        if answer.cancelled():
            self._health.ends()
        elif (error := answer.exception()) is not None:
            self.halt(error)
        else:
            raw = answer.result()
            self._health.ends(raw.sent_ns - raw.intended_ns)
            self.sent += 1
            self._recorder.record(raw)
        self._land_if_last()

    def _ended(self, stream: asyncio.Task[None]) -> None:
        self._streams.discard(stream)
        if not stream.cancelled() and (error := stream.exception()) is not None:
            self.halt(error)
        self._land_if_last()

    def _land_if_last(self) -> None:
        if not self._sending and not self._streams and not self._flying and not self._landed.done():
            self._landed.set_result(None)


async def _first_of(exhausted: asyncio.Future[None], end_ns: int | None, alarm: Alarm) -> None:
    """Wait until there is nothing left to send, or until `end_ns`."""
    if end_ns is None:
        await exhausted
        return
    bell = asyncio.ensure_future(alarm.until(end_ns))
    try:
        await asyncio.wait({bell, exhausted}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        bell.cancel()


async def _reach(at_ns: int, alarm: Alarm) -> None:
    """What is overdue leaves in one go: one send a turn of a busy loop would never catch up."""
    if at_ns > time.monotonic_ns():
        await alarm.until(at_ns)


def _failed_fast(raw: RawAnswer) -> bool:
    return raw.http_status != 200 and (raw.done_ns or 0) - raw.sent_ns < _FAST_FAILURE_S * 1e9
