"""The measuring loop. What is timed here is what is reported: nothing but the clock stands between NIXL's calls."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pdbench.errors import Unreachable
from pdbench.probe.transfer.nixl import NixlRefused, refused

NOTE = b"pdbench"  # vLLM notifies the other side too
ALIVE_S = 0.05  # how often a transfer that takes long asks whether the other side still lives
FEWEST_ROUNDS, MOST_ROUNDS = 2, 400

Times = tuple[float, float, float]  # make, post, move; seconds
Contestant = Callable[[], Sequence[float]]


@dataclass(frozen=True, slots=True)
class Transfer:
    """What a round posts: for each transfer in flight its rows of the two prepared lists."""

    agent: Any
    op: str
    here: Any
    there: Any
    rows: tuple[tuple[Any, Any], ...]
    check_alive: Callable[[], None]
    stuck_s: float

    def tight(self) -> tuple[Times, list[Any]]:
        """All in flight made, posted, and asked for without a pause until they are done."""
        clock = time.perf_counter
        begin = clock()
        handles = [
            self.agent.make_prepped_xfer(self.op, self.here, mine, self.there, other, NOTE) for mine, other in self.rows
        ]
        made = clock()
        states = [self.agent.transfer(handle) for handle in handles]
        posted = clock()
        pending = [handle for handle, state in zip(handles, states, strict=True) if state != "DONE"]
        check = self.agent.check_xfer_state
        alive = posted + ALIVE_S
        while pending:
            pending = [handle for handle in pending if check(handle) != "DONE"]
            if pending and clock() > alive:
                alive = self._still_moving(pending, clock() - posted)
        return (made - begin, posted - made, clock() - posted), handles

    def between_steps(self, interval_s: float) -> tuple[Times, list[Any]]:
        """The same, asked for only once an interval, as an engine does between its steps."""
        clock = time.perf_counter
        begin = clock()
        handles = [
            self.agent.make_prepped_xfer(self.op, self.here, mine, self.there, other, NOTE) for mine, other in self.rows
        ]
        made = clock()
        for handle in handles:
            self.agent.transfer(handle)
        posted = clock()
        pending, tick = list(handles), posted
        while pending:
            tick += interval_s
            time.sleep(max(0.0, tick - clock()))
            pending = [handle for handle in pending if self.agent.check_xfer_state(handle) != "DONE"]
            if pending:
                self._still_moving(pending, clock() - posted)
        return (made - begin, posted - made, clock() - posted), handles

    def _still_moving(self, pending: Sequence[Any], moving_s: float) -> float:
        """When to look again. Raises when the other side is gone, a transfer failed, or it takes too long."""
        self.check_alive()
        if any(self.agent.check_xfer_state(handle) == "ERR" for handle in pending):
            raise NixlRefused(f"{self.op} from the other side", "the transfer ended in an error", "")
        if moving_s > self.stuck_s:
            raise Unreachable(
                f"a {self.op} has not ended after {self.stuck_s:.0f} s: it is stuck.",
                "The other side hangs, or its NIC cannot be reached: try UCX_NET_DEVICES with one device that can.",
            )
        return time.perf_counter() + ALIVE_S


def telemetry(agent: Any, handles: Sequence[Any]) -> tuple[float, float, int]:
    """What NIXL itself says of finished transfers: post and transfer seconds (the longest), descriptors of each."""
    told = [agent.get_xfer_telemetry(handle) for handle in handles]
    posts = max(each.postDuration for each in told) / 1e6
    return posts, max(each.xferDuration for each in told) / 1e6, int(told[0].descCount)


def release(agent: Any, handles: Sequence[Any]) -> None:
    for handle in handles:
        agent.release_xfer_handle(handle)


def nixl(transfer: Transfer) -> Contestant:
    """(make, post, move, NIXL's post, NIXL's transfer) of a round, polled tightly."""

    def run() -> Sequence[float]:
        with refused(f"{transfer.op} {len(transfer.rows)} in flight"):
            times, handles = transfer.tight()
            told = telemetry(transfer.agent, handles)
            release(transfer.agent, handles)
        return (*times, *told[:2])

    return run


def polled(transfer: Transfer, interval_s: float) -> Contestant:
    """The same, polled once an interval."""

    def run() -> Sequence[float]:
        with refused(f"{transfer.op} {len(transfer.rows)} in flight"):
            times, handles = transfer.between_steps(interval_s)
            told = telemetry(transfer.agent, handles)
            release(transfer.agent, handles)
        return (*times, *told[:2])

    return run


def play(
    contestants: dict[str, Contestant], budget_s: float, seed: int, fewest: int = FEWEST_ROUNDS
) -> dict[str, list[list[float]]]:
    """Rounds in which every contestant runs once, in a new order each time, so that none always finds the same
    caches. The first round warms up and is dropped. `fewest` rounds are kept, more while `budget_s` lasts."""
    rng = np.random.default_rng(seed)
    names = list(contestants)
    kept: dict[str, list[list[float]]] = {name: [] for name in names}
    end = time.perf_counter() + budget_s
    for number in range(MOST_ROUNDS + 1):
        for place in rng.permutation(len(names)):
            times = contestants[names[place]]()
            if number:
                kept[names[place]].append(list(times))
        if number >= fewest and time.perf_counter() > end:
            break
    return kept
