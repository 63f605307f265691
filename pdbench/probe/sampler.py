"""The sampler as the sweep sees it: a process beside the load, told where a cell begins and ends.

Nothing here blocks the event loop that sends requests, and nothing waits without a deadline: a sampler that died or
hangs costs the run its server metrics, never the run. What went wrong is in `notes`; a full disk is raised by `begin`
and `end`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import pdbench
from pdbench.deployment import Deployment
from pdbench.errors import StorageError
from pdbench.probe.tailing import SUFFIX, open_log

# A scrape under way (5 s), the edge's own (5 s) and its one retry (5 s); the first time also the start of a process.
EDGE_DEADLINE_S = 30.0
STOP_DEADLINE_S = 3.0


@dataclass(frozen=True, slots=True)
class Edge:
    """A scrape of every page at a cell's edge. `missing`: the pages that did not come, with the reason."""

    missing: tuple[str, ...]
    took_s: float


class Sampler:
    """Use: `start()`, per cell `await begin(...)` and `await end()`, then `stop()`. `latest()` at any time."""

    def __init__(self, deployments: Sequence[Deployment], interval_s: float, origin_ns: int) -> None:
        self.notes: list[str] = []
        self.failure: StorageError | None = None
        self._servers = [server for deployment in deployments for server in _pages(deployment)]
        self._logs = [log for deployment in deployments for log in _logs(deployment)]
        self._config = {"interval_s": interval_s, "origin_ns": origin_ns, "parent": os.getpid()}
        self._process: subprocess.Popen[bytes] | None = None
        self._ear: threading.Thread | None = None
        self._waiting: dict[int, Future[list[str]]] = {}
        self._latest: dict[tuple[str, str], dict[str, Any]] = {}
        self._orders = 0
        self._stopping = False

    @property
    def pages(self) -> int:
        """How many pages and logs there are to read; with none, begin and end return at once."""
        return len(self._servers) + len(self._logs)

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    def start(self) -> None:
        """Start the process; returns at once."""
        if not self.pages:
            return
        package = Path(pdbench.__file__).parent.parent
        paths = [str(package), *filter(None, [os.environ.get("PYTHONPATH")])]
        # Not in our process group: Ctrl-C on the terminal must not end it before the last scrape.
        self._process = subprocess.Popen(
            [sys.executable, "-m", "pdbench.probe.sampling"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
            start_new_session=True,
            pass_fds=[log["fd"] for log in self._logs],
        )
        self._ear = threading.Thread(target=self._listen, args=(self._process,), name="sampler", daemon=True)
        self._ear.start()
        self._send(
            {**self._config, "servers": self._servers, "logs": self._logs}
        )  # over the pipe: it holds credentials, which a command line would show

    async def begin(self, cell: int, repeat: int, path: Path) -> Edge:
        """Scrape every page now and write this and all further scrapes to `path`. Starts a dead sampler again."""
        if self.pages and (self._process is None or self._process.poll() is not None):
            if self._ear is not None:  # it ends what waits for the dead one
                await asyncio.to_thread(self._ear.join, STOP_DEADLINE_S)
            self.start()
        return await self._order({"do": "begin", "path": str(path.absolute())}, f"cell {cell}, repeat {repeat}")

    async def end(self) -> Edge:
        """Scrape every page once more and close the cell's file."""
        return await self._order({"do": "end"}, "a cell's end")

    def latest(self) -> dict[tuple[str, str], dict[str, Any]]:
        """By (target, server): t, role, up, running, waiting, waiting_to_start, kv_cache_usage (None: not shown)."""
        return dict(self._latest)

    def stop(self) -> None:
        """End the process; waits at most some seconds."""
        self._stopping = True
        process = self._process
        if process is None:
            return
        _quietly_close(process.stdin)
        try:
            process.wait(STOP_DEADLINE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if self._ear is not None:
            self._ear.join(STOP_DEADLINE_S)
        self._process = None
        for log in self._logs:
            os.close(log["fd"])
        self._logs = []

    async def _order(self, order: dict[str, Any], what: str) -> Edge:
        if not self.pages:
            return Edge((), 0.0)
        begun = time.monotonic()
        self._orders += 1
        reply: Future[list[str]] = Future()
        self._waiting[self._orders] = reply
        missing = [f"{server['server']}: the sampler is gone" for server in self._servers]
        if self._send({**order, "id": self._orders}):
            try:
                missing = await asyncio.wait_for(asyncio.wrap_future(reply), EDGE_DEADLINE_S)
            except TimeoutError:
                self.notes.append(f"the metrics sampler did not answer within {EDGE_DEADLINE_S:g} s at {what}.")
                if self._process is not None:
                    self._process.kill()  # late, it would write into the wrong cell
            except ConnectionError:
                pass  # it died: `_listen` has noted it
        elif self._ear is not None:
            await asyncio.to_thread(self._ear.join, STOP_DEADLINE_S)
        self._waiting.pop(self._orders, None)
        if self.failure is not None:
            failure, self.failure = self.failure, None
            raise failure
        return Edge(tuple(missing), time.monotonic() - begun)

    def _send(self, message: dict[str, Any]) -> bool:
        pipe = self._process.stdin if self._process is not None else None
        try:
            if pipe is None:
                return False
            pipe.write(json.dumps(message).encode() + b"\n")
            pipe.flush()
            return True
        except (OSError, ValueError):
            return False

    def _listen(self, process: subprocess.Popen[bytes]) -> None:
        """The thread that hears the process. Ends with it, and then lets nobody wait any longer."""
        assert process.stdout is not None
        said = ""
        for line in process.stdout:
            try:
                message = json.loads(line)
            except ValueError:
                continue
            if "latest" in message:
                self._latest |= {(one["target"], one["server"]): one for one in message["latest"]}
            elif "id" in message and (reply := self._waiting.get(message["id"])) is not None and not reply.done():
                reply.set_result(message["missing"])
            elif "disk" in message:
                disk = message["disk"]
                self.failure = StorageError(
                    f"cannot write {disk['path']}: {disk['text']}.",
                    "Free space or give another --out, then sweep --resume.",
                )
            elif "crash" in message:
                said = f": {message['crash']}"
        code = process.wait()
        self._latest.clear()  # nobody renews it any more
        process.stdout.close()
        _quietly_close(process.stdin)
        if not self._stopping:
            self.notes.append(
                f"the metrics sampler ended by itself (exit code {code}){said}; server metrics are missing."
            )
        for reply in list(self._waiting.values()):
            if not reply.done():
                reply.set_exception(ConnectionError("the sampler ended"))


def _pages(deployment: Deployment) -> list[dict[str, Any]]:
    return [
        {
            "target": deployment.target,
            "server": server.name,
            "role": server.role,
            "url": server.metrics_url,
            "headers": deployment.credentials.headers(server.metrics_url),
            "engine": deployment.engine,
            "model": deployment.model,
        }
        for server in deployment.servers
        if server.metrics_url is not None
    ]


def _logs(deployment: Deployment) -> list[dict[str, Any]]:
    """The logs that are followed, opened by us: a pipe such as <(kubectl logs -f POD) exists in this process only."""
    return [
        {
            "target": deployment.target,
            "server": server.name + SUFFIX,
            "role": server.role,
            "fd": open_log(server.log),
            "path": str(Path(server.log).absolute()),
        }
        for server in deployment.servers
        if server.log is not None
    ]


def _quietly_close(pipe: IO[bytes] | None) -> None:
    with contextlib.suppress(OSError):
        if pipe is not None:
            pipe.close()
