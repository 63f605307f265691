"""A server with a known truth, to test the client by: exact schedules, and a log of when each event was really sent.

Standard library only, one thread, raw sockets with TCP_NODELAY. It shares no code with pdbench. For every request it
appends one JSON line to its log: CLOCK_MONOTONIC ns of accept, of the request's last byte, of admission to a slot, and
of the moment before each event's first send().

    python server.py --ttft 50 --itl 20 --tokens 16 --log FILE     prints its port, serves until its stdin closes

Ways to fail are chosen by path, e.g. POST /fail/cut:3/v1/completions; see MODES.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import struct
import sys
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from wire import Conn, Wire, chunk

MODES = """
  hang            read the request, answer nothing
  hang:K          stop after K tokens, keep the connection
  close           close without any answer
  cut:K           end the body properly after K tokens: no finish_reason, no [DONE]
  reset:K         break the connection off after K tokens
  error:K         an error event after K tokens, then [DONE]
  status:CODE     that status with a JSON error
  html            200 with a page
  json            200 with the whole answer as JSON
  empty           200 without a body
  redirect        307 to /v1/completions
  fewer:K         end well, but K tokens short
  silent          end well without any output
  nousage         no usage event
  strict          fields that OpenAI does not know are refused with 400, as Dynamo's frontend does
"""


@dataclass
class Stream:
    conn: Conn
    number: int
    request_id: str
    chat: bool
    tokens: int
    prompt_tokens: int
    mode: str
    count: int  # the mode's argument
    usage: bool
    keep_alive: bool
    received_ns: int
    admitted_ns: int = 0
    sent_ns: list[int] = field(default_factory=list)
    conversation: str | None = None
    sent_tokens: int = 0
    next_due_ns: int = 0


class Server(Wire):
    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__(options.host, options.port, nagle=options.nagle)
        self.options = options
        self.log = os.open(options.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND) if options.log else None
        self.running = 0
        self.waiting: deque[Stream] = deque()
        self.gathered: list[Stream] = []
        self.requests = 0
        self.prompt_tokens = 0
        self.generated = 0
        self.succeeded = 0
        self.first_request_ns = 0

    def route(self, conn: Conn, method: str, path: str, headers: dict[str, str], body: bytes, received_ns: int) -> None:
        keep = headers.get("connection", "").lower() != "close"
        mode = ""
        if path.startswith("/fail/"):
            mode, _, rest = path.removeprefix("/fail/").partition("/")
            path = "/" + rest
        if method == "GET":
            self.page(conn, path, keep)
            return
        self.requests += 1
        self.first_request_ns = self.first_request_ns or received_ns
        try:
            asked = json.loads(body)
        except ValueError:
            self.respond(conn, 400, "application/json", b'{"error":{"message":"bad JSON"}}', keep)
            return
        name, _, argument = mode.partition(":")
        if self.options.error_every and self.requests % self.options.error_every == 0:
            name, argument = "status", "500"
        chat = path.endswith("/chat/completions")
        prompt = asked.get("prompt", asked.get("messages"))
        words = prompt if isinstance(prompt, list) and not chat else json.dumps(prompt).split()
        stream = Stream(
            conn,
            self.requests,
            headers.get("x-request-id", ""),
            chat,
            asked.get("max_completion_tokens") or asked.get("max_tokens") or self.options.tokens,
            len(words),
            name,
            int(argument or 0),
            bool((asked.get("stream_options") or {}).get("include_usage")),
            keep,
            received_ns,
            conversation=asked.get("conversation_id"),
        )
        if not self.answer_whole(stream, headers):
            self.enqueue(stream)

    def answer_whole(self, stream: Stream, headers: dict[str, str]) -> bool:
        """The modes that do not stream."""
        conn, name, keep = stream.conn, stream.mode, stream.keep_alive
        if name == "hang" and not stream.count:
            pass
        elif name == "close":
            self.close(conn)
        elif name == "status":
            echo = headers.get("authorization", "")  # careless servers repeat what they were sent
            text = {"error": {"message": f"status {stream.count} as asked {echo}", "code": stream.count}}
            self.respond(conn, stream.count, "application/json", json.dumps(text).encode(), keep)
        elif name == "strict" and stream.conversation:
            text = {"message": "Validation: Unsupported parameter(s): `conversation_id`", "code": 400}
            self.respond(conn, 400, "application/json", json.dumps(text).encode(), keep)
        elif name == "html":
            self.respond(conn, 200, "text/html", b"<!DOCTYPE html><html><body>Welcome</body></html>", keep)
        elif name == "json":
            whole = {"choices": [{"text": "all at once", "finish_reason": "stop"}], "usage": {"completion_tokens": 3}}
            self.respond(conn, 200, "application/json", json.dumps(whole).encode(), keep)
        elif name == "empty":
            self.respond(conn, 200, "text/event-stream", b"", keep)
        elif name == "redirect":
            self.respond(conn, 307, "text/plain", b"", keep, "Location: /v1/completions\r\n")
        else:
            return False
        self.write_log(stream)
        return True

    def page(self, conn: Conn, path: str, keep: bool) -> None:
        model = self.options.model
        if path == "/v1/models":
            text = json.dumps({"object": "list", "data": [{"id": model, "object": "model", "max_model_len": 131072}]})
            self.respond(conn, 200, "application/json", text.encode(), keep)
        elif path == "/metrics":
            label = f'{{engine="0",model_name="{model}"}}'
            values = {
                "gauge vllm:num_requests_running": self.running,
                "gauge vllm:num_requests_waiting": len(self.waiting),
                "counter vllm:prompt_tokens_total": self.prompt_tokens,
                "counter vllm:generation_tokens_total": self.generated,
                "counter vllm:request_success_total": self.succeeded,
            }
            lines = []
            for kind_name, value in values.items():
                kind, name = kind_name.split()
                lines += [f"# TYPE {name} {kind}", f"{name}{label} {value}.0"]
            self.respond(conn, 200, "text/plain; version=0.0.4", ("\n".join(lines) + "\n").encode(), keep)
        elif path == "/health":
            self.respond(conn, 200, "text/plain", b"", keep)
        else:
            self.respond(conn, 404, "application/json", b'{"detail":"Not Found"}', keep)

    # Slots: a request beyond `--slots` running ones waits in order; its schedule counts from admission.
    def enqueue(self, stream: Stream) -> None:
        if self.options.gather:
            self.gathered.append(stream)
            if len(self.gathered) == self.options.gather:
                now_ns = time.monotonic_ns()
                for one in self.gathered:
                    self.admit(one, now_ns)
        elif self.options.slots and self.running >= self.options.slots:
            self.waiting.append(stream)
        else:
            self.admit(stream)

    def admit(self, stream: Stream, from_ns: int | None = None) -> None:
        self.running += 1
        stream.admitted_ns = time.monotonic_ns()
        self.prompt_tokens += stream.prompt_tokens
        head = "HTTP/1.1 200 OK\r\nContent-Type: {}\r\nTransfer-Encoding: chunked\r\nConnection: {}\r\n\r\n"
        keep = "keep-alive" if stream.keep_alive else "close"
        self.send(stream.conn, head.format(self.options.content_type, keep).encode())
        start_ns = stream.received_ns if not self.options.slots else stream.admitted_ns
        start_ns = from_ns or start_ns
        stream.next_due_ns = start_ns + int(self.options.ttft * 1e6)
        self.plan_next(stream)

    def plan_next(self, stream: Stream) -> None:
        self.at(self.after_stall(stream.next_due_ns), lambda: self.emit(stream))

    def after_stall(self, due_ns: int) -> int:
        """During the stall no token leaves; what was due in it leaves at its end."""
        if not self.options.stall_ms:
            return due_ns
        start_ns = self.first_request_ns + int(self.options.stall_at * 1e9)
        end_ns = start_ns + int(self.options.stall_ms * 1e6)
        return end_ns if start_ns <= due_ns < end_ns else due_ns

    def emit(self, stream: Stream) -> None:
        if stream.conn.closed:
            self.write_log(stream)
            self.finish(stream)
            return
        if stream.mode in ("cut", "reset", "error", "hang") and stream.sent_tokens >= stream.count:
            self.fail_midway(stream)
            return
        left = stream.tokens - (stream.count if stream.mode == "fewer" else 0) - stream.sent_tokens
        if left <= 0 or stream.mode == "silent":
            self.end_well(stream)
            return
        count = min(self.options.coalesce, left)
        now_ns = time.monotonic_ns()
        whole_ns = self.send_event(stream, self.token_event(stream, " tok" * count))
        stream.sent_ns.append(now_ns)
        stream.sent_tokens += count
        self.generated += count
        if left == count and stream.mode in ("", "nousage", "fewer"):
            self.at(whole_ns, lambda: self.end_well(stream))
            return
        stream.next_due_ns = max(stream.next_due_ns, self.after_stall(stream.next_due_ns))
        stream.next_due_ns += int(self.options.itl * 1e6) * self.options.coalesce
        stream.next_due_ns = max(stream.next_due_ns, whole_ns + 1)  # on a busy machine the pieces may be late
        self.plan_next(stream)

    def token_event(self, stream: Stream, text: str | None, finish: str | None = None) -> bytes:
        choice: dict[str, Any] = {"index": 0, "finish_reason": finish}
        if stream.chat:
            choice["delta"] = {"content": text} if text is not None else {}
            if not stream.sent_tokens:
                choice["delta"]["role"] = "assistant"
        else:
            choice["text"] = text or ""
        prefix = "chatcmpl" if stream.chat else "cmpl"
        event = {"id": f"{prefix}-{stream.number}", "model": self.options.model, "choices": [choice]}
        return b"data: " + json.dumps(event).encode() + b"\n\n"

    def end_well(self, stream: Stream) -> None:
        tail = [self.token_event(stream, None, "length")]
        if stream.usage and stream.mode != "nousage":
            usage = {"prompt_tokens": stream.prompt_tokens, "completion_tokens": stream.sent_tokens}
            event = {"id": f"cmpl-{stream.number}", "model": self.options.model, "choices": [], "usage": usage}
            tail.append(b"data: " + json.dumps(event).encode() + b"\n\n")
        tail.append(b"data: [DONE]\n\n")
        self.write_log(stream)  # before the end: who has heard it may look into the log
        self.send(stream.conn, b"".join(map(chunk, tail)) + b"0\r\n\r\n")
        self.succeeded += 1
        self.finish(stream)

    def fail_midway(self, stream: Stream) -> None:
        conn = stream.conn
        self.write_log(stream)
        if stream.mode == "hang":
            self.free_slot()
            return
        if stream.mode == "reset":
            conn.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.close(conn)
        elif stream.mode == "error":
            error = b'data: {"error": {"message": "EngineCore encountered an issue", "code": 500}}\n\n'
            self.send(conn, chunk(error) + chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")
        else:
            self.send(conn, b"0\r\n\r\n")
        self.finish(stream)

    def finish(self, stream: Stream) -> None:
        if not stream.keep_alive and not stream.conn.closed:
            stream.conn.closing = True
            self.flush(stream.conn)
        self.free_slot()

    def free_slot(self) -> None:
        self.running -= 1
        if self.waiting and (not self.options.slots or self.running < self.options.slots):
            self.admit(self.waiting.popleft())

    def send_event(self, stream: Stream, event: bytes) -> int:
        """One event as one HTTP chunk in one send, or cut at `--split` byte positions into several of both.

        Returns when the last piece is due."""
        positions = [p for p in self.options.split if p < len(event)]
        pieces = [event[a:b] for a, b in zip([0, *positions], [*positions, len(event)], strict=True)]
        due_ns = time.monotonic_ns()
        self.send(stream.conn, chunk(pieces[0]))
        for piece in pieces[1:]:
            due_ns += int(self.options.split_gap * 1e6)
            self.at(due_ns, lambda piece=piece: self.send(stream.conn, chunk(piece)))  # type: ignore[misc]
        return due_ns

    def write_log(self, stream: Stream) -> None:
        if self.log is None:
            return
        record = {
            "request_id": stream.request_id,
            "number": stream.number,
            "accept_ns": stream.conn.accept_ns,
            "received_ns": stream.received_ns,
            "admitted_ns": stream.admitted_ns or None,
            "sent_ns": stream.sent_ns,
            "done_ns": time.monotonic_ns(),
            "prompt_tokens": stream.prompt_tokens,
            "tokens": stream.sent_tokens,
            "conversation": stream.conversation,
        }
        os.write(self.log, json.dumps(record).encode() + b"\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--host", default="127.0.0.1", help="an address, or the path of a Unix socket")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--ttft", type=float, default=50.0, help="ms")
    parser.add_argument("--itl", type=float, default=20.0, help="ms a token")
    parser.add_argument("--tokens", type=int, default=16, help="when the request does not say")
    parser.add_argument("--coalesce", type=int, default=1, help="tokens an event")
    parser.add_argument("--slots", type=int, default=0, help="running at once, the rest waits; 0: all run")
    parser.add_argument("--gather", type=int, default=0, help="answer none until so many have asked")
    parser.add_argument("--stall-at", type=float, default=0.0, help="s after the first request")
    parser.add_argument("--stall-ms", type=float, default=0.0)
    parser.add_argument("--error-every", type=int, default=0, help="each Nth request answers 500")
    parser.add_argument("--nagle", action="store_true", help="small writes wait for the ACK of the last one")
    parser.add_argument("--split", type=lambda t: [int(p) for p in t.split(",")], default=[], help="byte positions")
    parser.add_argument("--split-gap", type=float, default=1.0, help="ms between the pieces of an event")
    parser.add_argument("--content-type", default="text/event-stream; charset=utf-8")
    parser.add_argument("--model", default="ground-truth")
    parser.add_argument("--log")
    parser.add_argument("--stay", action="store_true", help="do not end when stdin does")
    options = parser.parse_args()
    server = Server(options)
    print(server.port, flush=True)
    server.serve(watch_stdin=not options.stay)


if __name__ == "__main__":
    sys.exit(main())
