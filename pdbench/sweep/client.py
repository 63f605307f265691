"""One request over the wire: what was sent, and every read with its stamp. Nothing is parsed here.

Stamping, parsing and recording are three files (`client`, `sse`, `recorder`), so that another client can take this
one's place: all that the others know of it is `RawAnswer`.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import resource
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import aiohttp

# An answer longer than this is cut: a server that never ends its body must not eat the memory.
MAX_ANSWER_NBYTES = 256 << 20
_READ_BUFFER_NBYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class Request:
    """One request, ready to be sent: its body was made before it is due."""

    index: int
    request_id: str
    url: str
    headers: Mapping[str, str]
    body: bytes
    prompt_len: int
    output_len: int
    request_class: str = "default"


@dataclass(slots=True)
class RawAnswer:
    """What came back. Times are CLOCK_MONOTONIC ns.

    `sent_ns`: the client began (the connection is opened then); `connected_ns`: the connection stood and the request
    went out on it; `first_byte_ns`: the answer's head was there; `done_ns`: the end, of whatever kind.
    `end`: complete, timeout, cancelled, reset (broken off), too-large, protocol, connect, dns, tls, fd-limit.
    """

    index: int
    request_id: str
    request_class: str
    prompt_len: int
    output_len: int
    intended_ns: int
    sent_ns: int
    connected_ns: int | None = None
    first_byte_ns: int | None = None
    done_ns: int | None = None
    http_status: int | None = None
    content_type: str | None = None
    location: str | None = None
    reads: list[tuple[int, bytes]] = field(default_factory=list)
    end: str = "complete"
    end_text: str = ""
    stamp: str = "user"


def raise_fd_limit() -> None:
    """Let this process open as many sockets as it may: the usual soft limit is 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def open_session() -> aiohttp.ClientSession:
    """A session for one cell: a fresh connection for each request, and no limit that could hold one back.

    On a kept connection a server without TCP_NODELAY waits for our delayed ACK (some 40 ms) before it sends what
    follows the first token; that, and a race with the server closing an idle connection, would be measured as the
    deployment's latency. The cost of connecting is in `connected_ns` instead.
    """
    trace = aiohttp.TraceConfig()
    trace.on_connection_create_end.append(_connected)
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(force_close=True, limit=0, ttl_dns_cache=None),
        timeout=aiohttp.ClientTimeout(total=None, connect=None, sock_connect=None, sock_read=None),
        cookie_jar=aiohttp.DummyCookieJar(),
        trace_configs=[trace],
        read_bufsize=_READ_BUFFER_NBYTES,
        skip_auto_headers=("User-Agent", "Accept-Encoding"),
    )


async def _connected(session: aiohttp.ClientSession, context: SimpleNamespace, params: Any) -> None:
    context.trace_request_ctx.connected_ns = time.monotonic_ns()


async def send(session: aiohttp.ClientSession, request: Request, intended_ns: int, timeout_s: float) -> RawAnswer:
    """Send one request and read its answer to the end. Never raises: what went wrong is in the answer.

    The task that runs this is cancelled only to end the request (`cancelled`), hence the cancellation ends here.
    """
    raw = RawAnswer(
        request.index,
        request.request_id,
        request.request_class,
        request.prompt_len,
        request.output_len,
        intended_ns,
        time.monotonic_ns(),
    )
    try:
        async with asyncio.timeout(timeout_s):
            await _exchange(session, request, raw)
    except TimeoutError:
        raw.end, raw.end_text = "timeout", f"no end of the answer within {timeout_s:g} s"
    except asyncio.CancelledError:
        raw.end, raw.end_text = "cancelled", "the run was interrupted"
    except (aiohttp.ClientError, OSError, ValueError, EOFError) as error:
        raw.end, raw.end_text = _kind(error, raw), _words(error)
    raw.done_ns = time.monotonic_ns()
    return raw


async def _exchange(session: aiohttp.ClientSession, request: Request, raw: RawAnswer) -> None:
    response = await session.post(
        request.url, data=request.body, headers=request.headers, allow_redirects=False, trace_request_ctx=raw
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
    cause = getattr(error, "os_error", error)
    if isinstance(cause, OSError) and cause.errno in (errno.EMFILE, errno.ENFILE):
        return "fd-limit"
    if isinstance(error, aiohttp.ClientConnectorDNSError | socket.gaierror):
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
    if isinstance(cause, OSError) and cause.errno and not isinstance(cause, socket.gaierror):
        return errno.errorcode.get(cause.errno, str(cause.errno)) + f": {cause.strerror}"
    return f"{type(error).__name__}: {error}"
