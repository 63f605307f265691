"""What does one answer mean? From the bytes of a request to its row: status, times and counts. Pure."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field, replace
from typing import Protocol

from pdbench.deployment import Credentials
from pdbench.http1 import unpacked
from pdbench.run import RequestRow
from pdbench.sweep.said import Said, said_in
from pdbench.sweep.sse import Answer, Read, error_text, read_answer

MAX_TEXT = 300
# Of Dynamo's nvext timing: prefill's queue and compute; all from there to decode's first token, as an upper bound.
TOLD_PREFILL, TOLD_TRANSFER = "prefill_time", "kv_transfer_estimated_latency"
MAX_UNPACKED_NBYTES = 256 << 20
REJECTED = (429, 503)
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")


@dataclass(frozen=True, slots=True)
class CellContext:
    """What the rows of one cell have in common. The credentials are here to be taken out of what servers say."""

    cell: int
    repeat: int
    target: str
    origin_ns: int
    credentials: Credentials = field(default_factory=Credentials)
    worker: int | None = None


class Raw(Protocol):
    """What is needed of a client's answer (`client.RawAnswer`); rows are made without importing the client."""

    index: int
    request_id: str
    request_class: str
    prompt_len: int
    output_len: int
    intended_ns: int
    sent_ns: int
    opened_ns: int | None
    connected_ns: int | None
    first_byte_ns: int | None
    done_ns: int | None
    http_status: int | None
    content_type: str | None
    content_encoding: str | None
    location: str | None
    reads: list[Read]
    end: str
    end_text: str
    stamp: str
    session: int | None
    turn: int | None
    shared_len: int
    hops: dict[str, int]


@dataclass(frozen=True, slots=True)
class Judgement:
    status: str
    kind: str | None = None
    text: str | None = None


def judge(raw: Raw, answer: Answer) -> Judgement:
    """The status of a request, with a short code and a sentence when it is not `ok`."""
    if raw.http_status is None:
        return _unanswered(raw)
    if raw.http_status in REJECTED:
        return Judgement("rejected", f"http-{raw.http_status}", _body_text(raw))
    if 300 <= raw.http_status < 400:
        return Judgement("failed", "redirect", f"redirected to {raw.location}; redirects are not followed")
    if not 200 <= raw.http_status < 300:
        return Judgement("failed", f"http-{raw.http_status}", _body_text(raw))
    if answer.error is not None:
        return Judgement("failed", "server-error", answer.error)
    if answer.bad_event is not None:
        return Judgement("failed", "bad-event", f"an event that is no JSON object: {answer.bad_event}")
    if answer.complete:
        # Once the answer is whole, it does not matter how the connection ended.
        if not answer.token_ns:
            return Judgement("failed", "no-tokens", "the answer ended without any output")
        return Judgement("ok")
    if raw.end == "timeout":
        return Judgement("timeout", "timeout", raw.end_text)
    if raw.end == "cancelled":
        return Judgement("cancelled", "cancelled", raw.end_text)
    if raw.reads and not answer.is_stream:
        return _not_a_stream(raw)
    if raw.end in ("too-large", "protocol"):
        return Judgement("failed", raw.end, raw.end_text)
    how = f"broken off ({raw.end_text})" if raw.end != "complete" else "closed"
    return Judgement("truncated", "truncated", f"the stream was {how} without [DONE] or a finish_reason")


def _unanswered(raw: Raw) -> Judgement:
    if raw.end in ("timeout", "cancelled"):
        return Judgement(raw.end, raw.end, raw.end_text)
    if raw.end == "reset":
        return Judgement("failed", "reset", f"the connection was closed before any answer ({raw.end_text})")
    return Judgement("failed", raw.end, raw.end_text)


def _not_a_stream(raw: Raw) -> Judgement:
    body = _body(raw)
    try:
        message = json.loads(body)
    except (ValueError, RecursionError):
        what = "HTML" if "<html" in body[:2000].lower() or "<!doctype" in body[:2000].lower() else "something else"
        return Judgement("failed", "not-sse", f"{what} instead of an event stream: {body}")
    if (problem := error_text(message)) is not None:
        return Judgement("failed", "server-error", problem)
    if isinstance(message, dict) and "choices" in message:
        return Judgement("failed", "not-sse", "the answer came in one piece: the server ignored stream: true")
    return Judgement("failed", "not-sse", f"JSON instead of an event stream: {body}")


def _body(raw: Raw) -> str:
    return b"".join(data for _, data in raw.reads)[: 1 << 20].decode("utf-8", errors="replace")


def _body_text(raw: Raw) -> str:
    """What an error answer says: its JSON's message, else its text, else only the status."""
    body = _body(raw)
    try:
        message = json.loads(body)
    except (ValueError, RecursionError):
        return body.strip() or f"HTTP {raw.http_status} without text"
    if isinstance(message, dict) and "detail" in message:  # FastAPI's form
        return str(message["detail"])
    return error_text(message) or body.strip()


def clean(text: str, credentials: Credentials) -> str:
    """Foreign text made fit to keep and to print: no secrets, no control characters, not long."""
    text = text.encode("utf-8", errors="replace").decode()  # JSON can spell half a surrogate pair
    text = _CONTROL.sub(" ", credentials.redact(text)).strip()
    return text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 1] + "…"


def _told_s(answer: Answer, name: str) -> float | None:
    told = answer.timing_ms.get(name)
    return None if told is None else told / 1000


def _read(raw: Raw) -> tuple[Answer, Judgement]:
    """What was answered. Bytes that we stumble over, against all tests, cost their own row and not the run."""
    try:
        if raw.content_encoding is not None:
            raw.reads = unpacked(raw.reads, raw.content_encoding, MAX_UNPACKED_NBYTES)
        answer = read_answer(raw.reads) if raw.http_status is not None and raw.http_status < 300 else Answer()
        return answer, judge(raw, answer)
    except Exception as error:  # noqa: BLE001
        text = f"pdbench could not read the answer ({type(error).__name__}: {error}): please report it"
        return Answer(), Judgement("failed", "unreadable", text)


def read_row(raw: Raw, context: CellContext) -> tuple[RequestRow, list[float]]:
    """The row of one request, and the arrival of each of its token events in seconds from `sent_s`."""
    answer, judgement = _read(raw)

    def seconds(stamp_ns: int | None) -> float | None:
        return None if stamp_ns is None else (stamp_ns - context.origin_ns) / 1e9

    tokens = answer.token_ns
    row = RequestRow(
        cell=context.cell,
        repeat=context.repeat,
        request_class=raw.request_class,
        request_id=raw.request_id,
        target=context.target,
        index=raw.index,
        intended_s=(raw.intended_ns - context.origin_ns) / 1e9,
        sent_s=seconds(raw.sent_ns),
        connected_s=seconds(raw.connected_ns),
        first_byte_s=seconds(raw.first_byte_ns),
        first_token_s=seconds(tokens[0] if tokens else None),
        second_token_s=seconds(tokens[1] if len(tokens) > 1 else None),
        last_token_s=seconds(tokens[-1] if tokens else None),
        first_reasoning_s=seconds(answer.first_reasoning_ns),
        first_content_s=seconds(answer.first_content_ns),
        done_s=seconds(raw.done_ns),
        prompt_len=raw.prompt_len,
        output_len=raw.output_len,
        prompt_tokens=answer.prompt_tokens,
        output_tokens=answer.output_tokens,
        cached_tokens=answer.cached_tokens,
        chunks=len(tokens) if raw.http_status is not None else None,
        max_events_per_read=answer.max_events_per_read,
        finish_reason=None if answer.finish_reason is None else clean(answer.finish_reason, context.credentials),
        http_status=raw.http_status,
        status=judgement.status,
        error_kind=judgement.kind,
        error=None if judgement.text is None else clean(judgement.text, context.credentials),
        stamp=raw.stamp,
        opened_s=seconds(raw.opened_ns),
        token_reads=answer.token_reads if raw.http_status is not None else None,
        shared_reads=answer.shared_reads if raw.http_status is not None else None,
        shared_len=raw.shared_len,
        session=raw.session,
        turn=raw.turn,
        worker=context.worker,
        render_done_s=seconds(raw.hops.get("render_done_s")),
        derender_sent_s=seconds(raw.hops.get("derender_sent_s")),
        derender_done_s=seconds(raw.hops.get("derender_done_s")),
        prefill_sent_s=seconds(raw.hops.get("prefill_sent_s")),
        prefill_done_s=seconds(raw.hops.get("prefill_done_s")),
        decode_sent_s=seconds(raw.hops.get("decode_sent_s")),
        told_prefill_s=_told_s(answer, TOLD_PREFILL),
        told_transfer_s=_told_s(answer, TOLD_TRANSFER),
        told_ms=json.dumps(dict(answer.timing_ms)) if answer.timing_ms else None,
    )
    return row, [(stamp_ns - raw.sent_ns) / 1e9 for stamp_ns in tokens]


def read_turn(raw: Raw, context: CellContext) -> tuple[RequestRow, list[float], Said]:
    """As `read_row`, for a turn of a session: with what the answer said, which the next turn carries."""
    row, offsets = read_row(raw, context)
    said = said_in(raw.reads) if row.status == "ok" else Said()
    thought = said.thought_tokens
    if thought is None and row.output_tokens is not None:
        thought = round(said.thought_share * row.output_tokens)
    return replace(row, reasoning_tokens=thought), offsets, said
