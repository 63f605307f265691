"""Which client is chosen, and the ways that only aiohttp goes: TLS and HTTP proxies."""

from __future__ import annotations

import pytest

from pdbench.sweep.clients import client_name, http_proxy
from tests.sweep.scripted import ANSWER, CHUNKED, ask, chunk, request_of, scripted


@pytest.fixture
def environ(monkeypatch):
    for name in ("http_proxy", "https_proxy", "no_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    return monkeypatch


def test_the_choice(environ):
    assert client_name("http://10.0.0.1:80") == "socket" and client_name("https://h") == "aiohttp"
    environ.setenv("HTTP_PROXY", "proxy:3128")
    environ.setenv("NO_PROXY", "inside.example,10.0.0.7")
    assert client_name("http://h:80") == "aiohttp" and http_proxy("http://h:80") == "http://proxy:3128"
    for direct in ("inside.example", "10.0.0.7", "127.0.0.1", "localhost", "[::1]"):
        assert client_name(f"http://{direct}:80") == "socket"
    assert http_proxy("https://h") is None


def test_through_an_http_proxy(environ):
    asked = []

    def proxy(conn):
        asked.append(request_of(conn).split(b"\r\n")[0])
        conn.sendall(CHUNKED + chunk(ANSWER) + b"0\r\n\r\n")

    with scripted(proxy) as url:
        environ.setenv("HTTP_PROXY", url.removesuffix("/v1/completions"))
        row, raw, health = ask("http://model.example/v1/completions", client="aiohttp")
    assert asked == [b"POST http://model.example/v1/completions HTTP/1.1"]
    assert row.status == "ok" and raw.stamp == "user" and health["stamps"]["kernel"] == 0


def test_tls_with_a_server_that_speaks_none(environ):
    with scripted(lambda conn: conn.sendall(b"HTTP/1.1 400 plain\r\n\r\n")) as url:
        row, _, _ = ask(url.replace("http:", "https:"), client="aiohttp")
    assert row.status == "failed" and row.error_kind in ("tls", "connect")
