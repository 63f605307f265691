"""A little HTTP server in a thread that replays pages: what discovery and the sampler are tested against."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

CAPTURES = Path(__file__).parent / "captures"


def capture(name: str) -> bytes:
    return (CAPTURES / name).read_bytes()


@dataclass
class Reply:
    body: bytes | Callable[[int], bytes] = b""  # or a function of how often this path was asked, from 1
    status: int = 200
    content_type: str = "application/json"
    delay_s: float = 0.0
    cut: bool = False  # promise more bytes than are sent, then hang up
    headers: dict[str, str] = field(default_factory=dict)


@dataclass
class Replay:
    """What one server replies by path, and what it was asked."""

    replies: dict[str, Reply]
    otherwise: Reply = field(default_factory=lambda: Reply(b'{"detail":"Not Found"}', 404))
    asked: list[tuple[float, str]] = field(default_factory=list)  # (time.monotonic() when answered, path)
    authorization: list[str | None] = field(default_factory=list)
    at_once: dict[str, int] = field(default_factory=dict)
    most_at_once: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)
    url: str = ""


def page(body: bytes | Callable[[int], bytes], **more: object) -> Reply:
    return Reply(body, content_type="text/plain; version=0.0.4; charset=utf-8", **more)  # type: ignore[arg-type]


HTML = Reply(b"<!DOCTYPE html><html><body>Grafana</body></html>", content_type="text/html")


def _handler(replay: Replay) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            with replay.lock:
                replay.at_once[self.path] = replay.at_once.get(self.path, 0) + 1
                replay.most_at_once = max(replay.most_at_once, replay.at_once[self.path])
                times = sum(path == self.path for _, path in replay.asked) + 1
                replay.asked.append((time.monotonic(), self.path))
                replay.authorization.append(self.headers.get("Authorization"))
            reply = replay.replies.get(self.path, replay.otherwise)
            time.sleep(reply.delay_s)
            body = reply.body(times) if callable(reply.body) else reply.body
            try:
                self.send_response(reply.status)
                self.send_header("Content-Type", reply.content_type)
                self.send_header("Content-Length", str(len(body) + (10 if reply.cut else 0)))
                for name, value in reply.headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)
            except OSError:
                pass
            finally:
                with replay.lock:
                    replay.at_once[self.path] -= 1
            if reply.cut:
                self.close_connection = True

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", "0")))
            self.do_GET()

        def log_message(self, *_: object) -> None:
            pass

    return Handler


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 256

    def handle_error(self, *_: object) -> None:
        """A client that hung up is no news."""


@contextmanager
def serving(replay: Replay, port: int = 0) -> Iterator[Replay]:
    """Serve on loopback until the block ends."""
    server = _Server(("127.0.0.1", port), _handler(replay))
    replay.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield replay
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)


def models(*names: str, root: str | None = None, length: int = 8192) -> Reply:
    entries = ",".join(
        f'{{"id":"{name}","object":"model","root":"{root or name}","parent":null,"max_model_len":{length}}}'
        for name in names
    )
    return Reply(f'{{"object":"list","data":[{entries}]}}'.encode())


def vllm(role: str, mode: str = "pull", **more: Reply) -> Replay:
    """A real vLLM 0.32 server of a pair, as captured; `more` by path without its slash replaces a reply."""
    replies = {
        "/version": Reply(b'{"version":"0.32.0"}'),
        "/v1/models": Reply(capture("vllm-models.json")),
        "/metrics": page(capture(f"vllm-{mode}-{role}.metrics")),
        "/server_info?config_format=json": Reply(
            capture(f"vllm-{role}.server_info.json").replace(
                b"NixlConnector", b"NixlPushConnector" if mode == "push" else b"NixlConnector"
            )
        ),
        "/health": Reply(b""),
    }
    named = {"version": "/version", "models": "/v1/models", "metrics": "/metrics", "health": "/health"}
    named["server_info"] = "/server_info?config_format=json"
    return Replay(replies | {named[name]: reply for name, reply in more.items()})
