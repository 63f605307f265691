"""The client for TLS, for HTTP proxies and for systems without epoll: aiohttp, with stamps taken in user space."""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import aiohttp
import numpy as np

from pdbench.sweep.client import (
    MAX_ANSWER_NBYTES,
    Opening,
    RawAnswer,
    Request,
    answer_to,
    is_dns,
    os_error_words,
    out_of_files,
)

_READ_BUFFER_NBYTES = 4 << 20


@asynccontextmanager
async def open_aiohttp(url: str, proxy: str | None = None) -> AsyncIterator[AiohttpClient]:
    """A fresh connection for each request, and no limit that could hold one back."""
    trace = aiohttp.TraceConfig()
    trace.on_connection_create_end.append(_connected)
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(force_close=True, limit=0, ttl_dns_cache=None),
        timeout=aiohttp.ClientTimeout(total=None, connect=None, sock_connect=None, sock_read=None),
        cookie_jar=aiohttp.DummyCookieJar(),
        trace_configs=[trace],
        read_bufsize=_READ_BUFFER_NBYTES,
        skip_auto_headers=("User-Agent", "Accept-Encoding"),
    ) as session:
        client = AiohttpClient(session, proxy)
        try:
            yield client
        finally:
            client.end_all()


async def _connected(session: aiohttp.ClientSession, context: SimpleNamespace, params: Any) -> None:
    context.trace_request_ctx.connected_ns = time.monotonic_ns()


class AiohttpClient:
    """Connects when a request is due: aiohttp opens no connection ahead."""

    lead_ns = 0

    def __init__(self, session: aiohttp.ClientSession, proxy: str | None) -> None:
        self._session, self._proxy = session, proxy
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[RawAnswer]] = set()
        self._connects_ns = array("q")
        self._reads = 0

    def open(self, request: Request) -> Opening | None:
        return None

    def start(
        self, request: Request, intended_ns: int, timeout_s: float, opening: Opening | None = None
    ) -> asyncio.Future[RawAnswer]:
        raw = answer_to(request, intended_ns, time.monotonic_ns())
        raw.opened_ns = raw.sent_ns
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
            "stamps": {"kernel": 0, "user": self._reads},
            "connect_p50_ms": float(np.percentile(connects, 50)) / 1e6 if connects else None,
            "connect_p99_ms": float(np.percentile(connects, 99)) / 1e6 if connects else None,
        }

    async def _send(self, request: Request, raw: RawAnswer, timeout_s: float) -> RawAnswer:
        """The task that runs this is cancelled only to end the request (`cancelled`): the cancellation ends here."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._exchange(request, raw)
        except TimeoutError:
            raw.end, raw.end_text = "timeout", f"no end of the answer within {timeout_s:g} s"
        except asyncio.CancelledError:
            raw.end, raw.end_text = "cancelled", "the run was interrupted"
        except (aiohttp.ClientError, OSError, ValueError, EOFError) as error:
            raw.end, raw.end_text = _kind(error, raw), _words(error)
        raw.done_ns = time.monotonic_ns()
        self._reads += len(raw.reads)
        if raw.connected_ns is not None:
            self._connects_ns.append(raw.connected_ns - raw.sent_ns)
        return raw

    async def _exchange(self, request: Request, raw: RawAnswer) -> None:
        response = await self._session.post(
            request.url,
            data=request.body,
            headers=request.headers,
            allow_redirects=False,
            trace_request_ctx=raw,
            proxy=self._proxy,
        )
        raw.first_byte_ns = time.monotonic_ns()
        try:
            raw.http_status = response.status
            raw.content_type = response.headers.get("Content-Type")
            raw.location = response.headers.get("Location")
            read, reads, now, nbytes = response.content.readany, raw.reads, time.monotonic_ns, 0
            while data := await read():
                reads.append((now(), data))
                nbytes += len(data)
                if nbytes > MAX_ANSWER_NBYTES:
                    raw.end, raw.end_text = "too-large", f"the answer is longer than {MAX_ANSWER_NBYTES >> 20} MiB"
                    return
        finally:
            # Closes at once and waits for nobody: a server that hangs cannot hold up the end of the cell.
            response.close()


def _kind(error: Exception, raw: RawAnswer) -> str:
    """The short code for what ended a request."""
    if out_of_files(getattr(error, "os_error", error)):
        return "fd-limit"
    if isinstance(error, aiohttp.ClientConnectorDNSError) or is_dns(error):
        return "dns"
    if isinstance(error, aiohttp.ClientSSLError):
        return "tls"
    if isinstance(error, aiohttp.ClientConnectorError):
        return "connect"
    if isinstance(error, aiohttp.ClientResponseError | aiohttp.http.HttpProcessingError):
        return "protocol"
    if isinstance(error, aiohttp.ClientConnectionError | aiohttp.ClientPayloadError | OSError):
        return "connect" if raw.connected_ns is None else "reset"
    return "protocol"


def _words(error: Exception) -> str:
    cause = getattr(error, "os_error", None) or error
    if isinstance(cause, OSError) and cause.errno and not is_dns(cause):
        return os_error_words(cause)
    return f"{type(error).__name__}: {error}"
