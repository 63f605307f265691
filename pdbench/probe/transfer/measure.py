"""One cell, measured by the side that initiates it: prepare, verify every byte, prove the carrier, then the rounds."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from pdbench.probe.nics import moved
from pdbench.probe.transfer import host, rounds, ucx_report
from pdbench.probe.transfer.conversation import Conversation
from pdbench.probe.transfer.endpoint import Endpoint
from pdbench.probe.transfer.memory import checksum, fill, guards_are_wiped, wipe
from pdbench.probe.transfer.nixl import refused
from pdbench.probe.transfer.pattern import Picks, descriptors, indices, picks
from pdbench.probe.transfer.plan import STUCK_S, Cell, Plan
from pdbench.probe.transfer.references import REFERENCES, Contest, NotHere
from pdbench.probe.transfer.rounds import Contestant, Transfer

# Enough to stand out of what else an interface carries, without taking long.
PROOF_WINDOWS, PROOF_BYTES, PROOF_ROUNDS, PROOF_S = 4, 16 << 20, 32, 0.3


@dataclass(frozen=True, slots=True)
class Side:
    """What the initiating side works with. `peer_pid`: of the other side, where it means anything here."""

    endpoint: Endpoint
    conversation: Conversation
    data: socket.socket
    plan: Plan
    peer_pid: int | None
    read_log: Callable[[], str]


def measure(side: Side, cell: Cell, repeat: int) -> dict[str, Any]:
    """Everything that was found in one pass over a cell, times in seconds, as plain data."""
    agent = side.endpoint.agent
    chosen = picks(cell.pattern, cell.ids, cell.in_flight, seed=side.plan.seed + cell.cell)
    prep_s, lists = prepared(side, cell)
    rows = tuple(
        (indices(cell.pattern, one.here, cell.in_flight), indices(cell.pattern, one.there, cell.in_flight))
        for one in chosen
    )
    alive = side.conversation.channel.check_alive
    transfer = Transfer(agent, cell.op, lists[0], lists[1], rows, alive, STUCK_S)
    found: dict[str, Any] = {"repeat": repeat, **cell.document(), "prep_s": prep_s}
    if repeat == 0:
        found |= _verify(side, cell, chosen, transfer)
        if cell.asked:
            found["moved"] = _prove(cell, transfer)
    contestants, missing = contestants_of(side, cell, chosen, transfer)
    before = _busy(side)
    kept = rounds.play(contestants, side.plan.duration_s / side.plan.repeats, side.plan.seed + cell.cell + repeat)
    found["busy"] = _spent(before, _busy(side))
    found["rounds"], found["missing"] = kept, missing
    found["ucx"] = _told_by_ucx(side, cell)
    with refused("release its descriptor lists"):
        for each in lists:
            agent.release_dlist_handle(each)
    return found


def prepared(side: Side, cell: Cell) -> tuple[float, list[Any]]:
    """Both lists of every block of every region, which vLLM prepares once for each peer."""
    end, remote = side.endpoint, side.endpoint.remote
    assert remote is not None
    here = descriptors(cell.pattern, end.memory.address, end.memory.device, cell.in_flight)
    there = descriptors(cell.pattern, remote.address, remote.device, cell.in_flight)
    begin = time.perf_counter()
    with refused(f"prepare {len(here)} descriptors"):
        lists = [
            end.agent.prep_xfer_dlist("NIXL_INIT_AGENT", here, cell.memory, backends=[cell.backend]),
            end.agent.prep_xfer_dlist(remote.agent, there, cell.memory, backends=[cell.backend]),
        ]
    return time.perf_counter() - begin, lists


def _verify(side: Side, cell: Cell, chosen: list[Picks], transfer: Transfer) -> dict[str, Any]:
    """Fill the source, wipe the target, move once, and compare checksums of both sides in the order of the blocks."""
    seed = side.plan.seed + 1 + cell.cell
    nbytes, ask, memory = cell.pattern.pool_bytes(cell.in_flight), side.conversation.ask, side.endpoint.memory
    if cell.op == "READ":
        ask("fill", nbytes=nbytes, seed=seed)
        wipe(memory, nbytes)
    else:
        fill(memory, nbytes, seed)
        ask("wipe", nbytes=nbytes)
    begin = time.perf_counter()
    with refused(f"{cell.op} {cell.descriptors_in_words}"):
        _, handles = transfer.tight()
        merged = rounds.telemetry(transfer.agent, handles)[2]
        rounds.release(transfer.agent, handles)
    first_s = time.perf_counter() - begin
    theirs = ask("checksum", cell=cell.document(), seed=side.plan.seed + cell.cell, guards=cell.op == "WRITE")
    ours = [checksum(memory, cell.pattern, one.here, cell.in_flight) for one in chosen]
    guards = guards_are_wiped(memory, cell.pattern, cell.in_flight) if cell.op == "READ" else theirs["guards"]
    right = ours == theirs["sums"] and guards
    return {"verified": right, "descriptors_merged": merged, "first_s": first_s}


def _prove(cell: Cell, transfer: Transfer) -> list[dict[str, Any]]:
    """What each interface of this side counted (sent, received) while NIXL alone moved a known number of bytes: in
    several windows, since what others send over an interface comes in bursts, and what carries the data is in each."""
    return [_window(cell, transfer) for _ in range(PROOF_WINDOWS)]


def _window(cell: Cell, transfer: Transfer) -> dict[str, Any]:
    before, total, count, begin = counters(), 0, 0, time.perf_counter()
    while not count or (total < PROOF_BYTES and count < PROOF_ROUNDS and time.perf_counter() - begin < PROOF_S):
        with refused(f"{cell.op} {cell.descriptors_in_words}"):
            _, handles = transfer.tight()
            rounds.release(transfer.agent, handles)
        total, count = total + cell.pattern.nbytes * cell.in_flight, count + 1
    counted = {
        name: [now - then for now, then in zip(after, before[name], strict=True)]
        for name, after in counters().items()
        if name in before
    }
    return {"nbytes": total, "counted": counted}


def counters() -> dict[str, list[int]]:
    return {name: [each.sent_bytes, each.received_bytes] for name, each in moved().items()}


def contestants_of(
    side: Side, cell: Cell, chosen: list[Picks], transfer: Transfer
) -> tuple[dict[str, Contestant], dict[str, str]]:
    """Who runs in each round, and why a reference does not."""
    contestants: dict[str, Contestant] = {"nixl": rounds.nixl(transfer)}
    missing: dict[str, str] = {}
    if not cell.asked:
        return contestants, missing
    if side.plan.poll_interval_s is not None:
        contestants["poll"] = rounds.polled(transfer, side.plan.poll_interval_s)
    remote = side.endpoint.remote
    assert remote is not None
    contest = Contest(
        cell.op,
        cell.pattern,
        cell.in_flight,
        tuple(chosen),
        side.endpoint.memory,
        remote.address,
        side.peer_pid,
        side.conversation.channel,
        side.data,
    )
    for name, make in REFERENCES.items():
        try:
            reference = make(contest)
        except NotHere as error:
            missing[name] = str(error)
        else:
            contestants[name] = lambda run=reference: (run(),)  # type: ignore[misc]
    return contestants, missing


def _busy(side: Side) -> list[dict[str, float]]:
    return [host.busy(), side.conversation.ask("busy")]


def _spent(before: list[dict[str, float]], after: list[dict[str, float]]) -> list[dict[str, float]]:
    """Processor time between two looks, on this side and on the other."""
    return [{name: now[name] - then[name] for name in now} for then, now in zip(before, after, strict=True)]


def _told_by_ucx(side: Side, cell: Cell) -> dict[str, Any] | None:
    """UCX's report on how this operation goes to the other side, in pieces of this cell's size."""
    box = ucx_report.chosen(ucx_report.boxes(side.read_log()), cell.op, side.endpoint.name)
    row = box.row(cell.pattern.nbytes / cell.pattern.descriptors) if box else None
    if box is None or row is None:
        return None
    return {"operation": box.operation, "place": box.place, **asdict(row), "carriers": row.carriers}
