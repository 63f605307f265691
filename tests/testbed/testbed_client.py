"""A small load generator for these tests: sends at given offsets and notes when each event arrived."""

import asyncio
import json
import random
import time
from dataclasses import dataclass, field
from typing import Any

import aiohttp

MODEL = "simulated-qwen3-32b"


@dataclass
class Seen:
    """One request as the client saw it; instants are CLOCK_MONOTONIC seconds."""

    request_id: str
    sent: float = 0.0
    status: int = 0
    times: list[float] = field(default_factory=list)  # of events that carry text
    events: list[str] = field(default_factory=list)  # data of all events
    body: Any = None  # JSON of an answer that did not stream

    @property
    def ttft(self) -> float:
        return self.times[0] - self.sent

    @property
    def tpot(self) -> float:
        return (self.times[-1] - self.times[0]) / (len(self.times) - 1)


def ids(count: int, seed: int) -> list[int]:
    """A fresh random prompt."""
    return random.Random(seed).choices(range(256, 4000), k=count)


def body(prompt: Any, output: int, **extra: Any) -> dict[str, Any]:
    """A completion request that streams."""
    return {
        "model": MODEL,
        "prompt": prompt,
        "max_tokens": output,
        "stream": True,
        "ignore_eos": True,
        "stream_options": {"include_usage": True},
        **extra,
    }


async def send(
    session: aiohttp.ClientSession,
    url: str,
    request_id: str,
    payload: dict[str, Any],
    path: str = "/v1/completions",
    headers: dict[str, str] | None = None,
) -> Seen:
    """One request; returns when the answer is complete."""
    seen = Seen(request_id)
    data = json.dumps(payload).encode()
    seen.sent = time.monotonic()
    headers = {"X-Request-Id": request_id, "Content-Type": "application/json", **(headers or {})}
    async with session.post(url + path, data=data, headers=headers) as response:
        seen.status = response.status
        if not response.headers["Content-Type"].startswith("text/event-stream"):
            seen.body = await response.json()
            return seen
        async for line in response.content:
            now = time.monotonic()
            if line.startswith(b"data: "):
                text = line[6:].decode().strip()
                seen.events.append(text)
                if '"text":"' in text or '"content":" ' in text:
                    seen.times.append(now)
    return seen


def one(url: str, payload: dict[str, Any], request_id: str = "one", **kwargs: Any) -> Seen:
    """One request, from code that is not async."""

    async def go() -> Seen:
        async with aiohttp.ClientSession() as session:
            return await send(session, url, request_id, payload, **kwargs)

    return asyncio.run(go())


def load(url: str, offsets: list[float], prompt: int, output: int, name: str = "r", seed: int = 0) -> list[Seen]:
    """Open loop: request i is sent at `offsets[i]` seconds, with a fresh prompt."""
    prompts = [ids(prompt, seed * 100_000 + i) for i in range(len(offsets))]

    async def go() -> list[Seen]:
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(60)) as session:
            origin = time.monotonic() + 0.05

            async def at(i: int) -> Seen:
                await asyncio.sleep(max(0.0, origin + offsets[i] - time.monotonic()))
                return await send(session, url, f"{name}-{i}", body(prompts[i], output))

            return await asyncio.gather(*(at(i) for i in range(len(offsets))))

    return asyncio.run(go())


def poisson(rate: float, count: int, seed: int = 1) -> list[float]:
    """Offsets of a Poisson process, in seconds."""
    rng, t, offsets = random.Random(seed), 0.0, []
    for _ in range(count):
        t += rng.expovariate(rate)
        offsets.append(t)
    return offsets
