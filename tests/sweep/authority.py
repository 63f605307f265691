"""A certificate authority of our own, and servers behind TLS."""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import trustme

from tests.sweep.scripted import Script, scripted


@dataclass(frozen=True)
class Authority:
    """`pem` is what clients must trust."""

    pem: Path
    context: ssl.SSLContext


def authority(directory: Path, *names: str) -> Authority:
    """An authority that has certified a server for these names."""
    ca = trustme.CA()
    ca.cert_pem.write_to_path(str(directory / "ca.pem"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ca.issue_cert(*names).configure_cert(context)
    return Authority(directory / "ca.pem", context)


@contextlib.contextmanager
def secured(script: Script, known: Authority, host: str = "127.0.0.1") -> Iterator[str]:
    """As `scripted`, over TLS."""

    def over_tls(conn: socket.socket) -> None:
        with contextlib.suppress(ssl.SSLError), known.context.wrap_socket(conn, server_side=True) as inside:
            script(inside)
            with contextlib.suppress(OSError, ValueError):  # the script may have shut it down
                inside.unwrap()

    with scripted(over_tls, host) as url:
        yield url.replace("http:", "https:")
