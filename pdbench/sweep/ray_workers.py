"""Load workers on the hosts of a Ray cluster: the same processes as `--workers` starts here, further away.

On each host an actor runs the worker process and passes on what goes to and fro, so that nothing of Ray is in the
process that sends. Rows are written on that host first and fetched a few times a second, so that a lost host costs what
it had not handed over yet. Its clock is its own: a share's times count from the instant at which it began.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import queue
import socket
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from pdbench import tables
from pdbench.errors import StorageError, Unreachable, UsageError
from pdbench.run import Run
from pdbench.sweep.cell import Job
from pdbench.sweep.frames import frame
from pdbench.sweep.hand import EXIT_S, Hand, share_paths
from pdbench.sweep.pipes import Incoming, package_path
from pdbench.sweep.workers import START_S, Crew

FETCH_EVERY_S = 0.25
CONNECT_S = 5.0
START_IT = "Start it (ray start --head), and make this host a node of it (ray start --address=HOST:PORT)."


class Outpost:
    """The actor: a worker process, its two pipes, and the files that it writes."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="pdbench-")
        self._fetched: Counter[str] = Counter()
        self._files = threading.Lock()
        self._complaints = Path(self._folder.name) / "complaints"
        self._process = subprocess.Popen(
            [sys.executable, "-m", "pdbench.sweep.worker_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._complaints.open("wb"),
            env=os.environ | {"PYTHONPATH": package_path()},
            start_new_session=True,
        )
        self._heard: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        out = self._process.stdout
        assert out is not None
        while data := os.read(out.fileno(), 1 << 16):
            self._heard.put(data)
        self._heard.put(b"")

    def folder(self) -> str:
        return self._folder.name

    @ray.method(concurrency_group="tell")  # type: ignore[untyped-decorator]
    def tell(self, data: bytes) -> None:
        with contextlib.suppress(BrokenPipeError):
            assert self._process.stdin is not None
            self._process.stdin.write(data)
            self._process.stdin.flush()

    @ray.method(concurrency_group="hear")  # type: ignore[untyped-decorator]
    def hear(self) -> tuple[bytes, dict[str, bytes], str | None]:
        """What the worker has said and what it has written since the last time, and why it ended, if it did.

        Waits a little for something to be said. What is said of a file is never ahead of what comes of it.
        """
        said: list[bytes] = []
        with contextlib.suppress(queue.Empty):
            said.append(self._heard.get(timeout=FETCH_EVERY_S))
            while True:
                said.append(self._heard.get_nowait())
        over = None
        if b"" in said:
            for file in Path(self._folder.name).glob("*.jsonl"):
                tables.closed(file)
            over = self._why()
        return b"".join(said), self._written(), over

    def _why(self) -> str:
        last = self._complaints.read_bytes()[-2000:].decode(errors="replace").strip().rpartition("\n")[2]
        code = self._process.wait()
        return last or (f"its process was ended by signal {-code}" if code < 0 else f"exit code {code}")

    def _written(self) -> dict[str, bytes]:
        pieces = {}
        with self._files:
            for file in Path(self._folder.name).glob("*.jsonl"):
                with file.open("rb") as lines:
                    lines.seek(self._fetched[file.name])
                    if piece := lines.read():
                        pieces[file.name] = piece
                        self._fetched[file.name] += len(piece)
        return pieces

    @ray.method(concurrency_group="tell")  # type: ignore[untyped-decorator]
    def forget(self) -> None:
        """The files of the last cell have all been fetched."""
        with self._files:
            self._fetched.clear()
            for file in Path(self._folder.name).glob("*.jsonl"):
                file.unlink()

    @ray.method(concurrency_group="tell")  # type: ignore[untyped-decorator]
    def end(self) -> None:
        """End the worker by ending its input, and leave nothing behind."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(EXIT_S)
        self._folder.cleanup()


class RayLink:
    """The way to a worker on some node of the cluster. Its lines are appended to the run directory here."""

    own_clock = True

    def __init__(self, actor: Any, folder: str, hand: Hand) -> None:
        self._actor, self._folder, self._hand = actor, Path(folder), hand
        self._incoming = Incoming(hand.hear, lambda: None)
        self._live: Path | None = None
        self._fetching = asyncio.create_task(self._fetch())

    def paths(self, run: Run, job: Job) -> tuple[Path, Path]:
        requests, chunks = share_paths(run, job)
        self._live = requests.parent
        self._actor.forget.remote()
        return self._folder / requests.name, self._folder / chunks.name

    def send(self, *message: Any) -> None:
        self._actor.tell.remote(frame(message))

    def kill(self) -> None:
        ray.kill(self._actor)

    async def _fetch(self) -> None:
        over = None
        while over is None:
            try:
                said, written, over = await self._actor.hear.remote()
            except RayError as error:
                over = f"the cluster lost it: {type(error).__name__}"
                said, written = b"", {}
            try:
                for name, lines in written.items():
                    self._append(name, lines)
            except OSError as error:
                problem = f"cannot write {self._live}: {error.strerror or error}."
                self._hand.failure = StorageError(problem, "Free space or give another --out, then sweep --resume.")
            self._incoming.data_received(said)
        self._hand.lose(over)

    def _append(self, name: str, lines: bytes) -> None:
        assert self._live is not None
        with (self._live / name).open("ab") as file:
            file.write(lines)

    async def close(self) -> None:
        self._fetching.cancel()
        with contextlib.suppress(RayError, TimeoutError):
            await asyncio.wait_for(self._actor.end.remote(), EXIT_S)
        ray.kill(self._actor)


async def start_on_ray(address: str, count: int | None, urls: list[str]) -> Crew:
    """A crew on the nodes of the cluster at `address`, one on each or `count` in all, dealt out in turn.

    Raises Unreachable when there is no such cluster, UsageError when it cannot hold them.
    """
    await asyncio.to_thread(_connect, address)
    nodes = [node for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU", 0) >= 1]
    cpus = int(sum(node["Resources"]["CPU"] for node in nodes))
    count = count or len(nodes)
    if not nodes or count > cpus:
        raise UsageError(
            f"the Ray cluster at {address} has {cpus} CPUs, and {count or 1} load workers want one each.",
            "Give fewer --workers, or add nodes.",
        )
    if len({node["NodeManagerAddress"] for node in nodes}) > 1:
        for host in {urlsplit(url).hostname for url in urls}:
            if host in ("localhost", "127.0.0.1", "::1"):
                raise UsageError(
                    f"{host} is another machine on each node of the Ray cluster.",
                    "Give the servers' address in the network.",
                )
    return await Crew.start(count, _start_link)


def _connect(address: str) -> None:
    where = os.environ.get("RAY_ADDRESS", address) if address == "auto" else address
    nothing = "no Ray cluster runs on this host" if where == "auto" else f"there is no Ray cluster at {where}"
    if where != "auto":
        host, _, port = where.rpartition(":")
        if not host or not port.isdecimal() or "/" in host:
            raise UsageError(f"--ray wants auto or HOST:PORT, not {where!r}.", "Run pdbench on a node of the cluster.")
        try:  # Ray itself would ask for minutes
            socket.create_connection((host.strip("[]"), int(port)), CONNECT_S).close()
        except (OSError, OverflowError) as error:
            raise Unreachable(f"{nothing}: {error}.", START_IT) from None
    try:
        ray.init(address=where, log_to_driver=False, logging_level=logging.CRITICAL)
    except (ConnectionError, RuntimeError, ValueError, RayError) as error:
        said = "" if where == "auto" else f": {str(error).strip().partition(chr(10))[0]}"
        raise Unreachable(f"{nothing}{said}.", START_IT) from None


async def _start_link(hand: Hand) -> RayLink:
    """An actor on the node with the fewest of them, for its worker."""
    nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU", 0) >= 1]
    if not nodes:
        raise Unreachable("no node of the Ray cluster is left.")
    outpost = ray.remote(
        num_cpus=1,
        concurrency_groups={"tell": 1, "hear": 1},
        scheduling_strategy=NodeAffinitySchedulingStrategy(nodes[hand.number % len(nodes)], soft=True),
    )(Outpost)
    actor = outpost.remote()
    try:
        folder = await asyncio.wait_for(actor.folder.remote(), START_S)
    except (RayError, TimeoutError) as error:
        raise Unreachable(f"a load worker did not start in the Ray cluster: {type(error).__name__}.") from None
    return RayLink(actor, folder, hand)
