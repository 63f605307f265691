"""What does a stream say? Server-sent events after the WHATWG rules, and the answer of an LLM server in them. Pure.

The reads of a finished stream are joined and parsed once: how the network cut them decides which stamp an event gets,
never what it says. An event's stamp is that of the read which completed it.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

Read = tuple[int, bytes]  # (CLOCK_MONOTONIC ns, bytes)

_LINE_END = re.compile(rb"\r\n|\n|\r")
_BOM = b"\xef\xbb\xbf"
_FIELDS = (b"data", b"event", b"id", b"retry")
_REASONING = ("reasoning", "reasoning_content", "reasoning_details")
_FAILED_FINISH = ("error", "abort")
_scan = json.JSONDecoder().raw_decode
_PIECE = re.compile(r'"(?:text|content|reasoning|reasoning_content)": ?"([^"\\\x00-\x1f]+)"')
_PLAIN = re.compile(r'[^"\\\x00-\x1f]+')  # may stand for a piece: what is a string of JSON without any escape
_LONGEST_MS = 1e12  # beyond, and for what is no number at all, nothing was told
_INSTANTS = ("request_received_ms", "request_finish_time_ms")  # of the wall clock, no durations


class Event(NamedTuple):
    """One dispatched event. `read` is the index of the read that completed it, `t_ns` that read's stamp."""

    t_ns: int
    read: int
    name: str
    data: str


@dataclass(frozen=True, slots=True)
class Answer:
    """What a server streamed. Times are the reads' stamps; `None` means that the stream did not say."""

    token_ns: tuple[int, ...] = ()  # arrival of every event that carried generated output
    first_reasoning_ns: int | None = None  # of them the first with a thinking trace ...
    first_content_ns: int | None = None  # ... and the first with the answer itself
    max_events_per_read: int | None = None  # above 1, several token events share one stamp
    # How the network cut the stream is no part of what it says.
    token_reads: int = field(default=0, compare=False)  # reads that brought token events
    shared_reads: int = field(default=0, compare=False)  # those that brought several
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    finish_reason: str | None = None
    done: bool = False  # [DONE] was seen
    error: str | None = None  # an error event, in any of its shapes
    bad_event: str | None = None  # an event whose data is no JSON object
    timing_ms: Mapping[str, float] = field(default_factory=dict)  # what the server says of its own times
    is_stream: bool = False  # at least one line of the body is one of an event stream

    @property
    def complete(self) -> bool:
        return self.done or self.finish_reason is not None


def is_event_stream(body: bytes) -> bool:
    """Whether any line of `body` is a comment or has a field that event streams know."""
    lines = _LINE_END.split(body.removeprefix(_BOM))
    return any(line.startswith(b":") or line.partition(b":")[0] in _FIELDS for line in lines)


def parse(reads: Sequence[Read]) -> list[Event]:
    """The events of a stream. Data that no blank line ends is not an event, as WHATWG says."""
    body = b"".join([data for _, data in reads])
    events: list[Event] = []
    data: list[bytes] = []
    name = b""
    read, t_ns, received = -1, 0, 0  # `received`: bytes up to the end of that read
    for line, end in _lines(body):
        if line:
            key, _, value = line.partition(b":")
            value = value[1:] if value.startswith(b" ") else value
            if key == b"data":
                data.append(value)
            elif key == b"event":
                name = value
            continue
        if data or name == b"error":
            # A failure that is told without data is no event by the rules, and must not pass unseen.
            # The blank line ends with the first byte of its terminator: a CR needs no LF to count.
            while received <= end:
                read += 1
                t_ns = reads[read][0]
                received += len(reads[read][1])
            events.append(Event(t_ns, read, _text(name), _text(b"\n".join(data))))
        data, name = [], b""
    return events


def _lines(body: bytes) -> Iterator[tuple[bytes, int]]:
    """Each line that is whole, and where its terminator begins."""
    start = len(_BOM) if body.startswith(_BOM) else 0
    if b"\r" in body:
        for terminator in _LINE_END.finditer(body, start):
            yield body[start : terminator.start()], terminator.start()
            start = terminator.end()
        return
    for line in body[start:].split(b"\n")[:-1]:
        end = start + len(line)
        yield line, end
        start = end + 1


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", errors="replace")


@dataclass(slots=True)
class _Reading:
    """An answer in the making."""

    token_ns: list[int] = field(default_factory=list)
    reads: list[int] = field(default_factory=list)  # those of the tokens
    first_reasoning_ns: int | None = None
    first_content_ns: int | None = None
    blank: bool = True  # whether all content so far was white space
    usage: dict[str, Any] = field(default_factory=dict)
    finish_reason: str | None = None
    done: bool = False
    error: str | None = None
    bad_event: str | None = None
    timing_ms: dict[str, float] = field(default_factory=dict)
    usual: tuple[str, str] | None = None  # what stands before and after the piece in an event that says nothing else


def read_answer(reads: Sequence[Read]) -> Answer:
    """The answer in a stream of completions or chat completions. Never raises, whatever the bytes are."""
    reading = _Reading()
    events = parse(reads)
    for event in events:
        if event.data.strip() == "[DONE]":
            reading.done = True
            break
        if event.data or event.name == "error":
            _take(reading, event)
    usage = reading.usage
    details = usage.get("prompt_tokens_details")
    a_read = Counter(reading.reads).values()
    return Answer(
        token_ns=tuple(reading.token_ns),
        first_reasoning_ns=reading.first_reasoning_ns,
        first_content_ns=reading.first_content_ns,
        max_events_per_read=max(a_read, default=None),
        token_reads=len(a_read),
        shared_reads=sum(count > 1 for count in a_read),
        prompt_tokens=_count(usage.get("prompt_tokens")),
        output_tokens=_count(usage.get("completion_tokens")),
        cached_tokens=_count(details.get("cached_tokens")) if isinstance(details, dict) else None,
        finish_reason=reading.finish_reason,
        done=reading.done,
        error=reading.error,
        bad_event=reading.bad_event,
        timing_ms=reading.timing_ms,
        is_stream=bool(events) or is_event_stream(b"".join(data for _, data in reads)),
    )


def _take(reading: _Reading, event: Event) -> None:
    if not event.name and _as_usual(reading.usual, event.data):
        reading.token_ns.append(event.t_ns)
        reading.reads.append(event.read)
        return
    text = event.data.strip(" \t\r\n")
    try:
        message, end = _scan(text)
    except (ValueError, RecursionError):
        message, end = None, 0
    if end != len(text):
        message = None
    problem = error_text(message) if message is not None else None
    if problem is None and event.name == "error":
        problem = event.data or "an error event without data"
    if problem is not None:
        reading.error = reading.error or problem
        return
    if not isinstance(message, dict):
        reading.bad_event = reading.bad_event or event.data
        return
    more = "nvext" in message or "metrics" in message
    if more:
        reading.timing_ms |= _timing_ms(message)
    if isinstance(message.get("usage"), dict):
        more, reading.usage = True, message["usage"]
    content = reasoning = False
    choices = _list(message.get("choices"))
    for choice in choices:
        if not isinstance(choice, dict):
            continue
        content = content or has_content(choice)
        reasoning = reasoning or has_reasoning(choice)
        reason = choice.get("finish_reason")
        if isinstance(reason, str) and reason:
            more, reading.finish_reason = True, reason
            if reason in _FAILED_FINISH:
                reading.error = reading.error or f"finish_reason {reason}"
    if content and reading.blank:
        _begin_content(reading, event.t_ns, choices)
    if reasoning:
        if reading.blank:
            reading.first_content_ns = None
        reading.first_reasoning_ns = event.t_ns if reading.first_reasoning_ns is None else reading.first_reasoning_ns
    if content or reasoning:
        reading.token_ns.append(event.t_ns)
        reading.reads.append(event.read)
        plain = not more and not event.name and (not reading.blank or not content)
        if plain and (piece := _PIECE.search(event.data)) is not None:
            reading.usual = event.data[: piece.start(1)], event.data[piece.end(1) :]


def _as_usual(usual: tuple[str, str] | None, data: str) -> bool:
    """Whether an event is as one before it but for its piece of text, which is some again. Then it says the same, that
    a token has come, and need not be parsed: that takes three times as long as all the rest."""
    if usual is None:
        return False
    before, after = usual
    end = len(data) - len(after)
    if not (data.startswith(before) and data.endswith(after) and end > len(before)):
        return False
    return _PLAIN.fullmatch(data, len(before), end) is not None


def _begin_content(reading: _Reading, t_ns: int, choices: list[Any]) -> None:
    """White space begins an answer only where nothing is thought: models set it before and after their thinking."""
    blank = not any(isinstance(choice, dict) and has_words(choice) for choice in choices)
    if reading.first_content_ns is None and not (blank and reading.first_reasoning_ns is not None):
        reading.first_content_ns = t_ns
    reading.blank = blank


def _timing_ms(message: dict[str, Any]) -> dict[str, float]:
    """Durations that a server tells of a request: Dynamo in nvext.timing, vLLM in metrics. Names lose their `_ms`."""
    nvext = message.get("nvext")
    told = {}
    for table in (nvext.get("timing") if isinstance(nvext, dict) else None, message.get("metrics")):
        for name, value in table.items() if isinstance(table, dict) else ():
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if number and abs(value) < _LONGEST_MS and name.endswith("_ms") and name not in _INSTANTS:
                told[name.removesuffix("_ms")] = float(value)
    return told


def error_text(message: Any) -> str | None:
    """The error that a JSON document reports, `None` when it reports none.

    OpenAI's form is {"error": {...}} or {"error": "text"}; Dynamo sends {"message", "type", "code"}, older vLLM
    {"object": "error", "message"}.
    """
    if not isinstance(message, dict):
        return None
    error = message.get("error")
    if error is None or error is False:
        bare = "choices" not in message and "message" in message and ("code" in message or "type" in message)
        if not bare and message.get("object") != "error":
            return None
        error = message
    if isinstance(error, dict):
        for key in ("message", "detail", "type", "code"):
            if error.get(key):
                return str(error[key])
    return str(error) or "an error without text"


def has_content(choice: dict[str, Any]) -> bool:
    """Whether a choice carries a piece of the answer itself: text, content, a refusal, tool-call arguments."""
    if _filled(choice.get("text")) or _filled(_delta(choice).get("content")):  # nearly all there are
        return True
    return any(map(_filled, _pieces(choice)))


def has_words(choice: dict[str, Any]) -> bool:
    """The same of a piece that is more than white space."""
    return any(_filled(piece, blank=False) for piece in _pieces(choice))


def _pieces(choice: dict[str, Any]) -> Iterator[Any]:
    yield choice.get("text")
    if "text" not in choice and "delta" not in choice and _list(choice.get("token_ids")):
        yield "ids"  # of /inference/v1/generate, which answers with ids alone
    delta = _delta(choice)
    yield delta.get("content")
    yield delta.get("refusal")
    calls: Iterable[Any] = [*_list(delta.get("tool_calls")), {"function": delta.get("function_call")}]
    for call in calls:
        if isinstance(call, dict) and isinstance(function := call.get("function"), dict):
            yield function.get("arguments")


def has_reasoning(choice: dict[str, Any]) -> bool:
    """Whether a choice carries a piece of the thinking trace, under any of its names."""
    delta = _delta(choice)
    return any(_filled(delta.get(name)) for name in _REASONING)


def _delta(choice: dict[str, Any]) -> dict[str, Any]:
    for name in ("delta", "message"):
        if isinstance(found := choice.get(name), dict):
            return found
    return {}


def _filled(value: Any, blank: bool = True) -> bool:
    """A text that is not empty (or, unless `blank`, white space), or a list of parts one of which has such a text."""
    if isinstance(value, list):
        return any(isinstance(part, dict) and _filled(part.get("text"), blank) for part in value)
    return isinstance(value, str) and (value if blank else value.strip()) != ""


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53 else None
