"""TLS over bytes that somebody else moves: the sockets stay ours, and with them the kernel's stamps.

A stamp is that of the segment which completed a record. Certificates are verified against the system's authorities, or
those that SSL_CERT_FILE and SSL_CERT_DIR name.
"""

from __future__ import annotations

import ssl


def context() -> ssl.SSLContext:
    """For one client: verifies the certificate and the host's name, and asks for HTTP/1.1."""
    made = ssl.create_default_context()
    made.set_alpn_protocols(["http/1.1"])
    return made


def ssl_error_words(error: ssl.SSLError) -> str:
    """What OpenSSL says, with what to do where that is known."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"{error.verify_message}; an authority of your own: SSL_CERT_FILE=FILE.pem"
    return f"{error.reason or type(error).__name__}"


class Tls:
    """One connection's. Bytes from the wire go in, bytes for the wire come out; nothing here waits."""

    __slots__ = ("_incoming", "_outgoing", "_tls", "broken", "over")

    def __init__(self, made: ssl.SSLContext, host: str) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = made.wrap_bio(self._incoming, self._outgoing, server_hostname=host)
        self.over = False  # the other side has said that nothing more will come
        self.broken: ssl.SSLError | None = None  # what follows the bytes that were opened is no record, or an alert

    def shake(self, received: bytes) -> tuple[bool, bytes]:
        """Go on with the handshake: whether it is done, and what to send. Raises ssl.SSLError."""
        self._incoming.write(received)
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return False, self._outgoing.read()
        return True, self._outgoing.read()

    def last_words(self) -> bytes:
        """What the other side should hear after a handshake that failed."""
        return self._outgoing.read()

    def seal(self, plain: bytes) -> bytes:
        self._tls.write(plain)
        return self._outgoing.read()

    def open(self, received: bytes) -> bytes:
        """The plain bytes in what was received, and in what a handshake left; none as long as a record is not whole.
        After them `over` or `broken` may be set."""
        self._incoming.write(received)
        pieces = []
        try:
            while piece := self._tls.read(65536):
                pieces.append(piece)
            self.over = True
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            self.over = True
        except ssl.SSLError as error:
            self.broken = error
        return b"".join(pieces)

    @property
    def ended(self) -> bool:
        return self.over or self.broken is not None
