"""One connection and the request that goes over it: connect, send, read to the end. Called by the socket client's loop.

A connection is opened ahead of its request and carries only that one. Everything here happens between two waits of the
event loop, so nothing waits, nothing is parsed but the framing, and a stamp is taken before anything else.
"""

from __future__ import annotations

import asyncio
import errno
import os
import select
import socket
import struct
import time
from typing import Protocol

from pdbench.sweep.client import (
    MAX_ANSWER_NBYTES,
    USER_STAMP,
    RawAnswer,
    Request,
    answer_to,
    os_error_words,
    out_of_files,
)
from pdbench.sweep.http1 import ProtocolError, ResponseReader, request_head
from pdbench.sweep.kernel_clock import KernelClock

SO_TIMESTAMPNS = 35
_TIMESPEC = struct.Struct("@ll")
_ANCILLARY_NBYTES = socket.CMSG_SPACE(_TIMESPEC.size)
_READ_NBYTES = 16 << 10
_LARGE_READ_NBYTES = 256 << 10  # once a read was full
_IN, _OUT = select.EPOLLIN, select.EPOLLOUT
_now = time.monotonic_ns

Address = tuple[socket.AddressFamily, tuple[str, int] | tuple[str, int, int, int]]


class Home(Protocol):
    """What an exchange needs of the client that it belongs to."""

    clock: KernelClock

    def watch(self, exchange: Exchange, fd: int, events: int) -> None: ...
    def rewatch(self, fd: int, events: int) -> None: ...
    def forget(self, exchange: Exchange, fd: int) -> None: ...
    def addresses(self) -> list[Address]: ...
    def refuse(self, address: Address) -> None: ...
    def ended(self, raw: RawAnswer) -> None: ...


class Exchange:
    """`on_ready` is what to call when the socket is ready for what it is watched for."""

    __slots__ = (
        "_address",
        "_answer",
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
        "_untried",
        "connected_ns",
        "on_ready",
        "opened_ns",
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
        self._sock: socket.socket | None = None
        self._failure: tuple[str, str] | None = None
        self._address: Address
        self._untried: list[Address] = []
        self.connected_ns: int | None = None
        self.on_ready = self._connected
        self.opened_ns = _now()
        try:
            self._head = request_head(request.url, request.headers, len(request.body))
            self._untried = home.addresses()
        except socket.gaierror as error:
            self._fail("dns", f"{type(error).__name__}: {error}")
        except ValueError as error:
            self._fail("protocol", str(error))
        else:
            self._connect()

    # Opening.
    def _connect(self) -> None:
        """Try the addresses one after the other."""
        failure = OSError(errno.EADDRNOTAVAIL, "the name has no address")
        while self._untried:
            family, where = self._address = self._untried.pop(0)
            try:
                sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
            except OSError as error:
                self._fail("fd-limit" if out_of_files(error) else "connect", os_error_words(error))
                return
            try:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
                code = sock.connect_ex(where)
            except OSError as error:
                code = error.errno or errno.EIO
            if code in (0, errno.EINPROGRESS):
                self._sock, self.on_ready = sock, self._connected
                self._home.watch(self, sock.fileno(), _OUT)
                return
            sock.close()
            failure = OSError(code, os.strerror(code))
            if self._untried:
                self._home.refuse(self._address)
        self._fail("connect", os_error_words(failure))

    def _connected(self) -> None:
        sock = self._sock
        assert sock is not None
        if code := sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self._shut()
            if self._untried:
                self._home.refuse(self._address)
                self._connect()
            else:
                self._fail("connect", os_error_words(OSError(code, os.strerror(code))))
            return
        self.connected_ns = _now()
        self._home.rewatch(sock.fileno(), _IN)
        self.on_ready = self._spoken_to
        self._settle()
        if self._raw is not None:
            self._send(self._raw)

    def _spoken_to(self) -> None:
        """The server closed, or spoke, before it was asked: this connection is of no use."""
        self._shut()

    async def settled(self, patience_s: float) -> None:
        if self.connected_ns is None and self._failure is None:
            self._settled = self._loop.create_future()
            await asyncio.wait({self._settled}, timeout=patience_s)

    def _settle(self) -> None:
        if self._settled is not None and not self._settled.done():
            self._settled.set_result(None)

    # Sending.
    def start(self, intended_ns: int, timeout_s: float) -> asyncio.Future[RawAnswer]:
        self._answer = self._loop.create_future()
        self._raw = raw = answer_to(self._request, intended_ns, _now())
        self._deadline = self._loop.call_later(timeout_s, self._late, timeout_s)
        if self._failure is not None:
            self.finish(*self._failure)
        elif self._sock is None:  # it was closed while it waited
            self.opened_ns, self.connected_ns = raw.sent_ns, None
            self._untried = self._home.addresses()
            self._connect()
        elif self.connected_ns is not None:
            self._send(raw)
        return self._answer

    def _send(self, raw: RawAnswer) -> None:
        sock, body = self._sock, self._request.body
        assert sock is not None
        if self.connected_ns is not None and self.connected_ns <= raw.sent_ns:
            raw.sent_ns = _now()
        self.on_ready = self._read
        try:
            sent = sock.sendmsg((self._head, body))
        except BlockingIOError:
            sent = 0
        except OSError:
            self._read()  # what the server has said meanwhile, or why it can't be sent to
            return
        # An answer must not wait for our delayed ACK, which a server without TCP_NODELAY makes it do.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
        if sent < len(self._head) + len(body):
            self._rest = memoryview(self._head + body)[sent:]
            self.on_ready = self._send_rest
            self._home.rewatch(sock.fileno(), _IN | _OUT)

    def _send_rest(self) -> None:
        """Send what the socket did not take at once, and read: a server may answer before it has been told all."""
        sock = self._sock
        assert sock is not None
        try:
            self._rest = self._rest[sock.send(self._rest) :]
        except BlockingIOError:
            pass
        except OSError:
            self._rest = memoryview(b"")
        if not self._rest:
            self.on_ready = self._read
            self._home.rewatch(sock.fileno(), _IN)
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
            self.finish("reset", os_error_words(error))
            return
        user_ns = _now()
        if ancillary:
            seconds, rest_ns = _TIMESPEC.unpack(ancillary[0][2])
            stamp_ns = seconds * 1_000_000_000 + rest_ns - self._home.clock.offset_ns
            lag_ns = user_ns - stamp_ns
        else:
            stamp_ns, lag_ns = user_ns, USER_STAMP
        if not data:
            self._closed()
            return
        reader = self._reader
        try:
            body = reader.feed(data)
        except ProtocolError as error:
            self.finish("protocol", str(error))
            return
        if raw.first_byte_ns is None and reader.head is not None:
            raw.first_byte_ns = stamp_ns
        if body:
            raw.reads.append((stamp_ns, body))
            raw.lags_ns.append(lag_ns)
            self._nbytes += len(body)
        if reader.complete:
            self.finish("complete", "", stamp_ns)
        elif self._nbytes > MAX_ANSWER_NBYTES:
            self.finish("too-large", f"the answer is longer than {MAX_ANSWER_NBYTES >> 20} MiB")
        elif len(data) == self._size:
            self._size = _LARGE_READ_NBYTES

    def _closed(self) -> None:
        if self._reader.end():
            self.finish("complete", "")
        else:
            place = "the end of the answer" if self._reader.head is not None else "its begin"
            self.finish("reset", f"the server closed the connection before {place}")

    # Ending.
    def _late(self, timeout_s: float) -> None:
        self.finish("timeout", f"no end of the answer within {timeout_s:g} s")

    def _fail(self, kind: str, text: str) -> None:
        """There will be no connection."""
        self._failure = kind, text
        self._settle()
        if self._raw is not None:
            self.finish(kind, text)

    def finish(self, end: str, text: str, done_ns: int | None = None) -> None:
        """The end, of whatever kind, also of a connection that was never used."""
        self._shut()
        self._settle()
        if self._deadline is not None:
            self._deadline.cancel()
        raw, answer, head = self._raw, self._answer, self._reader.head
        self._failure = self._failure or (end, text)
        if raw is None or answer is None or raw.done_ns is not None:
            return
        raw.end, raw.end_text = end, text
        raw.opened_ns, raw.connected_ns = self.opened_ns, self.connected_ns
        raw.done_ns = _now() if done_ns is None else done_ns
        if head is not None:
            raw.http_status, raw.content_type, raw.location = head.status, head.content_type, head.location
            raw.content_encoding = head.content_encoding
        self._home.ended(raw)
        if not answer.done():
            answer.set_result(raw)

    def bug(self, error: BaseException) -> None:
        """An error of ours: whoever waits for the answer must see it."""
        self._shut()
        self._settle()
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)

    def _shut(self) -> None:
        if self._sock is not None:
            self._home.forget(self, self._sock.fileno())
            self._sock.close()
            self._sock = None
