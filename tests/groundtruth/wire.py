"""The wire of the ground-truth server: one thread, epoll, raw sockets with TCP_NODELAY, timers to some microseconds."""

from __future__ import annotations

import heapq
import os
import select
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass
class Conn:
    sock: socket.socket
    accept_ns: int
    inbox: bytearray = field(default_factory=bytearray)
    outbox: bytearray = field(default_factory=bytearray)
    watching_write: bool = False
    closing: bool = False
    closed: bool = False


class Wire:
    """Reads HTTP/1.1 requests, hands each to `route`, and sends what it is given."""

    def __init__(self, host: str, port: int, *, nagle: bool = False) -> None:
        """`host` may be the path of a Unix socket. `nagle`: no TCP_NODELAY."""
        self.unix = host.startswith("/")
        self.nodelay = not (nagle or self.unix)
        if self.unix:
            self.listener = socket.socket(socket.AF_UNIX)
            self.listener.bind(host)
            self.listener.listen(4096)
            self.port = 0
        else:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            self.listener = socket.create_server((host, port), family=family, backlog=4096)
            self.port = self.listener.getsockname()[1]
        self.listener.setblocking(False)
        self.epoll = select.epoll()
        self.epoll.register(self.listener, select.EPOLLIN)
        self.conns: dict[int, Conn] = {}
        self.timers: list[tuple[int, int, Callable[[], None]]] = []
        self.timer_number = 0

    def route(self, conn: Conn, method: str, path: str, headers: dict[str, str], body: bytes, received_ns: int) -> None:
        raise NotImplementedError

    # The loop. epoll's own timeout counts in ms; select's on the epoll descriptor counts in us.
    def serve(self, watch_stdin: bool) -> None:
        if watch_stdin:
            self.epoll.register(0, select.EPOLLIN)
        while True:
            wait_s = 1.0
            if self.timers:
                wait_s = max(0.0, (self.timers[0][0] - time.monotonic_ns()) / 1e9)
            select.select([self.epoll.fileno()], [], [], min(wait_s, 1.0))
            for fd, events in self.epoll.poll(0):
                if fd == self.listener.fileno():
                    self.accept()
                elif fd == 0:
                    if not os.read(0, 4096):
                        return
                elif fd in self.conns:
                    self.ready(self.conns[fd], events)
            while self.timers and self.timers[0][0] <= time.monotonic_ns():
                heapq.heappop(self.timers)[2]()

    def at(self, due_ns: int, action: Callable[[], None]) -> None:
        self.timer_number += 1
        heapq.heappush(self.timers, (due_ns, self.timer_number, action))

    def accept(self) -> None:
        while True:
            try:
                sock, _ = self.listener.accept()
            except BlockingIOError:
                return
            sock.setblocking(False)
            if self.nodelay:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.conns[sock.fileno()] = Conn(sock, time.monotonic_ns())
            self.epoll.register(sock, select.EPOLLIN)

    def ready(self, conn: Conn, events: int) -> None:
        if events & select.EPOLLOUT:
            self.flush(conn)
        if conn.closed or not events & (select.EPOLLIN | select.EPOLLHUP | select.EPOLLERR):
            return
        try:
            data = conn.sock.recv(1 << 20)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.close(conn)
            return
        conn.inbox += data
        self.parse(conn)

    def parse(self, conn: Conn) -> None:
        end = conn.inbox.find(b"\r\n\r\n")
        if end < 0:
            return
        head = conn.inbox[:end].decode("latin-1").split("\r\n")
        headers = {k.strip().lower(): v.strip() for k, _, v in (line.partition(":") for line in head[1:])}
        length = int(headers.get("content-length", 0))
        if len(conn.inbox) < end + 4 + length:
            return
        body = bytes(conn.inbox[end + 4 : end + 4 + length])
        del conn.inbox[: end + 4 + length]
        method, path, _ = head[0].split(" ", 2)
        if path.startswith("http://"):  # asked as a proxy
            path = "/" + path.split("/", 3)[3]
        self.route(conn, method, path, headers, body, time.monotonic_ns())

    def respond(self, conn: Conn, status: int, kind: str, body: bytes, keep: bool, extra: str = "") -> None:
        head = f"HTTP/1.1 {status} Status\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n{extra}"
        conn.closing = not keep
        self.send(conn, f"{head}Connection: {'keep-alive' if keep else 'close'}\r\n\r\n".encode() + body)

    def send(self, conn: Conn, data: bytes) -> None:
        if not conn.closed:
            conn.outbox += data
            self.flush(conn)

    def flush(self, conn: Conn) -> None:
        try:
            while conn.outbox and not conn.closed:
                sent = conn.sock.send(conn.outbox)
                del conn.outbox[:sent]
        except BlockingIOError:
            pass
        except OSError:
            self.close(conn)
            return
        want = bool(conn.outbox)
        if want != conn.watching_write and not conn.closed:
            conn.watching_write = want
            self.epoll.modify(conn.sock, select.EPOLLIN | (select.EPOLLOUT if want else 0))
        if conn.closing and not conn.outbox:
            self.close(conn)

    def close(self, conn: Conn) -> None:
        if not conn.closed:
            conn.closed = True
            del self.conns[conn.sock.fileno()]
            self.epoll.unregister(conn.sock)
            conn.sock.close()


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)
