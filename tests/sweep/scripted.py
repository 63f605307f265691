"""A server that does to each connection what a test says, byte for byte, and one request sent to it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

from pdbench.run import RequestRow
from pdbench.sweep.client import Client, RawAnswer, Request
from pdbench.sweep.clients import CLIENTS
from pdbench.sweep.rows import CellContext, read_row

OK = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"
TOKEN = b'data: {"choices":[{"index":0,"text":"a"}]}\n\n'
FINISH = b'data: {"choices":[{"index":0,"text":"","finish_reason":"length"}]}\n\n'
DONE = b"data: [DONE]\n\n"
ANSWER = TOKEN + TOKEN + FINISH + DONE

Script = Callable[[socket.socket], None]


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def request_of(conn: socket.socket) -> bytes:
    """Read one whole request. Raises ConnectionError when the other side closes first."""
    data = bytearray()
    while (end := data.find(b"\r\n\r\n")) < 0:
        data += _more(conn)
    length = int(data[:end].lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
    while len(data) < end + 4 + length:
        data += _more(conn)
    return bytes(data)


def _more(conn: socket.socket) -> bytes:
    if not (piece := conn.recv(1 << 20)):
        raise ConnectionError
    return piece


@contextlib.contextmanager
def scripted(script: Script, host: str = "127.0.0.1", listener: socket.socket | None = None) -> Iterator[str]:
    """Serve each connection in a thread of its own; yields the URL, which means nothing for a Unix `listener`."""
    if listener is None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, 0), family=family, backlog=512)
    place = listener.getsockname()

    def serve(conn: socket.socket) -> None:
        # The client may end a request first: that is no failure of the server.
        with conn, contextlib.suppress(ConnectionError, BrokenPipeError):
            script(conn)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                conn, _ = listener.accept()
                threading.Thread(target=serve, args=(conn,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield f"http://{f'[{host}]' if ':' in host else host}:{place[1]}/v1/completions"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


def request_to(url: str, body: bytes = b"{}") -> Request:
    return Request(0, "id-0", url, {"X-Request-Id": "id-0"}, body, 4, 2)


def ask(
    url: str,
    *,
    body: bytes = b"{}",
    timeout_s: float = 5.0,
    client: str = "socket",
    keeps: bool = False,
    idle_s: float = 0.0,
    loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None,
    meddle: Callable[[Client], Any] = lambda client: None,
    meddle_after_s: float = 0.5,
) -> tuple[RequestRow, RawAnswer, dict[str, Any]]:
    """One request: its row, the answer and the client's health. `idle_s`: how long before it the connection opens."""

    async def go() -> tuple[RawAnswer, dict[str, Any]]:
        async with CLIENTS[client](url, keeps) as sender:
            request = request_to(url, body)
            await asyncio.sleep(0.05)  # the kernel begins to stamp a little after it was asked
            opening = sender.open(request) if idle_s else None
            await asyncio.sleep(idle_s)
            answer = sender.start(request, 0, timeout_s, opening)
            asyncio.get_running_loop().call_later(meddle_after_s, meddle, sender)
            raw = await answer
            return raw, sender.health()

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        raw, health = runner.run(go())
    row, _ = read_row(raw, CellContext(0, 0, "default", 0))
    return row, raw, health
