"""The drives through a disaggregated front end: render, prefill, decode, derender on one clock; or the first alone.

`/render` turns a client's request into token ids (a GenerateRequest), `/inference/v1/generate` on prefill and decode
takes those, and `/derender` turns the answer back into text. The answer's stream is decode's; derender comes after it
and has a time of its own. Rendering alone is an answer of one event, stamped when the whole of it was there.
"""

from __future__ import annotations

import asyncio
import json
import time
from array import array
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from pdbench.deployment import Deployment, Server, flags_for
from pdbench.errors import UsageError
from pdbench.sweep.client import USER_STAMP, Opening, RawAnswer, Request
from pdbench.sweep.hops import PREFILL_FIELDS, Several, both_sides, open_each, without_params
from pdbench.sweep.sse import parse

GENERATE = "/inference/v1/generate"
_ENABLE = "Start it with vllm launch render (or vllm serve --enable-scale-out), and give its URL with --render."
NO_IDS = "the render server answered without token ids"
Hop = Callable[[Request, int, float, Opening | None], Coroutine[Any, Any, RawAnswer]]
_SEPARATORS = (",", ":")


def renderers(deployment: Deployment) -> tuple[Server, ...]:
    """Servers of the render tier. Raises UsageError when there is none."""
    if not deployment.of("render"):
        raise UsageError(
            "--drive render needs the render servers.", f"Give {flags_for(['render'], deployment.target)}."
        )
    return deployment.of("render")


@asynccontextmanager
async def open_rendering(deployment: Deployment, connections: str) -> AsyncIterator[Chained]:
    """`--drive render-only`: what the render tier takes."""
    async with open_each(renderers(deployment), connections) as servers:
        yield Chained(servers, partial(_render, servers))


@asynccontextmanager
async def open_four_hops(deployment: Deployment, connections: str) -> AsyncIterator[Chained]:
    """`--drive render`: all four."""
    prefills, decodes = both_sides(deployment)
    async with open_each((*renderers(deployment), *prefills, *decodes), connections) as servers:
        yield Chained(servers, partial(_four_hops, servers, prefills, decodes))


class Chained:
    """A client whose answers take several requests, each waiting for the one before. One for a cell."""

    def __init__(self, servers: Several, hop: Hop) -> None:
        self._servers, self._hop = servers, hop

    @property
    def lead_ns(self) -> int:
        return self._servers.lead_ns

    def open(self, request: Request) -> Opening | None:
        return self._servers.open(request)

    def start(
        self, request: Request, intended_ns: int, timeout_s: float, opening: Opening | None = None
    ) -> asyncio.Future[RawAnswer]:
        return asyncio.ensure_future(self._hop(request, intended_ns, timeout_s, opening))

    def end_all(self) -> None:
        self._servers.end_all()

    def health(self) -> dict[str, Any]:
        return self._servers.health()


async def _render(
    servers: Several, request: Request, intended_ns: int, timeout_s: float, opening: Opening | None
) -> RawAnswer:
    raw = await servers.start(request, intended_ns, timeout_s, opening)
    rendered = _whole(raw)
    if rendered is None:
        return raw
    ids = _token_ids(rendered)
    return _as_stream(raw, len(ids)) if ids else _broken(raw, NO_IDS, _ENABLE)


async def _four_hops(
    servers: Several,
    prefills: tuple[Server, ...],
    decodes: tuple[Server, ...],
    request: Request,
    intended_ns: int,
    timeout_s: float,
    opening: Opening | None,
) -> RawAnswer:
    late_s = time.monotonic() + timeout_s

    async def ask(url: str, body: Mapping[str, Any]) -> RawAnswer:
        asked = replace(request, url=url, body=json.dumps(body, separators=_SEPARATORS).encode())
        return await servers.start(asked, time.monotonic_ns(), max(0.001, late_s - time.monotonic()))

    first = await servers.start(request, intended_ns, timeout_s, opening)
    rendered = _whole(first)
    if rendered is None or not _token_ids(rendered):
        return first if rendered is None else _broken(first, NO_IDS, _ENABLE)
    wanted = rendered[0] if isinstance(rendered, list) else rendered
    second = await ask(prefills[request.index % len(prefills)].url + GENERATE, _prefill_body(wanted))
    handed = _whole(second)
    if not isinstance(handed, dict):
        return _told_of(second, first, "prefill")
    if not isinstance(handed.get("kv_transfer_params"), dict):
        first.http_status, first.end = None, "protocol"
        first.end_text = without_params(b"".join(data for _, data in second.reads))
        return first
    decode = decodes[request.index // len(prefills) % len(decodes)]
    body = {**wanted, "stream": True, "stream_options": {"include_usage": True}}
    raw = await ask(decode.url + GENERATE, {**body, "kv_transfer_params": handed["kv_transfer_params"]})
    if raw.http_status != 200 or raw.end != "complete":
        return _told_of(raw, first, "decode")
    last = await ask(request.url.replace("/render", "/derender"), _derender_body(request, raw, wanted))
    return _joined(first, second, raw, last)


def _joined(first: RawAnswer, second: RawAnswer, raw: RawAnswer, last: RawAnswer) -> RawAnswer:
    """Decode's answer, timed from the send of the first hop, with the stamps of all four."""
    raw.hops = {
        "render_done_s": first.done_ns or 0,
        "prefill_sent_s": second.sent_ns,
        "prefill_done_s": second.done_ns or 0,
        "decode_sent_s": max(raw.sent_ns, raw.connected_ns or 0),
    }
    if last.http_status == 200 and last.end == "complete" and last.done_ns is not None:
        raw.hops |= {"derender_sent_s": last.sent_ns, "derender_done_s": last.done_ns}
    else:
        raw.http_status, raw.end = last.http_status, last.end
        raw.reads, raw.lags_ns, raw.end_text = last.reads, last.lags_ns, f"derender: {last.end_text}"
    return _timed_from(first, raw)


def _prefill_body(wanted: Mapping[str, Any]) -> dict[str, Any]:
    sampling = {**(wanted.get("sampling_params") or {}), "max_tokens": 1}
    fields = {"sampling_params": sampling, "stream": False, "kv_transfer_params": PREFILL_FIELDS["kv_transfer_params"]}
    return {**{name: value for name, value in wanted.items() if name != "stream_options"}, **fields}


def _derender_body(request: Request, raw: RawAnswer, wanted: Mapping[str, Any]) -> dict[str, Any]:
    """The whole answer's token ids, for the text of it."""
    ids: list[Any] = []
    for event in parse(raw.reads):
        try:
            choices = json.loads(event.data).get("choices")
        except (ValueError, AttributeError, RecursionError):
            continue
        for choice in choices if isinstance(choices, list) else ():
            ids += choice.get("token_ids") or [] if isinstance(choice, dict) else []
    choice = {"index": 0, "token_ids": ids, "finish_reason": "length"}
    response = {"request_id": request.request_id, "model": wanted.get("model"), "choices": [choice]}
    if "/chat/" in request.url:
        return {"stream": False, "model": wanted.get("model"), "generate_response": response}
    return {"model": wanted.get("model"), "generate_responses": [response]}


def _whole(raw: RawAnswer) -> Any:
    """The JSON document of an answer that came whole with status 200; None else."""
    if raw.http_status != 200 or raw.end != "complete":
        return None
    try:
        return json.loads(b"".join(data for _, data in raw.reads))
    except (ValueError, RecursionError):
        return None


def _token_ids(rendered: Any) -> list[Any]:
    first = rendered[0] if isinstance(rendered, list) and rendered else rendered
    ids = first.get("token_ids") if isinstance(first, dict) else None
    return ids if isinstance(ids, list) else []


def _as_stream(raw: RawAnswer, tokens: int) -> RawAnswer:
    """An answer in one piece as the stream that rows are read from: one event, when the whole of it was there."""
    usage = {"prompt_tokens": tokens, "completion_tokens": 1}
    event = {"choices": [{"index": 0, "text": "rendered", "finish_reason": "stop"}], "usage": usage}
    stamp_ns = raw.reads[-1][0]
    lag_ns = raw.lags_ns[-1] if raw.lags_ns else USER_STAMP
    raw.reads = [(stamp_ns, b"data: " + json.dumps(event).encode() + b"\n\ndata: [DONE]\n\n")]
    raw.lags_ns = array("q", [lag_ns])
    raw.content_type = "text/event-stream"
    return raw


def _broken(raw: RawAnswer, why: str, hint: str) -> RawAnswer:
    raw.http_status, raw.end, raw.end_text = None, "protocol", f"{why}: {hint}"
    return raw


def _told_of(raw: RawAnswer, first: RawAnswer, leg: str) -> RawAnswer:
    """A later hop's failure as the request's answer."""
    raw.end_text = f"{leg}: {raw.end_text or 'failed'}"
    if raw.http_status == 200 and raw.end == "complete":
        raw.http_status, raw.end = None, "protocol"
    return _timed_from(first, raw)


def _timed_from(first: RawAnswer, raw: RawAnswer) -> RawAnswer:
    raw.intended_ns, raw.sent_ns = first.intended_ns, first.sent_ns
    raw.opened_ns, raw.connected_ns = first.opened_ns, first.connected_ns
    return raw
