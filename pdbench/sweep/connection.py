"""A socket to the server: being opened, standing, carrying a request, kept for the next one, or taking its leave.

Everything here happens between two waits of the event loop, so nothing waits. Whoever has a request for the connection
is its `rider` and is told when it stands or will not.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import select
import socket
import ssl
import struct
import time
from collections.abc import Callable
from typing import Protocol

from pdbench.sweep.client import os_error_words, own_limit
from pdbench.sweep.tls import Tls, ssl_error_words

SO_TIMESTAMPNS = 35
_AT_ONCE = struct.pack("ii", 1, 0)  # SO_LINGER: RST instead of FIN, and no TIME_WAIT
_UNIX_RETRY_S = 0.002
_FAREWELL_NS = 1_000_000_000
_IN, _OUT = select.EPOLLIN, select.EPOLLOUT
_LOOPBACK = ("127.0.0.1", "::1")
_now = time.monotonic_ns

Address = tuple[socket.AddressFamily, str | tuple[str, int] | tuple[str, int, int, int]]


def _stands_at_once(sock: socket.socket, where: str | tuple[str | int, ...]) -> bool:
    """Over loopback the handshake is over by now, though `connect` says that it goes on: to wait for the event loop to
    tell would cost as much CPU as reading a token does."""
    if where[0] not in _LOOPBACK:
        return False
    try:
        sock.getpeername()
    except OSError:
        return False
    return True


class Home(Protocol):
    """What a connection needs of the client that it belongs to. `tls`: the context and the host's name, for https;
    `fd_ceiling`: sockets have descriptors below this one, for files and modules must still be opened."""

    tls: tuple[ssl.SSLContext, str] | None
    fd_ceiling: float

    def watch(self, connection: Connection, fd: int, events: int) -> None: ...
    def rewatch(self, connection: Connection, fd: int, events: int) -> None: ...
    def forget(self, fd: int) -> None: ...
    def unwatch(self, connection: Connection, fd: int) -> None: ...
    def addresses(self) -> list[Address]: ...
    def refuse(self, address: Address) -> None: ...
    def spare(self) -> bool: ...


class Rider(Protocol):
    def stands(self) -> None: ...
    def failed(self, kind: str, text: str) -> None: ...
    def bug(self, error: BaseException) -> None: ...


class Connection:
    """Whoever opens one looks at `failure` and `connected_ns` then; its rider hears of what happens later.

    `on_ready` is what to call when the socket is ready for what it is watched for. `sock` is None once it is shut.

    `answers` counts what it has carried to the end, `idle_ns` is since when it waits for another request. `flows`: the
    first token has come, so others are read before it.
    """

    __slots__ = (
        "_address",
        "_home",
        "_untried",
        "answers",
        "connected_ns",
        "failure",
        "flows",
        "idle_ns",
        "keep_ns",
        "on_ready",
        "opened_ns",
        "rider",
        "sock",
        "tcp",
        "tls",
    )

    def __init__(self, home: Home, rider: Rider) -> None:
        self._home = home
        self.rider: Rider | None = None
        self.sock: socket.socket | None = None
        self.failure: tuple[str, str] | None = None
        self.connected_ns: int | None = None
        self.answers = self.idle_ns = self.keep_ns = 0
        self.tcp = True
        self.flows = False
        self.tls: Tls | None = None
        self.on_ready: Callable[[], None] = self._connected
        self._address: Address
        self._untried: list[Address] = []
        self.opened_ns = _now()
        try:
            self._untried = home.addresses()
        except socket.gaierror as error:
            self._fail("dns", f"{type(error).__name__}: {error}")
        else:
            self._connect()
        self.rider = rider

    # Opening.
    def _connect(self) -> None:
        """Try the addresses one after the other."""
        failure = OSError(errno.EIO, "the name has no address")
        while self._untried:
            family, where = self._address = self._untried.pop(0)
            try:
                sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
                if sock.fileno() >= self._home.fd_ceiling:
                    sock.close()
                    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            except OSError as error:
                limit = own_limit(error)
                if limit == "fd-limit" and self._home.spare():
                    self._untried.insert(0, self._address)
                    continue
                self._fail(limit or "connect", os_error_words(error))
                return
            self.tcp = family != socket.AF_UNIX
            try:
                if self.tcp:
                    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
                code = sock.connect_ex(where)
            except OSError as error:
                code = error.errno or errno.EIO
            if code in (0, errno.EINPROGRESS):
                self.sock = sock
                if _stands_at_once(sock, where):
                    self._home.watch(self, sock.fileno(), _IN)
                    self._open()
                else:
                    self.on_ready = self._connected
                    self._home.watch(self, sock.fileno(), _OUT)
                return
            sock.close()
            if code == errno.EAGAIN and not self.tcp:  # the listener's queue is full, and nobody would wake us
                self._untried.append(self._address)
                asyncio.get_running_loop().call_later(_UNIX_RETRY_S, self._connect_again)
                return
            failure = OSError(code, os.strerror(code))
            if self._untried:
                self._home.refuse(self._address)
        self._fail(own_limit(failure) or "connect", os_error_words(failure))

    def _connect_again(self) -> None:
        if self.rider is not None:
            self._connect()

    def _connected(self) -> None:
        sock = self.sock
        assert sock is not None
        if code := sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self.shut()
            if self._untried:
                self._home.refuse(self._address)
                self._connect()
            else:
                self._fail("connect", os_error_words(OSError(code, os.strerror(code))))
            return
        self._home.rewatch(self, sock.fileno(), _IN)
        self._open()

    def _open(self) -> None:
        """TCP stands."""
        if self._home.tls is None:
            self._stands()
        else:
            self.tls, self.on_ready = Tls(*self._home.tls), self._shake_hands
            self._shake(b"")

    def _shake_hands(self) -> None:
        assert self.sock is not None
        try:
            received = self.sock.recv(65536)
        except BlockingIOError:
            return
        except OSError as error:
            self._refused(os_error_words(error))
            return
        if received:
            self._shake(received)
        else:
            self._refused("the server closed the connection in the handshake")

    def _shake(self, received: bytes) -> None:
        assert self.sock is not None and self.tls is not None
        try:
            done, reply = self.tls.shake(received)
        except ssl.SSLError as error:
            with contextlib.suppress(OSError):
                self.sock.send(self.tls.last_words())
            self._refused(ssl_error_words(error))
            return
        try:
            sent = self.sock.send(reply) if reply else 0
        except OSError as error:
            self._refused(os_error_words(error))
            return
        if sent < len(reply):  # a fresh socket takes some 10 kB at least
            self._refused("the handshake is too long")
        elif done:
            self._stands()

    def _refused(self, text: str) -> None:
        self.shut()
        self._fail("tls", text)

    def _stands(self) -> None:
        self.connected_ns = _now()
        self.on_ready = self._spoken_to
        if self.rider is not None:
            self.rider.stands()

    def _spoken_to(self) -> None:
        """What a server says, or its close, before it was asked: of no use any more, but for TLS's own messages."""
        if self.tls is not None and self.sock is not None:
            with contextlib.suppress(OSError):  # ssl.SSLError is one
                received = self.sock.recv(65536)
                if received and not self.tls.open(received) and not self.tls.ended:
                    return
        self.shut()

    def _fail(self, kind: str, text: str) -> None:
        self.failure = kind, text
        if self.rider is not None:
            self.rider.failed(kind, text)

    @property
    def lost(self) -> bool:
        """It stood, and stands no more."""
        return self.sock is None and self.connected_ns is not None

    # Between requests, and after them.
    def rest(self, keep_ns: int) -> None:
        """The answer is over and the connection may be used again, for `keep_ns`."""
        self.rider = None
        self.answers += 1
        self.idle_ns, self.keep_ns = _now(), keep_ns
        self.on_ready = self._spoken_to

    def usable(self, now_ns: int) -> bool:
        """It was kept, the server has not closed it, and will not while a request is on its way."""
        return self.sock is not None and now_ns - self.idle_ns < self.keep_ns

    def shut(self) -> None:
        if self.sock is not None:
            self._home.forget(self.sock.fileno())
            self.sock.close()
            self.sock = None

    def abort(self) -> None:
        """End it under way: the server is told at once, and no port of ours is left waiting."""
        if self.sock is not None:
            with contextlib.suppress(OSError):
                self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
            self.shut()

    def retire(self) -> None:
        """The answer is over and the server will close: who closes first keeps the port for a minute (TIME_WAIT), and
        that should not be us. `gone` tells later."""
        self.rider = None
        if self.sock is not None:
            self.idle_ns = _now()
            self._home.unwatch(self, self.sock.fileno())

    def gone(self, now_ns: int) -> bool:
        """Whether a retired connection is closed; one that the server does not close in a second is aborted."""
        if self.sock is None:
            return True
        try:
            open_still = bool(self.sock.recv(65536))
        except BlockingIOError:
            open_still = True
        except OSError:
            open_still = False
        if open_still and now_ns - self.idle_ns < _FAREWELL_NS:
            return False
        self.abort() if open_still else self.shut()
        return True
