"""What a client is: a request goes in, and out comes what was sent and every read with its stamp.

Stamping, parsing and recording are apart (`socket_client`, `sse`, `recorder`), so that one client can take another's
place (`clients`): all that the others know of it is here. No client parses an answer.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Protocol

# An answer longer than this is cut: a server that never ends its body must not eat the memory.
MAX_ANSWER_NBYTES = 256 << 20
OWN_LIMITS = {"fd-limit": "out_of_files", "port-limit": "out_of_ports"}  # what ends a request -> its count in `health`
COUNTS = ("connections_opened", "connections_reused", "resets_retried", *OWN_LIMITS.values())
COMMON_KEEP_S, MOST_KEEP_S, KEPT_SHARE = 5.0, 60.0, 0.8
USER_STAMP = -(1 << 62)  # instead of a lag, where the kernel gave no stamp


@dataclass(frozen=True, slots=True)
class Request:
    """One request, ready to be sent: its body was made before it is due."""

    index: int
    request_id: str
    url: str
    headers: Mapping[str, str]
    body: bytes
    prompt_len: int
    output_len: int
    request_class: str = "default"
    session: int | None = None
    turn: int | None = None
    shared_len: int = 0
    first: Request | None = None  # the hop before this one, where the drive has two
    pass_token_ids: bool = False  # hand the first hop's token ids on, so that a chat is not tokenised twice


@dataclass(slots=True)
class RawAnswer:
    """What came back. Times are CLOCK_MONOTONIC ns.

    `opened_ns`: the connection began to be opened, before the request was due where that could be; `sent_ns`: the
    request left, or waited for nothing but its connection; `connected_ns`: the connection stood; `first_byte_ns`: the
    answer's head was there; `done_ns`: the end, of whatever kind.
    `reads` carry the kernel's stamps as far as it gave any; `lags_ns` says, for each read, how much later the read
    itself came, or USER_STAMP where the stamp is our own.
    `end`: complete, timeout, cancelled, reset (broken off), too-large, protocol, connect, dns, tls, fd-limit (no
    descriptor), port-limit (no local port).
    """

    index: int
    request_id: str
    request_class: str
    prompt_len: int
    output_len: int
    intended_ns: int
    sent_ns: int
    opened_ns: int | None = None
    connected_ns: int | None = None
    first_byte_ns: int | None = None
    done_ns: int | None = None
    http_status: int | None = None
    content_type: str | None = None
    content_encoding: str | None = None  # of the reads
    location: str | None = None
    reads: list[tuple[int, bytes]] = field(default_factory=list)
    lags_ns: array[int] = field(default_factory=lambda: array("q"))
    end: str = "complete"
    end_text: str = ""
    stamp: str = "user"
    session: int | None = None
    turn: int | None = None
    shared_len: int = 0
    hops: dict[str, int] = field(default_factory=dict)  # stamps of a drive in several hops, by column

    def __reduce__(self) -> tuple[type[RawAnswer], tuple[Any, ...]]:
        """Pickled as its values, without their names, which would take most of the time."""
        return RawAnswer, _values(self)


_values: Callable[[RawAnswer], tuple[Any, ...]] = attrgetter(*RawAnswer.__slots__)


def answer_to(request: Request, intended_ns: int, sent_ns: int) -> RawAnswer:
    """An answer of which nothing has come yet."""
    return RawAnswer(
        request.index,
        request.request_id,
        request.request_class,
        request.prompt_len,
        request.output_len,
        intended_ns,
        sent_ns,
        session=request.session,
        turn=request.turn,
        shared_len=request.shared_len,
    )


class Opening(Protocol):
    """A connection that is being opened for a request that is not due yet."""

    async def settled(self, patience_s: float) -> None:
        """Wait until it stands or has failed, at most so long."""


class Client(Protocol):
    """One for a cell. `lead_ns`: how long before it is due a request's connection should be opened; 0: with it."""

    @property
    def lead_ns(self) -> int: ...

    def open(self, request: Request) -> Opening | None:
        """Begin to open a connection for this request."""

    def start(
        self, request: Request, intended_ns: int, timeout_s: float, opening: Opening | None = None
    ) -> asyncio.Future[RawAnswer]:
        """Send it now. What goes wrong is in the answer; only a bug of ours is an exception."""

    def end_all(self) -> None:
        """End everything that is under way: such answers are `cancelled`."""

    def health(self) -> dict[str, Any]:
        """How good the stamps are and what connecting took, over all answers."""


def kernel_share(reads: Mapping[str, int]) -> float | None:
    """The share of reads with the kernel's stamp."""
    every = sum(reads.values())
    return reads["kernel"] / every if every else None


def keep_ns(promised_s: int | None) -> int:
    """How long a connection may be idle and be used again: well below what the server promises or commonly does (5 s in
    vLLM, SGLang and all else on uvicorn), so that no request meets its close."""
    return int(min(MOST_KEEP_S, KEPT_SHARE * (COMMON_KEEP_S if promised_s is None else promised_s)) * 1e9)


def os_error_words(error: OSError) -> str:
    """The error's name and text, with what to do where that is known."""
    words = errno.errorcode.get(error.errno or 0, str(error.errno)) + f": {error.strerror}"
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return f"{words}; each request needs a socket: raise the limit (ulimit -n, sysctl fs.file-max)"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"{words}; the local ports are used up: --connections pool, or widen sysctl net.ipv4.ip_local_port_range"
    return words


def own_limit(error: BaseException) -> str | None:
    """The `end` of a request for which this host had no descriptor or no local port left."""
    if not isinstance(error, OSError):
        return None
    if error.errno == errno.EADDRNOTAVAIL:
        return "port-limit"
    return "fd-limit" if error.errno in (errno.EMFILE, errno.ENFILE) else None


def is_dns(error: BaseException) -> bool:
    return isinstance(error, socket.gaierror)
