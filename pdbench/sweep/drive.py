"""What is asked, of whom, by which client? The body and headers of each request: the seams `DRIVES` and `OPENS`."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

from pdbench.deployment import Deployment, Server
from pdbench.sweep.client import Client, Request
from pdbench.sweep.clients import open_client
from pdbench.sweep.hops import PREFILL_FIELDS, both_sides, meeting_place, open_each, open_hops
from pdbench.sweep.plan import Plan
from pdbench.sweep.render import open_four_hops, open_rendering, renderers
from pdbench.sweep.schedule import Ask

MakeRequest = Callable[[int], Request]
AskRequest = Callable[[int, Ask, bytes], Request]  # its index, what it asks for, the JSON of its prompt or messages
Drive = Callable[[Deployment, Plan, str], AskRequest]
OpenDrive = Callable[[Deployment, str], AbstractAsyncContextManager[Client]]  # the policy of connections

SIDECAR_HEADER = "x-prefiller-host-port"  # of llm-d's P/D sidecar
_PATHS = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}


def through_proxy(deployment: Deployment, plan: Plan, id_prefix: str) -> AskRequest:
    """Requests to the deployment's entry, the way its clients ask."""
    return _asking(deployment, plan, id_prefix, deployment.entry.url)


def two_hop(deployment: Deployment, plan: Plan, id_prefix: str) -> AskRequest:
    """Requests to decode, each with the one to prefill that goes before it. Servers take turns: each pair meets."""
    prefills, decodes = both_sides(deployment)
    ask_decode = [_asking(deployment, plan, id_prefix, server.url) for server in decodes]
    ask_prefill = [_asking(deployment, plan, id_prefix, server.url, PREFILL_FIELDS) for server in prefills]
    sglang = deployment.engine == "sglang"
    chat = plan.endpoint == "chat" and plan.pass_token_ids

    def request(index: int, ask: Ask, prompt: bytes) -> Request:
        place = index % len(prefills)
        first = ask_prefill[place](index, ask, prompt)
        second = ask_decode[index // len(prefills) % len(decodes)](index, ask, prompt)
        if sglang:
            meeting = _sglang_meeting(prefills[place], first.request_id)
            first, second = _with(second, meeting, url=first.url), _with(second, meeting)
        elif chat:
            first = _with(first, b',"return_token_ids":true')
        return _with(second, b"", first=first, pass_token_ids=chat)

    return request


def through_sidecar(deployment: Deployment, plan: Plan, id_prefix: str) -> AskRequest:
    """llm-d: requests to decode's sidecar, with the header that names the prefill server to ask first."""
    prefills, decodes = both_sides(deployment)
    ask = [_asking(deployment, plan, id_prefix, server.url) for server in decodes]

    def request(index: int, asked: Ask, prompt: bytes) -> Request:
        made = ask[index // len(prefills) % len(decodes)](index, asked, prompt)
        chosen = _host_port(prefills[index % len(prefills)].url)
        return replace(made, headers={**made.headers, SIDECAR_HEADER: chosen})

    return request


def _host_port(url: str) -> str:
    """HOST:PORT of a URL, also where it leaves the port out."""
    parts = urlsplit(url)
    return parts.netloc if parts.port is not None else f"{parts.netloc}:{443 if parts.scheme == 'https' else 80}"


def rendered(deployment: Deployment, plan: Plan, id_prefix: str) -> AskRequest:
    """Requests to the render tier, which turns them into token ids; whatever comes after is the client's to do."""
    ask = [_asking(deployment, plan, id_prefix, server.url, path="/render") for server in renderers(deployment)]
    return lambda index, asked, prompt: ask[index % len(ask)](index, asked, prompt)


def rendered_alone(deployment: Deployment, plan: Plan, id_prefix: str) -> AskRequest:
    """The same where nothing comes after: one answer is all that is expected, however many tokens are asked for."""
    ask = rendered(deployment, plan, id_prefix)
    return lambda index, asked, prompt: replace(ask(index, asked, prompt), output_len=1)


def _sglang_meeting(prefill: Server, request_id: str) -> bytes:
    """SGLang's prefill and decode find each other by a room number."""
    host, port = meeting_place(prefill)
    room = zlib.crc32(request_id.encode()) << 16 | zlib.adler32(request_id.encode()) & 0xFFFF
    fields = {"bootstrap_host": host, "bootstrap_port": port, "bootstrap_room": room}
    return b"," + json.dumps(fields).encode()[1:-1]


def _with(request: Request, more: bytes, **fields: Any) -> Request:
    return replace(request, body=request.body[:-1] + more + b"}", **fields)


def _asking(
    deployment: Deployment, plan: Plan, id_prefix: str, base: str, instead: Any = None, path: str = ""
) -> AskRequest:
    """Requests to one server; `instead` are fields that take the place of the client's own."""
    url = base + _PATHS[plan.endpoint] + path
    headers = {
        "Content-Type": "application/json",
        "Accept": "text/event-stream",
        "Accept-Encoding": "identity",  # a compressor may hold events back
        **deployment.credentials.headers(url),
    }
    fields: dict[str, Any] = {
        "model": deployment.model,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if plan.ignore_eos:
        fields["ignore_eos"] = True
    if deployment.engine == "dynamo":
        fields["nvext"] = {"extra_fields": ["timing", "worker_id"]}
    if instead:
        fields = {name: value for name, value in fields.items() if name != "stream_options"} | dict(instead)
        headers["Accept"] = "application/json"
    chat = plan.endpoint == "chat"
    head = json.dumps(fields, separators=(",", ":")).encode()[:-1]

    def request(index: int, ask: Ask, prompt: bytes) -> Request:
        request_id = f"{id_prefix}-{index}"
        output_len = 1 if instead else ask.output_len
        body = head + b',"max_tokens":%d' % output_len
        if chat:
            body += b',"max_completion_tokens":%d' % output_len
        if ask.session is not None and ask.tell_session:
            body += b',"conversation_id":"%s-s%d"' % (id_prefix.encode(), ask.session)
        return Request(
            index=index,
            request_id=request_id,
            url=url,
            headers={**headers, "X-Request-Id": request_id},
            body=body + (b',"messages":' if chat else b',"prompt":') + prompt + b"}",
            prompt_len=ask.prompt_len,
            output_len=ask.output_len,
            request_class=ask.request_class,
            session=ask.session,
            turn=ask.turn,
            shared_len=ask.shared_len,
        )

    return request


def _open_entry(deployment: Deployment, connections: str) -> AbstractAsyncContextManager[Client]:
    return open_client(deployment.entry.url, connections)


def _open_decodes(deployment: Deployment, connections: str) -> AbstractAsyncContextManager[Client]:
    return open_each(both_sides(deployment)[1], connections)


DRIVES: dict[str, Drive] = {"proxy": through_proxy, "two-hop": two_hop, "sidecar": through_sidecar}
DRIVES |= {"render": rendered, "render-only": rendered_alone}
OPENS: dict[str, OpenDrive] = {"proxy": _open_entry, "two-hop": open_hops, "sidecar": _open_decodes}
OPENS |= {"render": open_four_hops, "render-only": open_rendering}
