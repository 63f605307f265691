"""The drive that does what a proxy does: hop 1 to prefill, hop 2 to decode, on one clock.

Pull: prefill makes one token and answers with `kv_transfer_params`, which go into the request to decode, byte for byte
as they came. Push: both are asked at once; decode is told which prefill will write to it. SGLang: both are asked at
once with the place where they find each other. Whichever it is, the answer is decode's, with the stamps of both hops.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlsplit

from pdbench.deployment import Deployment, Server, flags_for
from pdbench.errors import Unreachable, UsageError
from pdbench.sweep.client import Client, Opening, RawAnswer, Request
from pdbench.sweep.clients import open_client
from pdbench.sweep.rows import clean
from pdbench.sweep.sse import error_text

SGLANG_BOOTSTRAP_PORT = 8998
COORDINATES = ("remote_engine_id", "remote_host", "remote_port", "tp_size", "pp_size")
_SCOUT_S = 60.0
_QUOTED_NBYTES = 4096
_KEY = b'"kv_transfer_params":'
_IDS = b'"prompt_token_ids":'
_DECODER = json.JSONDecoder()


@dataclass(frozen=True, slots=True)
class Handoff:
    """How the two hops know of each other. `places`: what decode is told of each prefill server, by its URL."""

    at_once: bool
    places: Mapping[str, Mapping[str, Any]]


@asynccontextmanager
async def open_hops(deployment: Deployment, connections: str = "fresh") -> AsyncIterator[Client]:
    """A client for every prefill and decode server. Raises UsageError when either side is missing."""
    prefills, decodes = both_sides(deployment)
    async with AsyncExitStack() as stack:
        clients = {
            one.url: await stack.enter_async_context(open_client(one.url, connections)) for one in (*prefills, *decodes)
        }
        yield Hops(Several(clients), await _handoff(deployment, clients))


@asynccontextmanager
async def open_each(servers: Sequence[Server], connections: str) -> AsyncIterator[Several]:
    """A client for several servers: each request goes to the one that its URL names."""
    async with AsyncExitStack() as stack:
        clients = {one.url: await stack.enter_async_context(open_client(one.url, connections)) for one in servers}
        yield Several(clients)


def both_sides(deployment: Deployment) -> tuple[tuple[Server, ...], tuple[Server, ...]]:
    """Prefill and decode servers. Raises UsageError when there are none of either."""
    for role in ("prefill", "decode"):
        if not deployment.of(role):
            raise UsageError(
                f"--drive two-hop needs the {role} servers.", f"Give {flags_for([role], deployment.target)}."
            )
    return deployment.of("prefill"), deployment.of("decode")


async def _handoff(deployment: Deployment, clients: Mapping[str, Client]) -> Handoff:
    if deployment.engine == "sglang":
        return Handoff(True, {one.url: {} for one in deployment.of("prefill")})
    if deployment.mode != "push":
        return Handoff(False, {})
    places = {}
    for server in deployment.of("prefill"):
        params = await _scouted(deployment, clients[server.url], server.url)
        places[server.url] = {name: params.get(name) for name in COORDINATES if params.get(name) is not None}
    return Handoff(True, places)


async def _scouted(deployment: Deployment, client: Client, url: str) -> Mapping[str, Any]:
    """What a prefill server says of itself in answer to a tiny request: push must know it beforehand."""
    body = {"model": deployment.model, "prompt": [300 + secrets.randbelow(2000) for _ in range(4)], "max_tokens": 1}
    body |= PREFILL_FIELDS
    path = f"{url}/v1/completions"
    headers = {"Content-Type": "application/json", **deployment.credentials.headers(path)}
    request_id = f"scout-{secrets.token_hex(8)}"
    request = Request(0, request_id, path, {**headers, "X-Request-Id": request_id}, json.dumps(body).encode(), 4, 1)
    raw = await client.start(request, time.monotonic_ns(), _SCOUT_S)
    found = _params(_text(raw))
    if raw.http_status != 200 or found is None:
        why = raw.end_text or (without_params(_text(raw)) if raw.http_status == 200 else f"HTTP {raw.http_status}")
        raise Unreachable(
            f"prefill {url} does not say how decode can be written to ({clean(why, deployment.credentials)}).",
            "Push needs NixlPushConnector on prefill, with kv_transfer_params in its answers.",
        )
    params: Mapping[str, Any] = json.loads(found)
    return params


# What turns a client's request into the one for prefill: one token, no stream, and the KV kept for decode.
PREFILL_FIELDS: Mapping[str, Any] = {
    "stream": False,
    "temperature": 0,
    "kv_transfer_params": {
        "do_remote_decode": True,
        "do_remote_prefill": False,
        "remote_engine_id": None,
        "remote_block_ids": None,
        "remote_host": None,
        "remote_port": None,
    },
}


@dataclass(frozen=True, slots=True)
class Openings:
    """Connections opened ahead, and the request of the second one."""

    first: Opening | None = None
    request: Request | None = None
    second: Opening | None = None

    async def settled(self, patience_s: float) -> None:
        await asyncio.gather(*(one.settled(patience_s) for one in (self.first, self.second) if one is not None))


class Several:
    """One client for each server."""

    def __init__(self, clients: Mapping[str, Client]) -> None:
        self._clients = clients
        self._by_url: dict[str, Client] = {}

    @property
    def lead_ns(self) -> int:
        return max(client.lead_ns for client in self._clients.values())

    def open(self, request: Request) -> Opening | None:
        return self.of(request).open(request)

    def start(
        self, request: Request, intended_ns: int, timeout_s: float, opening: Opening | None = None
    ) -> asyncio.Future[RawAnswer]:
        return self.of(request).start(request, intended_ns, timeout_s, opening)

    def of(self, request: Request) -> Client:
        """The client of the server that a request's URL begins with."""
        found = self._by_url.get(request.url)
        if found is None:
            base = max((url for url in self._clients if request.url.startswith(f"{url}/")), key=len)
            found = self._by_url[request.url] = self._clients[base]
        return found

    def end_all(self) -> None:
        for client in self._clients.values():
            client.end_all()

    def health(self) -> dict[str, Any]:
        """Of all clients together: counts added, times the worst."""
        found: dict[str, Any] = {}
        for health in (client.health() for client in self._clients.values()):
            for name, value in health.items():
                old = found.get(name)
                if isinstance(value, dict):
                    found[name] = {k: (old or {}).get(k, 0) + v for k, v in value.items()}
                elif value is not None:
                    found[name] = value if old is None else max(old, value)
                else:
                    found.setdefault(name, None)
        return found


class Hops:
    """Requests whose `first` goes to prefill and themselves to decode. One for a cell."""

    def __init__(self, servers: Several, handoff: Handoff) -> None:
        self._servers, self._handoff = servers, handoff
        self._loop = asyncio.get_running_loop()

    @property
    def lead_ns(self) -> int:
        return self._servers.lead_ns

    def open(self, request: Request) -> Opening:
        """Of pull only hop 1: nobody knows yet how long the request to decode will be."""
        first = _first(request)
        second = self._introduced(request) if self._handoff.at_once else None
        return Openings(
            self._servers.of(first).open(first),
            second,
            None if second is None else self._servers.of(second).open(second),
        )

    def start(
        self, request: Request, intended_ns: int, timeout_s: float, opening: Opening | None = None
    ) -> asyncio.Future[RawAnswer]:
        first = _first(request)
        answer: asyncio.Future[RawAnswer] = self._loop.create_future()
        ahead = opening if isinstance(opening, Openings) else Openings()
        leg = self._servers.of(first).start(first, intended_ns, timeout_s, ahead.first)
        if not self._handoff.at_once:
            late_s = self._loop.time() + timeout_s
            leg.add_done_callback(lambda done: self._hand_over(done, request, late_s, answer))
            return answer
        introduced = ahead.request or self._introduced(request)
        second = self._servers.of(introduced).start(introduced, intended_ns, timeout_s, ahead.second)
        leg.add_done_callback(lambda done: _fail_with(done, answer))
        second.add_done_callback(lambda done: _join(leg, done, answer))
        return answer

    def _hand_over(
        self, leg: asyncio.Future[RawAnswer], request: Request, late_s: float, answer: asyncio.Future[RawAnswer]
    ) -> None:
        """Prefill has answered: pass its parameters on, or its failure back."""
        if _fail_with(leg, answer) or answer.done():
            return
        text = _text(leg.result())
        params = _params(text)
        if params is None:
            raw = leg.result()
            raw.http_status, raw.end, raw.end_text = None, "protocol", without_params(text)
            answer.set_result(raw)
            return
        if request.pass_token_ids and (ids := _value_of(_IDS, text)) is not None:
            params = params[:-1] + b',"prompt_token_ids":' + ids + b"}"
        second = replace(request, body=request.body[:-1] + b"," + _KEY + params + b"}")
        patience_s = max(0.001, late_s - self._loop.time())
        sent = self._servers.of(second).start(second, time.monotonic_ns(), patience_s)
        sent.add_done_callback(lambda done: _join(leg, done, answer))

    def _introduced(self, request: Request) -> Request:
        """The request to decode where both hops are under way at once; SGLang's fields are in both bodies already."""
        place = self._handoff.places.get(_base(_first(request).url))
        if not place:
            return request
        kind = "chatcmpl-{}" if "/chat/" in request.url else "cmpl-{}-0"
        params = {"do_remote_prefill": True, "do_remote_decode": False, **place}
        params["remote_request_id"] = kind.format(request.request_id)
        return replace(request, body=request.body[:-1] + b"," + _KEY + json.dumps(params).encode() + b"}")

    def end_all(self) -> None:
        self._servers.end_all()

    def health(self) -> dict[str, Any]:
        return self._servers.health()


def _first(request: Request) -> Request:
    assert request.first is not None, "this drive sends requests in two hops"
    return request.first


def _base(url: str) -> str:
    """The server's URL, as the deployment has it, of a request's."""
    return url[: url.index("/v1/")]


def _fail_with(leg: asyncio.Future[RawAnswer], answer: asyncio.Future[RawAnswer]) -> bool:
    """Whether prefill's leg failed; then it is the answer: whoever reads it must see why decode had nothing to do."""
    if leg.cancelled() or leg.exception() is not None:
        _copy(leg, answer)
        return True
    raw = leg.result()
    if raw.http_status == 200 and raw.end == "complete":
        return False
    if not answer.done():
        raw.end_text = f"prefill: {raw.end_text}" if raw.end_text else "prefill failed"
        answer.set_result(raw)
    return True


def _join(leg: asyncio.Future[RawAnswer], done: asyncio.Future[RawAnswer], answer: asyncio.Future[RawAnswer]) -> None:
    """Decode's answer, timed from the send of hop 1, with the stamps of both hops."""
    if answer.done():
        return
    if done.cancelled() or done.exception() is not None:
        _copy(done, answer)
        return
    raw = done.result()
    first = leg.result() if leg.done() and not leg.cancelled() and leg.exception() is None else None
    decode_sent_ns = max(raw.sent_ns, raw.connected_ns or 0)
    raw.hops = {"decode_sent_s": decode_sent_ns}
    if first is not None:
        raw.hops |= {"prefill_sent_s": first.sent_ns}
        if first.done_ns is not None:
            raw.hops["prefill_done_s"] = first.done_ns
        raw.intended_ns, raw.sent_ns = first.intended_ns, first.sent_ns
        raw.opened_ns, raw.connected_ns = first.opened_ns, first.connected_ns
    answer.set_result(raw)


def _copy(done: asyncio.Future[RawAnswer], answer: asyncio.Future[RawAnswer]) -> None:
    if answer.done():
        return
    if done.cancelled():
        answer.cancel()
    elif (error := done.exception()) is not None:
        answer.set_exception(error)


def _text(raw: RawAnswer) -> bytes:
    return b"".join(data for _, data in raw.reads)


def _params(text: bytes) -> bytes | None:
    """The JSON object after "kv_transfer_params", as it came; None where there is none."""
    found = _value_of(_KEY, text)
    return found if found is not None and found.startswith(b"{") else None


def without_params(text: bytes) -> str:
    """Why an answer of prefill with status 200 has no kv_transfer_params: its own error, or what it is instead.

    Foreign text, at most so much of it: whoever prints it cleans it (`rows.clean`), which needs whole credentials.
    """
    said = text[:_QUOTED_NBYTES].decode("utf-8", "replace").strip()
    try:
        message = json.loads(text)
    except (ValueError, RecursionError):
        return f"prefill answered with something that is not JSON: {said}" if said else "prefill's answer is empty"
    if (problem := error_text(message)) is not None:
        return f"prefill: {problem[:_QUOTED_NBYTES]}"
    if not isinstance(message, dict) or "choices" not in message:
        return f"prefill answered without choices and kv_transfer_params: {said}"
    return "prefill answered without kv_transfer_params: it has no KV connector"


def _value_of(key: bytes, text: bytes) -> bytes | None:
    """The JSON value after a key. Inside a string the key's quotes are escaped, so it is not found there."""
    place = text.find(key)
    if place < 0:
        return None
    try:
        rest = text[place + len(key) :].decode()
        start = len(rest) - len(rest.lstrip())
        _, end = _DECODER.raw_decode(rest, start)
    except (ValueError, RecursionError):
        return None
    return rest[start:end].encode()


def meeting_place(server: Server) -> tuple[str, int]:
    """Where SGLang's decode finds its prefill: the host of its URL, and the port that it tells, else the default."""
    host = urlsplit(server.url).hostname or "127.0.0.1"
    port = server.facts.bootstrap_port if server.facts is not None else None
    return f"[{host}]" if ":" in host else host, port or SGLANG_BOOTSTRAP_PORT
