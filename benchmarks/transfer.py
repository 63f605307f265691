"""What probe-transfer adds to NIXL, and how NIXL stands to what the machine does without it.

    python benchmarks/transfer.py [--rounds 60] [--nixl-threads 4]

One pair of workers, one registration, one prepared list. In each round, in a new order, pdbench's own loop and a bare
loop over NIXL's calls as one would write it by hand: the overhead is the median over the rounds of what pdbench reports
against what the bare loop takes, beside it what a whole round of pdbench takes with all that it does outside the stop
watch. `code` is the same difference in us where NIXL's calls do nothing, which no neighbour disturbs. Then, in fewer
rounds, the references. UCX is confined to lo. Goal: at most 3% on both shapes.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import socket
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from pdbench.probe.transfer import host, launch, measure, nixl, rounds, worker
from pdbench.probe.transfer.channel import Channel, listen, new_token
from pdbench.probe.transfer.conversation import Conversation
from pdbench.probe.transfer.pattern import indices, of_bytes, picks
from pdbench.probe.transfer.plan import STUCK_S, Cell, Plan
from pdbench.report.statistics import quantile_interval

MIB = 1 << 20
SHAPES = {"64 MiB in one": of_bytes(64 * MIB, 1), "65,536 x 8 KiB": of_bytes(512 * MIB, 65_536)}


@contextlib.contextmanager
def decode_side(plan: Plan) -> Iterator[worker.Worker]:
    """This process as the decode side, with a prefill worker on the other end."""
    token = new_token()
    with listen("127.0.0.1", 0) as listener, tempfile.TemporaryDirectory() as folder:
        port = listener.getsockname()[1]
        other = launch.start("prefill", {"token": token, "connect_s": 30, "gpu": 0}, Path(folder), listener)
        listener.close()
        with launch.ending([other]):
            spec = {"role": "decode", "token": token, "host": "127.0.0.1", "port": port, "connect_s": 30}
            control, data = worker.connected(spec)
            yield _worker(control, data, plan)


def _worker(control: socket.socket, data: socket.socket, plan: Plan) -> worker.Worker:
    api = nixl.load()
    facts = {**host.facts(nixl.version(api)), "role": "decode", "gpus": [0, "not asked"]}
    conversation = Conversation(Channel(control, "the prefill side"))
    mine = worker.Worker("decode", api, conversation, data, facts, [], 0)
    conversation.handlers |= worker.handlers(mine)
    mine.plan = plan
    mine.peer = conversation.ask("greet", plan=plan.document(), facts=facts)
    worker.meet(mine, "UCX", "DRAM")
    return mine


def bare(transfer: rounds.Transfer) -> rounds.Contestant:
    """NIXL's calls with nothing around them but the clock."""
    agent, op, (here_rows, there_rows) = transfer.agent, transfer.op, transfer.rows[0]

    def run() -> Sequence[float]:
        begin = time.perf_counter()
        handle = agent.make_prepped_xfer(op, transfer.here, here_rows, transfer.there, there_rows, rounds.NOTE)
        state = agent.transfer(handle)
        while state == "PROC":
            state = agent.check_xfer_state(handle)
        seconds = time.perf_counter() - begin
        if state != "DONE":
            raise SystemExit(f"NIXL: {state}")
        agent.release_xfer_handle(handle)
        return (seconds,)

    return run


def whole(contestant: rounds.Contestant) -> rounds.Contestant:
    """What a round takes from outside, after what it reports."""

    def run() -> Sequence[float]:
        begin = time.perf_counter()
        told = contestant()
        return (sum(told[:3]), time.perf_counter() - begin)

    return run


class Nothing:
    """An agent whose calls cost next to nothing."""

    def make_prepped_xfer(self, *_: Any) -> int:
        return 1

    def transfer(self, _: int) -> str:
        return "DONE"

    def check_xfer_state(self, _: int) -> str:
        return "DONE"

    def release_xfer_handle(self, _: int) -> None:
        pass


def code_us(count: int = 20_000) -> float:
    """What pdbench's loop takes longer than the bare one where NIXL takes no time."""
    transfer = rounds.Transfer(Nothing(), "READ", 1, 1, ((1, 1),), lambda: None, STUCK_S)
    ours = np.array([sum(transfer.tight()[0]) for _ in range(count)])
    by_hand = bare(transfer)
    return float(np.median(ours) - np.median([by_hand()[0] for _ in range(count)])) * 1e6


def compared(mine: worker.Worker, op: str, pattern: Any, count: int) -> str:
    """One line: the overhead of pdbench's loop, then NIXL against the references."""
    cell = Cell(0, pattern, "scattered", op, "UCX", "DRAM", 1, True)
    side, chosen = mine.side(), picks(pattern, "scattered", 1, 0)
    _, lists = measure.prepared(side, cell)
    rows = tuple((indices(pattern, one.here, 1), indices(pattern, one.there, 1)) for one in chosen)
    alive = mine.conversation.channel.check_alive
    transfer = rounds.Transfer(side.endpoint.agent, op, lists[0], lists[1], rows, alive, STUCK_S)
    pair = {"nixl": whole(rounds.nixl(transfer)), "bare": bare(transfer)}
    kept = rounds.play(pair, budget_s=0.0, seed=1, fewest=count)
    contestants, _ = measure.contestants_of(side, cell, chosen, transfer)
    beside = rounds.play(contestants, budget_s=0.0, seed=2, fewest=max(3, count // 4))
    for each in lists:
        side.endpoint.agent.release_dlist_handle(each)
    return f"{_overhead(kept)}  NIXL / reference: {_ratios(beside)}"


def _overhead(kept: dict[str, list[list[float]]]) -> str:
    by_hand = np.array([times[0] for times in kept["bare"]])
    ratios = np.array([times[0] for times in kept["nixl"]]) / by_hand - 1
    outside = np.median(np.array([times[1] for times in kept["nixl"]]) / by_hand) - 1
    low, high = quantile_interval(ratios, 0.5)
    span = f"{low:+.1%} to {high:+.1%}" if low is not None and high is not None else "too few rounds"
    took = np.median(by_hand) * 1000
    return f"bare {took:8.2f} ms  pdbench {np.median(ratios):+.1%} ({span})  its whole round {outside:+.1%}"


def _ratios(beside: dict[str, list[list[float]]]) -> str:
    ours = np.array([sum(times[:3]) for times in beside.pop("nixl")])
    others = {name: np.array([times[0] for times in each]) for name, each in beside.items()}
    return ", ".join(f"{name} {np.median(seconds / ours):.2f}" for name, seconds in others.items())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--nixl-threads", type=int, default=4)
    parser.add_argument("--only", default="")
    asked = parser.parse_args()
    os.environ.setdefault("UCX_NET_DEVICES", "lo")
    os.environ.setdefault("NIXL_LOG_LEVEL", "WARN")
    shapes = {name: pattern for name, pattern in SHAPES.items() if asked.only in name}
    plan = Plan(tuple(shapes.values()), ("scattered",), ("READ",), ("UCX",), ("DRAM",), nixl_threads=asked.nixl_threads)
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors, NIXL threads {asked.nixl_threads}")
    print(f"code {code_us():+.2f} us a round")
    with decode_side(plan) as mine:
        for name, pattern in shapes.items():
            for op in ("READ", "WRITE"):
                print(f"{name:15} {op:5} {compared(mine, op, pattern, asked.rounds)}", flush=True)
    sys.stdout.flush()
    os._exit(0)  # NIXL's libraries may crash in their own clean-up


if __name__ == "__main__":
    main()
