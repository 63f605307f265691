"""A request and its answer over one connection: send, read to the end. Called by the socket client's loop.

Its connection is opened, or taken from those kept, ahead of the request. Everything here happens between two waits of
the event loop, so nothing waits, nothing is parsed but the framing, and a stamp is taken before anything else.
"""

from __future__ import annotations

import asyncio
import re
import select
import socket
import struct
import time
from typing import Protocol

from pdbench.http1 import ResponseReader, request_head
from pdbench.sweep.client import MAX_ANSWER_NBYTES, USER_STAMP, RawAnswer, Request, answer_to, os_error_words
from pdbench.sweep.connection import Connection
from pdbench.sweep.connection import Home as ConnectionHome
from pdbench.sweep.kernel_clock import KernelClock
from pdbench.sweep.tls import Tls, ssl_error_words

_TIMESPEC = struct.Struct("@ll")
_ANCILLARY_NBYTES = socket.CMSG_SPACE(_TIMESPEC.size)
_READ_NBYTES = 16 << 10
_OUTPUT = re.compile(
    rb'"(?:text|content|reasoning|reasoning_content|refusal|arguments)": ?"[^"]|"token_ids": ?\[[0-9]'
)  # nearly all first tokens. One that is missed is followed by others, and only which socket is read first hangs on it
_LARGE_READ_NBYTES = 256 << 10  # once a read was full
_IN, _OUT = select.EPOLLIN, select.EPOLLOUT
_now = time.monotonic_ns


class Home(ConnectionHome, Protocol):
    """What an exchange needs of the client that it belongs to."""

    clock: KernelClock
    keeps: bool
    quick_acks: bool

    def let_flow(self, connection: Connection, flows: bool) -> None: ...
    def take(self, rider: Exchange) -> Connection: ...
    def give_back(self, connection: Connection, reusable: bool, keep_alive_s: int | None) -> None: ...
    def again(self, rider: Exchange) -> Connection: ...
    def left(self, exchange: Exchange) -> None: ...
    def ended(self, raw: RawAnswer) -> None: ...


class Exchange:
    """Rides on a connection: `open` ahead of the request, `start` when it is due, `finish` in whatever way."""

    __slots__ = (
        "_answer",
        "_connection",
        "_deadline",
        "_failure",
        "_head",
        "_home",
        "_loop",
        "_nbytes",
        "_raw",
        "_reader",
        "_request",
        "_rest",
        "_settled",
        "_size",
        "_sock",
        "_tls",
    )

    def __init__(self, home: Home, request: Request) -> None:
        self._home, self._request = home, request
        self._loop = asyncio.get_running_loop()
        self._head = b""
        self._raw: RawAnswer | None = None
        self._answer: asyncio.Future[RawAnswer] | None = None
        self._settled: asyncio.Future[None] | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._reader = ResponseReader()
        self._rest = memoryview(b"")
        self._size, self._nbytes = _READ_NBYTES, 0
        self._failure: tuple[str, str] | None = None
        self._connection: Connection | None = None
        self._sock: socket.socket | None = None
        self._tls: Tls | None = None
        try:
            self._head = request_head(request.url, request.headers, len(request.body), keep=home.keeps)
        except ValueError as error:
            self._failure = "protocol", str(error)
        else:
            self._board(home.take(self))

    def _board(self, connection: Connection) -> None:
        self._connection = connection
        if connection.failure is not None:
            self.failed(*connection.failure)
        elif connection.connected_ns is not None:
            self.stands()

    # What the connection tells.
    def stands(self) -> None:
        self._settle()
        if self._raw is not None:
            self._send(self._raw)

    def failed(self, kind: str, text: str) -> None:
        """There will be no connection."""
        self._failure = kind, text
        self._settle()
        if self._raw is not None:
            self.finish(kind, text)

    async def settled(self, patience_s: float) -> None:
        connection = self._connection
        if connection is None or connection.connected_ns is not None or self._failure is not None:
            # Those that open in the same turn come first: what is sent together is answered together, and a token that
            # is read among others costs less.
            await asyncio.sleep(0)
        else:
            self._settled = self._loop.create_future()
            patience = self._loop.call_later(patience_s, self._settle)
            try:
                await self._settled
            finally:
                patience.cancel()

    def _settle(self) -> None:
        if self._settled is not None and not self._settled.done():
            self._settled.set_result(None)

    # Sending.
    def start(self, intended_ns: int, timeout_s: float) -> asyncio.Future[RawAnswer]:
        self._answer = self._loop.create_future()
        self._raw = raw = answer_to(self._request, intended_ns, _now())
        self._deadline = self._loop.call_later(timeout_s, self._late, timeout_s)
        connection = self._connection
        if self._failure is not None:
            self.finish(*self._failure)
        elif connection is None or connection.lost:  # the server closed it while it waited
            self._board(self._home.take(self))
        elif connection.connected_ns is not None:
            self._send(raw)
        return self._answer

    def _send(self, raw: RawAnswer) -> None:
        connection, body = self._connection, self._request.body
        assert connection is not None and connection.sock is not None
        self._sock = sock = connection.sock
        if connection.connected_ns is not None and connection.connected_ns <= raw.sent_ns:
            raw.sent_ns = _now()
        self._tls = connection.tls
        pieces = (self._head, body) if self._tls is None else (self._tls.seal(self._head + body),)
        connection.on_ready = self._read
        if connection.flows:
            self._home.let_flow(connection, False)
        try:
            sent = sock.sendmsg(pieces)
        except BlockingIOError:
            sent = 0
        except OSError:
            self._read()  # what the server has said meanwhile, or why it can't be sent to
            return
        if connection.tcp and self._home.quick_acks:
            # An answer must not wait for our delayed ACK, which a server without TCP_NODELAY makes it do.
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
        if sent < sum(map(len, pieces)):
            self._rest = memoryview(b"".join(pieces))[sent:]
            connection.on_ready = self._send_rest
            self._home.rewatch(connection, sock.fileno(), _IN | _OUT)
        if self._tls is not None:  # epoll does not see what came in one segment with the handshake's end
            self._heard(b"", _now(), USER_STAMP)

    def _send_rest(self) -> None:
        """Send what the socket did not take at once, and read: a server may answer before it has been told all."""
        connection, sock = self._connection, self._sock
        assert connection is not None and sock is not None
        try:
            self._rest = self._rest[sock.send(self._rest) :]
        except BlockingIOError:
            pass
        except OSError:
            self._rest = memoryview(b"")
        if not self._rest:
            connection.on_ready = self._read
            self._home.rewatch(connection, sock.fileno(), _IN)
        self._read()

    # Reading.
    def _read(self) -> None:
        sock, raw = self._sock, self._raw
        assert sock is not None and raw is not None
        try:
            data, ancillary, _, _ = sock.recvmsg(self._size, _ANCILLARY_NBYTES)
        except BlockingIOError:
            return
        except OSError as error:
            self._lost(os_error_words(error))
            return
        user_ns = _now()
        if ancillary:
            seconds, rest_ns = _TIMESPEC.unpack(ancillary[0][2])
            stamp_ns = seconds * 1_000_000_000 + rest_ns - self._home.clock.offset_ns
            lag_ns = user_ns - stamp_ns
        else:
            stamp_ns, lag_ns = user_ns, USER_STAMP
        if len(data) == self._size:
            self._size = _LARGE_READ_NBYTES
        if data:
            self._heard(data, stamp_ns, lag_ns)
        else:
            self._closed(user_ns)

    def _heard(self, data: bytes, stamp_ns: int, lag_ns: int) -> None:
        raw, reader, tls, connection = self._raw, self._reader, self._tls, self._connection
        assert raw is not None and connection is not None
        if tls is not None:
            data = tls.open(data)
        if data:
            body = reader.feed(data)
            if raw.first_byte_ns is None and reader.head is not None:
                raw.first_byte_ns = stamp_ns
            if body:
                if not connection.flows and not self._rest and _OUTPUT.search(body) is not None:
                    self._home.let_flow(connection, True)
                raw.reads.append((stamp_ns, body))
                raw.lags_ns.append(lag_ns)
                self._nbytes += len(body)
            if reader.complete:
                self.finish("complete", "", stamp_ns)
                return
            if reader.error is not None:
                self.finish("protocol", reader.error)
                return
            if self._nbytes > MAX_ANSWER_NBYTES:
                self.finish("too-large", f"the answer is longer than {MAX_ANSWER_NBYTES >> 20} MiB")
                return
        if tls is not None and tls.broken is not None:
            self.finish("tls", ssl_error_words(tls.broken))
        elif tls is not None and tls.over:
            self._closed(stamp_ns)

    def _closed(self, stamp_ns: int) -> None:
        if self._reader.end():
            self.finish("complete", "", stamp_ns)
        else:
            place = "the end of the answer" if self._reader.head is not None else "its begin"
            self._lost(f"the server closed the connection before {place}")

    def _lost(self, text: str) -> None:
        """A server may close a kept connection in the moment in which it is used again: that is no answer, and is asked
        once more, over a fresh one."""
        connection, raw = self._connection, self._raw
        assert connection is not None and raw is not None
        if connection.answers and not self._reader.begun:
            connection.shut()
            self._rest = memoryview(b"")
            self._board(self._home.again(self))
        else:
            self.finish("reset", text)

    # Ending.
    def _late(self, timeout_s: float) -> None:
        self.finish("timeout", f"no end of the answer within {timeout_s:g} s")

    def finish(self, end: str, text: str, done_ns: int | None = None) -> None:
        """The end, of whatever kind, also of a connection that was never used."""
        self._settle()
        if self._deadline is not None:
            self._deadline.cancel()
        raw, answer, reader = self._raw, self._answer, self._reader
        self._failure = self._failure or (end, text)
        connection, self._connection = self._connection, None
        opened = connection is not None and not connection.answers
        if connection is not None:
            self._leave(connection, end)
        self._home.left(self)
        if raw is None or answer is None or raw.done_ns is not None:
            return
        raw.end, raw.end_text = end, text
        if connection is not None and opened:
            raw.opened_ns, raw.connected_ns = connection.opened_ns, connection.connected_ns
        raw.done_ns = _now() if done_ns is None else done_ns
        if (head := reader.head) is not None:
            raw.http_status, raw.content_type, raw.location = head.status, head.content_type, head.location
            raw.content_encoding = head.content_encoding
        self._home.ended(raw)
        if not answer.done():
            answer.set_result(raw)

    def _leave(self, connection: Connection, end: str) -> None:
        connection.rider = None
        if end != "complete":
            connection.abort()
        else:
            head = self._reader.head
            reusable = self._reader.reusable and not self._rest and (self._tls is None or not self._tls.ended)
            self._home.give_back(connection, reusable, head.keep_alive_s if head is not None else None)

    def bug(self, error: BaseException) -> None:
        """An error of ours: whoever waits for the answer must see it."""
        self._settle()
        if self._connection is not None:
            self._connection.abort()
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)
