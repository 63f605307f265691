"""Which client sends? The seam `CLIENTS`, and the choice by what the address and the system allow."""

from __future__ import annotations

import contextlib
import resource
import select
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from pdbench.route import http_proxy
from pdbench.sweep.aiohttp_client import open_aiohttp
from pdbench.sweep.client import Client
from pdbench.sweep.socket_client import open_sockets

# (URL, keep connections) -> the client for one cell
OpenClient = Callable[[str, bool], AbstractAsyncContextManager[Client]]

CLIENTS: dict[str, OpenClient] = {"socket": open_sockets, "aiohttp": open_aiohttp}


def open_client(url: str, connections: str = "fresh") -> AbstractAsyncContextManager[Client]:
    """The client for this address, for one cell; `connections` is `fresh` or `pool`."""
    return CLIENTS[client_name(url)](url, connections == "pool")


def client_name(url: str) -> str:
    """Sockets of our own on Linux, aiohttp through HTTP proxies and on other systems."""
    return "socket" if hasattr(select, "epoll") and http_proxy(url) is None else "aiohttp"


def raise_fd_limit() -> None:
    """Let this process open as many sockets as it may: the usual soft limit is 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
