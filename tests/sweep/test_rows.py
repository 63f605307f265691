"""From the bytes of an answer to a status: the zoo of answers that servers give."""

from __future__ import annotations

import itertools
import json

import pytest

from pdbench.deployment import Credentials
from pdbench.sweep.client import RawAnswer
from pdbench.sweep.rows import MAX_TEXT, CellContext, read_row

CONTEXT = CellContext(0, 0, "default", 0, Credentials(api_key="sk-secret"))
TOKEN = b'data: {"choices":[{"index":0,"text":"a"}]}\n\n'
FINISH = b'data: {"choices":[{"index":0,"text":"","finish_reason":"length"}]}\n\n'
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":4,"completion_tokens":2}}\n\n'
DONE = b"data: [DONE]\n\n"
OPENAI_ERROR = b'{"error":{"message":"no","code":1}}'


def raw(*bodies: bytes, status: int | None = 200, end: str = "complete", **more: object) -> RawAnswer:
    reads = [(2_000_000_000 + number * 1_000_000, body) for number, body in enumerate(bodies)]
    answer = RawAnswer(0, "id-0", "default", 4, 2, 1_000_000_000, 1_000_500_000, done_ns=3_000_000_000)
    answer.http_status, answer.reads, answer.end, answer.end_text = status, reads, end, f"({end})"
    for name, value in more.items():
        setattr(answer, name, value)
    return answer


ZOO = [
    ("plain", raw(TOKEN, TOKEN, FINISH, USAGE, DONE), "ok", None),
    ("done without finish_reason", raw(TOKEN, DONE), "ok", None),
    ("finish_reason without done", raw(TOKEN, FINISH), "ok", None),
    ("whole, then broken off", raw(TOKEN, FINISH, end="reset"), "ok", None),
    ("whole, but the server never closes", raw(TOKEN, FINISH, DONE, end="timeout"), "ok", None),
    ("sse under a wrong content type", raw(TOKEN, DONE, content_type="application/json"), "ok", None),
    ("garbage after the end", raw(TOKEN, DONE, b"<html>\xff\x00"), "ok", None),
    ("clean end in the middle", raw(TOKEN, TOKEN), "truncated", "truncated"),
    ("broken off in the middle", raw(TOKEN, end="reset"), "truncated", "truncated"),
    ("half an event", raw(TOKEN[:-5]), "truncated", "truncated"),
    ("200 and no body", raw(), "truncated", "truncated"),
    ("200, broken off before the body", raw(end="reset"), "truncated", "truncated"),
    ("only comments", raw(b": ping\n\n"), "truncated", "truncated"),
    ("error event", raw(TOKEN, b'data: {"error":"no"}\n\n', DONE), "failed", "server-error"),
    ("error event after all tokens", raw(TOKEN, FINISH, b"event: error\ndata: no\n\n"), "failed", "server-error"),
    ("finish_reason error", raw(TOKEN, FINISH.replace(b"length", b"error"), DONE), "failed", "server-error"),
    ("no output at all", raw(FINISH, USAGE, DONE), "failed", "no-tokens"),
    ("broken event", raw(TOKEN, b"data: {oops\n\n", DONE), "failed", "bad-event"),
    ("html", raw(b"<!DOCTYPE html><html>hi</html>"), "failed", "not-sse"),
    ("text", raw(b"hello"), "failed", "not-sse"),
    ("whole answer in one piece", raw(b'{"choices":[{"text":"abc"}]}'), "failed", "not-sse"),
    ("json error with 200", raw(OPENAI_ERROR), "failed", "server-error"),
    ("hangs before the head", raw(status=None, end="timeout"), "timeout", "timeout"),
    ("hangs after the head", raw(end="timeout"), "timeout", "timeout"),
    ("hangs in the middle", raw(TOKEN, end="timeout"), "timeout", "timeout"),
    ("interrupted", raw(TOKEN, end="cancelled"), "cancelled", "cancelled"),
    ("interrupted before the head", raw(status=None, end="cancelled"), "cancelled", "cancelled"),
    ("refused", raw(status=None, end="connect"), "failed", "connect"),
    ("no such host", raw(status=None, end="dns"), "failed", "dns"),
    ("out of sockets", raw(status=None, end="fd-limit"), "failed", "fd-limit"),
    ("closed without an answer", raw(status=None, end="reset"), "failed", "reset"),
    ("endless", raw(TOKEN, end="too-large"), "failed", "too-large"),
    ("429", raw(OPENAI_ERROR, status=429), "rejected", "http-429"),
    ("503 without body", raw(status=503), "rejected", "http-503"),
    ("401", raw(OPENAI_ERROR, status=401), "failed", "http-401"),
    ("404 in Dynamo's form", raw(b'{"message":"no","type":"x","code":404}', status=404), "failed", "http-404"),
    ("500 as text", raw(b"Internal Server Error", status=500), "failed", "http-500"),
    ("redirect", raw(status=307, location="http://elsewhere"), "failed", "redirect"),
    ("204", raw(status=204), "truncated", "truncated"),
]


@pytest.mark.parametrize(("answer", "status", "kind"), [pytest.param(*entry[1:], id=entry[0]) for entry in ZOO])
def test_zoo(answer, status, kind):
    row, offsets = read_row(answer, CONTEXT)
    assert (row.status, row.error_kind) == (status, kind)
    assert (row.error is None) == (status == "ok")
    assert len(offsets) == (row.chunks or 0)
    assert (row.first_token_s is None) == (not offsets)
    assert row.first_token_s != 0


def test_times_counts_and_their_identity():
    row, offsets = read_row(raw(b": hi\n\n", TOKEN, TOKEN, TOKEN, FINISH, USAGE, DONE), CONTEXT)
    assert (row.intended_s, row.sent_s, row.done_s) == (1.0, 1.0005, 3.0)
    assert (row.first_token_s, row.second_token_s, row.last_token_s) == (2.001, 2.002, 2.003)
    assert (row.prompt_tokens, row.output_tokens, row.chunks) == (4, 2, 3)  # tokens from usage, never from chunks
    gaps = [b - a for a, b in itertools.pairwise(offsets)]
    assert row.sent_s + offsets[0] + sum(gaps) == pytest.approx(row.last_token_s, abs=1e-9)


def test_without_usage_the_tokens_are_not_known():
    row, _ = read_row(raw(TOKEN, TOKEN, DONE), CONTEXT)
    assert row.output_tokens is None and row.chunks == 2 and row.status == "ok"


def test_foreign_text_is_made_harmless():
    text = "bad key sk-secret \x1b[31mred\x1b[0m\nline\u2028 \ud800" + "x" * 1000
    row, _ = read_row(raw(json.dumps({"error": {"message": text}}).encode(), status=401), CONTEXT)
    assert row.error is not None
    assert "sk-secret" not in row.error and row.error.isprintable() and len(row.error) == MAX_TEXT
    row.error.encode()  # no half of a surrogate pair


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b'{"error":{"message":"m"}}', "m"),
        (b'{"detail":"Not Found"}', "Not Found"),
        (b'{"message":"m","code":1}', "m"),
        (b"plain", "plain"),
        (b"", "HTTP 500 without text"),
        (b"[1]", "[1]"),
    ],
)
def test_what_an_error_answer_says(body, said):
    assert read_row(raw(body, status=500), CONTEXT)[0].error == said


def test_an_answer_that_we_stumble_over_costs_its_own_row(monkeypatch):
    def stumbles(reads):
        raise OverflowError("int too large to convert to float")

    monkeypatch.setattr("pdbench.sweep.rows.read_answer", stumbles)
    row, offsets = read_row(raw(TOKEN, FINISH, DONE), CONTEXT)
    assert (row.status, row.error_kind, offsets) == ("failed", "unreadable", []) and "OverflowError" in row.error
