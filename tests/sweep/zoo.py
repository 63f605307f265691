"""The shapes that streams of LLM servers come in: what is sent, piece by piece, and what the row must then say.

Each is one that a real server, router or gateway has sent, by public bug reports. A piece is written alone; `tokens`
are the pieces that carry generated output, as a reader of the stream would say and no parser.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Shape:
    name: str
    pieces: tuple[bytes, ...]
    tokens: tuple[int, ...]  # places of the pieces with output; one that is named n times has n events with output
    status: str = "ok"
    kind: str | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    finish: str | None = "length"
    error: str | None = None  # a part of the row's text
    thought: tuple[int, ...] = ()  # those of `tokens` that are the thinking trace, not the answer


def event(document: Any, end: bytes = b"\n\n", space: bytes = b" ") -> bytes:
    return b"data:" + space + json.dumps(document).encode() + end


def text(value: Any, finish: str | None = None, end: bytes = b"\n\n", **more: Any) -> bytes:
    return event({"choices": [{"index": 0, "text": value, "finish_reason": finish}], **more}, end)


def chat(finish: str | None = None, **delta: Any) -> bytes:
    return event({"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})


def usage(prompt: int, output: int, **more: Any) -> dict[str, Any]:
    return {"usage": {"prompt_tokens": prompt, "completion_tokens": output, **more}}


A, B = text("a"), text(" b")
FINISH, DONE = text("", "length"), b"data: [DONE]\n\n"
USAGE = event({"choices": [], **usage(4, 2)})
ROLE = chat(role="assistant")
HI, END = chat(content="hi"), chat("length")
BIG = text("x" * 10_000_000)


def with_ends(end: bytes) -> tuple[bytes, ...]:
    """A, B, the finish and [DONE] with other line ends."""
    return tuple(piece.replace(b"\n", end) for piece in (A, B, FINISH, DONE))


def called(name: str | None, arguments: str) -> bytes:
    function = {"arguments": arguments} | ({"name": name} if name else {})
    return chat(tool_calls=[{"index": 0, "id": "call-1", "type": "function", "function": function}])


def lines(*data: bytes) -> bytes:
    """One event of several data lines."""
    return b"".join(b"data: " + line + b"\n" for line in data) + b"\n"


OK_SHAPES = [
    Shape("completions", (A, B, FINISH, DONE), (0, 1)),
    Shape("no finish_reason but [DONE]", (A, B, DONE), (0, 1), finish=None),
    Shape("a finish_reason but no [DONE]", (A, B, FINISH), (0, 1)),
    Shape("the finish with the last token", (A, text(" b", "length"), DONE), (0, 1)),
    Shape("LF", with_ends(b"\n"), (0, 1)),
    Shape("CRLF", with_ends(b"\r\n"), (0, 1)),
    Shape("CR alone", with_ends(b"\r"), (0, 1)),
    Shape("CRLF cut between the two", (A[:-2] + b"\r", b"\n\r", b"\n" + B, FINISH, DONE), (1, 2)),
    Shape("no blank after the colon", tuple(p.replace(b"data: ", b"data:") for p in (A, B, FINISH, DONE)), (0, 1)),
    Shape("a byte-order mark", (b"\xef\xbb\xbf" + A, B, FINISH, DONE), (0, 1)),
    Shape("comments before the first token", (b": queued\n\n", b":\n\n: still\n\n", A, B, FINISH, DONE), (2, 3)),
    Shape("comments between tokens", (A, b": keep-alive\n\n", B, b": keep-alive\n", FINISH, DONE), (0, 2)),
    Shape("a comment inside an event", (b": x\n" + A[:-1], b": y\n\n", B, FINISH, DONE), (1, 2)),
    Shape("names and ids", (b"event: message\nid: 1\n" + A, b"id\nretry: 3\n" + B, FINISH, DONE), (0, 1)),
    Shape("an event without data", (b"event: ping\n\n", A, b"event: ping\nid: 7\n\n", B, FINISH, DONE), (1, 3)),
    Shape("several data lines", (lines(b'{"choices":', b'[{"text":"a"}]}'), B, FINISH, DONE), (0, 1)),
    Shape("an event cut in two", (A[:20], A[20:], B[:9], B[9:], FINISH, DONE), (1, 3)),
    Shape("half a character", (A, text("中").replace(b"\\u4e2d", b"\xe4\xb8"), FINISH, DONE), (0, 1)),
    Shape("a character cut in two", (b'data: {"choices":[{"text":"\xe4', b'\xb8\xad"}]}\n\n', B, FINISH, DONE), (1, 2)),
    Shape("invalid UTF-8", (b": \xff\n" + A.replace(b'"a"', b'"a\xff\xfe"'), B, FINISH, DONE), (0, 1)),
    Shape("half a surrogate pair", (text("a").replace(b'"a"', b'"\\ud800"'), B, FINISH, DONE), (0, 1)),
    Shape("NaN and Infinity", (A.replace(b": 0", b": NaN"), B.replace(b": 0", b": -Infinity"), FINISH, DONE), (0, 1)),
    Shape("a key twice", (A.replace(b'"text":', b'"text": "", "text":'), B, FINISH, DONE), (0, 1)),
    Shape("an event of 10 MB", (BIG, B, FINISH, DONE), (0, 1)),
    Shape("[DONE] with blanks", (A, B, FINISH, b"data:  [DONE] \n\n"), (0, 1)),
    Shape("what follows [DONE]", (A, B, FINISH, DONE + A + b"data: {garbage\n\n"), (0, 1)),
    Shape("garbage after the stream", (A, B, FINISH, DONE, b"\xff<html>\x00"), (0, 1)),
    Shape("a usage event", (A, B, FINISH, USAGE, DONE), (0, 1), prompt_tokens=4, output_tokens=2),
    Shape("usage: null in between", (text("a", usage=None), B, FINISH, USAGE, DONE), (0, 1), prompt_tokens=4,
          output_tokens=2),
    Shape(
        "continuous usage",
        (text("a", **usage(4, 1)), text("b", **usage(4, 2)), text("", "length", **usage(4, 2)), DONE),
        (0, 1),
        prompt_tokens=4,
        output_tokens=2,
    ),
    Shape(
        "cached tokens",
        (A, B, FINISH, event({"choices": [], **usage(40, 2, prompt_tokens_details={"cached_tokens": 32})}), DONE),
        (0, 1),
        prompt_tokens=40,
        output_tokens=2,
        cached_tokens=32,
    ),
    Shape(
        "reasoning tokens are among the output tokens",
        (A, B, FINISH, event(usage(4, 9, completion_tokens_details={"reasoning_tokens": 7})), DONE),
        (0, 1),
        prompt_tokens=4,
        output_tokens=9,
    ),
    Shape("usage that is no number", (A, B, FINISH, event({"usage": {"completion_tokens": "2"}}), DONE), (0, 1)),
    Shape("several tokens an event", (text("a b c"), text(" d e"), FINISH, event(usage(4, 5)), DONE), (0, 1),
          prompt_tokens=4, output_tokens=5),
    Shape("several events a write", (A + B, text(" c") + FINISH, DONE), (0, 0, 1)),
    Shape("two choices an event", (event({"choices": [{"index": 0, "text": ""}, {"index": 1, "text": "b"}]}), B, FINISH,
          DONE), (0, 1)),
    Shape("chat", (chat(role="assistant", content=""), HI, HI, END, DONE), (1, 2)),
    Shape("a role only", (ROLE, HI, HI, END, DONE), (1, 2)),
    Shape("a role with content: null", (chat(role="assistant", content=None), HI, END, DONE), (1,)),
    Shape("a role with the first token", (chat(role="assistant", content="hi"), HI, END, DONE), (0, 1)),
    Shape("empty deltas", (ROLE, chat(), chat(content=""), HI, chat(), HI, END, DONE), (3, 5)),
    Shape("empty texts", (text(""), text(None), A, text(""), B, FINISH, DONE), (2, 4)),
    Shape("choices that are none", (event({"choices": None}), event({"choices": [None, 7]}), A, FINISH, DONE), (2,)),
    Shape("reasoning", (ROLE, chat(reasoning="think"), chat(reasoning=" more"), HI, END, DONE), (1, 2, 3),
          thought=(1, 2)),
    Shape("reasoning_content", (ROLE, chat(reasoning_content="think", content=None), HI, END, DONE), (1, 2),
          thought=(1,)),
    Shape("reasoning_details", (ROLE, chat(reasoning_details=[{"text": "think"}]), HI, END, DONE), (1, 2),
          thought=(1,)),
    Shape("empty reasoning", (chat(reasoning="", content=None), chat(reasoning_content=""), HI, END, DONE), (2,)),
    Shape("a tool call", (ROLE, called("f", ""), called(None, "{"), called(None, "}"), chat("tool_calls"), DONE),
          (2, 3), finish="tool_calls"),
    Shape("a function call", (chat(function_call={"name": "f", "arguments": ""}),
          chat(function_call={"arguments": "{"}), END, DONE), (1,)),
    Shape("content in parts", (chat(content=[{"type": "text", "text": "hi"}]), chat(content=[]), END, DONE), (0,)),
    Shape("a refusal", (ROLE, chat(refusal="no"), END, DONE), (1,)),
]  # fmt: skip

ERROR = b'data: {"error": {"message": "EngineCore encountered an issue", "code": 500}}\n\n'
FAILED: dict[str, Any] = {"status": "failed", "kind": "server-error", "finish": None}
CUT: dict[str, Any] = {"status": "truncated", "kind": "truncated", "finish": None}
FAILED_SHAPES = [
    Shape("an error and [DONE]", (A, ERROR, DONE), (0,), error="EngineCore encountered an issue", **FAILED),
    Shape("an error at once", (ERROR, DONE), (), error="EngineCore encountered an issue", **FAILED),
    Shape("an error that is text", (A, event({"error": "broken"}), DONE), (0,), error="broken", **FAILED),
    Shape("an error without text", (A, event({"error": {}}), DONE), (0,), error="{}", **FAILED),
    Shape("event: error", (A, b"event: error\ndata: broken\n\n", DONE), (0,), error="broken", **FAILED),
    Shape("event: error without data", (A, b"event: error\n\n", DONE), (0,), error="without data", **FAILED),
    Shape("Dynamo's error", (A, event({"message": "broken", "type": "Internal", "code": 500}), DONE), (0,),
          error="broken", **FAILED),
    Shape("vLLM's old error", (A, event({"object": "error", "message": "broken"}), DONE), (0,), error="broken",
          **FAILED),
    Shape("finish_reason error", (A, text("", "error"), DONE), (0,), status="failed", kind="server-error",
          finish="error", error="finish_reason error"),
    Shape("finish_reason abort", (A, text("", "abort"), DONE), (0,), status="failed", kind="server-error",
          finish="abort", error="finish_reason abort"),
    Shape("an error after the finish", (A, FINISH, ERROR), (0,), error="EngineCore", status="failed",
          kind="server-error"),
    Shape("no token but [DONE]", (ROLE, END, DONE), (), status="failed", kind="no-tokens"),
    Shape("an event that is no JSON", (A, b"data: {broken\n\n", DONE), (0,), status="failed", kind="bad-event",
          finish=None, error="{broken"),
    Shape("an event that is a number", (A, b"data: 7\n\n", DONE), (0,), status="failed", kind="bad-event", finish=None),
    Shape("JSON without end", (A, b"data: " + b"[" * 50_000 + b"\n\n", DONE), (0,), status="failed", kind="bad-event",
          finish=None),
    Shape("no terminal event", (A, B), (0, 1), error="without [DONE] or a finish_reason", **CUT),
    Shape("an event without its blank line", (A, B[:-1]), (0,), **CUT),
    Shape("a finish without its blank line", (A, B, FINISH[:-1]), (0, 1), **CUT),
    Shape("cut inside an event", (A, B[:15]), (0,), **CUT),
    Shape("comments only", (b": a\n\n", b": b\n\n"), (), **CUT),
    Shape("nothing", (b"",), (), **CUT),
]  # fmt: skip

SHAPES = OK_SHAPES + FAILED_SHAPES
