"""A disaggregated front end on the same servers: /render, /inference/v1/generate and /derender, as vLLM 0.32 has them.

Rendering is work on one core: requests take turns, each for its time per token. An answer's tokens are numbers here.
"""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from aiohttp import web

from pdbench.testbed import body

if TYPE_CHECKING:
    from pdbench.testbed.server import Server, Tokens

SSE = {"content-type": "text/event-stream; charset=utf-8"}


class Rendering:
    """The routes of one server."""

    def __init__(self, server: "Server") -> None:
        self.server = server
        self.core = asyncio.Lock()

    def routes(self) -> list[web.RouteDef]:
        """For the server's application."""
        return [
            web.post("/v1/completions/render", self._guarded(lambda http: self.render(http, chat=False))),
            web.post("/v1/chat/completions/render", self._guarded(lambda http: self.render(http, chat=True))),
            web.post("/inference/v1/generate", self._guarded(self.generate)),
            web.post("/v1/completions/derender", self._guarded(self.derender)),
            web.post("/v1/chat/completions/derender", self._guarded(self.derender)),
        ]

    def _guarded(
        self, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def guarded(http: web.Request) -> web.StreamResponse:
            refused = self.server.unauthorized(http)
            if refused is not None:
                return refused
            try:
                return await handler(http)
            except body.ApiError as error:
                return web.json_response(error.body, status=error.status)

        return guarded

    async def work(self, tokens: int, what: str, request_id: str) -> None:
        """One core's time for so many tokens."""
        received = time.monotonic()
        async with self.core:
            began = time.monotonic()
            await asyncio.sleep(tokens * self.server.settings.render_ms_per_token / 1000)
        row = {"event": what, "request_id": request_id, "received": received, "began": began}
        self.server.log.write({**row, "ended": time.monotonic(), "tokens": tokens})

    async def render(self, http: web.Request, chat: bool) -> web.Response:
        """A client's request as token ids."""
        asked_for = await _decoded(http)
        request_id = http.headers.get("X-Request-Id", "")
        asked = body.parse(asked_for, chat, request_id, self.server.settings)
        await self.work(len(asked.tokens), "rendered", request_id)
        rendered = {
            "request_id": request_id,
            "token_ids": list(asked.tokens),
            "sampling_params": {"max_tokens": asked.max_tokens, "ignore_eos": bool(asked_for.get("ignore_eos"))},
            "model": self.server.settings.model,
            "stream": asked.stream,
        }
        return web.json_response(rendered if chat else [rendered])

    async def generate(self, http: web.Request) -> web.StreamResponse:
        """Token ids in, token ids out."""
        received, asked_for = time.monotonic(), await _decoded(http)
        sampling = asked_for.get("sampling_params") or {}
        same = ("model", "stream", "stream_options", "kv_transfer_params")
        plain = {name: asked_for[name] for name in same if asked_for.get(name) is not None}
        plain |= {"prompt": asked_for.get("token_ids"), "max_tokens": sampling.get("max_tokens")}
        plain["ignore_eos"] = sampling.get("ignore_eos", False)
        asked, request, tokens = self.server.enter(json.dumps(plain).encode(), http.headers, False, received)
        try:
            usage = {"prompt_tokens": request.prompt_tokens}
            if asked.stream:
                return await self._stream(http, tokens, usage, request.id)
            reason = await self._drain(tokens)
            choice = {"index": 0, "token_ids": list(range(1, request.generated + 1)), "finish_reason": reason}
            usage |= {"completion_tokens": request.generated}
            answer = {"request_id": request.id, "choices": [choice], "usage": usage}
            return web.json_response({**answer, "kv_transfer_params": request.kv_out})
        finally:
            self.server.engine.abort(request, time.monotonic())
            self.server.log.write(request.to_truth())

    async def _stream(
        self, http: web.Request, tokens: "Tokens", usage: dict[str, int], request_id: str
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={**SSE, "x-request-id": request_id})
        await response.prepare(http)
        reason: str | None = None
        number = 0
        while reason is None:
            number, reason = await tokens.get()
            choice = {"index": 0, "token_ids": [number], "finish_reason": reason}
            await response.write(_event({"request_id": request_id, "choices": [choice]}))
        await response.write(_event({"choices": [], "usage": {**usage, "completion_tokens": number}}))
        await response.write(b"data: [DONE]\n\n")
        return response

    async def _drain(self, tokens: "Tokens") -> str:
        while True:
            _, reason = await tokens.get()
            if reason is not None:
                return reason

    async def derender(self, http: web.Request) -> web.Response:
        """Token ids as text."""
        asked_for = await _decoded(http)
        told = asked_for.get("generate_responses") or [asked_for.get("generate_response")]
        choices = [choice for one in told if isinstance(one, dict) for choice in one.get("choices", [])]
        count = sum(len(choice.get("token_ids") or []) for choice in choices)
        await self.work(count, "derendered", http.headers.get("X-Request-Id", ""))
        return web.json_response({"choices": [{"index": 0, "text": " word" * count, "finish_reason": "length"}]})


async def _decoded(http: web.Request) -> dict[str, Any]:
    try:
        decoded = json.loads(await http.read())
    except ValueError as error:
        raise body.bad_request(f"The request body is not JSON: {error}") from error
    if not isinstance(decoded, dict):
        raise body.bad_request("The request body must be a JSON object.")
    return decoded


def _event(message: dict[str, Any]) -> bytes:
    return f"data: {json.dumps(message)}\n\n".encode()
