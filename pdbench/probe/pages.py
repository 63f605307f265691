"""Fetching one page from a server: a deadline, a size limit, no redirects, and the way that load takes too.

Used by discovery and by the sampler. What goes wrong is a value, not an exception: a page that is missing is ordinary.
"""

from __future__ import annotations

import asyncio
import errno
import os
import ssl
import time
from dataclasses import dataclass

import aiohttp

from pdbench.route import http_proxy, plain_url, unix_path

MAX_BYTES = 64 * 2**20
HEADERS = {
    "Accept": "text/plain;version=0.0.4, application/json;q=0.9, */*;q=0.1",
    "Accept-Encoding": "identity",  # compressing a page costs the server the CPU that is being measured
    "User-Agent": "pdbench",
}


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back. `failure` is None when the page came whole; else how it failed, in few words."""

    failure: str | None
    kind: str = ""  # of the failure: refused, tls, timeout, not-http, cut, other
    status: int = 0
    content_type: str = ""
    body: bytes = b""
    t_ns: int = 0  # CLOCK_MONOTONIC; see `get`
    took_s: float = 0.0

    @property
    def ok(self) -> bool:
        return self.failure is None and self.status == 200

    @property
    def answered(self) -> bool:
        """Something took the connection and spoke HTTP, whatever it said."""
        return self.status != 0

    @property
    def html(self) -> bool:
        return "html" in self.content_type or self.body[:200].lstrip().lower().startswith((b"<!doctype html", b"<html"))


def session() -> aiohttp.ClientSession:
    """A client for pages. Certificates are verified; what HTTP_PROXY and its like mean is for `route` to say."""
    return _session(aiohttp.TCPConnector(limit=0, limit_per_host=0))


def _session(connector: aiohttp.BaseConnector) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(connector=connector, headers=HEADERS, trust_env=False, auto_decompress=True)


async def get(client: aiohttp.ClientSession, url: str, headers: dict[str, str], timeout_s: float) -> Answer:
    """GET a page whole. Never raises for what a server or a network does.

    `t_ns` is when the first bytes of the answer were there: a server renders its page on its own loop just before it
    sends it, so this is the moment nearest to the values on it, nearer than the middle between asking and having all.
    """
    if (path := unix_path(url)) is not None:
        async with _session(aiohttp.UnixConnector(path)) as local:
            return await _get(local, plain_url(url), headers, timeout_s)
    return await _get(client, url, headers, timeout_s, http_proxy(url))


async def _get(
    client: aiohttp.ClientSession, url: str, headers: dict[str, str], timeout_s: float, proxy: str | None = None
) -> Answer:
    begun = time.monotonic_ns()
    seen, status, content_type = begun, 0, ""
    # A little sooner than the whole, so that a host that is not there differs from a server that does not answer.
    connecting = aiohttp.ClientTimeout(total=None, sock_connect=0.8 * timeout_s)

    def failed(kind: str, text: str) -> Answer:
        now = time.monotonic_ns()
        return Answer(text, kind, status, content_type, b"", seen if status else now, (now - begun) / 1e9)

    try:
        async with (
            asyncio.timeout(timeout_s),
            client.get(url, headers=headers, allow_redirects=False, timeout=connecting, proxy=proxy) as response,
        ):
            seen, status = time.monotonic_ns(), response.status
            content_type = response.headers.get("Content-Type", "").lower()
            body = bytearray()
            async for piece in response.content.iter_any():
                body += piece
                if len(body) > MAX_BYTES:
                    return failed("other", f"more than {MAX_BYTES >> 20} MiB")
            took_s = (time.monotonic_ns() - begun) / 1e9
            return Answer(None, "", status, content_type, bytes(body), seen, took_s)
    except aiohttp.ConnectionTimeoutError:
        return failed("refused", f"no connection within {0.8 * timeout_s:g} s")
    except TimeoutError:
        return failed("timeout", f"no whole answer within {timeout_s:g} s")
    except (aiohttp.ClientSSLError, ssl.SSLError) as error:
        return failed("tls", f"TLS failed: {words(error)}")
    except aiohttp.ClientPayloadError:
        return failed("cut", "the connection ended inside the page")
    except aiohttp.ServerDisconnectedError:
        return failed("not-http", "the connection was closed without an answer")
    except (aiohttp.ClientResponseError, aiohttp.http_exceptions.HttpProcessingError):
        return failed("not-http", "the answer is not HTTP")
    except (aiohttp.ClientError, OSError, ValueError) as error:
        if getattr(error, "errno", None) == errno.ECONNRESET:  # someone took the connection and wants no HTTP on it
            return failed("not-http", "the connection was reset")
        if isinstance(error, aiohttp.ClientConnectorError):
            return failed("refused", words(error.os_error))
        return failed("other", words(error))


def words(error: BaseException) -> str:
    """The system's own words for its error numbers; a resolver's (negative ones) bring their text."""
    number = getattr(error, "errno", None)
    if isinstance(number, int) and number > 0 and not isinstance(error, ssl.SSLError):
        return os.strerror(number)
    return clean(getattr(error, "strerror", None) or str(error) or type(error).__name__, 120)


def clean(text: str, limit: int = 200) -> str:
    """Foreign text fit for a message: one line, no control characters, not long."""
    line = "".join(c if c.isprintable() else " " for c in text)
    line = " ".join(line.split())
    return line if len(line) <= limit else line[: limit - 3] + "..."
