"""Which way does a request take to a server: straight, through the environment's HTTP proxy, or over a Unix socket?

One rule for everything that is sent, load and pages alike: HTTP_PROXY, HTTPS_PROXY and NO_PROXY hold, as for other
programs; loopback and Unix sockets are always reached straight.
"""

from __future__ import annotations

import ipaddress
from urllib.parse import quote, unquote, urlsplit, urlunsplit

UNIX = "http+unix"  # the host part is the socket's path, percent-encoded: http+unix://%2Frun%2Fvllm.sock/v1/models


def http_proxy(url: str) -> str | None:
    """The proxy that the environment names for this address."""
    from urllib.request import getproxies, proxy_bypass  # slow to import, and the recorder imports this module

    parts = urlsplit(url)
    host = parts.hostname or ""
    proxy = getproxies().get(parts.scheme)
    if proxy is None or parts.scheme == UNIX or _is_loopback(host) or proxy_bypass(host):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"


def proxy_name(url: str) -> str | None:
    """That proxy without the user information that its address may carry, to be shown."""
    proxy = http_proxy(url)
    if proxy is None:
        return None
    parts = urlsplit(proxy)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], "", "", ""))


def unix_path(url: str) -> str | None:
    """The socket's path of an `http+unix` address."""
    parts = urlsplit(url)
    return unquote(parts.netloc) if parts.scheme == UNIX else None


def unix_url(path: str) -> str:
    """The base URL of a server that listens on a Unix socket."""
    return f"{UNIX}://{quote(path, safe='')}"


def plain_url(url: str) -> str:
    """The address as it is asked for over the connection: that of a Unix socket has no place in a request."""
    parts = urlsplit(url)
    return urlunsplit(("http", "localhost", *parts[2:])) if parts.scheme == UNIX else url


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
