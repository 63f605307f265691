"""Messages between our processes: a length, then a pickle. Only for pipes of our own, since a pickle is a program."""

from __future__ import annotations

import pickle
import struct
from collections.abc import Iterator
from typing import Any, BinaryIO

HEADER = struct.Struct("<Q")


def frame(message: Any) -> bytes:
    body = pickle.dumps(message, protocol=5)
    return HEADER.pack(len(body)) + body


def opened(framed: bytes) -> Any:
    """The message of one frame."""
    return pickle.loads(memoryview(framed)[HEADER.size :])


def frames(stream: BinaryIO) -> Iterator[Any]:
    """The messages of a stream until it ends; a frame that was cut short by the sender's death is dropped."""
    while len(head := stream.read(HEADER.size)) == HEADER.size:
        (length,) = HEADER.unpack(head)
        body = stream.read(length)
        if len(body) < length:
            return
        yield pickle.loads(body)
