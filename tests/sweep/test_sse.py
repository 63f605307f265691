"""Server-sent events after the WHATWG rules; captured streams cut at every byte; anything at all as input."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pdbench.sweep import sse
from pdbench.sweep.sse import Answer, parse, read_answer

CAPTURES = Path(__file__).parent / "captures"


def one(body: bytes) -> list[tuple[int, bytes]]:
    return [(0, body)]


def cut(body: bytes, *places: int) -> list[tuple[int, bytes]]:
    """The body as reads with stamps 0, 1, 2, ..."""
    edges = [0, *sorted(places), len(body)]
    return [(stamp, body[a:b]) for stamp, (a, b) in enumerate(itertools.pairwise(edges))]


def data_of(body: bytes) -> list[str]:
    return [event.data for event in parse(one(body))]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"data: a\n\n", ["a"]),
        (b"data:a\n\n", ["a"]),
        (b"data:  a\n\n", [" a"]),  # one blank goes, not two
        (b"data: a\r\n\r\n", ["a"]),
        (b"data: a\r\r", ["a"]),
        (b"data: a\r\n\rdata: b\n\r\n", ["a", "b"]),
        (b"data: a\ndata: b\n\n", ["a\nb"]),
        (b"data\n\n", [""]),
        (b"data:\n\n", [""]),
        (b": keep-alive\n\ndata: a\n\n", ["a"]),
        (b"\xef\xbb\xbfdata: a\n\n", ["a"]),
        (b"\xef\xbb\xbf\xef\xbb\xbfdata: a\n\n", []),  # only one byte-order mark goes
        (b"id: 3\nretry: 10\nnonsense: x\ndata: a\n\n", ["a"]),
        (b"Data: a\n\n", []),  # names are case-sensitive
        (b" data: a\n\n", []),
        (b"event: ping\n\n", []),  # no data, no event
        (b"\n\n\ndata: a\n\n\n\n", ["a"]),
        (b"data: a", []),  # no blank line, no event
        (b"data: a\n", []),
        (b"data: \xe4\xb8\xad\n\n", ["中"]),
        (b"data: \xe4\xb8\n\n", ["�"]),
        (b"data: x: y\n\n", ["x: y"]),
    ],
)
def test_event_stream_rules(body, expected):
    assert data_of(body) == expected


def test_event_names_last_for_one_event():
    events = parse(one(b"event: error\ndata: a\n\ndata: b\n\n"))
    assert [(event.name, event.data) for event in events] == [("error", "a"), ("", "b")]


def test_an_event_has_the_stamp_of_the_read_that_completed_it():
    body = b"data: a\r\n\r\ndata: b\r\n\r\n"
    stamps = [[event.t_ns for event in parse(cut(body, place))] for place in range(len(body) + 1)]
    # "a" is complete with the CR of its blank line (byte 9), "b" with byte 20.
    assert stamps == [[1 if place < 10 else 0, 1 if place < 21 else 0] for place in range(len(body) + 1)]


def dechunked(raw: bytes) -> bytes:
    """The body of a captured HTTP answer."""
    head, _, rest = raw.partition(b"\r\n\r\n")
    assert b"chunked" in head
    body = b""
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        if int(size, 16) == 0:
            break
        body, rest = body + rest[: int(size, 16)], rest[int(size, 16) + 2 :]
    return body


def captured(name: str) -> bytes:
    raw = (CAPTURES / name).read_bytes()
    if name.endswith(".http"):
        return dechunked(raw)
    return raw.partition(b"\n\n")[2] if raw.startswith(b"# ") else raw


EXPECTED = {
    "dynamo-chat.sse": (12, 12, 12, "length", None),
    "dynamo-chat-nvext.sse": (6, 12, 6, "length", None),
    "dynamo-completions.sse": (12, 10, 12, "length", None),
    "vllm-single.chat.sse.http": (8, 28, 8, "length", None),
    "vllm-single.completions.sse.http": (8, None, 8, "length", None),
    "vllm-pd-nixl.decode-response.sse.http": (None, 1000, None, "length", None),
    "vllm-pd-nixl.toyproxy.completions.sse.http": (None, 2000, None, "length", None),
    "vllm-decode-killed.txt": (26, 200, 26, None, "EngineCore encountered an issue"),
    "vllm-mixed-modes.txt": (0, None, None, None, "Internal server error"),
}


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_real_streams_say_the_same_however_they_are_cut(name):
    body = captured(name)
    whole = read_answer(one(body))
    tokens, prompt, output, finish, error = EXPECTED[name]
    assert tokens is None or len(whole.token_ns) == tokens
    assert prompt is None or whole.prompt_tokens == prompt
    assert output is None or whole.output_tokens == output
    assert whole.finish_reason == finish and whole.done and whole.is_stream
    assert whole.error is None if error is None else error in (whole.error or "")
    if error is None:
        assert len(whole.token_ns) == whole.output_tokens
    for place in range(len(body) + 1):
        assert same(read_answer(cut(body, place)), whole)
    assert same(read_answer(cut(body, *range(1, len(body)))), whole)


def same(one_answer: Answer, other: Answer) -> bool:
    """Equal but for stamps, which are what a split decides."""

    def without_stamps(answer: Answer) -> Answer:
        firsts = {name: getattr(answer, name) and 0 for name in ("first_reasoning_ns", "first_content_ns")}
        return replace(answer, token_ns=(0,) * len(answer.token_ns), max_events_per_read=None, **firsts)

    return without_stamps(one_answer) == without_stamps(other)


def chat(**delta: object) -> bytes:
    return b"data: " + json.dumps({"choices": [{"index": 0, "delta": delta}]}).encode() + b"\n\n"


def text(value: object, **more: object) -> bytes:
    return b"data: " + json.dumps({"choices": [{"index": 0, "text": value, **more}]}).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"


@pytest.mark.parametrize(
    ("event", "is_output"),
    [
        (text("a"), True),
        (text(" "), True),
        (text(""), False),
        (text(None), False),
        (chat(role="assistant"), False),
        (chat(role="assistant", content=""), False),
        (chat(role="assistant", content=None), False),
        (chat(content="a"), True),
        (chat(content=[{"type": "text", "text": "a"}]), True),
        (chat(reasoning="a"), True),
        (chat(reasoning_content="a"), True),
        (chat(reasoning="", reasoning_content=None), False),
        (chat(reasoning_details=[{"type": "reasoning.text", "text": "a"}]), True),
        (chat(tool_calls=[{"index": 0, "id": "x", "function": {"name": "f", "arguments": ""}}]), False),
        (chat(tool_calls=[{"index": 0, "function": {"arguments": "{"}}]), True),
        (chat(function_call={"arguments": "{"}), True),
        (chat(), False),
        (b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":0}}\n\n', False),
        (b'data: {"choices":null}\n\n', False),
        (b'data: {"choices":[null,1,{"delta":7}]}\n\n', False),
        (b": comment\n\n", False),
        (b"data:\n\n", False),
    ],
)
def test_what_sets_a_token_time(event, is_output):
    answer = read_answer([(1, event), (2, chat(content="end")), (3, DONE)])
    assert answer.token_ns == ((1, 2) if is_output else (2,))
    assert answer.error is None and answer.bad_event is None


@pytest.mark.parametrize(
    ("event", "error"),
    [
        (b'data: {"error":{"message":"broken","code":500}}\n\n', "broken"),
        (b'data: {"error":"broken"}\n\n', "broken"),
        (b'data: {"error":{"code":500}}\n\n', "500"),
        (b'data: {"error":{}}\n\n', "{}"),
        (b'data: {"error":""}\n\n', "an error without text"),
        (b"event: error\ndata: broken\n\n", "broken"),
        (b'event: error\ndata: {"detail":"broken"}\n\n', '{"detail":"broken"}'),
        (b"event: error\n\n", "an error event without data"),
        (b'data: {"message":"broken","type":"Internal","code":500}\n\n', "broken"),
        (b'data: {"object":"error","message":"broken"}\n\n', "broken"),
        (text("", finish_reason="error"), "finish_reason error"),
        (text("", finish_reason="abort"), "finish_reason abort"),
    ],
)
def test_errors_after_200_in_every_shape(event, error):
    answer = read_answer([(1, text("a")), (2, event), (3, DONE)])
    assert answer.error == error and answer.token_ns == (1,)  # what came before is kept


def test_no_error_is_read_into_a_null():
    assert read_answer(one(b'data: {"error":null,"choices":[{"text":"a"}]}\n\n' + DONE)).error is None


def test_usage_is_the_last_one_and_only_numbers_count():
    usage = b'data: {"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":%s,"prompt_tokens_details":%s}}\n\n'
    answer = read_answer(one(usage % (b"1", b"null") + usage % (b"9", b'{"cached_tokens":4}')))
    assert (answer.prompt_tokens, answer.output_tokens, answer.cached_tokens) == (5, 9, 4)
    for wrong in (b'"9"', b"true", b"-1", b"9.0", b"NaN", b"1e99", b"9" * 30):
        assert read_answer(one(usage % (wrong, b"[]"))).output_tokens is None


def test_continuous_usage_and_events_of_several_tokens():
    body = text("a b c") + text("d e f")
    answer = read_answer([(1, body), (2, text("g")), (3, DONE)])
    assert answer.token_ns == (1, 1, 2) and answer.max_events_per_read == 2


def test_thinking_and_answer_are_timed_apart():
    """The first token of any kind, the first of the thinking trace, the first of the answer itself."""

    def said(**delta):
        return b'data: {"choices":[{"delta":%s}]}\n\n' % json.dumps(delta).encode()

    def times(*deltas):
        answer = read_answer([(place, said(**delta)) for place, delta in enumerate(deltas, 1)])
        return answer.token_ns[:1], answer.first_reasoning_ns, answer.first_content_ns

    role, word = {"role": "assistant", "content": ""}, {"content": "hi"}
    for name in ("reasoning", "reasoning_content"):
        assert times(role, {name: "think"}, {name: "more"}, word, word) == ((2,), 2, 4)
        assert times({name: "", "content": None}, word) == ((2,), None, 2)
        assert times(word, {name: "on second thoughts"}, word) == ((1,), 2, 1)
    assert times({"reasoning": "think", "content": "hi"}, word) == ((1,), 1, 1)
    assert times({"reasoning_details": [{"text": "think"}]}) == ((1,), 1, None)
    blank, think = {"content": "\n"}, {"reasoning": "think"}
    assert times(blank, think, blank, blank, word, word) == ((1,), 2, 5), "white space is no answer beside thinking"
    assert times(blank, think, think) == ((1,), 2, None) and times({**think, **blank}, word) == ((1,), 1, 2)
    assert times(blank, word) == ((1,), None, 1), "without thinking it begins the answer"
    assert times({"content": [{"text": " "}]}, think, {"content": [{"text": "hi"}]}) == ((1,), 2, 3)
    call = {"tool_calls": [{"function": {"arguments": "{"}}]}
    assert times({"reasoning": "think"}, call) == ((1,), 1, 2), "a tool call is an answer"
    assert (lambda a: (a.first_reasoning_ns, a.first_content_ns))(read_answer([(7, text("a"))])) == (None, 7)


def test_what_follows_done_is_not_read():
    answer = read_answer(one(text("a") + DONE + b"data: garbage\n\n<html>\xff"))
    assert answer.done and answer.bad_event is None


def test_an_event_that_is_no_json_is_told():
    assert read_answer(one(text("a") + b"data: {broken\n\n" + DONE)).bad_event == "{broken"
    assert read_answer(one(b"data: " + b"[" * 100_000 + b"\n\n")).bad_event is not None


def test_a_ten_megabyte_event():
    answer = read_answer(cut(text("x" * 10_000_000) + DONE, *range(0, 10_000_000, 65536)))
    assert len(answer.token_ns) == 1 and answer.done


FRAGMENTS = [
    *(b"data: ", b"data:", b"event: error", b": c", b"\n", b"\r", b"\r\n", b"\n\n", b"\xef\xbb\xbf", b"[DONE]"),
    *(b'{"choices":[{"text":"a"}]}', b'{"choices":[{"delta":{"content":"b"},"finish_reason":"stop"}]}'),
    *(
        b'{"error":1}',
        b'{"usage":{"completion_tokens":1}}',
        b"NaN",
        b"null",
        b'"\\ud800"',
        b"\x00",
        b"[[[[",
        b"\xe4\xb8",
    ),
]
streams = st.one_of(st.binary(max_size=200), st.lists(st.sampled_from(FRAGMENTS), max_size=40).map(b"".join))


@given(streams, st.lists(st.integers(0, 400), max_size=12))
@example(b"data: a\r\n\r\n", [8, 9, 10])
@settings(max_examples=400, deadline=None)
def test_any_bytes_in_any_split_give_one_answer_and_no_exception(body, places):
    reads = cut(body, *[min(place, len(body)) for place in places])
    whole = read_answer(one(body))
    assert same(read_answer(reads), whole)
    assert [(event.name, event.data) for event in parse(reads)] == [(e.name, e.data) for e in parse(one(body))]
    stamps = [event.t_ns for event in parse(reads)]
    assert stamps == sorted(stamps)


pieces = st.one_of(
    st.sampled_from(["a", "b", " ", "\n", "", 'x"text": "y', "\\", "\u2028", "\x7f", "é"]), st.text(max_size=5)
)
PLACES = [  # where a piece may stand in a choice
    lambda piece: {"index": 0, "text": piece, "finish_reason": None},
    lambda piece: {"index": 0, "text": piece, "finish_reason": "stop"},
    lambda piece: {"delta": {"content": piece}},
    lambda piece: {"delta": {"reasoning": piece}},
    lambda piece: {"delta": {"content": piece, "reasoning_content": ""}},
    lambda piece: {"delta": {"content": "", "reasoning_content": piece}},
    lambda piece: {"delta": {"content": piece, "reasoning_content": "thought"}},
    lambda piece: {"delta": {"reasoning_details": [{"text": piece}]}},
    lambda piece: {"delta": {"reasoning": "thought"}, "message": {"content": piece}},
    lambda piece: {"delta": {}, "message": {"content": piece}},
]
BESIDE = [
    {},
    {"usage": None},
    {"usage": {"completion_tokens": 3}},
    {"usage": {"completion_tokens": 4}},
    {"nvext": {"timing": {"prefill_ms": 1.0}}},
    {"error": {"content": "told"}},
]
# Two ways to spell an event, and of each event: which, its piece, whether that keeps to JSON's rules, its name.
ways = st.tuples(st.sampled_from(PLACES), st.sampled_from([{}, {}, *BESIDE]), st.booleans())
events = st.tuples(st.integers(0, 1), pieces, st.sampled_from([True, True, False]), st.sampled_from(["", "", "error"]))


def spelt(way: tuple[Any, ...], piece: str, by_rule: bool, name: str) -> bytes:
    place, beside, escaped = way
    document = json.dumps({"choices": [place("PIECE")], **beside})
    document = document.replace('"PIECE"', json.dumps(piece, ensure_ascii=escaped) if by_rule else f'"{piece}"')
    return (f"event: {name}\n" if name else "").encode() + b"data: " + document.encode(errors="replace") + b"\n\n"


@settings(max_examples=600, deadline=None)
@given(st.lists(ways, min_size=2, max_size=2), st.lists(events, max_size=8))
@example(
    [(PLACES[3], {}, True), (PLACES[2], {}, True)],  # white space, then words, after a thought
    [(0, "a", True, ""), (1, " ", True, ""), (1, "b", True, "")],
)
@example(
    [(PLACES[0], {"usage": {"completion_tokens": n}}, True) for n in (1, 2)],  # the last usage counts
    [(0, "a", True, ""), (1, "", True, ""), (0, "b", True, "")],
)
def test_an_event_like_one_before_says_the_same_as_if_it_were_parsed(two, said):
    """Most events of a stream differ in their piece of text alone, and are not parsed as JSON."""
    reads = [(n, spelt(two[which], *how)) for n, (which, *how) in enumerate(said)]
    answer = read_answer(reads)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sse, "_as_usual", lambda usual, data: False)
        assert read_answer(reads) == answer


def test_of_a_stream_only_the_first_event_is_parsed_as_json_and_every_token_counts(monkeypatch):
    parsed: list[str] = []
    scan = sse._scan
    monkeypatch.setattr(sse, "_scan", lambda text: (parsed.append(text), scan(text))[1])
    words = [f"w{n}" for n in range(50)] + [
        '"',
        " ",
        "é",
    ]  # two of which JSON may only spell, or here spells, as escapes
    reads = [(n, chat(content=word)) for n, word in enumerate(words)]
    answer = read_answer([*reads, (99, text("", finish_reason="stop"))])
    assert answer.token_ns == tuple(range(len(words))) and answer.finish_reason == "stop"
    assert [json.loads(each)["choices"][0].get("delta", {}).get("content") for each in parsed] == ["w0", '"', "é", None]


def test_what_dynamo_and_vllm_tell_of_their_own_times() -> None:
    """Durations only, in ms; instants of the wall clock and what is no number stay out."""
    told = read_answer([(1, (CAPTURES / "dynamo-chat-nvext.sse").read_bytes())]).timing_ms
    assert set(told) >= {"prefill_time", "ttft", "kv_transfer_estimated_latency"} and "request_received" not in told
    event = b'data: {"choices":[],"metrics":{"queue_time_ms":0.5,"x_ms":null,"y_ms":true,"tokens_per_second":3}}\n\n'
    assert read_answer([(1, event)]).timing_ms == {"queue_time": 0.5}
    assert read_answer([(1, b'data: {"nvext":[1],"metrics":"no","choices":[]}\n\n')]).timing_ms == {}
    for no_time in (b"9" * 400, b"-" + b"9" * 400, b"1e400", b"NaN", b"true", b'"1"', b"null"):
        event = b'data: {"metrics":{"queue_time_ms":' + no_time + b'},"choices":[]}\n\n'
        assert read_answer([(1, event)]).timing_ms == {}
