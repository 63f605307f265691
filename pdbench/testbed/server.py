"""One engine server: HTTP in front, a simulated engine behind, in one process."""

import asyncio
import json
import os
import secrets
import socket
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any

from aiohttp import web

from pdbench.testbed import answers, body
from pdbench.testbed.clock import Alarm
from pdbench.testbed.engine import Engine
from pdbench.testbed.handoff_decode import DecodeHandoff
from pdbench.testbed.handoff_prefill import PrefillHandoff
from pdbench.testbed.kv import block_hashes
from pdbench.testbed.loop import Stall, drive
from pdbench.testbed.metrics import Metrics
from pdbench.testbed.metrics_page import CONTENT_TYPE, MetricsPage
from pdbench.testbed.render import Rendering
from pdbench.testbed.request import Request
from pdbench.testbed.server_info import server_info
from pdbench.testbed.settings import Place, Settings
from pdbench.testbed.truth import TruthLog

SSE = {"content-type": "text/event-stream; charset=utf-8"}
Tokens = asyncio.Queue[tuple[int, str | None]]


class Server:
    """HTTP handlers of one engine."""

    def __init__(self, settings: Settings, place: Place, log: TruthLog) -> None:
        self.settings = settings
        self.place = place
        self.log = log
        self.metrics = Metrics(settings.max_model_len)
        self.engine = Engine(settings, place, self.metrics)
        self.page = MetricsPage(settings, place, self.engine)
        self.alarm = Alarm()
        decode = place.role != "prefill"
        self.stall = Stall(settings.stall_at_s, settings.stall_s if decode else 0.0)
        self.fetch = DecodeHandoff(settings, place, self.engine, self.alarm.wake) if place.role == "decode" else None
        self.keep: PrefillHandoff | None = None
        if not decode:
            self.keep = PrefillHandoff(settings, place, self.engine, self.alarm.wake, log.write)
        self.engine.fetch, self.engine.keep = self.fetch, self.keep
        self.queue_limit = settings.max_num_queued_reqs if decode else settings.prefill_max_num_queued_reqs
        self.error_every = settings.error_every if decode else 0
        self.served = 0
        self.models = self._models()

    def app(self) -> web.Application:
        """All routes."""
        app = web.Application(client_max_size=1 << 28)
        app.add_routes(
            [
                web.post("/v1/completions", lambda request: self.generate(request, chat=False)),
                web.post("/v1/chat/completions", lambda request: self.generate(request, chat=True)),
                web.get("/v1/models", self.list_models),
                web.get("/health", self.health),
                web.get("/version", self.version),
                web.get("/metrics", self.metrics_page),
            ]
        )
        app.add_routes(Rendering(self).routes())
        if self.settings.dev_mode:
            app.router.add_get("/server_info", self.info)
        return app

    # ---- what there is to read

    async def health(self, _: web.Request) -> web.Response:
        """200 and nothing else."""
        return web.Response()

    async def version(self, _: web.Request) -> web.Response:
        """A vLLM version with a suffix that says SIMULATED."""
        return web.json_response({"version": answers.VERSION})

    async def metrics_page(self, _: web.Request) -> web.Response:
        """The Prometheus page."""
        return web.Response(text=self.page.text(), headers={"content-type": CONTENT_TYPE})

    async def info(self, _: web.Request) -> web.Response:
        """What vLLM tells in development mode."""
        return web.json_response(server_info(self.settings, self.place))

    async def list_models(self, request: web.Request) -> web.Response:
        """The one model."""
        return self.unauthorized(request) or web.json_response(self.models)

    def _models(self) -> dict[str, Any]:
        model = {
            "id": self.settings.model,
            "object": "model",
            "created": int(time.time()),
            "owned_by": "pdbench testbed (SIMULATED)",
            "root": self.settings.model,
            "parent": None,
            "max_model_len": self.settings.max_model_len,
            "permission": [],
        }
        return {"object": "list", "data": [model]}

    def unauthorized(self, request: web.Request) -> web.Response | None:
        """401 where the key is missing."""
        key = self.settings.api_key
        if key and request.headers.get("Authorization") != f"Bearer {key}":
            return web.json_response({"error": "Unauthorized"}, status=401)
        return None

    # ---- generating

    async def generate(self, http: web.Request, chat: bool) -> web.StreamResponse:
        """Both completion endpoints."""
        received = time.monotonic()
        refused = self.unauthorized(http)
        if refused is not None:
            return refused
        try:
            asked, request, tokens = self.enter(await http.read(), http.headers, chat, received)
        except body.ApiError as error:
            return web.json_response(error.body, status=error.status)
        try:
            if asked.stream:
                return await self._stream(http, asked, request, tokens, chat)
            return await self.whole(request, tokens, chat)
        finally:  # a client that goes away cancels this handler
            self.engine.abort(request, time.monotonic())
            self.log.write(request.to_truth())

    def enter(
        self, raw: bytes, headers: Mapping[str, str], chat: bool, received: float
    ) -> tuple[body.Body, Request, Tokens]:
        """Queue what a body asks for; its tokens come through the queue. Raises ApiError."""
        try:
            decoded = json.loads(raw)
        except ValueError as error:
            raise body.bad_request(f"The request body is not JSON: {error}") from error
        request_id = headers.get("X-Request-Id") or secrets.token_hex(8)
        asked = body.parse(decoded, chat, request_id, self.settings)
        if self.queue_limit and len(self.engine.waiting) >= self.queue_limit:
            self.metrics.add("vllm:admission_rejections", label="max_num_queued_reqs")
            message = f"The server is at its limit of {self.queue_limit} queued requests. Please retry later."
            raise body.ApiError(503, message, "ServiceUnavailableError")
        tokens: Tokens = asyncio.Queue()
        api_id = f"{'chatcmpl' if chat else 'cmpl'}-{request_id}"
        suffix = f"{'' if chat else '-0'}-{secrets.token_hex(4)}"
        caching = self.engine.pool.caching
        request = Request(
            id=request_id,
            api_id=api_id,
            engine_id=api_id + suffix,
            tokens=asked.tokens,
            hashes=block_hashes(asked.tokens, self.settings.block_size) if caching else [],
            max_tokens=asked.max_tokens,
            output_tokens=asked.output_tokens,
            finish=asked.finish,
            kv=asked.kv,
            conversation_id=asked.conversation_id,
            sink=lambda request, reason: tokens.put_nowait((request.generated, reason)),
            stamps={"received": received, "queued": time.monotonic()},
        )
        self.served += 1
        if self.error_every and self.served % self.error_every == 0:
            request.error_at = min(self.settings.error_after_tokens, asked.output_tokens)
        request.remote = bool(asked.kv.get("do_remote_prefill")) and self.fetch is not None
        if request.remote and self.fetch is not None:
            self.fetch.arrived(request)
        self.stall.begin(request.stamps["queued"])
        self.engine.submit(request)
        self.alarm.wake()
        return asked, request, tokens

    async def _stream(
        self, http: web.Request, asked: body.Body, request: Request, tokens: Tokens, chat: bool
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={**SSE, "x-request-id": request.id})
        response.enable_chunked_encoding()
        writer = await response.prepare(http)
        assert writer is not None, "only HEAD requests have no writer"
        async for event in self.events(asked, request, tokens, chat):
            await writer.write(event)
        await response.write_eof()
        return response

    async def events(self, asked: body.Body, request: Request, tokens: Tokens, chat: bool) -> AsyncIterator[bytes]:
        """The stream of an answer, each event when its token is there."""
        events = answers.Events(request, asked, chat, self.settings.model, self.settings.thinking_tokens)
        reason: str | None = None
        while reason is None:
            number, reason = await tokens.get()
            if number == 1:
                if chat:
                    yield events.role()
                self._first(request)
            yield answers.error_event(body.INTERNAL.body) if reason == "error" else events.token(number, reason)
        self._last(request)
        if asked.include_usage and reason != "error":
            yield events.usage(request.generated)
        yield answers.DONE_EVENT

    async def whole(self, request: Request, tokens: Tokens, chat: bool) -> web.Response:
        """The answer in one piece."""
        reason: str | None = None
        while reason is None:
            number, reason = await tokens.get()
            if number == 1:
                self._first(request)
        self._last(request)
        headers = {"x-request-id": request.id}
        if reason == "error":
            return web.json_response(body.INTERNAL.body, status=500, headers=headers)
        return web.json_response(answers.complete(request, chat, self.settings.model), headers=headers)

    def _first(self, request: Request) -> None:
        """The front end passes the first token on; like vLLM's, its clock runs from arrival by the wall."""
        request.stamps["first_token_written"] = now = time.monotonic()
        self.metrics.observe("vllm:time_to_first_token_seconds", now - request.stamps["received"])

    def _last(self, request: Request) -> None:
        request.stamps["last_token_written"] = now = time.monotonic()
        self.metrics.observe("vllm:e2e_request_latency_seconds", now - request.stamps["received"])


async def serve(settings: Settings, place: Place, listening: list[socket.socket], ready: int) -> None:
    """Run one engine server on sockets that already listen; write one byte to `ready` when it answers."""
    server = Server(settings, place, TruthLog(settings.log, place.name, place.role))
    runner = web.AppRunner(server.app(), access_log=None, handler_cancellation=True, keepalive_timeout=3600)
    await runner.setup()
    await web.SockSite(runner, listening[0]).start()
    jobs = [drive(server.engine, server.alarm, server.stall, server.log.write)]
    if server.keep is not None:
        await asyncio.start_server(server.keep.serve, sock=listening[1])
        jobs.append(server.keep.watch_leases())
    if server.fetch is not None:
        jobs.append(server.fetch.send_heartbeats())
    os.write(ready, b".")
    await asyncio.gather(*jobs)
