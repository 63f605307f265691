"""Connections that are kept and used again: when, for how long, and what happens when the server closes one."""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from collections.abc import Callable
from typing import Any

import pytest

from pdbench.route import unix_url
from pdbench.sweep import client as client_module
from pdbench.sweep.client import RawAnswer, keep_ns
from pdbench.sweep.clients import CLIENTS
from pdbench.sweep.warmup import warm_up
from tests.sweep.one_cell import measure, open_cell, plan_for
from tests.sweep.scripted import ANSWER, CHUNKED, OK, TOKEN, chunk, request_of, request_to, scripted
from tests.sweep.test_client import errors_ms

WHOLE = CHUNKED + chunk(ANSWER) + b"0\r\n\r\n"
Answer = Callable[[socket.socket, int, int], bool]


class Counting:
    """A server that keeps its connections; `answer(conn, connection, request)` is False to close."""

    def __init__(self, answer: Answer) -> None:
        self.answer, self.accepted = answer, 0
        self.requests: list[int] = []  # the connection of each

    def __call__(self, conn: socket.socket) -> None:
        number, self.accepted = self.accepted, self.accepted + 1
        for request in range(100):
            request_of(conn)
            self.requests.append(number)
            if not self.answer(conn, number, request):
                return

    @property
    def connections(self) -> int:
        return len(set(self.requests))


def whole(conn: socket.socket, connection: int, request: int) -> bool:
    conn.sendall(WHOLE)
    return True


def ask_in_turn(url: str, client: str, times: int, *, pause_s: float = 0.0) -> tuple[list[RawAnswer], dict[str, Any]]:
    async def go() -> tuple[list[RawAnswer], dict[str, Any]]:
        async with CLIENTS[client](url, True) as sender:
            found = []
            for _ in range(times):
                found.append(await sender.start(request_to(url), time.monotonic_ns(), 5.0))
                await asyncio.sleep(pause_s)
            return found, sender.health()

    return asyncio.run(go())


BOTH = pytest.mark.parametrize("client", ["socket", "aiohttp"])


@BOTH
def test_a_pool_uses_a_connection_again(client):
    server = Counting(whole)
    with scripted(server) as url:
        found, health = ask_in_turn(url, client, 5)
    assert [raw.end for raw in found] == ["complete"] * 5 and server.connections == 1
    assert (health["connections_opened"], health["connections_reused"], health["resets_retried"]) == (1, 4, 0)
    # What is used again was not opened for this request, and takes no part in the figures of connecting.
    assert [raw.connected_ns is not None for raw in found] == [True, False, False, False, False]


@pytest.mark.parametrize(("host", "at_once"), [("127.0.0.1", True), ("::1", True), ("127.0.0.2", False)])
def test_a_connection_stands_at_once_or_when_the_loop_tells(host, at_once):
    """Over loopback the kernel has done the handshake by then; anywhere else (127.0.0.2 is not asked) it takes a
    while. The answer is the same."""

    async def go(url: str) -> tuple[bool, RawAnswer]:
        async with CLIENTS["socket"](url, False) as sender:
            opening = sender.open(request_to(url))
            stood = opening._connection.connected_ns is not None
            await opening.settled(5.0)
            assert opening._connection.connected_ns is not None
            return stood, await sender.start(request_to(url), time.monotonic_ns(), 5.0, opening)

    with scripted(Counting(whole), host) as url:
        stood, raw = asyncio.run(go(url))
    assert stood == at_once
    assert raw.end == "complete" and b"".join(data for _, data in raw.reads) == ANSWER
    assert raw.opened_ns < raw.connected_ns <= raw.sent_ns


def answers(*heads: bytes) -> Answer:
    """These answers on each connection, the last one again and again."""

    def answer(conn: socket.socket, connection: int, request: int) -> bool:
        conn.sendall(heads[min(request, len(heads) - 1)])
        return True

    return answer


COUNTED = b"Content-Length: %d\r\n" % len(ANSWER)


@BOTH
@pytest.mark.parametrize(
    "answer",
    [
        OK + b"Connection: close\r\n" + COUNTED + b"\r\n" + ANSWER,
        b"HTTP/1.0 200 OK\r\n" + COUNTED + b"\r\n" + ANSWER,
        OK + COUNTED + b"Keep-Alive: timeout=0\r\n\r\n" + ANSWER,
    ],
    ids=["the server will close", "HTTP/1.0", "no time is promised"],
)
def test_what_is_not_used_again(client, answer):
    server = Counting(answers(answer))
    if client == "aiohttp" and b"timeout=0" in answer:
        return  # it does not read that field
    with scripted(server) as url:
        found, health = ask_in_turn(url, client, 3)
    assert [raw.end for raw in found] == ["complete"] * 3
    assert server.connections == 3 and health["connections_reused"] == 0


def test_bytes_after_the_answer_spoil_a_connection():
    server = Counting(answers(WHOLE + b"HTTP/1.1 500 what\r\n"))
    with scripted(server) as url:
        found, _ = ask_in_turn(url, "socket", 3)
    assert [raw.end for raw in found] == ["complete"] * 3 and server.connections == 3


def test_how_long_a_connection_is_kept():
    assert keep_ns(None) == 4e9  # below uvicorn's 5 s
    assert keep_ns(10) == 8e9 and keep_ns(75) == 60e9 and keep_ns(0) == 0


@BOTH
def test_one_that_was_idle_too_long_is_not_used(client, monkeypatch):
    monkeypatch.setattr(client_module, "COMMON_KEEP_S", 0.125)
    server = Counting(whole)
    with scripted(server) as url:
        found, health = ask_in_turn(url, client, 2, pause_s=0.15)
    assert server.connections == 2 and health["resets_retried"] == 0
    assert [raw.connected_ns is not None for raw in found] == [True, True]


def leaves(how: str) -> Answer:
    """The first connection ends when it is used again, before any byte of an answer."""

    def answer(conn: socket.socket, connection: int, request: int) -> bool:
        if connection == 0 and request == 1:
            if how == "RST":
                conn.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            return False
        return whole(conn, connection, request)

    return answer


@BOTH
@pytest.mark.parametrize("how", ["FIN", "RST"])
def test_a_reset_of_a_connection_that_is_used_again_is_asked_once_more_and_counted(client, how):
    server = Counting(leaves(how))
    with scripted(server) as url:
        found, health = ask_in_turn(url, client, 3)
    assert [raw.end for raw in found] == ["complete"] * 3 and server.requests == [0, 0, 1, 1]
    assert (health["resets_retried"], health["connections_opened"]) == (1, 2)


@BOTH
def test_it_is_asked_once_more_and_no_oftener(client):
    server = Counting(lambda conn, connection, request: connection == 0 and request == 0 and whole(conn, 0, 0))
    with scripted(server) as url:
        found, health = ask_in_turn(url, client, 2)
    assert [raw.end for raw in found] == ["complete", "reset"] and server.requests == [0, 0, 1]
    assert health["resets_retried"] == 1


@BOTH
def test_nothing_is_asked_again_once_a_byte_has_come(client):
    def half(conn: socket.socket, connection: int, request: int) -> bool:
        conn.sendall(WHOLE if request == 0 else CHUNKED + chunk(TOKEN))
        time.sleep(0.02)
        return request == 0

    server = Counting(half)
    with scripted(server) as url:
        found, health = ask_in_turn(url, client, 2)
    assert [raw.end for raw in found] == ["complete", "reset"] and server.connections == 1
    assert health["resets_retried"] == 0 and b"".join(data for _, data in found[1].reads) == TOKEN


@BOTH
def test_a_fresh_connection_that_is_reset_is_an_answer(client):
    server = Counting(lambda conn, connection, request: False)
    with scripted(server) as url:
        found, health = ask_in_turn(url, client, 1)
    assert found[0].end == "reset" and server.requests == [0] and health["resets_retried"] == 0


def test_idle_connections_that_the_server_closes_are_let_go():
    server = Counting(lambda conn, connection, request: (whole(conn, connection, request), False)[1])
    with scripted(server) as url:
        found, health = ask_in_turn(url, "socket", 3, pause_s=0.05)
    assert [raw.end for raw in found] == ["complete"] * 3 and health["resets_retried"] == 0


@pytest.mark.parametrize("connections", ["fresh", "pool"])
@pytest.mark.parametrize("flags", [("--nagle",), ()], ids=["waits for ACKs", "does not"])
def test_a_server_that_waits_for_acks_is_named_and_delays_nothing(ground_truth, tmp_path, connections, flags):
    """40 ms on the first token of a connection that is used again, and those after it in a bunch: not with us."""
    server = ground_truth("--ttft", "10", "--itl", "4", *flags)
    plan = plan_for(open_cell(rate=12, output_len=8), num_prompts=8, connections=connections, arrivals="constant")
    notes: list[str] = []
    asyncio.run(warm_up(server.deployment(), plan, notes=notes))
    assert len(notes) == (1 if flags else 0) and all("no TCP_NODELAY" in note for note in notes)
    outcome = measure(tmp_path, server.deployment(), plan)
    reused = outcome.entry["client"]["connections_reused"]
    assert reused >= 4 if connections == "pool" else reused == 0
    truth = {name: record for name, record in server.log().items() if not name.startswith("warmup")}
    firsts = sorted(error[0] for error in errors_ms(outcome, truth))
    assert firsts[len(firsts) // 2] < 5 and firsts[-2] < 25


@pytest.mark.parametrize("client", ["socket", "aiohttp"])
def test_a_unix_socket(client, tmp_path):
    path = tmp_path / "a server.sock"
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen(8)
    server = Counting(whole)
    with scripted(server, listener=listener):
        found, health = ask_in_turn(unix_url(str(path)) + "/v1/completions", client, 3)
    assert [raw.end for raw in found] == ["complete"] * 3 and server.connections == 1
    assert {raw.stamp for raw in found} == {"user"} and health["stamps"]["kernel"] == 0


def test_a_unix_socket_that_nobody_listens_on(tmp_path):
    (raw,), _ = ask_in_turn(unix_url(str(tmp_path / "none.sock")) + "/v1/completions", "socket", 1)
    assert raw.end == "connect" and "ENOENT" in raw.end_text


def test_a_unix_socket_whose_queue_is_full_is_tried_again(tmp_path):
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "s"))
    listener.listen(0)
    url = unix_url(str(tmp_path / "s")) + "/v1/completions"

    async def go() -> list[RawAnswer]:
        async with CLIENTS["socket"](url, False) as sender:
            all_sent = [sender.start(request_to(url), 0, 5.0) for _ in range(5)]
            await asyncio.sleep(0.05)
            with scripted(Counting(whole), listener=listener):
                return await asyncio.gather(*all_sent)

    assert [raw.end for raw in asyncio.run(go())] == ["complete"] * 5
