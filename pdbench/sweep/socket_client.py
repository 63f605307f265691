"""The client of the hot path: HTTP/1.1, plain or over TLS, over sockets of its own, with the kernel's receive stamps.

All sockets are in two epoll sets, one inside the other, and these are one descriptor of the event loop: a turn of the
loop, asyncio's or uvloop's, serves whatever is ready, and adding a connection costs the loop nothing. First tokens are
awaited in a set of their own, which each turn looks at first: the kernel keeps one stamp for two tokens that are read
together, and of all tokens the first must not come so.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import resource
import select
import socket
import ssl
import time
from array import array
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast
from urllib.parse import urlsplit

import numpy as np

from pdbench.route import unix_path
from pdbench.sweep.client import COUNTS, OWN_LIMITS, USER_STAMP, Opening, RawAnswer, Request, keep_ns, kernel_share
from pdbench.sweep.connection import SO_TIMESTAMPNS, Address, Connection
from pdbench.sweep.exchange import Exchange
from pdbench.sweep.kernel_clock import KernelClock, LagHistogram
from pdbench.sweep.tls import context

# Sockets served before the loop may do something else, such as a send that is due. With fewer that flow, 1,024 streams
# are read late while as many requests end and begin.
_AWAITED_BATCH, _FLOWING_BATCH = 32, 96
_SAMPLE_S = 0.05
_FAREWELLS = 32  # connections seen off in one go
_SPARE_FDS = 16
_LEAD_MIN_NS, _LEAD_MAX_NS = 10_000_000, 500_000_000


@asynccontextmanager
async def open_sockets(url: str, keeps: bool = False) -> AsyncIterator[SocketClient]:
    """A client for one address. Its name is looked up once; when that fails, each request says so."""
    parts = urlsplit(url)
    secured = (context(), parts.hostname or "") if parts.scheme == "https" else None
    client = SocketClient(await _addresses(url), secured, keeps)
    try:
        yield client
    finally:
        client.close()


async def _addresses(url: str) -> list[Address] | socket.gaierror:
    if (path := unix_path(url)) is not None:
        return [(socket.AF_UNIX, path)]
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        found = await asyncio.get_running_loop().getaddrinfo(parts.hostname, port, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        return error
    return [(family, cast(Any, place)) for family, _, _, _, place in found]


class SocketClient:
    """Opens each request's connection ahead, by twice what the slowest took so far; `keeps`: uses it again later."""

    def __init__(
        self, where: list[Address] | socket.gaierror, tls: tuple[ssl.SSLContext, str] | None, keeps: bool
    ) -> None:
        self.tls, self.keeps, self.quick_acks = tls, keeps, True
        most_fds = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self.fd_ceiling = math.inf if most_fds == resource.RLIM_INFINITY else most_fds - _SPARE_FDS
        self._where = where
        self._turn = 0
        self._loop = asyncio.get_running_loop()
        self._connections: dict[int, Connection] = {}  # by descriptor
        self._exchanges: set[Exchange] = set()
        self._idle: deque[Connection] = deque()  # the one used last is at the right
        self._retired: deque[Connection] = deque()
        self._flowing, self._awaited = select.epoll(), select.epoll()
        self._flowing.register(self._awaited.fileno(), select.EPOLLIN)
        self._loop.add_reader(self._flowing.fileno(), self._serve)
        # The kernel stamps packets while any socket wants it; switching that on takes effect a little later.
        self._stamping = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        self._stamping.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        self.clock = KernelClock()
        self._sampler = self._loop.call_later(_SAMPLE_S, self._sample)
        self._lags = LagHistogram()
        self._reads = {"kernel": 0, "user": 0}
        self._counts = dict.fromkeys(COUNTS, 0)
        self._connects_ns = array("q")
        self._slowest_ns = 0

    @property
    def lead_ns(self) -> int:
        return min(_LEAD_MAX_NS, max(_LEAD_MIN_NS, 2 * self._slowest_ns))

    def open(self, request: Request) -> Opening:
        exchange = Exchange(self, request)
        self._exchanges.add(exchange)
        return exchange

    def start(
        self, request: Request, intended_ns: int, timeout_s: float, opening: Opening | None = None
    ) -> asyncio.Future[RawAnswer]:
        exchange = opening if opening is not None else self.open(request)
        assert isinstance(exchange, Exchange)
        return exchange.start(intended_ns, timeout_s)

    def end_all(self) -> None:
        for exchange in list(self._exchanges):
            exchange.finish("cancelled", "the run was interrupted")

    def health(self) -> dict[str, Any]:
        connects = self._connects_ns
        return {
            "stamps": dict(self._reads),
            "kernel_stamps_share": kernel_share(self._reads),
            "kernel_to_user_p50_ms": self._lags.percentile_ms(50),
            "kernel_to_user_p99_ms": self._lags.percentile_ms(99),
            "kernel_to_user_max_ms": self._lags.percentile_ms(100),
            "connect_p50_ms": float(np.percentile(connects, 50)) / 1e6 if connects else None,
            "connect_p99_ms": float(np.percentile(connects, 99)) / 1e6 if connects else None,
            "offset_steps": self.clock.steps,
            **self._counts,
        }

    def close(self) -> None:
        self.end_all()
        for connection in (*self._connections.values(), *self._retired):
            connection.abort()
        self._sampler.cancel()
        self._loop.remove_reader(self._flowing.fileno())
        self._flowing.close()
        self._awaited.close()
        self._stamping.close()

    def _serve(self) -> None:
        connections = self._connections
        for ready, most in ((self._awaited, _AWAITED_BATCH), (self._flowing, _FLOWING_BATCH)):
            for fd, _ in ready.poll(0, most):
                connection = connections.get(fd)
                if connection is not None:
                    try:
                        connection.on_ready()
                    except BaseException as error:
                        if connection.rider is not None:
                            connection.rider.bug(error)
                        raise

    def _sample(self) -> None:
        self.clock.sample()
        now_ns = time.monotonic_ns()
        self._see_off(_FAREWELLS)
        while self._idle and not self._idle[0].usable(now_ns):
            self._idle.popleft().shut()
        self._sampler = self._loop.call_later(_SAMPLE_S, self._sample)

    # What a connection needs.
    def watch(self, connection: Connection, fd: int, events: int) -> None:
        self._connections[fd] = connection
        self._set_of(connection).register(fd, events)

    def rewatch(self, connection: Connection, fd: int, events: int) -> None:
        self._set_of(connection).modify(fd, events)

    def unwatch(self, connection: Connection, fd: int) -> None:
        self._set_of(connection).unregister(fd)
        self._connections.pop(fd, None)

    def let_flow(self, connection: Connection, flows: bool) -> None:
        """Its first token has come, or is awaited again."""
        assert connection.sock is not None
        fd = connection.sock.fileno()
        self._set_of(connection).unregister(fd)
        connection.flows = flows
        self._set_of(connection).register(fd, select.EPOLLIN)

    def _set_of(self, connection: Connection) -> select.epoll:
        return self._flowing if connection.flows else self._awaited

    def forget(self, fd: int) -> None:
        """Closing the socket takes it out of the epoll set."""
        self._connections.pop(fd, None)

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

    def spare(self) -> bool:
        """Let one descriptor go that only waits for a server to close first; false: there is none."""
        if not self._retired:
            return False
        self._retired.popleft().abort()
        return True

    # What an exchange needs.
    def take(self, rider: Exchange) -> Connection:
        """A connection that was kept, as long as the server surely keeps it too; else one that is being opened."""
        now_ns = time.monotonic_ns()
        while self._idle:
            connection = self._idle.pop()
            if connection.usable(now_ns):
                self._counts["connections_reused"] += 1
                connection.rider = rider
                return connection
            connection.shut()
        self._see_off(2)
        self._counts["connections_opened"] += 1
        return Connection(self, rider)

    def again(self, rider: Exchange) -> Connection:
        self._counts["resets_retried"] += 1
        self._counts["connections_opened"] += 1
        return Connection(self, rider)

    def give_back(self, connection: Connection, reusable: bool, keep_alive_s: int | None) -> None:
        """Keep the connection of an answer that is over, where that is wanted and possible."""
        if self.keeps and reusable:
            connection.rest(keep_ns(keep_alive_s))
            self._idle.append(connection)
        else:
            connection.retire()
            self._retired.append(connection)

    def _see_off(self, most: int) -> None:
        """Close retired connections that their servers have closed, the oldest first: a few at a time, for each takes
        some 20 us."""
        now_ns = time.monotonic_ns()
        while most and self._retired and self._retired[0].gone(now_ns):
            self._retired.popleft()
            most -= 1

    def left(self, exchange: Exchange) -> None:
        self._exchanges.discard(exchange)

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
        if raw.end in OWN_LIMITS:
            self._counts[OWN_LIMITS[raw.end]] += 1
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
