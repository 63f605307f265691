"""The floors that the client is compared with: what a program costs that does less than it must.

Each sends a load and returns its stamps of token events by request id, its CPU, and how late it sent. `epoll` reads
sockets by epoll with the kernel's stamps, `protocol` is a plain asyncio protocol on uvloop, `aiohttp` its client on
uvloop; none of them parses anything but the end of an answer, and all but `epoll` stamp in user space.
"""

from __future__ import annotations

import asyncio
import json
import select
import socket
import struct
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np

RECORD = np.dtype([("id", "S64"), ("ns", "<i8")])  # of wire.c
TOKEN = b'"text":" tok"'
LAST = b"\r\n0\r\n\r\n"

Result = dict[str, Any]


def offsets(load: Any) -> Any:
    """When requests are due: constant rate, or at once."""
    return np.arange(load.requests) / load.rate if load.rate else np.zeros(load.requests)


def head(name: str, load: Any) -> bytes:
    body = json.dumps({"prompt": [1] * 16, "max_tokens": load.tokens, "stream": True}, separators=(",", ":")).encode()
    fields = f"Host: x\r\nX-Request-Id: {name}\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    return f"POST /v1/completions HTTP/1.1\r\n{fields}".encode() + body


def result(stamps: dict[str, list[float]], cpu_s: float, late_s: list[float], load: Any) -> Result:
    lateness_ms = float(np.percentile(late_s, 99)) * 1e3 if load.rate else None
    return {"stamps": stamps, "cpu_s": cpu_s, "client": {"lateness_p99_ms": lateness_ms}, "failed": 0}


def epoll_floor(load: Any, port: int) -> Result:
    due = offsets(load)
    epoll, open_now, reads = select.epoll(), {}, {}
    offset_ns = min(time.time_ns() - time.monotonic_ns() for _ in range(1000))
    late, sent, over = [], 0, 0
    cpu, start = time.process_time(), time.monotonic() + 0.01
    while over < load.requests:
        now = time.monotonic()
        while sent < load.requests and (start + due[sent] <= now if load.rate else len(open_now) < (load.streams or 1)):
            sock = socket.create_connection(("127.0.0.1", port))
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, 35, 1)
            name = f"floor-{sent}"
            late.append(time.monotonic() - start - due[sent])
            sock.sendall(head(name, load))
            sock.setblocking(False)
            open_now[sock.fileno()] = (sock, reads.setdefault(name, []))
            epoll.register(sock.fileno(), select.EPOLLIN)
            sent += 1
        wait_s = max(0.0, start + due[sent] - time.monotonic()) if load.rate and sent < load.requests else 1.0
        for fd, _ in epoll.poll(wait_s, 256):
            sock, kept = open_now[fd]
            data, ancillary, _, _ = sock.recvmsg(16384, 32)
            kept.append((time.monotonic_ns(), data, ancillary))
            if not data or data.endswith(LAST):
                epoll.unregister(fd)
                del open_now[fd]
                sock.close()
                over += 1
    cpu = time.process_time() - cpu
    stamps: dict[str, list[float]] = {}
    for name, kept in reads.items():
        stamps[name] = []
        for user_ns, data, ancillary in kept:
            seconds, ns = struct.unpack("@ll", ancillary[0][2]) if ancillary else (0, 0)
            stamp_ns = seconds * 10**9 + ns - offset_ns if ancillary else user_ns
            stamps[name] += [stamp_ns] * data.count(TOKEN)
    return result(stamps, cpu, late, load)


class _Reading(asyncio.Protocol):
    def __init__(self, request: bytes, over: asyncio.Future[None]) -> None:
        self.request, self.over, self.reads = request, over, []  # type: ignore[var-annotated]

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        transport.write(self.request)

    def data_received(self, data: bytes) -> None:
        self.reads.append((time.monotonic_ns(), data))
        if data.endswith(LAST):
            self.transport.abort()
            self.over.set_result(None)


async def _paced(load: Any, send: Any) -> tuple[list[float], float]:
    """Call `send(i)` for each request, open or closed; returns lateness and CPU."""
    due, late, limit = offsets(load), [], asyncio.Semaphore(load.streams or load.requests)
    loop = asyncio.get_running_loop()
    cpu, start = time.process_time(), loop.time() + 0.01

    async def one(i: int) -> None:
        await send(i)
        limit.release()

    tasks = []
    for i in range(load.requests):
        if load.rate:
            await asyncio.sleep(start + due[i] - loop.time())
            late.append(loop.time() - start - due[i])
        else:
            await limit.acquire()
        tasks.append(loop.create_task(one(i)))
    await asyncio.gather(*tasks)
    return late, time.process_time() - cpu


def protocol_floor(load: Any, port: int) -> Result:
    import uvloop

    reads: dict[str, list[tuple[int, bytes]]] = {}

    async def go() -> tuple[list[float], float]:
        loop = asyncio.get_running_loop()

        async def send(i: int) -> None:
            over: asyncio.Future[None] = loop.create_future()
            _, reading = await loop.create_connection(
                lambda: _Reading(head(f"floor-{i}", load), over), "127.0.0.1", port
            )
            reads[f"floor-{i}"] = reading.reads
            await over

        return await _paced(load, send)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        late, cpu = runner.run(go())
    return result({name: stamped(kept) for name, kept in reads.items()}, cpu, late, load)


def aiohttp_floor(load: Any, port: int) -> Result:
    import aiohttp
    import uvloop

    reads: dict[str, list[tuple[int, bytes]]] = {}
    body = {"prompt": [1] * 16, "max_tokens": load.tokens, "stream": True}

    async def go() -> tuple[list[float], float]:
        connector = aiohttp.TCPConnector(force_close=True, limit=0)
        timeout = aiohttp.ClientTimeout(total=None)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:

            async def send(i: int) -> None:
                kept = reads.setdefault(f"floor-{i}", [])
                headers = {"X-Request-Id": f"floor-{i}"}
                url = f"http://127.0.0.1:{port}/v1/completions"
                async with session.post(url, json=body, headers=headers) as response:
                    async for data in response.content.iter_any():
                        kept.append((time.monotonic_ns(), data))

            return await _paced(load, send)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        late, cpu = runner.run(go())
    return result({name: stamped(kept) for name, kept in reads.items()}, cpu, late, load)


def stamped(reads: list[tuple[int, bytes]]) -> list[float]:
    return [float(ns) for ns, data in reads for _ in range(data.count(TOKEN))]


def c_floor(load: Any, port: int, wire: Path, directory: Path) -> Result:
    """wire.c's client; in a process of its own that inherits our core and priority."""
    dump = directory / "c.dump"
    numbers = (port, load.streams or 0, load.requests, load.tokens, load.rate or 0)
    done = subprocess.run(
        [wire, "ask", *map(str, numbers), dump], check=True, capture_output=True, text=True, timeout=120
    )
    return {"stamps": by_request(dump), "cpu_s": float(done.stdout), "client": {}, "failed": 0}


def by_request(dump: Path) -> dict[str, list[float]]:
    """The events of wire.c's log or dump by request id, in order."""
    found: dict[str, list[float]] = {}
    for name, ns in np.fromfile(dump, RECORD).tolist():
        found.setdefault(name.decode(), []).append(ns)
    return found
