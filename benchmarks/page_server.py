"""Metrics pages of many servers from one process, cheaply: a real vLLM page on each port, with other numbers each time.

python benchmarks/page_server.py SERVERS     prints the ports when all are open, serves until stdin closes
"""

from __future__ import annotations

import asyncio
import random
import re
import sys
from itertools import count
from pathlib import Path
from typing import cast

CAPTURES = Path(__file__).parent.parent / "tests" / "probe" / "captures"
VARIANTS = 16
_VALUE = re.compile(rb"^([^#\n]*[} ])([0-9.e+]+)$", re.MULTILINE)


def variants(role: str) -> list[bytes]:
    """Answers whose pages differ in two numbers of three, as those of a busy server do from scrape to scrape."""
    page = (CAPTURES / f"vllm-pull-{role}.metrics").read_bytes()
    rng = random.Random(role)

    def other(found: re.Match[bytes]) -> bytes:
        if rng.random() < 1 / 3 or b"process_start" in found[0] or b"_created" in found[0]:
            return found[0]
        whole = b"." not in found[2]
        return found[1] + (b"%d" % rng.randrange(10**6) if whole else repr(rng.random() * 1e3).encode())

    pages = [_VALUE.sub(other, page) for _ in range(VARIANTS)]
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain; version=0.0.4; charset=utf-8\r\ncontent-length: %d\r\n\r\n"
    return [head % len(page) + page for page in pages]


class Pages(asyncio.Protocol):
    def __init__(self, answers: list[bytes], turn: count[int]) -> None:
        self._answers, self._turn = answers, turn

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if data.endswith(b"\r\n\r\n"):
            self._transport.write(self._answers[next(self._turn) % VARIANTS])


async def serve(servers: int) -> None:
    loop = asyncio.get_running_loop()
    answers = {role: variants(role) for role in ("prefill", "decode")}
    ports = []
    for number in range(servers):
        turn, of = count(number), answers[("prefill", "decode")[number % 2]]
        listening = await loop.create_server(lambda of=of, turn=turn: Pages(of, turn), "127.0.0.1", 0)  # type: ignore[misc]
        ports.append(listening.sockets[0].getsockname()[1])
    print(*ports, flush=True)
    await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(int(sys.argv[1])))
