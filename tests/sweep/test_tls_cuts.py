"""TLS where segments don't fall as records do: what a request ends as must not depend on it."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time

import pytest

from pdbench.sweep.rows import CellContext, read_row
from pdbench.sweep.socket_client import open_sockets
from tests.sweep.authority import authority
from tests.sweep.scripted import ANSWER, CHUNKED, OK, TOKEN, ask, chunk, request_to, scripted

WHOLE = CHUNKED + chunk(ANSWER) + b"0\r\n\r\n"
FULL = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 4\r\nConnection: close\r\n\r\nfull"
CUT = pytest.mark.parametrize("apart", [False, True])
GAP_S = 0.05


class Server:
    """TLS whose segments the test makes: `sealed` records are sent by the script, together or apart."""

    def __init__(self, conn, context):
        self._conn = conn
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out, server_side=True)

    def shaken(self) -> bytes:
        """The end of the handshake, not yet sent."""
        while True:
            try:
                self._tls.do_handshake()
                return self._out.read()
            except ssl.SSLWantReadError:
                self._conn.sendall(self._out.read())
                self._more()

    def _more(self):
        if not (piece := self._conn.recv(1 << 20)):
            raise ConnectionError
        self._in.write(piece)

    def request(self) -> bytes:
        data = b""
        while not data.endswith(b"\r\n\r\n{}"):
            try:
                data += self._tls.read(1 << 20)
            except ssl.SSLWantReadError:
                self._more()
        return data

    def sealed(self, plain: bytes) -> bytes:
        self._tls.write(plain)
        return self._out.read()

    def farewell(self) -> bytes:
        with contextlib.suppress(ssl.SSLError):
            self._tls.unwrap()
        return self._out.read()

    def send(self, *pieces: bytes, apart: bool):
        for piece in pieces if apart else (b"".join(pieces),):
            self._conn.sendall(piece)
            time.sleep(GAP_S)


@pytest.fixture
def known(monkeypatch, tmp_path):
    made = authority(tmp_path, "localhost", "127.0.0.1")
    monkeypatch.setenv("SSL_CERT_FILE", str(made.pem))
    return made


def answered(known, script, **options):
    """The row of one request that waits at most 2 s, from a server that closes nothing by itself."""

    def serve(conn):
        script(Server(conn, known.context))
        time.sleep(3.0)

    with scripted(serve) as url:
        row, raw, _ = ask(url.replace("http:", "https:"), timeout_s=2.0, **options)
    return row, raw


@CUT
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_an_answer_beside_the_end_of_the_handshake(known, version, apart):
    known.context.maximum_version = version

    def script(server):
        end = server.shaken()
        server.send(end, server.sealed(FULL), apart=apart)

    row, _ = answered(known, script)
    assert (row.status, row.error_kind) == ("rejected", "http-503")


@CUT
def test_a_stream_that_breaks_off_with_the_farewell_is_truncated_at_once(known, apart):
    def script(server):
        server.send(server.shaken(), apart=True)
        server.request()
        server.send(server.sealed(CHUNKED + chunk(TOKEN)), server.farewell(), apart=apart)

    row, raw = answered(known, script)
    assert (row.status, row.chunks) == ("truncated", 1) and (raw.done_ns - raw.sent_ns) / 1e9 < 1.5


@CUT
def test_an_answer_that_the_farewell_ends_is_done_with_it(known, apart):
    def script(server):
        server.send(server.shaken(), apart=True)
        server.request()
        server.send(server.sealed(OK + b"\r\n" + ANSWER), server.farewell(), apart=apart)

    row, raw = answered(known, script)
    assert row.status == "ok" and (raw.done_ns - raw.sent_ns) / 1e9 < 1.5


@CUT
@pytest.mark.parametrize("bad", [b"\x17\x03\x03\x00\x20" + b"z" * 32, b"\x15\x03\x03\x00\x02\x02\x50"])
def test_what_was_whole_before_a_bad_record_counts(known, bad, apart):
    def script(server):
        server.send(server.shaken(), apart=True)
        server.request()
        server.send(server.sealed(CHUNKED + chunk(ANSWER)), bad, apart=apart)

    row, _ = answered(known, script)
    assert (row.status, row.chunks) == ("ok", 2)


def test_a_connection_with_a_farewell_is_not_kept(known):
    def script(conn):
        server = Server(conn, known.context)
        conn.sendall(server.shaken())
        server.request()
        conn.sendall(server.sealed(WHOLE) + server.farewell())
        time.sleep(3.0)

    async def go(url):
        async with open_sockets(url, True) as client:
            rows = [read_row(await client.start(request_to(url), 0, 2.0), CellContext(0, 0, "", 0))[0] for _ in "ab"]
            return [row.status for row in rows], client.health()

    with scripted(script) as url:
        statuses, health = asyncio.run(go(url.replace("http:", "https:")))
    assert statuses == ["ok", "ok"] and (health["connections_opened"], health["connections_reused"]) == (2, 0)
