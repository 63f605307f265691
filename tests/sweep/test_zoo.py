"""Every shape of stream through a real socket, for both clients: the row's status, its times, its counts."""

from __future__ import annotations

import socket
import threading
import time
from bisect import bisect_left
from dataclasses import replace
from itertools import accumulate, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdbench.http1 import ResponseReader
from pdbench.run import RequestRow
from pdbench.sweep.client import RawAnswer, answer_to
from pdbench.sweep.rows import CellContext, read_row
from tests.sweep.scripted import CHUNKED, OK, ask, chunk, request_of, request_to, scripted
from tests.sweep.zoo import OK_SHAPES, SHAPES, Shape

CONTEXT = CellContext(0, 0, "default", 0)
NAMED = [pytest.param(shape, id=shape.name) for shape in SHAPES]
BOTH = pytest.mark.parametrize("client", ["socket", "aiohttp"])
GAP_S = 0.004


class Writes:
    """Writes each piece alone and keeps when that was: before and after the call."""

    def __init__(self, pieces: tuple[bytes, ...], last: bytes = b"0\r\n\r\n") -> None:
        self.pieces, self.last, self.at_ns = pieces, last, []  # type: ignore[var-annotated]
        self.over = threading.Event()

    def __call__(self, conn: socket.socket) -> None:
        conn.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        request_of(conn)
        conn.sendall(CHUNKED)
        for piece in self.pieces:
            time.sleep(GAP_S)
            before_ns = time.monotonic_ns()
            conn.sendall(chunk(piece) if piece else b"")
            self.at_ns.append((before_ns, time.monotonic_ns()))
        time.sleep(GAP_S)
        conn.sendall(self.last)
        self.over.set()


def check(row: RequestRow, shape: Shape) -> None:
    said = (row.status, row.error_kind, row.chunks, row.finish_reason)
    assert said == (shape.status, shape.kind, len(shape.tokens), shape.finish), row.error
    counted = (row.prompt_tokens, row.output_tokens, row.cached_tokens)
    assert counted == (shape.prompt_tokens, shape.output_tokens, shape.cached_tokens)
    assert (row.error is None) == (shape.kind is None) and (shape.error or "") in (row.error or "")
    assert row.http_status == 200


def check_times(row: RequestRow, raw: RawAnswer, shape: Shape, at_ns: list[tuple[int, int]]) -> None:
    """Each token time is the stamp of the read that brought the end of its piece, and that read's stamp lies between
    the begin of the call that wrote its last piece and our own reading, whatever the machine merged."""
    ends = list(accumulate(map(len, shape.pieces)))
    got = list(accumulate(len(data) for _, data in raw.reads))
    expected_ns = []
    for place in shape.tokens:
        read = bisect_left(got, ends[place])
        stamp_ns = raw.reads[read][0]
        expected_ns.append(stamp_ns)
        last = max(i for i, end in enumerate(ends) if end <= got[read] and shape.pieces[i])
        assert at_ns[last][0] <= stamp_ns
        if raw.stamp == "kernel":  # taken by the kernel before we came; how long before is the machine's matter
            assert raw.lags_ns[read] >= 0
    _, offsets = read_row(raw, CONTEXT)
    times_s = [ns / 1e9 for ns in expected_ns]
    assert [row.sent_s + offset for offset in offsets] == pytest.approx(times_s, abs=1e-6)
    assert [row.first_token_s, row.second_token_s, row.last_token_s] == [
        times_s[0] if times_s else None,
        times_s[1] if len(times_s) > 1 else None,
        times_s[-1] if times_s else None,
    ]
    of_channel = {
        thought: [t for t, place in zip(times_s, shape.tokens, strict=True) if (place in shape.thought) == thought]
        for thought in (True, False)
    }
    assert [row.first_reasoning_s, row.first_content_s] == [
        of_channel[thought][0] if of_channel[thought] else None for thought in (True, False)
    ]
    if times_s:  # TTFT and the gaps make up the last token's time
        gaps = sum(b - a for a, b in pairwise(offsets))
        assert row.first_token_s + gaps == pytest.approx(row.last_token_s, abs=1e-6)
        assert row.sent_s <= row.first_byte_s <= row.first_token_s and row.last_token_s <= row.done_s
    # What is told of merged reads, told by the reads themselves.
    per_read = [bisect_left(got, ends[place]) for place in shape.tokens]
    assert row.token_reads == len(set(per_read))
    assert row.shared_reads == sum(per_read.count(read) > 1 for read in set(per_read))


@BOTH
@pytest.mark.parametrize("shape", NAMED)
def test_a_shape_piece_by_piece(client, shape):
    server = Writes(shape.pieces)
    with scripted(server) as url:
        row, raw, _ = ask(url, client=client)
    assert server.over.wait(5)
    check(row, shape)
    check_times(row, raw, shape, server.at_ns)


@BOTH
@pytest.mark.parametrize("shape", [s for s in NAMED if "10 MB" not in s.id and "without end" not in s.id])
def test_a_shape_byte_by_byte(client, shape):
    """Cut at every byte, each a write and a chunk of its own."""
    body = b"".join(shape.pieces)

    def drip(conn: socket.socket) -> None:
        conn.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        request_of(conn)
        conn.sendall(CHUNKED)
        for place in range(len(body)):
            conn.sendall(chunk(body[place : place + 1]))
        conn.sendall(b"0\r\n\r\n")

    with scripted(drip) as url:
        row, _, _ = ask(url, client=client)
    check(row, shape)


FRAMES = {
    "one chunk": lambda body: CHUNKED + chunk(body) + b"0\r\n\r\n" if body else CHUNKED + b"0\r\n\r\n",
    "content-length": lambda body: OK + b"Content-Length: %d\r\n\r\n" % len(body) + body,
    "until the close": lambda body: OK + b"\r\n" + body,
}


def row_of(wire: bytes, cuts: list[int]) -> tuple[RequestRow, list[float]]:
    """What the whole chain makes of these bytes, in these reads, and the close after them; stamps 1, 2, ..."""
    reader, raw = ResponseReader(), answer_to(request_to("http://h/"), 0, 0)
    edges = sorted({0, len(wire), *(cut % (len(wire) + 1) for cut in cuts)})
    for stamp_ns, (begin, end) in enumerate(pairwise(edges), 1):
        if body := reader.feed(wire[begin:end]):
            raw.reads.append((stamp_ns, body))
        if reader.complete or reader.error is not None:
            break
    if reader.error is not None:
        raw.end, raw.end_text = "protocol", reader.error
    elif not reader.end():
        raw.end, raw.end_text = "reset", "closed"
    if reader.head is not None:
        raw.http_status, raw.content_encoding = reader.head.status, reader.head.content_encoding
    raw.done_ns = len(edges)
    return read_row(raw, CONTEXT)


CUTTABLE = [shape for shape in SHAPES if len(b"".join(shape.pieces)) < 5000]


@pytest.mark.parametrize("shape", [pytest.param(shape, id=shape.name) for shape in CUTTABLE])
@pytest.mark.parametrize("frame", sorted(FRAMES))
def test_every_cut_of_every_shape_in_every_frame_says_the_same(shape, frame):
    """Head, frame and stream together, cut in two at each byte: the reader of HTTP and that of the stream as one."""
    wire = FRAMES[frame](b"".join(shape.pieces))
    for place in range(len(wire) + 1):
        row, offsets = row_of(wire, [place])
        check(row, shape)
        assert offsets == sorted(offsets) and set(offsets) <= {1e-9, 2e-9}


STAMPED = ("first_token_s", "second_token_s", "last_token_s", "first_reasoning_s", "first_content_s", "done_s")
READS = ("max_events_per_read", "token_reads", "shared_reads")


@settings(max_examples=600)
@given(
    st.sampled_from(CUTTABLE),
    st.sampled_from(sorted(FRAMES)),
    st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 3), st.binary(max_size=3)), max_size=4),
    st.lists(st.integers(0, 5000), max_size=8),
)
def test_any_bytes_in_any_cut_are_one_row_and_no_exception(shape, frame, changes, cuts):
    wire = bytearray(FRAMES[frame](b"".join(shape.pieces)))
    for place, gone, new in changes:
        place %= len(wire)
        wire[place : place + gone] = new
    (whole, _), (cut, offsets) = row_of(bytes(wire), []), row_of(bytes(wire), cuts)
    said = {name: None for name in (*STAMPED, *READS)}
    if whole.error_kind == "protocol":  # where it was noticed is part of the words
        said |= {"error": None}
    assert replace(whole, **said) == replace(cut, **said)
    assert offsets == sorted(offsets) and len(offsets) == (cut.chunks or 0)


def test_the_list_is_what_it_says():
    names = [shape.name for shape in SHAPES]
    assert len(set(names)) == len(names) and len(OK_SHAPES) > 45
