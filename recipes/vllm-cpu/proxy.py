#!/usr/bin/env python3
"""A small prefill/decode proxy for vLLM's NIXL connectors.

    proxy.py --mode pull|push --prefill URL... --decode URL... [--port 8192] [--log legs.jsonl] [--after-prefill]

Each request goes to one prefill server (one token, not streamed) and one decode server, in turn, under the client's own
X-Request-Id; what decode sends is passed on as it comes, byte for byte.

pull  decode gets the kv_transfer_params of the prefill answer, and reads the blocks.
push  decode gets only the coordinates of the prefill server, and waits until the blocks are written into its own. So
      it can be asked while prefill still runs: that is what push is for. The proxy learns the coordinates from the
      first answer of each prefill server; until then, and always with --after-prefill, it asks decode second. A decode
      request that was sent early cannot renew prefill's lease (it does not know the request's inner id): with waits
      over 30 s for a decode slot, raise kv_lease_duration or use --after-prefill.

--log writes a JSON line a request: arrived_s is CLOCK_MONOTONIC, the others are seconds after it.
"""

import argparse
import asyncio
import itertools
import json
import socket
import time
import uuid
from pathlib import Path

import aiohttp
from aiohttp import web

ASK_PREFILL = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
COORDINATES = ("remote_engine_id", "remote_host", "remote_port", "tp_size", "pp_size")
PASSED_ON = ("Content-Type", "X-Request-Id", "Cache-Control")


class Refused(Exception):
    """What the client gets instead of an answer."""

    def __init__(self, status: int, body: bytes):
        super().__init__(status)
        self.response = web.Response(status=status, body=body, content_type="application/json")


def refused(stage: str, url: str, error: Exception) -> Refused:
    message = f"{stage} server {url}: {error or type(error).__name__}"
    return Refused(502, json.dumps({"error": {"message": message, "type": "proxy", "code": 502}}).encode())


class Proxy:
    def __init__(self, args: argparse.Namespace):
        self.args = args
        self.prefills, self.decodes = itertools.cycle(args.prefill), itertools.cycle(args.decode)
        self.coordinates: dict[str, dict] = {}
        self.session: aiohttp.ClientSession

    async def run(self, app: web.Application):
        limits = aiohttp.ClientTimeout(total=None, sock_connect=5)
        # A connection each: vLLM closes an idle one after 5 s, and a request that meets that would fail with 502.
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        async with aiohttp.ClientSession(connector=connector, timeout=limits) as self.session:
            yield

    async def complete(self, request: web.Request) -> web.StreamResponse:
        request.transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        arrived = time.monotonic()
        legs = {"request_id": request.headers.get("X-Request-Id") or str(uuid.uuid4()), "arrived_s": arrived}

        def mark(name: str) -> None:
            legs.setdefault(name, round(time.monotonic() - arrived, 6))

        try:
            return await self.forward(request, legs, mark)
        except Refused as refusal:
            legs["status"] = refusal.response.status
            return refusal.response
        finally:
            mark("done_s")
            if self.args.log:
                with self.args.log.open("a") as log:
                    log.write(json.dumps(legs) + "\n")

    async def forward(self, request: web.Request, legs: dict, mark) -> web.StreamResponse:
        try:
            body = await request.json()
        except ValueError as error:
            raise Refused(400, json.dumps({"error": {"message": f"not JSON: {error}", "code": 400}}).encode()) from None
        legs["prefill"], legs["decode"] = prefill, decode = next(self.prefills), next(self.decodes)
        headers = {"X-Request-Id": legs["request_id"]}
        if "Authorization" in request.headers:
            headers["Authorization"] = request.headers["Authorization"]
        early = self.args.mode == "push" and not self.args.after_prefill and self.coordinates.get(prefill)
        first = asyncio.ensure_future(self.ask_prefill(prefill + request.path, prefill, body, headers))
        if early:
            kind = "chatcmpl-{}" if "/chat/" in request.path else "cmpl-{}-0"
            params = early | {"remote_request_id": kind.format(legs["request_id"])}
        else:
            params = await first
            mark("prefill_s")
        second = asyncio.ensure_future(self.ask_decode(decode, request.path, body, params, headers))
        try:
            await first
            mark("prefill_s")
            answer = await second
        except BaseException:
            first.cancel()
            second.cancel()  # closes the connection, on which decode gives the request up
            raise
        mark("decode_headers_s")
        legs["status"] = answer.status
        async with answer:
            return await self.stream(request, answer, mark)

    async def ask_prefill(self, url: str, server: str, body: dict, headers: dict) -> dict | None:
        """The kv_transfer_params for decode, from a prefill server that makes one token."""
        asked = {key: value for key, value in body.items() if key not in ("stream_options", "min_tokens")}
        asked |= {"stream": False, "max_tokens": 1, "kv_transfer_params": ASK_PREFILL}
        if "max_completion_tokens" in body:
            asked["max_completion_tokens"] = 1
        try:
            async with self.session.post(url, json=asked, headers=headers) as answer:
                text = await answer.read()
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            self.coordinates.pop(server, None)  # it may come back as another engine
            raise refused("prefill", server, error) from None
        if answer.status != 200:
            raise Refused(answer.status, text)
        params = json.loads(text).get("kv_transfer_params")
        if params and self.args.mode == "push":
            place = {"do_remote_prefill": True, "do_remote_decode": False} | {
                key: params.get(key) for key in COORDINATES
            }
            self.coordinates[server] = place
            return place | {"remote_request_id": params["remote_request_id"]}
        return params

    async def ask_decode(self, server: str, path: str, body: dict, params: dict | None, headers: dict):
        asked = body | {"kv_transfer_params": params} if params else body
        try:
            return await self.session.post(server + path, json=asked, headers=headers)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise refused("decode", server, error) from None

    async def stream(self, request: web.Request, answer: aiohttp.ClientResponse, mark) -> web.StreamResponse:
        passed_on = {key: answer.headers[key] for key in PASSED_ON if key in answer.headers}
        out = web.StreamResponse(status=answer.status, headers=passed_on)
        await out.prepare(request)
        try:
            async for chunk in answer.content.iter_any():
                mark("first_byte_s")
                await out.write(chunk)
            await out.write_eof()
        except aiohttp.ClientPayloadError:
            request.transport.close()  # decode broke off: so does the answer, for the client to see
        except ConnectionResetError:
            pass  # the client has gone; leaving closes the connection to decode, which gives the request up
        return out

    async def models(self, request: web.Request) -> web.Response:
        try:
            async with self.session.get(self.args.decode[0] + request.path) as answer:
                return web.Response(status=answer.status, body=await answer.read(), content_type="application/json")
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            return refused("decode", self.args.decode[0], error).response

    async def health(self, request: web.Request) -> web.Response:
        return web.json_response({"mode": self.args.mode, "prefill": self.args.prefill, "decode": self.args.decode})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mode", choices=("pull", "push"), default="pull")
    parser.add_argument("--prefill", nargs="+", default=["http://127.0.0.1:8100"], metavar="URL")
    parser.add_argument("--decode", nargs="+", default=["http://127.0.0.1:8200"], metavar="URL")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8192)
    parser.add_argument("--log", type=Path, metavar="FILE")
    parser.add_argument("--after-prefill", action="store_true")
    proxy = Proxy(parser.parse_args())
    app = web.Application(client_max_size=1 << 28)
    app.cleanup_ctx.append(proxy.run)
    app.router.add_post("/v1/completions", proxy.complete)
    app.router.add_post("/v1/chat/completions", proxy.complete)
    app.router.add_get("/v1/models", proxy.models)
    app.router.add_get("/health", proxy.health)
    web.run_app(app, host=proxy.args.host, port=proxy.args.port, print=None, handler_cancellation=True)


if __name__ == "__main__":
    main()
