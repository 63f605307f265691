"""The side channel between two engines: one JSON object a line over TCP.

Messages carry the instants of the simulated schedule (CLOCK_MONOTONIC is the same in all processes of a host), so the
latency of the channel itself does not enter the simulation.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

LIMIT = 1 << 20  # bytes of a line


def send(writer: asyncio.StreamWriter, message: dict[str, Any]) -> None:
    """Send one message; a peer that is gone is noticed by whoever reads."""
    if not writer.is_closing():
        writer.write(json.dumps(message).encode() + b"\n")


async def messages(reader: asyncio.StreamReader) -> AsyncIterator[dict[str, Any]]:
    """What the peer sends, until it goes."""
    while True:
        try:
            line = await reader.readline()
        except ConnectionError:
            return
        if not line.endswith(b"\n"):
            return
        yield json.loads(line)
