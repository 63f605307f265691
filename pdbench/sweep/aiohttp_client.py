"""The client for HTTP proxies and for systems without epoll: aiohttp, with stamps taken in user space."""

from __future__ import annotations

import asyncio
import ssl
import time
from array import array
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import aiohttp
import numpy as np

from pdbench.http1 import MAX_HEAD_NBYTES
from pdbench.route import http_proxy, plain_url, unix_path
from pdbench.sweep.client import (
    COUNTS,
    MAX_ANSWER_NBYTES,
    OWN_LIMITS,
    Opening,
    RawAnswer,
    Request,
    answer_to,
    is_dns,
    keep_ns,
    kernel_share,
    os_error_words,
    own_limit,
)
from pdbench.sweep.tls import context, ssl_error_words

_READ_BUFFER_NBYTES = 4 << 20


@asynccontextmanager
async def open_aiohttp(url: str, keeps: bool = False) -> AsyncIterator[AiohttpClient]:
    """A fresh connection for each request, or one that was kept, and no limit that could hold a request back."""
    trace = aiohttp.TraceConfig()
    trace.on_connection_create_end.append(_connected)
    trace.on_connection_reuseconn.append(_reused)
    kept: dict[str, Any] = {"keepalive_timeout": keep_ns(None) / 1e9} if keeps else {"force_close": True}
    path = unix_path(url)
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, ttl_dns_cache=None, ssl=context(), **kept)
        if path is None
        else aiohttp.UnixConnector(path, limit=0, **kept),
        timeout=aiohttp.ClientTimeout(total=None, connect=None, sock_connect=None, sock_read=None),
        cookie_jar=aiohttp.DummyCookieJar(),
        trace_configs=[trace],
        read_bufsize=_READ_BUFFER_NBYTES,
        max_line_size=MAX_HEAD_NBYTES,
        max_field_size=MAX_HEAD_NBYTES,
        auto_decompress=False,
        skip_auto_headers=("User-Agent", "Accept-Encoding"),
    ) as session:
        client = AiohttpClient(session, http_proxy(url))
        try:
            yield client
        finally:
            client.end_all()


async def _connected(session: aiohttp.ClientSession, context: SimpleNamespace, params: Any) -> None:
    context.trace_request_ctx.raw.connected_ns = time.monotonic_ns()


async def _reused(session: aiohttp.ClientSession, context: SimpleNamespace, params: Any) -> None:
    context.trace_request_ctx.reused = True


@dataclass(slots=True)
class _Attempt:
    """What aiohttp's tracing tells of one request."""

    raw: RawAnswer
    reused: bool = False
    again: bool = False

    @property
    def stood(self) -> bool:
        """There was a connection."""
        return self.reused or self.raw.connected_ns is not None


class AiohttpClient:
    """Connects when a request is due: aiohttp opens no connection ahead."""

    lead_ns = 0

    def __init__(self, session: aiohttp.ClientSession, proxy: str | None) -> None:
        self._session, self._proxy = session, proxy
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[RawAnswer]] = set()
        self._connects_ns = array("q")
        self._reads = 0
        self._counts = dict.fromkeys(COUNTS, 0)

    def open(self, request: Request) -> Opening | None:
        return None

    def start(
        self, request: Request, intended_ns: int, timeout_s: float, opening: Opening | None = None
    ) -> asyncio.Future[RawAnswer]:
        raw = answer_to(request, intended_ns, time.monotonic_ns())
        task = self._loop.create_task(self._send(request, raw, timeout_s))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def end_all(self) -> None:
        for task in self._tasks:
            task.cancel()

    def health(self) -> dict[str, Any]:
        connects = self._connects_ns
        return {
            "stamps": (reads := {"kernel": 0, "user": self._reads}),
            "kernel_stamps_share": kernel_share(reads),
            "connect_p50_ms": float(np.percentile(connects, 50)) / 1e6 if connects else None,
            "connect_p99_ms": float(np.percentile(connects, 99)) / 1e6 if connects else None,
            **self._counts,
        }

    async def _send(self, request: Request, raw: RawAnswer, timeout_s: float) -> RawAnswer:
        """The task that runs this is cancelled only to end the request (`cancelled`): the cancellation ends here."""
        attempt = _Attempt(raw)
        try:
            async with asyncio.timeout(timeout_s):
                response = await self._ask(request, attempt)
                _end_with_the_connection(response)
                try:
                    await self._read(response, raw)
                finally:
                    self._leave(response)
        except TimeoutError:
            raw.end, raw.end_text = "timeout", f"no end of the answer within {timeout_s:g} s"
        except asyncio.CancelledError:
            raw.end, raw.end_text = "cancelled", "the run was interrupted"
        except (aiohttp.ClientError, aiohttp.http.HttpProcessingError, OSError, ValueError, EOFError) as error:
            raw.end, raw.end_text = _kind(error, attempt), _words(error)
        raw.done_ns = time.monotonic_ns()
        self._reads += len(raw.reads)
        if raw.end in OWN_LIMITS:
            self._counts[OWN_LIMITS[raw.end]] += 1
        if raw.connected_ns is not None:
            raw.opened_ns = raw.sent_ns
            self._connects_ns.append(raw.connected_ns - raw.sent_ns)
        return raw

    async def _ask(self, request: Request, attempt: _Attempt) -> aiohttp.ClientResponse:
        """Send, and wait for the answer's head. A kept connection that the server closed in the same moment is no
        answer: that is asked once more."""
        while True:
            try:
                response = await self._session.post(
                    plain_url(request.url),
                    data=request.body,
                    headers=request.headers,
                    allow_redirects=False,
                    trace_request_ctx=attempt,
                    proxy=self._proxy,
                )
            except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError):
                if not attempt.reused or attempt.again:
                    raise
                attempt.again, attempt.reused = True, False
                self._counts["resets_retried"] += 1
                continue
            attempt.raw.first_byte_ns = time.monotonic_ns()
            self._counts["connections_reused" if attempt.reused else "connections_opened"] += 1
            return response

    async def _read(self, response: aiohttp.ClientResponse, raw: RawAnswer) -> None:
        raw.http_status = response.status
        raw.content_type = response.headers.get("Content-Type")
        raw.content_encoding = response.headers.get("Content-Encoding")
        raw.location = response.headers.get("Location")
        read, reads, now, nbytes = response.content.readany, raw.reads, time.monotonic_ns, 0
        while data := await read():
            reads.append((now(), data))
            nbytes += len(data)
            if nbytes > MAX_ANSWER_NBYTES:
                raw.end, raw.end_text = "too-large", f"the answer is longer than {MAX_ANSWER_NBYTES >> 20} MiB"
                return

    def _leave(self, response: aiohttp.ClientResponse) -> None:
        """Closes at once and waits for nobody: a server that hangs cannot hold up the end of the cell."""
        if response.content.at_eof():
            response.release()  # back to those that are kept, if any are
        else:
            response.close()


def _end_with_the_connection(response: aiohttp.ClientResponse) -> None:
    """Where its parser refuses a body, aiohttp closes the connection, but whoever waits for the body waits on."""
    content, protocol = response.content, response.connection and response.connection.protocol
    closed: asyncio.Future[None] | None = getattr(protocol, "closed", None)
    if closed is None or content.is_eof():
        return

    def on_close(_: asyncio.Future[None]) -> None:
        if not content.is_eof() and content.exception() is None:
            content.set_exception(aiohttp.http.HttpProcessingError(message="the body is no HTTP/1.1"))

    closed.add_done_callback(on_close)


def _kind(error: Exception, attempt: _Attempt) -> str:
    """The short code for what ended a request."""
    if (limit := own_limit(getattr(error, "os_error", error))) is not None:
        return limit
    if isinstance(error, aiohttp.ClientConnectorDNSError) or is_dns(error):
        return "dns"
    if isinstance(error, aiohttp.ClientSSLError):
        return "tls"
    if isinstance(error, aiohttp.ClientConnectorError):
        return "connect"
    if isinstance(error, aiohttp.ClientResponseError | aiohttp.http.HttpProcessingError):
        return "protocol"
    if isinstance(error, aiohttp.ClientConnectionError | aiohttp.ClientPayloadError | OSError):
        return "reset" if attempt.stood else "connect"
    return "protocol"


def _words(error: Exception) -> str:
    cause = error.__cause__ or getattr(error, "certificate_error", None)
    if isinstance(cause, ssl.SSLError):
        return ssl_error_words(cause)
    cause = getattr(error, "os_error", None) or error
    if isinstance(cause, OSError) and cause.errno and not is_dns(cause):
        return os_error_words(cause)
    return f"{type(error).__name__}: {error}"
