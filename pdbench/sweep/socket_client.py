"""The client of the hot path: plain HTTP/1.1 over sockets of its own, with the kernel's receive stamps.

All sockets are in one epoll set, and that set is one descriptor of the event loop: a turn of the loop, asyncio's or
uvloop's, serves whatever is ready, and adding a connection costs the loop nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
import time
from array import array
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast
from urllib.parse import urlsplit

import numpy as np

from pdbench.sweep.client import USER_STAMP, Opening, RawAnswer, Request
from pdbench.sweep.exchange import SO_TIMESTAMPNS, Address, Exchange
from pdbench.sweep.kernel_clock import KernelClock, LagHistogram

_BATCH = 32  # sockets served before the loop may do something else, such as a send that is due
_SAMPLE_S = 0.05
_LEAD_MIN_NS, _LEAD_MAX_NS = 10_000_000, 500_000_000


@asynccontextmanager
async def open_sockets(url: str) -> AsyncIterator[SocketClient]:
    """A client for one address. Its name is looked up once; when that fails, each request says so."""
    parts = urlsplit(url)
    where: list[Address] | socket.gaierror
    try:
        found = await asyncio.get_running_loop().getaddrinfo(parts.hostname, parts.port or 80, type=socket.SOCK_STREAM)
        where = [(family, cast(Any, place)) for family, _, _, _, place in found]
    except socket.gaierror as error:
        where = error
    client = SocketClient(where)
    try:
        yield client
    finally:
        client.close()


class SocketClient:
    """Opens each request's connection ahead, by twice what the slowest took so far."""

    def __init__(self, where: list[Address] | socket.gaierror) -> None:
        self._where = where
        self._turn = 0
        self._loop = asyncio.get_running_loop()
        self._exchanges: dict[int, Exchange] = {}  # by descriptor
        self._epoll = select.epoll()
        self._loop.add_reader(self._epoll.fileno(), self._serve)
        # The kernel stamps packets while any socket wants it; switching that on takes effect a little later.
        self._stamping = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        self._stamping.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        self.clock = KernelClock()
        self._sampler = self._loop.call_later(_SAMPLE_S, self._sample)
        self._lags = LagHistogram()
        self._reads = {"kernel": 0, "user": 0}
        self._connects_ns = array("q")
        self._slowest_ns = 0

    @property
    def lead_ns(self) -> int:
        return min(_LEAD_MAX_NS, max(_LEAD_MIN_NS, 2 * self._slowest_ns))

    def open(self, request: Request) -> Opening:
        return Exchange(self, request)

    def start(
        self, request: Request, intended_ns: int, timeout_s: float, opening: Opening | None = None
    ) -> asyncio.Future[RawAnswer]:
        exchange = opening if isinstance(opening, Exchange) else Exchange(self, request)
        return exchange.start(intended_ns, timeout_s)

    def end_all(self) -> None:
        for exchange in list(self._exchanges.values()):
            exchange.finish("cancelled", "the run was interrupted")

    def health(self) -> dict[str, Any]:
        connects = self._connects_ns
        return {
            "stamps": dict(self._reads),
            "kernel_to_user_p50_ms": self._lags.percentile_ms(50),
            "kernel_to_user_p99_ms": self._lags.percentile_ms(99),
            "connect_p50_ms": float(np.percentile(connects, 50)) / 1e6 if connects else None,
            "connect_p99_ms": float(np.percentile(connects, 99)) / 1e6 if connects else None,
            "offset_steps": self.clock.steps,
        }

    def close(self) -> None:
        self.end_all()
        self._sampler.cancel()
        self._loop.remove_reader(self._epoll.fileno())
        self._epoll.close()
        self._stamping.close()

    def _serve(self) -> None:
        exchanges = self._exchanges
        for fd, _ in self._epoll.poll(0, _BATCH):
            exchange = exchanges.get(fd)
            if exchange is not None:
                try:
                    exchange.on_ready()
                except BaseException as error:
                    exchange.bug(error)
                    raise

    def _sample(self) -> None:
        self.clock.sample()
        self._sampler = self._loop.call_later(_SAMPLE_S, self._sample)

    # What an exchange needs.
    def watch(self, exchange: Exchange, fd: int, events: int) -> None:
        self._exchanges[fd] = exchange
        self._epoll.register(fd, events)

    def rewatch(self, fd: int, events: int) -> None:
        self._epoll.modify(fd, events)

    def forget(self, exchange: Exchange, fd: int) -> None:
        """Closing the socket takes it out of the epoll set."""
        self._exchanges.pop(fd, None)

    def addresses(self) -> list[Address]:
        """All addresses of the server's name, each time another one first."""
        if isinstance(self._where, socket.gaierror):
            raise socket.gaierror(*self._where.args)
        self._turn += 1
        first = self._turn % len(self._where)
        return self._where[first:] + self._where[:first]

    def refuse(self, address: Address) -> None:
        """An address that does not answer is tried no more while there are others."""
        if not isinstance(self._where, socket.gaierror) and len(self._where) > 1:
            with contextlib.suppress(ValueError):
                self._where.remove(address)

    def ended(self, raw: RawAnswer) -> None:
        """Check the clock once more, so that no stamp of this answer is later than the last check; then count."""
        self.clock.sample()
        now_ns = time.monotonic_ns()
        if self.clock.in_doubt(raw.sent_ns, now_ns):
            self._distrust(raw, now_ns)
        user = raw.lags_ns.count(USER_STAMP)
        self._reads["user"] += user
        self._reads["kernel"] += len(raw.lags_ns) - user
        raw.stamp = "kernel" if raw.lags_ns and not user else "user"
        self._lags.add(raw.lags_ns)
        if raw.connected_ns is not None and raw.opened_ns is not None:
            took_ns = raw.connected_ns - raw.opened_ns
            self._connects_ns.append(took_ns)
            self._slowest_ns = max(self._slowest_ns, took_ns)

    def _distrust(self, raw: RawAnswer, now_ns: int) -> None:
        """Where the wall clock stepped nobody knows to which side of the step a kernel stamp belongs: take our own."""
        for place, ((stamp_ns, data), lag_ns) in enumerate(zip(raw.reads, raw.lags_ns, strict=True)):
            read_ns = stamp_ns + lag_ns
            if lag_ns != USER_STAMP and self.clock.in_doubt(read_ns, read_ns + 1):
                raw.reads[place] = (read_ns, data)
                raw.lags_ns[place] = USER_STAMP
        raw.done_ns = now_ns
        if raw.reads:
            raw.first_byte_ns = raw.reads[0][0]
