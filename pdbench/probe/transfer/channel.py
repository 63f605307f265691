"""The side channel between the two workers: JSON messages over one TCP connection that both ends have proved to share
a one-time token for. The token itself never crosses the wire, and nothing is parsed before the proof."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import secrets
import select
import socket
import struct
import time
from dataclasses import dataclass
from typing import Any

from pdbench.errors import PdbenchError, Unreachable, UsageError

Message = dict[str, Any]

GREETING = b"pdbench-transfer-1\n"
NONCE_BYTES = PROOF_BYTES = 32
MAX_MESSAGE_BYTES = 64 << 20
HANDSHAKE_S = 10.0
LIVELY_S = 0.001  # how long a wait on the peer sleeps before it looks after NIXL again


class WrongToken(UsageError):
    """The other end does not hold the same token."""


class PeerGone(Unreachable):
    """The other end closed the connection."""


class PeerSilent(PeerGone):
    """The other end does not answer."""


@dataclass(frozen=True, slots=True)
class Channel:
    """An authenticated connection. `what` names the other end in errors."""

    socket: socket.socket
    what: str

    def send(self, message: Message) -> None:
        data = json.dumps(message, allow_nan=False, separators=(",", ":")).encode()
        try:
            self.socket.sendall(struct.pack("!Q", len(data)) + data)
        except OSError as error:
            raise gone(self.what, error) from None

    def receive(self, deadline: float) -> Message:
        """The next message; `deadline` is on time.monotonic()."""
        (length,) = struct.unpack("!Q", self._exactly(8, deadline))
        if length > MAX_MESSAGE_BYTES:
            raise PeerGone(f"{self.what} sends a message of {length} bytes, which no pdbench does.")
        try:
            message = json.loads(self._exactly(length, deadline))
        except ValueError:
            message = None
        if not isinstance(message, dict):
            raise PeerGone(f"{self.what} sends what no pdbench sends.")
        return message

    def waits(self, seconds: float) -> bool:
        """Whether a message begins within `seconds`, or the connection has ended."""
        return bool(select.select([self.socket], [], [], seconds)[0])

    def check_alive(self) -> None:
        """Raise PeerGone when the connection has ended; a message that waits stays where it is."""
        try:
            if self.socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b"":
                raise gone(self.what)
        except BlockingIOError:
            return
        except OSError as error:
            raise gone(self.what, error) from None

    def _exactly(self, count: int, deadline: float) -> bytes:
        return receive_exactly(self.socket, count, deadline, self.what)


def gone(what: str, error: OSError | None = None) -> PeerGone:
    why = f" ({error.strerror})" if error is not None and error.strerror else ""
    return PeerGone(f"{what} is gone{why}.", "Its own output says why it ended; start both again.")


def receive_exactly(connection: socket.socket, count: int, deadline: float, what: str) -> bytes:
    data = bytearray()
    while len(data) < count:
        connection.settimeout(max(0.001, deadline - time.monotonic()))
        try:
            part = connection.recv(min(count - len(data), 1 << 20))
        except TimeoutError:
            raise PeerSilent(f"{what} does not answer.", "It hangs, or the network between drops packets.") from None
        except OSError as error:
            raise gone(what, error) from None
        if not part:
            raise gone(what)
        data += part
    connection.settimeout(None)
    return bytes(data)


def new_token() -> str:
    return secrets.token_urlsafe(16)


def listen(host: str, port: int) -> socket.socket:
    """A listening socket on exactly this address. Raises UsageError when it cannot be had."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(8)
    except OSError as error:
        raise UsageError(
            f"cannot listen on {host}:{port}: {error.strerror}.", "Give an address of this host and a free port."
        ) from None
    return listener


def accepted(listener: socket.socket, token: str, purpose: str, deadline: float) -> tuple[socket.socket, int]:
    """The first connection that proves the token for `purpose`, and how many were turned away before it."""
    turned_away = 0
    while True:
        listener.settimeout(max(0.001, deadline - time.monotonic()))
        try:
            connection, _ = listener.accept()
        except TimeoutError:
            wrong = f"; {turned_away} came with a wrong token" if turned_away else ""
            raise Unreachable(f"no peer came within the time{wrong}.", "Start the other side with --connect.") from None
        try:
            _prove(connection, token, purpose, b"listener", b"caller")
        except (PdbenchError, OSError):
            turned_away += 1
            connection.close()
            continue
        return connection, turned_away


def called(host: str, port: int, token: str, purpose: str, deadline: float) -> socket.socket:
    """A connection to a listener that proved the token too; a listener that is not there yet is tried again."""
    where = f"{host}:{port}"
    while True:
        left = deadline - time.monotonic()
        try:
            connection = socket.create_connection((host, port), timeout=max(0.1, min(left, HANDSHAKE_S)))
            break
        except socket.gaierror as error:
            raise UsageError(f"--connect {where}: {error.strerror}.") from None
        except OSError as error:
            if left < 0.2:
                raise Unreachable(
                    f"nothing answers on {where}: {error.strerror or error}.",
                    "Start the other side first: pdbench probe-transfer --listen ADDR:PORT",
                ) from None
            time.sleep(0.1)
    try:
        _prove(connection, token, purpose, b"caller", b"listener")
    except PeerSilent:
        connection.close()
        raise Unreachable(f"{where} answers, but not as pdbench does.", "Is it the address of --listen?") from None
    except (WrongToken, PeerGone, OSError):
        connection.close()
        raise WrongToken(
            f"{where} does not take this token.", "Use the token that --listen printed; each is good for one session."
        ) from None
    return connection


def _prove(connection: socket.socket, token: str, purpose: str, me: bytes, them: bytes) -> None:
    """Both ends send a nonce, then a MAC over both nonces and their own part in this. Raises WrongToken."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    deadline = time.monotonic() + HANDSHAKE_S
    nonce = secrets.token_bytes(NONCE_BYTES)
    connection.sendall(GREETING + nonce)
    hello = receive_exactly(connection, len(GREETING) + NONCE_BYTES, deadline, "the other end")
    if hello[: len(GREETING)] != GREETING:
        raise PeerSilent("the other end is no pdbench of this version.")
    nonces = sorted([nonce, hello[len(GREETING) :]])

    def proof(part: bytes) -> bytes:
        return hmac.digest(token.encode(), b"|".join([part, purpose.encode(), *nonces]), hashlib.sha256)

    if me == b"caller":
        connection.sendall(proof(me))
    theirs = receive_exactly(connection, PROOF_BYTES, deadline, "the other end")
    if not hmac.compare_digest(theirs, proof(them)):
        raise WrongToken("the other end has another token.")
    if me == b"listener":
        connection.sendall(proof(me))


def close(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()
