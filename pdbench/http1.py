"""Where does an HTTP/1.1 answer begin and end? An incremental reader of one response: no I/O, no clock.

It runs on the hot path, since only the framing tells that an answer is over; so it costs about a microsecond a read and
looks at nothing else. A server sends what it likes, in pieces of its choice, so the time is linear in the bytes: what
is not whole yet is added to in place, and no byte of it is searched twice. Compressed bodies stay compressed here
(`unpacked` is for the recorder).
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import quote, urlsplit

from pdbench.route import unix_path

MAX_HEAD_NBYTES = 1 << 20  # of a head, of a chunk's size line, and of the trailers
_HEAD_END = re.compile(rb"\r?\n\r?\n")
_STATUS_LINE = re.compile(rb"HTTP/1\.([01]) ([1-9][0-9][0-9])(?: [^\r\n]*)?")
_FIELD_NAME = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_SIZE_LINE = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[^\n]*)?\r?\n")
_SIZE_BEGIN = re.compile(rb"[0-9A-Fa-f]")
_TRAILER_END = re.compile(rb"\r?\n")
_TIMEOUT = re.compile(rb"(?:^|[,\s])timeout=([0-9]{1,9})", re.IGNORECASE)
_LISTS = (b"transfer-encoding", b"connection")  # fields whose repetitions add up
_BODILESS = (204, 304)
_BLOCK_NBYTES = 4096


class ProtocolError(Exception):
    """The bytes are no HTTP/1.1 response."""


@dataclass(frozen=True, slots=True)
class Head:
    """What is needed of a response's head. `length` is None for a chunked body and for one that the close ends."""

    status: int
    content_type: str | None
    content_encoding: str | None
    location: str | None
    chunked: bool
    length: int | None
    persistent: bool = True  # the connection may carry another request
    keep_alive_s: int | None = None  # how long the server says that it keeps it


@lru_cache(maxsize=256)
def read_head(raw: bytes) -> Head:
    """A head without its blank line. Raises ProtocolError."""
    first, *lines = raw.replace(b"\r\n", b"\n").split(b"\n")
    if (line := _STATUS_LINE.fullmatch(first)) is None:
        raise ProtocolError(f"no HTTP/1.1 status line: {first[:60]!r}")
    fields: dict[bytes, bytes] = {}
    lists: dict[bytes, list[bytes]] = {name: [] for name in _LISTS}
    for text in _unfolded(lines):
        name, colon, value = text.partition(b":")
        if not colon or _FIELD_NAME.fullmatch(name) is None or b"\0" in text or b"\r" in text:
            raise ProtocolError(f"no header field: {text[:60]!r}")
        name, value = name.lower(), value.strip(b" \t")
        if name == b"content-length" and fields.get(name, value) != value:
            raise ProtocolError("two lengths of one body")
        fields[name] = value
        if name in lists:
            lists[name].append(value)
    fields.update({name: b", ".join(found) for name, found in lists.items() if found})
    length = fields.get(b"content-length")
    if length is not None and not (length.isdigit() and len(length) < 16):
        raise ProtocolError(f"no length of a body: {length[:60]!r}")
    coding = fields.get(b"transfer-encoding")
    chunked = coding is not None and coding.lower().split(b",")[-1].strip() == b"chunked"
    if coding is not None and length is not None:
        length = None  # the transfer coding wins
    status = int(line[2])

    def said(name: bytes) -> str | None:
        value = fields.get(name)
        return None if value is None else value.decode("latin-1")

    if status in _BODILESS:
        chunked, length = False, b"0"
    options = {word.strip() for word in fields.get(b"connection", b"").lower().split(b",")}
    promised = _TIMEOUT.search(fields.get(b"keep-alive", b""))
    return Head(
        status,
        said(b"content-type"),
        said(b"content-encoding"),
        said(b"location"),
        chunked,
        None if length is None else int(length),
        b"close" not in options and (line[1] == b"1" or b"keep-alive" in options),
        None if promised is None else int(promised[1]),
    )


def _unfolded(lines: Sequence[bytes]) -> list[bytes]:
    """Header lines, with the obsolete continuation lines joined to what they continue."""
    whole: list[list[bytes]] = []
    for line in lines:
        if line[:1] in (b" ", b"\t") and whole:
            whole[-1].append(line.strip(b" \t"))
        else:
            whole.append([line])
    return [b" ".join(pieces) for pieces in whole]


class ResponseReader:
    """Fed with what was received, it returns the bytes of the body in it. `complete` is set where the answer ends; what
    follows is not looked at, only that there was a `surplus`. Where the bytes are no response, `error` says why, and
    the body ends with what came before. Interim responses (1xx) are passed over. No cut changes any of this."""

    __slots__ = ("_chunk_left", "_held", "_left", "_phase", "begun", "complete", "error", "head", "surplus")

    def __init__(self) -> None:
        self.head: Head | None = None
        self.begun = False  # some byte has come
        self.complete = False
        self.surplus = False
        self.error: str | None = None
        self._phase: Callable[[ResponseReader, bytes], bytes] = ResponseReader._in_head  # unbound: no cycle to collect
        self._held = bytearray()  # a piece of a head, a size line or a trailer that is not whole yet
        self._left = 0  # bytes of the body to come, by Content-Length
        self._chunk_left = 0  # bytes of the chunk to come, with the line end after it; 0: a size line is next

    def feed(self, data: bytes) -> bytes:
        return self._phase(self, data)

    @property
    def reusable(self) -> bool:
        """The answer is over, and its connection may carry another request."""
        return self.complete and not self.surplus and self.head is not None and self.head.persistent

    def end(self) -> bool:
        """The other side has closed: true when that is a proper end of the answer."""
        if self.head is not None and not self.head.chunked and self.head.length is None:
            self.complete = self.surplus = True
        return self.complete

    def _in_head(self, data: bytes) -> bytes:
        self.begun = True
        held, begin, searched = self._held, 0, max(0, len(self._held) - 3)
        held += data
        while (end := _HEAD_END.search(held, searched)) is not None and end.start() - begin <= MAX_HEAD_NBYTES:
            try:
                head = read_head(bytes(held[begin : end.start()]))
            except ProtocolError as error:
                return self._refuse(str(error))
            begin = searched = end.end()
            if head.status == 101:
                return self._refuse("the server switches protocols")
            if head.status >= 200:
                rest = bytes(held[begin:])
                held.clear()
                return self._begin(head, rest)
        del held[:begin]
        if len(held) > MAX_HEAD_NBYTES:
            return self._refuse(f"a head of more than {MAX_HEAD_NBYTES >> 10} KiB")
        if not b"HTTP/1.".startswith(held[:7]):
            return self._refuse(f"no HTTP/1.1 status line: {bytes(held[:60])!r}")
        return b""

    def _refuse(self, why: str) -> bytes:
        self.error = why
        return b""

    def _begin(self, head: Head, rest: bytes) -> bytes:
        self.head = head
        if head.chunked:
            self._phase = ResponseReader._in_chunks
        elif head.length is None:
            self._phase = ResponseReader._until_close
        else:
            self._left, self._phase = head.length, ResponseReader._counted
        return self._phase(self, rest)

    def _until_close(self, data: bytes) -> bytes:
        return data

    def _counted(self, data: bytes) -> bytes:
        if len(data) >= self._left:
            self.surplus = len(data) > self._left
            data = data[: self._left]
            self.complete = True
        self._left -= len(data)
        return data

    def _in_chunks(self, data: bytes) -> bytes:
        if self._chunk_left == 0 and not self._held:
            # The usual read: one chunk and nothing else.
            size = _SIZE_LINE.match(data)
            if size is not None and (nbytes := int(size[1], 16)):
                start = size.end()
                if len(data) == start + nbytes + 2 and data.endswith(b"\r\n"):
                    return data[start : start + nbytes]
        return self._cut_chunks(data)

    def _cut_chunks(self, data: bytes) -> bytes:
        if self._held:
            self._held += data
            if b"\n" not in data:  # the size line still has no end
                self._check_size_line(whole=False)
                return b""
            data = bytes(self._held)
            self._held.clear()
        place = 0
        pieces: list[bytes] = []
        while place < len(data):
            if self._chunk_left > 2:
                piece = data[place : place + self._chunk_left - 2]
                pieces.append(piece)
                place += len(piece)
                self._chunk_left -= len(piece)
                continue
            if self._chunk_left:  # the line end after a chunk
                if data[place : place + self._chunk_left] != b"\r\n"[2 - self._chunk_left :][: len(data) - place]:
                    self._refuse("a chunk that is longer than its size")
                    break
                taken = min(self._chunk_left, len(data) - place)
                place += taken
                self._chunk_left -= taken
                continue
            if (size := _SIZE_LINE.match(data, place)) is None:
                self._held += data[place:]
                self._check_size_line(whole=b"\n" in self._held)
                break
            place = size.end()
            nbytes = int(size[1], 16)
            if nbytes == 0:
                self._phase = ResponseReader._in_trailers
                self._in_trailers(data[place:])
                break
            self._chunk_left = nbytes + 2
        return b"".join(pieces)

    def _check_size_line(self, whole: bool) -> None:
        """Refuse what is held and no size line: when it has all its bytes, or has begun wrongly or without end."""
        if whole or len(self._held) > MAX_HEAD_NBYTES or not _SIZE_BEGIN.match(self._held):
            self._refuse(f"no size of a chunk: {bytes(self._held[:60])!r}")

    def _in_trailers(self, data: bytes) -> bytes:
        held, begin, searched = self._held, 0, max(0, len(self._held) - 1)
        held += data
        while (end := _TRAILER_END.search(held, searched)) is not None:
            if end.start() == begin:
                self.complete = True
                self.surplus = end.end() < len(held)
                held.clear()
                return b""
            begin = searched = end.end()
        del held[:begin]
        if len(held) > MAX_HEAD_NBYTES:
            return self._refuse("a trailer without end")
        return b""


def unpacked(reads: Sequence[tuple[int, bytes]], encoding: str | None, most_nbytes: int) -> list[tuple[int, bytes]]:
    """The reads with the body's compression undone, each with its own stamp; as they are, when it cannot be undone.

    A body may be several streams one after another, as from a server that packs each event by itself: RFC 1952 allows
    it of gzip, and zlib's are told apart as well; bare deflate has no begin to know a second one by. What follows the
    last and is none is left out.
    """
    coding = (encoding or "").strip().lower()
    if coding not in ("gzip", "x-gzip", "deflate"):
        return list(reads)
    bits = 31 if coding != "deflate" else 15
    if bits == 15 and next((data[:1] for _, data in reads if data), b"") not in (b"\x78", b"\x58", b"\x38", b"\x18"):
        bits = -15
    inflate = zlib.decompressobj(bits)
    found: list[tuple[int, bytes]] = []
    for stamp_ns, data in reads:
        pieces: list[bytes] = []
        sound = True
        try:
            # In blocks: at the end of a stream zlib copies what follows it.
            for block in [data[at : at + _BLOCK_NBYTES] for at in range(0, len(data), _BLOCK_NBYTES)]:
                while block and most_nbytes > 0 and not (inflate.eof and bits < 0):
                    if inflate.eof:
                        inflate = zlib.decompressobj(bits)
                    pieces.append(inflate.decompress(block, most_nbytes))
                    most_nbytes -= len(pieces[-1])
                    block = inflate.unused_data
        except zlib.error:
            sound = False
        if sound or pieces:
            found.append((stamp_ns, b"".join(pieces)))
        if most_nbytes <= 0 or not sound:
            break
    return found or list(reads)


@lru_cache(maxsize=64)
def _target(url: str) -> tuple[str, str]:
    """The value of Host, and what is asked for."""
    parts = urlsplit(url)
    host = "localhost" if unix_path(url) is not None else parts.netloc.rpartition("@")[2]
    path = quote(parts.path or "/", safe="/%:@!$&'()*+,;=~")
    return host, f"{path}?{parts.query}" if parts.query else path


def request_head(url: str, headers: Mapping[str, str], body_nbytes: int, *, keep: bool = False) -> bytes:
    """The head of a POST, over a connection of its own or one to `keep`. Raises ValueError for a header that would
    break it."""
    host, path = _target(url)
    option = "keep-alive" if keep else "close"
    own = f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Length: {body_nbytes}\r\nConnection: {option}\r\n"
    text = own + "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
    if text.count("\n") != 4 + len(headers) or text.count("\r") != 4 + len(headers):
        raise ValueError("a header holds a line break")
    return text.encode() + b"\r\n"
