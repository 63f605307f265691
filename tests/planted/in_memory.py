"""The testbed's servers and proxy in this process, their connections in memory: the real code without HTTP.

What is left out: encoding and decoding of HTTP, the network, the scheduling noise of a machine.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import aiohttp
from aiohttp import web

from pdbench.testbed import body
from pdbench.testbed.loop import drive
from pdbench.testbed.proxy import Leg, Proxy
from pdbench.testbed.server import Server
from pdbench.testbed.server_info import server_info
from pdbench.testbed.settings import Place, Settings

Write = Callable[[bytes], None]


@dataclass
class Log:
    """A truth log that keeps its rows."""

    server: str
    rows: list[dict[str, Any]]

    def write(self, row: dict[str, Any]) -> None:
        self.rows.append({"server": self.server, **row})


class _Writer:
    """The sending end of a connection in memory."""

    def __init__(self, peer: asyncio.StreamReader) -> None:
        self._peer, self._closed = peer, False

    def write(self, data: bytes) -> None:
        self._peer.feed_data(data)

    def is_closing(self) -> bool:
        return self._closed

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._peer.feed_eof()


@dataclass
class Asked:
    """A client's request at the proxy: what `Proxy` reads of an HTTP request, and where its answer goes."""

    path: str
    headers: dict[str, str]
    write: Write


class _Answer:
    """A server's answer, with the part of aiohttp's interface that the proxy uses."""

    def __init__(self, status: int, content: bytes | None, events: AsyncIterator[bytes] | None = None) -> None:
        self.status = status
        self.headers = {"Content-Type": "text/event-stream" if events else "application/json"}
        if content is not None:
            self.headers["Content-Length"] = str(len(content))
        self._content = content
        self.events = events

    async def read(self) -> bytes:
        return self._content or b""


class _Post:
    """`async with session.post(...) as answer`."""

    def __init__(self, net: Net, url: str, data: bytes, headers: dict[str, str]) -> None:
        self._net, self._url, self._data, self._headers = net, url, data, headers
        self._open: Any = None

    async def __aenter__(self) -> _Answer:
        self._open = self._net.post(self._url, self._data, self._headers)
        answer: _Answer = await anext(self._open)
        return answer

    async def __aexit__(self, *_: object) -> None:
        if self._open is not None:
            await self._open.aclose()


class BrokenOff(Exception):
    """The stream ended without its end."""


class _MemoryProxy(Proxy):
    async def _pass_on(self, request: Any, answer: Any, row: dict[str, Any]) -> Any:
        if answer.events is None:
            return web.Response(body=await answer.read(), status=answer.status, content_type="application/json")
        request.write(b"")  # the head of the answer goes out before the first token
        try:
            async for event in answer.events:
                request.write(event)
        except aiohttp.ClientPayloadError as error:  # what the real one then does is abort the client's connection
            raise BrokenOff from error
        return web.Response(status=200)


@dataclass
class Net:
    """One deployment and its connections."""

    settings: Settings
    first_port: int = 9000
    truth: list[dict[str, Any]] = field(default_factory=list)
    servers: dict[str, Server] = field(default_factory=dict)  # by URL
    dead: set[str] = field(default_factory=set)  # URLs that no longer answer
    proxy_url: str | None = None
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)
    _listening: dict[int, Any] = field(default_factory=dict)

    async def start(self) -> None:
        s, port = self.settings, self.first_port
        places: list[Place] = []
        if s.mode == "colocated":
            places = [Place("colocated", 0, s.host, port, 0, "")]
        else:
            ways = [("prefill", s.prefills, s.mode), ("decode", s.decodes, s.decode_mode or s.mode)]
            for role, count, transfer in ways:
                for index in range(count):
                    port += 2
                    places.append(Place(role, index, s.host, port, port + 1 if role == "prefill" else 0, transfer))
        for place in places:
            server = self.servers[place.url] = Server(s, place, Log(place.name, self.truth))  # type: ignore[arg-type]
            jobs: list[Any] = [drive(server.engine, server.alarm, server.stall, server.log.write)]
            if server.keep is not None:
                self._listening[place.side_port] = server.keep.serve
                jobs.append(server.keep.watch_leases())
            if server.fetch is not None:
                jobs.append(server.fetch.send_heartbeats())
            self._tasks += [asyncio.create_task(job) for job in jobs]
        if s.mode != "colocated":
            roles = [[place for place in places if place.role == role] for role in ("prefill", "decode")]
            self._proxy = _MemoryProxy(s, roles[0], roles[1], Log("proxy", self.truth))  # type: ignore[arg-type]
            self._proxy._session = mock.Mock(post=lambda url, data, headers: _Post(self, url, data, headers))
            self.proxy_url = f"http://{s.host}:{self.first_port}"

    async def open_connection(self, host: str, port: int, limit: int = 2**16) -> tuple[asyncio.StreamReader, Any]:
        """Stands in for `asyncio.open_connection` between engines."""
        if port not in self._listening:
            raise ConnectionRefusedError(host, port)
        here, there = asyncio.StreamReader(limit), asyncio.StreamReader(limit)
        self._tasks.append(asyncio.create_task(self._listening[port](there, _Writer(here))))
        return here, _Writer(there)

    def roles(self) -> list[tuple[str, str]]:
        """(role, URL) of every server, as flags name them."""
        front = [("proxy", self.proxy_url)] if self.proxy_url else []
        return front + [(server.place.role, url) for url, server in self.servers.items()]

    def idle(self) -> bool:
        return not any(server.engine.running or server.engine.waiting for server in self.servers.values())

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def ask(self, url: str, path: str, headers: dict[str, str], data: bytes, write: Write) -> tuple[int, bytes]:
        """A client's request to the entry: events go to `write`, what is no stream comes back with its status."""
        if not url.startswith(f"{self.proxy_url}/"):
            async with _Post(self, url, data, headers) as answer:
                if answer.events is None:
                    return answer.status, await answer.read()
                async for event in answer.events:
                    write(event)
                return 200, b""
        row: dict[str, Any] = {"request_id": headers["X-Request-Id"]}
        try:
            response = await self._proxy._both_legs(Asked(path, headers, write), headers, data, row)  # type: ignore[arg-type]
            return response.status, response.body if isinstance(response.body, bytes) else b""
        except Leg as error:
            return 502, json.dumps({"error": {"message": str(error)}}).encode()
        finally:
            self._proxy._log.write(row)

    async def post(self, url: str, data: bytes, headers: dict[str, str]) -> AsyncIterator[_Answer]:
        """One request at one engine server; what follows the answer ends it there."""
        base, _, path = url.partition("/v1/")
        if base in self.dead:
            raise aiohttp.ClientConnectionError(f"{base} is dead")
        server, chat = self.servers[base], "chat" in path
        received = asyncio.get_running_loop().time()
        try:
            asked, request, tokens = server.enter(data, headers, chat, received)
        except body.ApiError as error:
            yield _Answer(error.status, json.dumps(error.body).encode())
            return
        try:
            if asked.stream:
                yield _Answer(200, None, self._alive(base, server.events(asked, request, tokens, chat)))
            else:
                response = await server.whole(request, tokens, chat)
                yield _Answer(response.status, bytes(response.body))  # type: ignore[arg-type]
        finally:
            server.engine.abort(request, asyncio.get_running_loop().time())
            server.log.write(request.to_truth())

    async def _alive(self, base: str, events: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        async for event in events:
            if base in self.dead:
                raise aiohttp.ClientPayloadError("the server died")
            yield event

    def pages(self) -> dict[str, dict[str, Any]]:
        """What each server tells a GET, by URL and path."""
        return {
            url: {
                "/version": {"version": "0.32.0+pdbench.testbed"},
                "/v1/models": server.models,
                "/server_info": server_info(self.settings, server.place) if self.settings.dev_mode else None,
            }
            for url, server in self.servers.items()
        }
