"""What servers do to a connection, through real sockets: the zoo of HTTP answers, for both clients where both can."""

from __future__ import annotations

import asyncio
import gzip
import resource
import socket
import struct
import time

import pytest
import uvloop

from tests.sweep.scripted import ANSWER, CHUNKED, DONE, FINISH, OK, TOKEN, ask, chunk, request_of, scripted


def sends(*pieces: bytes, gap_s: float = 0.0, stay_s: float = 0.0):
    def script(conn):
        request_of(conn)
        for piece in pieces:
            conn.sendall(piece)
            time.sleep(gap_s)
        time.sleep(stay_s)

    return script


def drips(data: bytes, gap_s: float = 0.0):
    def script(conn):
        conn.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        request_of(conn)
        for place in range(len(data)):
            conn.sendall(data[place : place + 1])
            time.sleep(gap_s)

    return script


def aborts(conn):
    """RST in the middle of the body."""
    request_of(conn)
    conn.sendall(CHUNKED + chunk(TOKEN))
    time.sleep(0.05)
    conn.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def half_closes(conn):
    """The server's side is shut; ours stays open until we close it."""
    request_of(conn)
    conn.sendall(OK + b"\r\n" + ANSWER)
    conn.shutdown(socket.SHUT_WR)
    time.sleep(1)


def half_closes_early(conn):
    request_of(conn)
    conn.sendall(CHUNKED + chunk(TOKEN))
    conn.shutdown(socket.SHUT_WR)
    time.sleep(1)


BIG = b'data: {"choices":[{"index":0,"text":"' + b"x" * 10_000_000 + b'"}]}\n\n'
ZIPPED = gzip.compress(ANSWER)
LAST = b"0\r\n\r\n"
COUNTED = b"Content-Length: %d\r\n\r\n"
WHOLE = CHUNKED + chunk(ANSWER) + LAST
INTERIM = (b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103 Early\r\nLink: x\r\n\r\n")
EXTENDED = CHUNKED + b"%x;a=b\r\n%s\r\n0;c\r\nT: 1\r\n\r\n" % (len(ANSWER), ANSWER)
ACROSS = CHUNKED + chunk(ANSWER[:20]) + chunk(ANSWER[20:70]) + chunk(ANSWER[70:]) + LAST
HUGE_HEAD = OK + b"X: " + b"a" * 500_000 + b"\r\n"
HALF_A_CHARACTER = TOKEN.replace(b'"a"', b'"\xe4\xb8"')
ZOO = [
    ("counted", sends(OK + COUNTED % len(ANSWER) + ANSWER, stay_s=1), "ok", None, 2),
    ("ended by the close", sends(OK + b"\r\n" + ANSWER), "ok", None, 2),
    ("http/1.0", sends(b"HTTP/1.0 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" + ANSWER), "ok", None, 2),
    ("kept alive", sends(WHOLE, stay_s=1), "ok", None, 2),
    ("a write an event", sends(CHUNKED, *map(chunk, (TOKEN, TOKEN, FINISH, DONE)), LAST, gap_s=0.01), "ok", None, 2),
    ("a byte a write", drips(WHOLE), "ok", None, 2),
    ("slow drip", drips(b"HTTP/1.1 200 OK\r\n\r\n" + ANSWER, gap_s=0.002), "ok", None, 2),
    ("extensions and trailers", sends(EXTENDED), "ok", None, 2),
    ("a chunk across events", sends(ACROSS), "ok", None, 2),
    ("interim answers", sends(*INTERIM, WHOLE, gap_s=0.02), "ok", None, 2),
    ("gzip", sends(OK + b"Content-Encoding: gzip\r\n" + COUNTED % len(ZIPPED) + ZIPPED), "ok", None, 2),
    ("500 kB of head", sends(HUGE_HEAD + COUNTED % len(ANSWER) + ANSWER), "ok", None, 2),
    ("an event of 10 MB", sends(CHUNKED + chunk(BIG) + chunk(TOKEN + FINISH + DONE) + LAST), "ok", None, 2),
    ("garbage after the end", sends(WHOLE + b"\xff<html>"), "ok", None, 2),
    ("comments first", sends(CHUNKED + chunk(b": a\n\n: b\n\n"), chunk(ANSWER) + LAST, gap_s=0.02), "ok", None, 2),
    ("invalid UTF-8", sends(CHUNKED + chunk(HALF_A_CHARACTER + FINISH + DONE) + LAST), "ok", None, 1),
    ("NaN", sends(CHUNKED + chunk(TOKEN.replace(b":0,", b":NaN,") + FINISH + DONE) + LAST), "ok", None, 1),
    ("half closed", half_closes, "ok", None, 2),
    ("half closed early", half_closes_early, "truncated", "truncated", 1),
    ("broken off", aborts, "truncated", "truncated", 1),
    ("closed in the head", sends(b"HTTP/1.1 200 OK\r\nContent-"), "failed", "reset", None),
    ("no http", sends(b"SSH-2.0-OpenSSH_9.6\r\n", stay_s=0.2), "failed", "protocol", None),
    ("a chunk too long", sends(CHUNKED + chunk(TOKEN), b"2\r\nhello\r\n", gap_s=0.05), "failed", "protocol", 1),
    ("hangs in the head", sends(b"HTTP/1.1 200 OK\r\n", stay_s=3), "timeout", "timeout", None),
    ("503, Retry-After", sends(b"HTTP/1.1 503 X\r\nRetry-After: 1\r\n" + COUNTED % 0), "rejected", "http-503", 0),
]
NOT_AIOHTTP = {"500 kB of head", "garbage after the end", "a chunk too long"}  # it refuses them, or hangs


@pytest.mark.parametrize("client", ["socket", "aiohttp"])
@pytest.mark.parametrize(
    ("name", "script", "status", "kind", "chunks"), [pytest.param(*entry, id=entry[0]) for entry in ZOO]
)
def test_zoo(client, name, script, status, kind, chunks):
    if client == "aiohttp" and name in NOT_AIOHTTP:
        return
    with scripted(script) as url:
        row, raw, _ = ask(url, client=client, timeout_s=2.0 if status == "timeout" else 10.0)
    if client == "aiohttp" and name == "closed in the head":
        assert row.status in ("failed", "truncated")
        return
    assert (row.status, row.error_kind, row.chunks) == (status, kind, chunks), row.error
    assert raw.stamp == ("kernel" if client == "socket" and raw.reads else "user")
    if name in ("counted", "kept alive", "half closed"):
        assert row.done_s - row.sent_s < 0.9  # the end of the answer, not of the connection


@pytest.mark.parametrize("loop_factory", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_an_answer_before_the_request_is_sent(loop_factory):
    """A server that refuses a long prompt does not read it all: its answer counts, not the broken pipe."""

    def refuses(conn):
        conn.recv(1000)
        conn.sendall(b'HTTP/1.1 413 Too Large\r\nContent-Length: 16\r\n\r\n{"error":"long"}')
        time.sleep(0.1)

    with scripted(refuses) as url:
        row, _, _ = ask(url, body=b"x" * 30_000_000, loop_factory=loop_factory)
    assert (row.status, row.error_kind, row.error) == ("failed", "http-413", "long")


@pytest.mark.parametrize("loop_factory", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_long_body_is_sent_in_parts(loop_factory):
    got = []

    def reads_slowly(conn):
        time.sleep(0.1)
        got.append(request_of(conn))
        conn.sendall(CHUNKED + chunk(ANSWER) + LAST)

    body = bytes(range(256)) * 100_000
    with scripted(reads_slowly) as url:
        row, _, _ = ask(url, body=body, loop_factory=loop_factory)
    assert row.status == "ok" and got[0].partition(b"\r\n\r\n")[2] == body


def test_a_connection_opened_ahead_costs_the_request_nothing():
    with scripted(sends(CHUNKED + chunk(ANSWER) + LAST)) as url:
        row, _, health = ask(url, idle_s=0.1)
    assert row.opened_s < row.connected_s < row.sent_s - 0.08 and health["connect_p50_ms"] < 80


def test_a_server_that_closes_idle_connections_is_asked_over_another():
    times = []

    def impatient(conn):
        times.append(time.monotonic())
        if len(times) > 1:
            sends(CHUNKED + chunk(ANSWER) + LAST)(conn)

    with scripted(impatient) as url:
        row, _, _ = ask(url, idle_s=0.1)
    assert row.status == "ok" and len(times) == 2 and row.opened_s >= row.sent_s


def test_no_wait_for_a_delayed_ack():
    """A server without TCP_NODELAY sends its second small write when the first is acknowledged: at once."""
    with scripted(sends(CHUNKED, *[chunk(TOKEN)] * 20, chunk(FINISH + DONE) + LAST)) as url:
        row, _, _ = ask(url, idle_s=0.05)
    assert row.status == "ok" and row.done_s - row.sent_s < 0.035


def test_a_name_with_an_address_that_refuses():
    """localhost is often ::1 first, where the server does not listen."""
    with scripted(sends(CHUNKED + chunk(ANSWER) + LAST)) as url:
        row, _, _ = ask(url.replace("127.0.0.1", "localhost"))
    assert row.status == "ok"


def test_no_such_name():
    row, _, _ = ask("http://no-such-host.invalid/v1/completions")
    assert (row.status, row.error_kind) == ("failed", "dns")


@pytest.mark.parametrize("client", ["socket", "aiohttp"])
def test_out_of_descriptors_says_what_to_raise(client):
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)

    with scripted(sends(CHUNKED + chunk(ANSWER) + LAST)) as url:

        async def go():
            from pdbench.sweep.clients import CLIENTS
            from tests.sweep.scripted import request_to

            async with CLIENTS[client](url, False) as sender:
                resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
                try:
                    return await sender.start(request_to(url), 0, 5.0)
                finally:
                    resource.setrlimit(resource.RLIMIT_NOFILE, limits)

        raw = asyncio.run(go())
    assert raw.end == "fd-limit" and "ulimit -n" in raw.end_text


@pytest.mark.parametrize("loop_factory", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_ending_all(loop_factory):
    with scripted(sends(CHUNKED + chunk(TOKEN), stay_s=2)) as url:
        row, _, _ = ask(url, meddle=lambda client: client.end_all(), loop_factory=loop_factory)
    assert (row.status, row.chunks) == ("cancelled", 1)
