"""Runs one decode engine in no time: the same scheduler as in the servers, with the instants handed in.

Prefill is a queue of its own in front; in push mode its posting thread is simulated here too.
"""

from dataclasses import dataclass, field
from typing import Any

from pdbench.testbed.engine import Engine
from pdbench.testbed.link import post_s
from pdbench.testbed.metrics import Metrics
from pdbench.testbed.request import DONE, Request
from pdbench.testbed.settings import Place, Settings


@dataclass
class Pull:
    """Prefill is always there."""

    settings: Settings
    dropped_ids: list[str] = field(default_factory=list)

    def start(self, request: Request) -> None:
        pass

    def may_post(self, request: Request) -> bool:
        return True

    def posted(self, request: Request) -> None:
        pass

    def dropped(self, request: Request) -> None:
        self.dropped_ids.append(request.id)


@dataclass
class Push(Pull):
    """The posting thread of the prefill server."""

    engine: Engine | None = None
    free_s: float = 0.0

    def start(self, request: Request) -> None:
        assert self.engine is not None
        start = max(request.stamps["load_start"], request.stamps["prefilled"], self.free_s)
        self.free_s = start + post_s(self.settings, request.prompt_tokens)
        begin, end = self.engine.link.reserve(self.free_s, request.nbytes)
        request.stamps |= {"post_start": start, "post_end": self.free_s, "transfer_start": begin, "transfer_end": end}


def engine(settings: Settings, role: str = "decode") -> Engine:
    """An engine with its handoff faked."""
    transfer = "" if role == "colocated" else settings.mode
    made = Engine(settings, Place(role, 0, "127.0.0.1", 1, 2, transfer), Metrics(settings.max_model_len))
    if role == "decode":
        made.fetch = Push(settings, engine=made) if settings.mode == "push" else Pull(settings)
    return made


def request(name: str, prompt: int, output: int, at_s: float, remote: bool = True, **extra: Any) -> Request:
    """A request that reaches its engine at `at_s`."""
    return Request(
        id=name,
        api_id=f"cmpl-{name}",
        engine_id=f"cmpl-{name}-0-00000000",
        tokens=[7] * prompt,
        hashes=[],
        max_tokens=output,
        output_tokens=output,
        finish="length",
        kv={},
        sink=lambda *_: None,
        stamps={"received": at_s, "queued": at_s, **extra},
        remote=remote,
    )


def run(made: Engine, requests: list[Request]) -> list[Request]:
    """Drive the engine until all requests are done."""
    coming = sorted(requests, key=lambda r: r.stamps["queued"])
    t = 0.0
    while any(r.stage != DONE for r in requests):
        while coming and coming[0].stamps["queued"] <= t:
            made.submit(coming.pop(0))
        step = made.begin_step(t)
        if step is None:
            instants = [coming[0].stamps["queued"]] if coming else []
            look = made.next_look(t)
            t = max(t, min([*instants, look] if look is not None else instants))
            continue
        t += step.duration_s
        made.end_step(step, t)
    return requests


def reference(settings: Settings, arrivals: list[float], prompt: int = 16384, output: int = 128) -> list[Request]:
    """A P/D run: one prefill server in front of one decode server."""
    requests, free = [], 0.0
    for i, arrival in enumerate(arrivals):
        free = max(arrival, free) + (settings.prefill_fixed_ms + prompt * settings.prefill_ms_per_token) / 1000
        reaches = arrival if settings.mode == "push" else free
        requests.append(request(str(i), prompt, output, reaches, prefilled=free, sent=arrival))
    return run(engine(settings), requests)


def tpot_ms(requests: list[Request]) -> float:
    """Mean over requests of (last - first token) / (tokens - 1)."""
    spans = [(r.stamps["last_token"] - r.stamps["first_token"]) / (r.generated - 1) for r in requests]
    return 1000 * sum(spans) / len(spans)
