"""Which client sends? The seam `CLIENTS`, and the choice by what the address and the system allow."""

from __future__ import annotations

import contextlib
import ipaddress
import resource
import select
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from pdbench.sweep.aiohttp_client import open_aiohttp
from pdbench.sweep.client import Client
from pdbench.sweep.socket_client import open_sockets

OpenClient = Callable[[str], AbstractAsyncContextManager[Client]]

CLIENTS: dict[str, OpenClient] = {
    "socket": open_sockets,
    "aiohttp": lambda url: open_aiohttp(url, http_proxy(url)),
}


def open_client(url: str) -> AbstractAsyncContextManager[Client]:
    """The client for this address, for one cell."""
    return CLIENTS[client_name(url)](url)


def client_name(url: str) -> str:
    """Sockets of our own for plain HTTP on Linux, aiohttp for the rest."""
    plain = urlsplit(url).scheme == "http" and http_proxy(url) is None
    return "socket" if plain and hasattr(select, "epoll") else "aiohttp"


def http_proxy(url: str) -> str | None:
    """The proxy that the environment names for this address (HTTP_PROXY, HTTPS_PROXY, NO_PROXY), never for loopback."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    proxy = getproxies().get(parts.scheme)
    if proxy is None or _is_loopback(host) or proxy_bypass(host):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def raise_fd_limit() -> None:
    """Let this process open as many sockets as it may: the usual soft limit is 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
