"""Does a server hold small writes back until the last one is acknowledged (no TCP_NODELAY)?

On a connection that is used again, a client's system acknowledges small segments some 40 ms late; such a server then
keeps the first token that long, and bunches those that follow. Our requests acknowledge at once, so no figure shows it;
users whose clients keep connections wait nevertheless. The test: the same small request over one connection, once with
late acknowledgements and once without.
"""

from __future__ import annotations

import time
from dataclasses import replace

from pdbench.deployment import Deployment
from pdbench.route import http_proxy, unix_path
from pdbench.sweep.client import Client, RawAnswer, Request
from pdbench.sweep.clients import client_name
from pdbench.sweep.socket_client import SocketClient, open_sockets

_HELD_MS = (36.0, 60.0)  # Linux acknowledges after 40 ms at least, by a timer of up to 4 ms more
_CLEARLY_MS = 8.0  # how much sooner the same must come when we acknowledge at once
_AGREE, _TRIES = 2, 4
_TIMEOUT_S = 30.0


async def holds_back(deployment: Deployment, request: Request) -> str | None:
    """A sentence when the entry of the deployment is such a server. `request` is a small one that it has answered."""
    url = request.url
    if client_name(url) != "socket" or http_proxy(url) is not None or unix_path(url) is not None:
        return None
    async with open_sockets(url, True) as client:
        if await _ask(client, request, 0) is None:
            return None
        held: list[float] = []
        for turn in range(_TRIES):
            client.quick_acks = False
            late = await _ask(client, request, 2 * turn + 1)
            client.quick_acks = True
            if late is None or late < _HELD_MS[0]:
                return None  # a busy host may add to a wait, never take from it
            soon = await _ask(client, request, 2 * turn + 2)
            if soon is not None and late <= _HELD_MS[1] and late - soon >= _CLEARLY_MS:
                held.append(late - soon)
            if len(held) == _AGREE:
                return _sentence(deployment.entry.url, sum(held) / len(held))
    return None


def _sentence(url: str, held_ms: float) -> str:
    return (
        f"{url} holds small writes back until the last one is acknowledged (no TCP_NODELAY): clients that keep their"
        f" connections wait {held_ms:.0f} ms longer for a quick first token."
        " This run acknowledges at once and does not show it"
    )


async def _ask(client: SocketClient, request: Request, turn: int) -> float | None:
    """From the answer's head to its first piece in ms; None where there is no such thing."""
    sent: Client = client
    again = replace(request, request_id=f"{request.request_id}-ack{turn}")
    again = replace(again, headers={**request.headers, "X-Request-Id": again.request_id})
    raw: RawAnswer = await sent.start(again, time.monotonic_ns(), _TIMEOUT_S)
    if raw.end != "complete" or raw.first_byte_ns is None or not raw.reads:
        return None
    return (raw.reads[0][0] - raw.first_byte_ns) / 1e6
