"""Which client is chosen, and the ways that a request can take: TLS, HTTP proxies, IPv6."""

from __future__ import annotations

import contextlib
import socket
import threading
import time

import pytest

from pdbench.route import http_proxy, proxy_name, unix_path, unix_url
from pdbench.sweep.clients import client_name
from tests.sweep.authority import authority, secured
from tests.sweep.scripted import ANSWER, CHUNKED, DONE, FINISH, TOKEN, ask, chunk, request_of, scripted
from tests.sweep.test_connections import Counting, ask_in_turn, whole
from tests.sweep.test_wire import sends

WHOLE = CHUNKED + chunk(ANSWER) + b"0\r\n\r\n"
BOTH = pytest.mark.parametrize("client", ["socket", "aiohttp"])


@pytest.fixture
def environ(monkeypatch):
    for name in ("http_proxy", "https_proxy", "no_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    return monkeypatch


@pytest.fixture
def trusted(environ, tmp_path):
    """An authority that this process trusts, and that has certified localhost."""
    known = authority(tmp_path, "localhost", "127.0.0.1")
    environ.setenv("SSL_CERT_FILE", str(known.pem))
    return known


def test_the_choice(environ):
    for straight in ("http://10.0.0.1:80", "https://h", "http+unix://%2Frun%2Fs/v1"):
        assert client_name(straight) == "socket" and http_proxy(straight) is None
    environ.setenv("HTTP_PROXY", "user:secret@proxy:3128")
    environ.setenv("NO_PROXY", "inside.example,10.0.0.7")
    assert client_name("http://h:80") == "aiohttp" and http_proxy("http://h:80") == "http://user:secret@proxy:3128"
    assert proxy_name("http://h:80") == "http://proxy:3128"  # what is shown
    for direct in ("inside.example", "10.0.0.7", "127.0.0.1", "localhost", "[::1]"):
        assert client_name(f"http://{direct}:80") == "socket" and proxy_name(f"http://{direct}:80") is None
    assert http_proxy("https://h") is None and http_proxy("http+unix://%2Frun%2Fs") is None


def test_unix_addresses():
    assert unix_url("/run/a b.sock") == "http+unix://%2Frun%2Fa%20b.sock"
    assert unix_path(unix_url("/run/a b.sock") + "/v1/models") == "/run/a b.sock" and unix_path("http://h/v1") is None


def test_through_an_http_proxy(environ):
    asked = []

    def proxy(conn):
        asked.append(request_of(conn).split(b"\r\n")[0])
        conn.sendall(WHOLE)

    with scripted(proxy) as url:
        environ.setenv("HTTP_PROXY", url.removesuffix("/v1/completions"))
        row, raw, health = ask("http://model.example/v1/completions", client="aiohttp")
    assert asked == [b"POST http://model.example/v1/completions HTTP/1.1"]
    assert row.status == "ok" and raw.stamp == "user" and health["stamps"]["kernel"] == 0


def tunnel(asked):
    """A proxy that opens tunnels, as one for HTTPS does."""

    def script(conn):
        line = b""
        while not line.endswith(b"\r\n\r\n"):
            line += conn.recv(1)
        asked.append(line.split(b"\r\n")[0])
        port = int(asked[-1].split()[1].rpartition(b":")[2])
        with socket.create_connection(("127.0.0.1", port)) as server:
            conn.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
            back = threading.Thread(target=pump, args=(server, conn))
            back.start()
            pump(conn, server)
            back.join()

    return script


def pump(source, target):
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)


def test_tls_through_a_tunnel(environ, tmp_path):
    known = authority(tmp_path, "model.example")
    environ.setenv("SSL_CERT_FILE", str(known.pem))
    asked: list[bytes] = []
    with secured(sends(WHOLE), known) as url, scripted(tunnel(asked)) as proxy:
        environ.setenv("HTTPS_PROXY", proxy.removesuffix("/v1/completions"))
        inside = url.replace("127.0.0.1", "model.example")
        assert client_name(inside) == "aiohttp"
        row, raw, _ = ask(inside, client="aiohttp")
    assert asked[0].startswith(b"CONNECT model.example:") and row.status == "ok" and raw.stamp == "user"


@BOTH
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_tls(trusted, client, host):
    with secured(sends(WHOLE), trusted) as url:
        row, raw, health = ask(url.replace("127.0.0.1", host), client=client)
    assert (row.status, row.chunks) == ("ok", 2) and health["connect_p50_ms"] > 0
    assert raw.stamp == ("kernel" if client == "socket" else "user")


def test_tls_has_the_kernels_stamps_and_a_handshake_ahead_of_the_request(trusted):
    """The client is busy for half a second meanwhile; the stamps don't show it."""
    wrote_ns: list[int] = []

    def script(conn):
        request_of(conn)
        conn.sendall(CHUNKED)
        time.sleep(0.2)
        wrote_ns.append(time.monotonic_ns())
        conn.sendall(chunk(TOKEN + FINISH + DONE) + b"0\r\n\r\n")
        time.sleep(0.5)

    with secured(script, trusted) as url:
        row, raw, health = ask(url, idle_s=0.2, meddle=lambda client: time.sleep(0.5), meddle_after_s=0.05)
    assert row.status == "ok" and raw.stamp == "kernel" and row.connected_s < row.sent_s - 0.1
    assert 0 < raw.reads[0][0] - wrote_ns[0] < 50_000_000 and health["kernel_to_user_p99_ms"] > 200


@BOTH
def test_a_certificate_that_nobody_vouches_for(environ, tmp_path, client):
    with secured(sends(WHOLE), authority(tmp_path, "127.0.0.1")) as url:
        row, _, _ = ask(url, client=client)
    assert (row.status, row.error_kind) == ("failed", "tls")
    assert "unable to get local issuer certificate" in row.error and "SSL_CERT_FILE" in row.error


@BOTH
def test_a_certificate_of_somebody_else(environ, tmp_path, client):
    known = authority(tmp_path, "other.example")
    environ.setenv("SSL_CERT_FILE", str(known.pem))
    with secured(sends(WHOLE), known) as url:
        row, _, _ = ask(url.replace("127.0.0.1", "localhost"), client=client)
    assert (row.status, row.error_kind) == ("failed", "tls") and "match" in row.error


@BOTH
@pytest.mark.parametrize("answer", [b"HTTP/1.1 400 plain\r\n\r\n", b""], ids=["plain HTTP", "a close"])
def test_tls_with_a_server_that_speaks_none(environ, client, answer):
    def script(conn):
        conn.recv(10)
        conn.sendall(answer)

    with scripted(script) as url:
        row, _, _ = ask(url.replace("http:", "https:"), client=client)
    assert row.status == "failed" and row.error_kind in ("tls", "connect")


def test_a_long_body_over_tls(trusted):
    got = []

    def reads_slowly(conn):
        got.append(request_of(conn))
        conn.sendall(WHOLE)

    body = bytes(range(256)) * 20_000
    with secured(reads_slowly, trusted) as url:
        row, _, _ = ask(url, body=body)
    assert row.status == "ok" and got[0].partition(b"\r\n\r\n")[2] == body


def test_tls_connections_are_kept_and_used_again(trusted):
    server = Counting(whole)
    with secured(server, trusted) as url:
        found, health = ask_in_turn(url, "socket", 4, pause_s=0.02)
    assert [raw.end for raw in found] == ["complete"] * 4 and server.connections == 1
    assert health["connections_reused"] == 3 and {raw.stamp for raw in found} == {"kernel"}


@BOTH
def test_ipv6(client):
    if not socket.has_ipv6:
        pytest.skip("no IPv6 here")
    with scripted(sends(WHOLE), "::1") as url:
        row, raw, _ = ask(url, client=client)
    assert row.status == "ok" and raw.stamp == ("kernel" if client == "socket" else "user")
