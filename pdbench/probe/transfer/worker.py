"""One side of a transfer, as a process of its own: `python -m pdbench.probe.transfer.worker`. A line of JSON on its
standard input says what to do; it tells what it found by lines of JSON on its standard output.

Prefill listens and serves; decode calls, and says what is measured next. Decode initiates reads, prefill writes. The
process ends without Python's own clean-up, since NIXL's libraries may crash in theirs when ibverbs providers of the
system are loaded too; everything has been written by then.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import random
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from pdbench.errors import CRASH_EXIT_CODE, PdbenchError, UsageError
from pdbench.probe.transfer import host, nixl, refusals
from pdbench.probe.transfer.channel import Channel, Message, accepted, called
from pdbench.probe.transfer.conversation import NO_ANSWER, Conversation
from pdbench.probe.transfer.cuda import gpus
from pdbench.probe.transfer.endpoint import Endpoint, open_endpoint
from pdbench.probe.transfer.measure import Side, measure
from pdbench.probe.transfer.memory import checksum, fill, guards_are_wiped, refuse_more_than_available, wipe
from pdbench.probe.transfer.pattern import picks
from pdbench.probe.transfer.plan import Cell, Plan, cell_of, cells, plan_of, pool_bytes
from pdbench.probe.transfer.references import receive_into
from pdbench.probe.transfer.wiring import gpu_pair

ROLES = ("prefill", "decode")
OTHER = {"prefill": "the decode side", "decode": "the prefill side"}
_PR_SET_PDEATHSIG = 1


@dataclass(slots=True)
class Worker:
    """What a side holds. `plan` and `peer` are known once both have greeted each other."""

    role: str
    api: Any
    conversation: Conversation
    data: socket.socket
    facts: dict[str, Any]
    logs: list[Path]
    gpu: int
    plan: Plan | None = None
    peer: dict[str, Any] = field(default_factory=dict)
    endpoint: Endpoint | None = None

    def side(self) -> Side:
        assert self.endpoint is not None and self.plan is not None
        pid = int(self.peer["pid"]) if host.same_pids(self.facts, self.peer) else None
        return Side(self.endpoint, self.conversation, self.data, self.plan, pid, self.log)

    def log(self) -> str:
        ctypes.CDLL(None).fflush(None)  # UCX writes its log through stdio
        return "\n".join(path.read_text(encoding="utf-8", errors="replace") for path in self.logs if path.exists())

    @contextlib.contextmanager
    def explaining(self) -> Iterator[None]:
        """Give a refusal of NIXL the cause that the logs know."""
        try:
            yield
        except nixl.NixlRefused as error:
            self.conversation.channel.check_alive()
            raise refusals.explained(error, self.log()) from None


def handlers(worker: Worker) -> dict[str, Callable[[Message], Any]]:
    """What a side does when the other asks."""

    def memory() -> Any:
        assert worker.endpoint is not None
        return worker.endpoint.memory

    def greet(message: Message) -> Any:
        worker.plan, worker.peer = plan_of(message["plan"]), message["facts"]
        return worker.facts

    def open_(message: Message) -> Any:
        assert worker.plan is not None
        close(message)
        with worker.explaining():
            worker.endpoint = opened(worker, message["backend"], message["memory"])
            worker.conversation.agents.append(worker.endpoint.agent)
            introduction = worker.endpoint.introduction()
            worker.endpoint.meet(message["introduction"])
        return introduction

    def close(_: Message) -> Any:
        if worker.endpoint is not None:
            worker.conversation.agents.remove(worker.endpoint.agent)
            worker.endpoint.close()
            worker.endpoint = None

    def initiate(message: Message) -> Any:
        with worker.explaining():
            return measure(worker.side(), cell_of(message["cell"]), int(message["repeat"]))

    def sums(message: Message) -> Any:
        cell = cell_of(message["cell"])
        chosen = picks(cell.pattern, cell.ids, cell.in_flight, message["seed"])
        found = [checksum(memory(), cell.pattern, one.there, cell.in_flight) for one in chosen]
        return {"sums": found, "guards": message["guards"] and guards_are_wiped(memory(), cell.pattern, cell.in_flight)}

    def send(message: Message) -> Any:
        held = memory()
        nbytes = int(message["nbytes"])
        worker.data.sendall(memoryview(held.read(0, nbytes)) if held.kind == "DRAM" else bytes(nbytes))
        return NO_ANSWER

    def take(message: Message) -> Any:
        held, nbytes = memory(), int(message["nbytes"])
        receive_into(worker.data, memoryview(held.read(0, nbytes) if held.kind == "DRAM" else bytearray(nbytes)))
        worker.data.sendall(b"k")
        return NO_ANSWER

    return {
        "greet": greet,
        "open": open_,
        "close": close,
        "initiate": initiate,
        "fill": lambda message: fill(memory(), message["nbytes"], message["seed"]),
        "wipe": lambda message: wipe(memory(), message["nbytes"]),
        "checksum": sums,
        "busy": lambda _: host.busy(),
        "send": send,
        "take": take,
    }


def opened(worker: Worker, backend: str, kind: str) -> Endpoint:
    assert worker.plan is not None
    nbytes = pool_bytes(worker.plan)
    if kind == "DRAM":
        # Both sides, and what the copy in memory is compared with, come out of one machine's memory.
        sides = 3 if host.same_host(worker.facts, worker.peer) else 2
        refuse_more_than_available(nbytes * sides, f"{worker.role} on {worker.facts['host']}")
    return open_endpoint(worker.api, worker.role, backend, kind, nbytes, worker.gpu, worker.plan.nixl_threads)


def lead(worker: Worker, plan: Plan, emit: Callable[[Message], None]) -> None:
    """The decode side: meet over every backend and memory, and have every cell measured by the side that initiates."""
    worker.plan = plan
    worker.peer = worker.conversation.ask("greet", plan=plan.document(), facts=worker.facts)
    memories, note = kinds(plan, worker.facts, worker.peer)
    todo = cells(plan, memories)
    emit({"event": "sides", "sides": {"decode": worker.facts, "prefill": worker.peer}, "note": note})
    emit({"event": "cells", "count": len(todo) * plan.repeats, "asked": [one.identity for one in todo if one.asked]})
    for backend in plan.backends:
        for memory in memories:
            with worker.explaining():
                meet(worker, backend, memory)
                emit({"event": "setup", "backend": backend, "memory": memory, **_setup(worker)})
                _pass_over([cell for cell in todo if (cell.backend, cell.memory) == (backend, memory)], worker, emit)
                worker.conversation.ask("close")
            worker.conversation.handlers["close"]({})
    worker.conversation.channel.send({"do": "bye"})
    emit({"event": "done"})


def _setup(worker: Worker) -> dict[str, Any]:
    end = worker.endpoint
    assert end is not None and end.remote is not None
    within = host.same_host(worker.facts, worker.peer)
    return {"setup_ms": end.setup_ms, "gpu_pair": gpu_pair(end.pci, end.remote.pci) if within else None}


def _pass_over(todo: list[Cell], worker: Worker, emit: Callable[[Message], None]) -> None:
    """Every cell once, in a new order, then again, so that a disturbance does not hit one cell alone."""
    assert worker.plan is not None
    shuffled = random.Random(worker.plan.seed)
    for repeat in range(worker.plan.repeats):
        shuffled.shuffle(todo)
        for cell in todo:
            if cell.op == "READ":
                found = measure(worker.side(), cell, repeat)
            else:
                found = worker.conversation.ask("initiate", cell=cell.document(), repeat=repeat)
            emit({"event": "cell", "found": found})


def meet(worker: Worker, backend: str, memory: str) -> None:
    worker.endpoint = opened(worker, backend, memory)
    worker.conversation.agents.append(worker.endpoint.agent)
    introduction = worker.endpoint.introduction()
    answer = worker.conversation.ask("open", backend=backend, memory=memory, introduction=introduction)
    worker.endpoint.meet(answer)


def kinds(plan: Plan, here: dict[str, Any], there: dict[str, Any]) -> tuple[list[str], str]:
    """The kinds of memory to measure, with `auto` settled: GPU memory where both sides have a GPU."""
    if plan.memories != ("auto",):
        return list(plan.memories), ""
    without = [f"{side['role']}: {side['gpus'][1]}" for side in (here, there) if not side["gpus"][0]]
    if not without:
        return ["VRAM"], ""
    return ["DRAM"], f"Host memory was measured, since there is no GPU to use ({'; '.join(without)})."


def connected(spec: dict[str, Any]) -> tuple[socket.socket, socket.socket]:
    """The side channel and the data connection: prefill waits for both, decode opens both."""
    deadline = time.monotonic() + float(spec["connect_s"])
    if spec["role"] == "prefill":
        with socket.socket(fileno=int(spec["listener"])) as listener:
            control, _ = accepted(listener, spec["token"], "control", deadline)
            data, _ = accepted(listener, spec["token"], "data", deadline)
        return control, data
    where = (spec["host"], int(spec["port"]), spec["token"])
    return called(*where, "control", deadline), called(*where, "data", deadline)


def run(spec: dict[str, Any], emit: Callable[[Message], None]) -> None:
    control, data = connected(spec)
    data.settimeout(60)
    emit({"event": "connected", "peer": control.getpeername()[0]})
    if "UCX_NET_DEVICES" not in os.environ:
        devices = host.net_devices(control.getsockname()[0])
        if devices:
            os.environ["UCX_NET_DEVICES"] = devices
    elif os.environ["UCX_NET_DEVICES"] == "all":
        del os.environ["UCX_NET_DEVICES"]
    api = nixl.load()
    facts = {**host.facts(nixl.version(api)), "role": spec["role"], "gpus": list(gpus())}
    conversation = Conversation(Channel(control, OTHER[spec["role"]]))
    logs = [Path(spec["log"]), Path(os.environ["UCX_LOG_FILE"])]
    worker = Worker(spec["role"], api, conversation, data, facts, logs, int(spec["gpu"]))
    conversation.handlers |= handlers(worker)
    if spec["role"] == "decode":
        lead(worker, plan_of(spec["plan"]), emit)
    else:
        conversation.serve()
        emit({"event": "done"})


def main() -> None:
    events = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what libraries print is no event
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def emit(event: Message) -> None:
        json.dump(event, events, allow_nan=False, separators=(",", ":"))
        events.write("\n")
        events.flush()

    try:
        run(json.loads(sys.stdin.readline()), emit)
    except PdbenchError as error:
        _fail(emit, str(error), error.hint, error.exit_code)
    except MemoryError as error:
        _fail(emit, f"this process ran out of memory: {error}.", "Move less, or raise its limit.", UsageError.exit_code)
    except Exception as error:  # noqa: BLE001 - a process that must end with a sentence, whatever happens
        traceback.print_exc()
        _fail(emit, f"{type(error).__name__}: {error}", "", CRASH_EXIT_CODE)
    _flush(sys.stderr, events)
    os._exit(0)


def _fail(emit: Callable[[Message], None], message: str, hint: str, exit_code: int) -> None:
    with contextlib.suppress(OSError):
        emit({"event": "error", "message": message, "hint": hint, "exit_code": exit_code})


def _flush(*streams: TextIO) -> None:
    for stream in streams:
        with contextlib.suppress(OSError):
            stream.flush()
    ctypes.CDLL(None).fflush(None)


if __name__ == "__main__":
    main()
