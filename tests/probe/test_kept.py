"""A page over a kept connection is the page that a client of many features gets, whatever the server does."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from pdbench.probe.kept import Kept, is_plain
from pdbench.probe.pages import Answer, get, session

BODY = b"vllm:num_requests_running 1\n" * 2000
OK = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\n"
Reader, Writer = asyncio.StreamReader, asyncio.StreamWriter


def counted(body: bytes = BODY, more: bytes = b"") -> bytes:
    return OK + more + b"Content-Length: %d\r\n\r\n" % len(body) + body


def chunked(body: bytes = BODY) -> bytes:
    pieces = [body[i : i + 1000] for i in range(0, len(body), 1000)]
    return (
        OK
        + b"Transfer-Encoding: chunked\r\n\r\n"
        + b"".join(b"%x\r\n%s\r\n" % (len(p), p) for p in pieces)
        + b"0\r\n\r\n"
    )


ANSWERS = {
    "counted": counted(),
    "chunked": chunked(),
    "until the close": OK + b"\r\n" + BODY,
    "empty": counted(b""),
    "gzip": counted(gzip.compress(BODY), b"Content-Encoding: gzip\r\n"),
    "not there": b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\nno",
    "elsewhere": b"HTTP/1.1 307 Temporary Redirect\r\nLocation: /there\r\nContent-Length: 0\r\n\r\n",
    "old": b"HTTP/1.0 200 OK\r\nContent-Type: text/plain\r\n\r\n" + BODY,
    "cut": counted()[:-100],
    "cut chunk": chunked()[:-800],
    "nothing": b"",
    "no HTTP": b"\xff\x00\x00\x00\x7f\x03\x01\r\n\r\n",
    "half a head": b"HTTP/1.1 200 OK\r\nContent-Ty",
}


def served(script: Callable[[Reader, Writer], Any], client: Callable[[str], Any]) -> Any:
    async def go() -> Any:
        async def serve(reader: Reader, writer: Writer) -> None:
            try:
                await script(reader, writer)
            except (ConnectionError, asyncio.IncompleteReadError):
                pass
            finally:
                writer.close()

        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            return await client(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/metrics")

    return asyncio.run(go())


async def by_aiohttp(url: str) -> Answer:
    async with session() as client:
        return await get(client, url, {}, 2.0)


async def by_kept(url: str) -> Answer:
    kept = Kept(url, {})
    try:
        return await kept.get(2.0)
    finally:
        kept.close()


def content(answer: Answer) -> Answer:
    return replace(answer, t_ns=0, took_s=0.0)


@pytest.mark.parametrize("name", ANSWERS)
def test_it_is_what_aiohttp_says(name: str) -> None:
    async def script(reader: Reader, writer: Writer) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(ANSWERS[name])
        await writer.drain()

    kept, other = (content(served(script, client)) for client in (by_kept, by_aiohttp))
    if other.failure is None:
        assert kept == other
    else:  # aiohttp tells less apart of what is no answer
        assert (kept.kind, kept.failure is None, kept.ok, kept.body) == (other.kind, False, False, b"")


def test_a_silent_server_costs_the_deadline_and_a_closed_port_is_told() -> None:
    async def script(reader: Reader, writer: Writer) -> None:
        await asyncio.sleep(5)

    async def client(url: str) -> Answer:
        return await Kept(url, {}).get(0.2)

    answer = served(script, client)
    assert (answer.kind, answer.failure) == ("timeout", "no whole answer within 0.2 s") and answer.took_s >= 0.2
    assert asyncio.run(by_kept("http://127.0.0.1:1/metrics")).kind == "refused"


@pytest.mark.parametrize("closes", [False, True])
def test_one_connection_serves_many_pages_and_another_is_opened_where_it_was_closed(closes: bool) -> None:
    connections = 0

    async def script(reader: Reader, writer: Writer) -> None:
        nonlocal connections
        connections += 1
        for number in range(1, 100):
            asked = await reader.readuntil(b"\r\n\r\n")
            assert b"Authorization: Bearer key" in asked and b"GET /metrics HTTP/1.1" in asked
            writer.write(counted(b"page %d\n" % number))
            if closes:
                break

    async def client(url: str) -> list[bytes]:
        kept = Kept(url, {"Authorization": "Bearer key"})
        pages = []
        for _ in range(4):
            answer = await kept.get(2.0)
            assert answer.ok and answer.t_ns > 0
            pages.append(answer.body)
            await asyncio.sleep(0.02)  # the close has come before the next question
        kept.close()
        return pages

    pages = served(script, client)
    assert pages == ([b"page 1\n"] * 4 if closes else [b"page %d\n" % n for n in range(1, 5)])
    assert connections == (4 if closes else 1)


def test_a_server_that_closes_as_it_is_asked_is_asked_once_more() -> None:
    connections = 0

    async def script(reader: Reader, writer: Writer) -> None:
        nonlocal connections
        connections += 1
        await reader.readuntil(b"\r\n\r\n")
        writer.write(counted())
        await reader.readuntil(b"\r\n\r\n")  # and is gone without a word

    async def client(url: str) -> list[Answer]:
        kept = Kept(url, {})
        return [await kept.get(2.0) for _ in range(3)]

    assert all(answer.ok for answer in served(script, client)) and connections == 3


def test_other_ways_are_left_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_plain("http://10.0.0.1:8000/metrics") and is_plain("http://[::1]:8000/metrics")
    assert not is_plain("https://10.0.0.1/metrics") and not is_plain("http+unix://%2Frun%2Fx.sock/metrics")
    monkeypatch.setenv("http_proxy", "http://proxy:3128")
    assert not is_plain("http://10.0.0.1:8000/metrics") and is_plain("http://127.0.0.1:8000/metrics")
