"""The workers as the command sees them: started, listened to, and ended, whatever happens to them or to us."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pdbench.errors import CRASH_EXIT_CODE, PdbenchError, Unreachable

MODULE = "pdbench.probe.transfer.worker"
GRACE_S = 5.0  # for a worker to end after it has said that it is done

Event = dict[str, Any]


class WorkerFailed(PdbenchError):
    """What a worker said was wrong; its exit code is ours."""

    def __init__(self, message: str, hint: str, exit_code: int) -> None:
        super().__init__(message, hint)
        self.exit_code = exit_code


@dataclass(slots=True)
class Worker:
    """A running worker. `done`: it has told everything, so that its own end no longer matters."""

    role: str
    process: subprocess.Popen[bytes]
    done: bool = False
    unread: bytes = b""

    def events(self) -> list[Event] | None:
        """What it has told since the last look, or None at the end of its output; waits if there is nothing yet."""
        assert self.process.stdout is not None
        data = os.read(self.process.stdout.fileno(), 1 << 20)
        *lines, self.unread = (self.unread + data).split(b"\n")
        return [json.loads(line) for line in lines] if data else None


def start(role: str, spec: Event, logs: Path, listener: socket.socket | None = None) -> Worker:
    """A worker with UCX's protocol report on, its standard error and UCX's log in files of `logs`."""
    own_log = logs / f"{role}.log"
    environment = {
        **os.environ,
        "UCX_PROTO_INFO": "y",
        "UCX_LOG_FILE": str((logs / f"{role}-ucx.log").resolve()),
        "UCX_WARN_UNUSED_ENV_VARS": "n",
        "NIXL_LOG_LEVEL": os.environ.get("NIXL_LOG_LEVEL", "WARN"),
        "OPENBLAS_NUM_THREADS": "1",
    }
    fds = [listener.fileno()] if listener is not None else []
    with own_log.open("w", encoding="utf-8") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", MODULE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=environment,
            pass_fds=fds,
            start_new_session=True,  # Ctrl-C is for us, who then end the worker
        )
    assert process.stdin is not None
    told = {**spec, "role": role, "log": str(own_log.resolve()), "listener": fds[0] if fds else None}
    with contextlib.suppress(BrokenPipeError), process.stdin as pipe:
        pipe.write(json.dumps(told).encode() + b"\n")
    return Worker(role, process)


@contextlib.contextmanager
def ending(workers: Sequence[Worker]) -> Iterator[None]:
    """Leave no worker behind."""
    try:
        yield
    finally:
        for worker in workers:
            if worker.process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(worker.process.pid, signal.SIGKILL)
            worker.process.wait()
            if worker.process.stdout is not None:
                worker.process.stdout.close()


def listen_to(workers: Sequence[Worker], limit_s: float, take: Callable[[str, Event], None]) -> list[str]:
    """Hand every event to `take` until all workers are done. Returns notes on how they ended.

    Raises WorkerFailed with what a worker said, or Unreachable when one dies silently or time is up. Where both say
    something, the one that does not merely miss the other is believed.
    """
    deadline = time.monotonic() + limit_s
    failures: list[Event] = []
    with selectors.DefaultSelector() as selector:
        for worker in workers:
            selector.register(worker.process.stdout, selectors.EVENT_READ, worker)  # type: ignore[arg-type]
        while selector.get_map():
            ready = selector.select(max(0.0, deadline - time.monotonic()))
            if not ready:
                raise _out_of_time(limit_s, failures)
            for key, _ in ready:
                worker = key.data
                events = worker.events()
                if events is None:
                    selector.unregister(key.fileobj)
                    events = _ended(worker)
                for event in events:
                    if event["event"] == "done":
                        worker.done = True
                    elif event["event"] == "error":
                        failures.append({**event, "role": worker.role})
                        deadline = min(deadline, time.monotonic() + GRACE_S)  # the other one notices by itself
                    else:
                        take(worker.role, event)
    if failures:
        raise _failure(failures)
    return [note for worker in workers if (note := _crash_note(worker))]


def _ended(worker: Worker) -> list[Event]:
    """What is wrong with how a worker ended, if anything: what comes after `done` does not matter."""
    try:
        code = worker.process.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        return [] if worker.done else [_said(worker.role, "closed its output and hangs", "")]
    if worker.done or code == 0:
        return []
    how = f"ended with code {code}"
    hint = f"Its log says more: {worker.role}.log in the run directory."
    if code < 0:
        how = f"was ended by {_name(-code)}"
        if code == -signal.SIGKILL:
            hint = "If nobody did that, the kernel ran out of memory (dmesg tells): move less, or raise the limit."
    return [_said(worker.role, how, hint)]


def _said(role: str, how: str, hint: str) -> Event:
    message = f"the {role} worker {how}."
    return {"event": "error", "message": message, "hint": hint, "exit_code": Unreachable.exit_code, "silent": True}


def _crash_note(worker: Worker) -> str | None:
    code = worker.process.returncode
    if code is None or code >= 0:
        return None
    return (
        f"The {worker.role} worker crashed at exit ({_name(-code)}) after it had told everything: nothing is lost. "
        "Some ibverbs providers do that."
    )


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _failure(failures: Sequence[Event]) -> PdbenchError:
    """The failure that explains the others: one that died silently, else the first that is not about the peer."""
    first = next((each for each in failures if each.get("silent")), None) or next(
        (each for each in failures if " is gone" not in each["message"]), failures[0]
    )
    if first["exit_code"] == CRASH_EXIT_CODE:
        return PdbenchError(f"the {first['role']} worker: {first['message']}", "Its log is in the run directory.")
    return WorkerFailed(first["message"], first["hint"], int(first["exit_code"]))


def _out_of_time(limit_s: float, failures: Sequence[Event]) -> PdbenchError:
    if failures:
        return _failure(failures)
    return Unreachable(
        f"the measurement was not over after {limit_s:.0f} s, so its workers were ended.",
        "Give it more time (--timeout), or measure less: fewer shapes, a smaller --duration.",
    )
