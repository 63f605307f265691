"""What servers do to a connection, through real sockets: the zoo of HTTP answers, for both clients where both can."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import resource
import socket
import struct
import subprocess
import sys
import time
import zlib

import pytest
import uvloop

from pdbench.sweep.clients import CLIENTS
from tests.sweep.scripted import (
    ANSWER,
    CHUNKED,
    DONE,
    FINISH,
    OK,
    TOKEN,
    ask,
    chunk,
    request_of,
    request_to,
    scripted,
)


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


ZIPPED = gzip.compress(ANSWER)
LAST = b"0\r\n\r\n"
COUNTED = b"Content-Length: %d\r\n\r\n"
WHOLE = CHUNKED + chunk(ANSWER) + LAST
INTERIM = (b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103 Early\r\nLink: x\r\n\r\n")
EXTENDED = CHUNKED + b"%x;a=b\r\n%s\r\n0;c\r\nT: 1\r\n\r\n" % (len(ANSWER), ANSWER)
ACROSS = CHUNKED + chunk(ANSWER[:20]) + chunk(ANSWER[20:70]) + chunk(ANSWER[70:]) + LAST
HUGE_HEAD = OK + b"X: " + b"a" * 500_000 + b"\r\n"
HTML = b"<!DOCTYPE html><html><body>Bad gateway</body></html>"


def zipped(wbits: int, *, name: bytes, parts: int = 1, whole: bool = True) -> bytes:
    """A compressed stream in chunks, one a token where there are `parts`."""
    packer = zlib.compressobj(wbits=wbits)
    cut = [ANSWER] if parts == 1 else [TOKEN, TOKEN, FINISH + DONE]
    packed = [packer.compress(part) + packer.flush(zlib.Z_SYNC_FLUSH) for part in cut]
    end = packer.flush() if whole else b""
    head = OK + b"Content-Encoding: " + name + b"\r\nTransfer-Encoding: chunked\r\n\r\n"
    return head + b"".join(map(chunk, [*packed, *([end] if end else [])])) + LAST


def said(status: bytes, body: bytes = b"", *fields: bytes) -> bytes:
    lines = [b"HTTP/1.1 " + status, b"Content-Length: %d" % len(body), *fields]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def problem(text: str) -> bytes:
    return json.dumps({"error": {"message": text, "code": 500}}).encode()


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
    ("201", sends(WHOLE.replace(b"200 OK", b"201 Created")), "ok", None, 2),
    ("another content type", sends(WHOLE.replace(b"text/event-stream", b"application/json")), "ok", None, 2),
    ("no content type", sends(b"HTTP/1.1 200\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk(ANSWER) + LAST), "ok",
     None, 2),
    ("gzip", sends(OK + b"Content-Encoding: gzip\r\n" + COUNTED % len(ZIPPED) + ZIPPED), "ok", None, 2),
    ("gzip, a chunk a token", sends(zipped(31, name=b"gzip", parts=3)), "ok", None, 2),
    ("deflate", sends(zipped(15, name=b"deflate")), "ok", None, 2),
    ("deflate without its head", sends(zipped(-15, name=b"deflate")), "ok", None, 2),
    ("gzip without its end", sends(zipped(31, name=b"gzip", whole=False)), "ok", None, 2),
    ("no gzip, though it says so", sends(WHOLE.replace(b"\r\n\r\n", b"\r\nContent-Encoding: gzip\r\n\r\n", 1)), "ok",
     None, 2),
    ("500 kB of head", sends(HUGE_HEAD + COUNTED % len(ANSWER) + ANSWER), "ok", None, 2),
    ("garbage after the end", sends(WHOLE + b"\xff<html>"), "ok", None, 2),
    ("garbage after the end, later", sends(WHOLE, b"\xff<html>", gap_s=0.05), "ok", None, 2),
    ("half closed", half_closes, "ok", None, 2),
    ("half closed early", half_closes_early, "truncated", "truncated", 1),
    ("broken off", aborts, "truncated", "truncated", 1),
    ("less than was said", sends(OK + COUNTED % 5000 + TOKEN), "truncated", "truncated", 1),
    ("more than was said", sends(OK + COUNTED % len(ANSWER) + ANSWER + TOKEN), "ok", None, 2),
    ("closed in the head", sends(b"HTTP/1.1 200 OK\r\nContent-"), "failed", "reset", None),
    ("closed without a word", sends(), "failed", "reset", None),
    ("no http", sends(b"SSH-2.0-OpenSSH_9.6\r\n", stay_s=0.2), "failed", "protocol", None),
    ("a chunk too long", sends(CHUNKED + chunk(TOKEN), b"2\r\nhello\r\n", gap_s=0.05), "failed", "protocol", 1),
    ("hangs in the head", sends(b"HTTP/1.1 200 OK\r\n", stay_s=3), "timeout", "timeout", None),
    ("hangs in the body", sends(CHUNKED + chunk(TOKEN), stay_s=3), "timeout", "timeout", 1),
    ("400", sends(said(b"400 Bad", problem("too long"))), "failed", "http-400", 0),
    ("401 without text", sends(said(b"401 Unauthorized")), "failed", "http-401", 0),
    ("404 by FastAPI", sends(said(b"404 Not Found", b'{"detail":"Not Found"}')), "failed", "http-404", 0),
    ("500", sends(said(b"500 Oops", problem("broken"))), "failed", "http-500", 0),
    ("500, the head only", sends(b"HTTP/1.1 500 Oops\r\n\r\n"), "failed", "http-500", 0),
    ("502 with a page", sends(said(b"502 Bad Gateway", HTML, b"Content-Type: text/html")), "failed", "http-502", 0),
    ("504 with text", sends(said(b"504 Gateway Timeout", b"upstream request timeout")), "failed", "http-504", 0),
    ("429", sends(said(b"429 Too Many", problem("slow down"))), "rejected", "http-429", 0),
    ("429, Retry-After", sends(said(b"429 Too Many", b"", b"Retry-After: 2")), "rejected", "http-429", 0),
    ("503", sends(said(b"503 Busy", b"queue full")), "rejected", "http-503", 0),
    ("503, Retry-After a date", sends(said(b"503 Busy", b"", b"Retry-After: Fri, 31 Dec 2027 23:59:59 GMT")),
     "rejected", "http-503", 0),
    *((f"{code}", sends(said(b"%d Moved" % code, b"", b"Location: /elsewhere")), "failed", "redirect", 0)
      for code in (301, 302, 303, 307, 308)),
    ("204", sends(b"HTTP/1.1 204 No Content\r\n\r\n", stay_s=1), "truncated", "truncated", 0),
    ("200 with nothing", sends(said(b"200 OK")), "truncated", "truncated", 0),
    ("200 with a page", sends(said(b"200 OK", HTML, b"Content-Type: text/html")), "failed", "not-sse", 0),
    ("200 with an error", sends(said(b"200 OK", problem("broken"))), "failed", "server-error", 0),
    ("200 in one piece", sends(said(b"200 OK", b'{"choices":[{"text":"all"}]}')), "failed", "not-sse", 0),
]  # fmt: skip
# Where aiohttp's own parser is handed the answer and what follows it in one piece, it refuses both.
REFUSED_BY_AIOHTTP = {"garbage after the end", "more than was said"}
ERRORS = {
    "400": "too long", "401 without text": "HTTP 401 without text", "404 by FastAPI": "Not Found", "500": "broken",
    "502 with a page": "Bad gateway", "504 with text": "upstream request timeout", "429": "slow down",
    "503": "queue full", "302": "redirected to /elsewhere", "200 with a page": "HTML", "200 with an error": "broken",
    "200 in one piece": "ignored stream: true", "hangs in the body": "within 2 s",
}  # fmt: skip


@pytest.mark.parametrize("client", ["socket", "aiohttp"])
@pytest.mark.parametrize(
    ("name", "script", "status", "kind", "chunks"), [pytest.param(*entry, id=entry[0]) for entry in ZOO]
)
def test_zoo(client, name, script, status, kind, chunks):
    if client == "aiohttp" and name in REFUSED_BY_AIOHTTP:
        status, kind, chunks = "failed", "protocol", None
    with scripted(script) as url:
        row, raw, _ = ask(url, client=client, timeout_s=2.0 if status == "timeout" else 10.0)
    assert (row.status, row.error_kind, row.chunks) == (status, kind, chunks), row.error
    assert ERRORS.get(name, "") in (row.error or "")
    assert raw.stamp == ("kernel" if client == "socket" and raw.reads else "user")
    if name in ("counted", "kept alive", "half closed", "204"):
        assert row.done_s - row.sent_s < 0.9  # the end of the answer, not of the connection
    if name == "gzip, a chunk a token" and client == "socket":
        assert row.token_reads is not None and row.first_token_s <= row.last_token_s


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
            async with CLIENTS[client](url, False) as sender:
                resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
                try:
                    return await sender.start(request_to(url), 0, 5.0)
                finally:
                    resource.setrlimit(resource.RLIMIT_NOFILE, limits)

        raw = asyncio.run(go())
    assert raw.end == "fd-limit" and "ulimit -n" in raw.end_text


STAYING = """
import sys
from tests.sweep.test_wire import *
with scripted(sends(CHUNKED + chunk(ANSWER) + LAST, stay_s=5)) as url:
    print(url, flush=True)
    sys.stdin.read()
"""


def test_a_server_that_does_not_close_takes_no_descriptors_from_the_next_request():
    """100 requests with room for some 40 sockets: those that only wait for the server's close are let go. The server
    has a process, and so descriptors, of its own."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)

    async def go(url):
        lowest_free = os.dup(0)
        os.close(lowest_free)
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free + 60, limits[1]))
        try:
            async with CLIENTS["socket"](url, False) as sender:
                return [(await sender.start(request_to(url), 0, 5.0)).end for _ in range(100)]
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)

    command = [sys.executable, "-c", STAYING]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert asyncio.run(go(server.stdout.readline().strip())) == ["complete"] * 100
        server.stdin.close()


@pytest.mark.parametrize("loop_factory", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_ending_all(loop_factory):
    with scripted(sends(CHUNKED + chunk(TOKEN), stay_s=2)) as url:
        row, _, _ = ask(url, meddle=lambda client: client.end_all(), loop_factory=loop_factory)
    assert (row.status, row.chunks) == ("cancelled", 1)
