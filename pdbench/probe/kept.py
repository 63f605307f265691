"""The same page again and again over one connection that is kept: what `pages.get` gives, at a fifth of its cost.

For plain HTTP. One connection belongs to one page, so nothing is pooled and nothing waits for another; a server that
has closed it meanwhile, as idle ones do, is asked once more over a new one.
"""

from __future__ import annotations

import asyncio
import errno
import time
from typing import cast
from urllib.parse import quote, urlsplit

from pdbench.http1 import ResponseReader, unpacked
from pdbench.probe.pages import HEADERS, MAX_BYTES, Answer, words
from pdbench.route import http_proxy


def is_plain(url: str) -> bool:
    """Whether a page is asked for over TCP, by plain HTTP, and of its server itself."""
    return urlsplit(url).scheme == "http" and http_proxy(url) is None


class Kept(asyncio.Protocol):
    """A page's address and the connection to its server."""

    def __init__(self, url: str, headers: dict[str, str]) -> None:
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "", parts.port or 80
        path = quote(parts.path or "/", safe="/%:@!$&'()*+,;=~") + (f"?{parts.query}" if parts.query else "")
        fields = {"Host": parts.netloc.rpartition("@")[2], **HEADERS, **headers}
        said = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        self._question = f"GET {path} HTTP/1.1\r\n{said}\r\n".encode()
        self._transport: asyncio.Transport | None = None
        self._answer: asyncio.Future[Exception | None] | None = None
        self._begin()

    def _begin(self) -> None:
        self._reader = ResponseReader()
        self._pieces: list[bytes] = []
        self._nbytes = 0
        self._seen_ns = 0

    async def get(self, timeout_s: float) -> Answer:
        """As `pages.get`: never raises for what a server or a network does, and `t_ns` is the answer's first byte."""
        begun_ns = time.monotonic_ns()
        kind, text = "", ""
        try:
            async with asyncio.timeout(timeout_s):
                kind, text = await self._ask()
        except TimeoutError:
            kind, text = "timeout", f"no whole answer within {timeout_s:g} s"
        now_ns = time.monotonic_ns()
        head, took_s = self._reader.head, (now_ns - begun_ns) / 1e9
        status, content_type = (head.status, (head.content_type or "").lower()) if head is not None else (0, "")
        if kind or not self._reader.reusable:
            self.close()
        if kind:
            return Answer(text, kind, status, content_type, b"", self._seen_ns or now_ns, took_s)
        body = b"".join(self._pieces)
        if head is not None and head.content_encoding is not None:
            body = b"".join(piece for _, piece in unpacked([(0, body)], head.content_encoding, MAX_BYTES))
        return Answer(None, "", status, content_type, body, self._seen_ns, took_s)

    async def _ask(self) -> tuple[str, str]:
        """Send the question and wait for the whole answer. Returns how that failed, kind and text; else both empty."""
        while True:
            self._begin()
            again = self._transport is not None
            if self._transport is None:
                try:
                    await asyncio.get_running_loop().create_connection(lambda: self, self._host, self._port)
                except OSError as error:
                    return "refused", words(error)
            assert self._transport is not None
            self._answer = asyncio.get_running_loop().create_future()
            self._transport.write(self._question)
            failure = await self._answer
            if failure is None:
                return "", ""
            if again and not self._seen_ns and isinstance(failure, OSError):
                continue  # it had closed the connection while nobody looked
            return _what(failure, begun=self._reader.head is not None)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()
            self._transport = None

    # What the event loop calls.
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self._answer is None or self._answer.done():
            self.close()  # nobody has asked
            return
        if not self._seen_ns:
            self._seen_ns = time.monotonic_ns()
        piece = self._reader.feed(data)
        self._pieces.append(piece)
        self._nbytes += len(piece)
        if self._reader.complete:
            self._answer.set_result(None)
        elif self._reader.error is not None:
            self._answer.set_result(ValueError("the answer is not HTTP"))
        elif self._nbytes > MAX_BYTES:
            self._answer.set_result(OverflowError(f"more than {MAX_BYTES >> 20} MiB"))

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(None if self._reader.end() else error or ConnectionAbortedError())


def _what(failure: Exception, *, begun: bool) -> tuple[str, str]:
    if isinstance(failure, ValueError):
        return "not-http", str(failure)
    if isinstance(failure, OverflowError):
        return "other", str(failure)
    if begun:
        return "cut", "the connection ended inside the page"
    reset = getattr(failure, "errno", None) == errno.ECONNRESET
    return "not-http", "the connection was reset" if reset else "the connection was closed without an answer"
