"""The proxy in front of a P/D deployment: two legs a request, one after the other (pull) or both at once (push).

The legs' bodies are the client's bytes with a few keys appended.  Of two equal keys in a JSON object the last one
counts, so a 16k-token prompt is neither parsed nor printed here, and the proxy costs next to nothing.
"""

import asyncio
import itertools
import json
import os
import secrets
import socket
import time
from dataclasses import dataclass
from typing import Any

import aiohttp
from aiohttp import web

from pdbench.testbed.answers import VERSION
from pdbench.testbed.settings import Place, Settings
from pdbench.testbed.truth import TruthLog

_PASSED_HEADERS = ("Authorization", "Content-Type", "X-Request-Id")


def overridden(raw: bytes, keys: dict[str, Any]) -> bytes:
    """The JSON object in `raw` with `keys` on top; anything but an object is passed on for the server to refuse."""
    inner = raw.strip()
    if not (inner.startswith(b"{") and inner.endswith(b"}")):
        return raw
    comma = b"," if inner[1:-1].strip() else b""
    return inner[:-1] + comma + json.dumps(keys)[1:-1].encode() + b"}"


@dataclass
class Answer:
    """What prefill said."""

    status: int
    content: bytes
    kv: dict[str, Any]


class Leg(Exception):
    """A server that could not be reached, or broke off before it answered."""


class Proxy:
    """Round robin over prefill and over decode servers."""

    def __init__(self, settings: Settings, prefills: list[Place], decodes: list[Place], log: TruthLog) -> None:
        self._settings = settings
        self._prefills = itertools.cycle(prefills)
        self._decodes = itertools.cycle(decodes)
        self._first_decode = decodes[0]
        self._log = log
        self._session: aiohttp.ClientSession | None = None

    def app(self) -> web.Application:
        """All routes; there is no /metrics, as with most such proxies."""
        app = web.Application(client_max_size=1 << 28)
        app.add_routes(
            [
                web.post("/v1/completions", self.generate),
                web.post("/v1/chat/completions", self.generate),
                web.get("/v1/models", self.models),
                web.get("/health", self.health),
                web.get("/version", self.version),
            ]
        )
        return app

    @property
    def session(self) -> aiohttp.ClientSession:
        """Connections to the servers, kept open."""
        if self._session is None:
            connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=3600)
            self._session = aiohttp.ClientSession(
                connector=connector, timeout=aiohttp.ClientTimeout(), auto_decompress=False, read_bufsize=1 << 20
            )
        return self._session

    async def health(self, _: web.Request) -> web.Response:
        """200 and nothing else."""
        return web.Response()

    async def version(self, _: web.Request) -> web.Response:
        """The suffix says SIMULATED."""
        return web.json_response({"version": VERSION})

    async def models(self, request: web.Request) -> web.Response:
        """What decode serves."""
        headers = _headers(request)
        async with self.session.get(f"{self._first_decode.url}/v1/models", headers=headers) as answer:
            return web.Response(body=await answer.read(), status=answer.status, content_type="application/json")

    async def generate(self, request: web.Request) -> web.StreamResponse:
        """Prefill, then decode; the client gets decode's bytes."""
        row: dict[str, Any] = {"received": time.monotonic()}
        headers = _headers(request)
        row["request_id"] = headers.setdefault("X-Request-Id", secrets.token_hex(8))
        try:
            response = await self._both_legs(request, headers, await request.read(), row)
            row["status"] = response.status
            return response
        except Leg as error:
            row["status"] = 502
            message = {"message": f"SIMULATED proxy: {error}", "type": "BadGateway", "param": None, "code": 502}
            return web.json_response({"error": message}, status=502)
        except asyncio.CancelledError:
            row["status"] = "cancelled"
            raise
        finally:
            row["end"] = time.monotonic()
            self._log.write(row)

    async def _both_legs(
        self, request: web.Request, headers: dict[str, str], raw: bytes, row: dict[str, Any]
    ) -> web.StreamResponse:
        if self._settings.proxy_ms:
            await asyncio.sleep(self._settings.proxy_ms / 1000)
        prefill, decode = next(self._prefills), next(self._decodes)
        row |= {"prefill": prefill.name, "decode": decode.name}
        chat = "chat" in request.path
        decode_mode = self._settings.decode_mode or self._settings.mode
        if decode_mode == "pull":
            answer = await self._prefill(prefill, request.path, headers, raw, row)
            if answer.status != 200:
                return web.Response(body=answer.content, status=answer.status, content_type="application/json")
            return await self._decode(decode, request, headers, raw, answer.kv, row, None)
        task = asyncio.create_task(self._prefill(prefill, request.path, headers, raw, row))
        where = self._coordinates(prefill, headers["X-Request-Id"], chat)
        try:
            return await self._decode(decode, request, headers, raw, where, row, task)
        finally:
            task.cancel()

    def _coordinates(self, prefill: Place, request_id: str, chat: bool) -> dict[str, Any]:
        """Push: all that decode must know is who will write."""
        return {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_engine_id": prefill.name,
            "remote_host": prefill.host,
            "remote_port": prefill.side_port,
            "tp_size": self._settings.tensor_parallel,
            "pp_size": 1,
            "remote_request_id": f"chatcmpl-{request_id}" if chat else f"cmpl-{request_id}-0",
        }

    async def _prefill(
        self, place: Place, path: str, headers: dict[str, str], raw: bytes, row: dict[str, Any]
    ) -> Answer:
        keys: dict[str, Any] = {"stream": False, "stream_options": None, "min_tokens": None}
        keys |= {"max_tokens": 1, "max_completion_tokens": 1}
        if not self._settings.drop_kv_params:
            nothing = dict.fromkeys(("remote_engine_id", "remote_block_ids", "remote_host", "remote_port"))
            keys["kv_transfer_params"] = {"do_remote_decode": True, "do_remote_prefill": False, **nothing}
        row["prefill_sent"] = time.monotonic()
        try:
            async with self.session.post(place.url + path, data=overridden(raw, keys), headers=headers) as response:
                content = await response.read()
        except aiohttp.ClientError as error:
            raise Leg(f"the prefill server {place.url} did not answer ({error})") from error
        row["prefill_answered"] = time.monotonic()
        kv = json.loads(content).get("kv_transfer_params") if response.status == 200 else None
        return Answer(response.status, content, kv or {})

    async def _decode(
        self,
        place: Place,
        request: web.Request,
        headers: dict[str, str],
        raw: bytes,
        kv: dict[str, Any],
        row: dict[str, Any],
        prefill: "asyncio.Task[Answer] | None",
    ) -> web.StreamResponse:
        data = raw if self._settings.drop_kv_params else overridden(raw, {"kv_transfer_params": kv})
        row["decode_sent"] = time.monotonic()
        try:
            async with self.session.post(place.url + request.path, data=data, headers=headers) as answer:
                if prefill is not None and answer.status == 200:
                    first = await prefill  # push: decode has nothing to say before prefill is done
                    if first.status != 200:
                        return web.Response(body=first.content, status=first.status, content_type="application/json")
                return await self._pass_on(request, answer, row)
        except aiohttp.ClientError as error:
            raise Leg(f"the decode server {place.url} did not answer ({error})") from error

    async def _pass_on(
        self, request: web.Request, answer: aiohttp.ClientResponse, row: dict[str, Any]
    ) -> web.StreamResponse:
        kept = {name: answer.headers[name] for name in ("Content-Type", "X-Request-Id") if name in answer.headers}
        if "Content-Length" in answer.headers:
            content = await answer.read()
            row["first_byte"] = time.monotonic()
            return web.Response(body=content, status=answer.status, headers=kept)
        response = web.StreamResponse(status=answer.status, headers=kept)
        response.enable_chunked_encoding()
        writer = await response.prepare(request)
        assert writer is not None, "only HEAD requests have no writer"
        try:
            async for data, _ in answer.content.iter_chunks():
                row.setdefault("first_byte", time.monotonic())
                await writer.write(data)
        except aiohttp.ClientPayloadError:  # decode died: the client must see a broken stream, not a clean end
            row["broken"] = True
            if request.transport is not None:
                request.transport.abort()
            return response
        await response.write_eof()
        return response


def _headers(request: web.Request) -> dict[str, str]:
    return {name: request.headers[name] for name in _PASSED_HEADERS if name in request.headers}


async def serve(
    settings: Settings, prefills: list[Place], decodes: list[Place], http: socket.socket, ready: int
) -> None:
    """Run the proxy on a socket that already listens; write one byte to `ready` when it answers."""
    proxy = Proxy(settings, prefills, decodes, TruthLog(settings.log, "proxy", "proxy"))
    runner = web.AppRunner(proxy.app(), access_log=None, handler_cancellation=True, keepalive_timeout=3600)
    await runner.setup()
    await web.SockSite(runner, http).start()
    os.write(ready, b".")
    await asyncio.Event().wait()
