"""A sweep as a process that things are done to, and what must hold of its run directory afterwards."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
import psutil
import pytest

from pdbench.report.summary import summarise
from pdbench.run import Run
from tests.cli.conftest import command, environment
from tests.sweep.one_cell import SERVER

TOKENS, PROMPTS = 10, 40
PATIENCE_S = 90.0  # on a busy machine


def until(condition: Callable[[], Any], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"waited {PATIENCE_S:g} s for {what}"
        time.sleep(0.02)


@dataclass
class Server:
    """A ground-truth server that can be killed and started again at the same address."""

    log_path: Path
    host: str = "127.0.0.1"
    inside: tuple[str, ...] = ()  # what its command is run by
    port: int = 0
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> Server:
        self.log_path.touch()
        words = ["--host", self.host, "--port", str(self.port), "--log", str(self.log_path)]
        self.process = subprocess.Popen(
            [*self.inside, sys.executable, str(SERVER), *words, "--ttft", "20", "--itl", "5"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline())
        return self

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.communicate()

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    def log(self) -> dict[str, dict[str, Any]]:
        """What it wrote down, by request id; the last line may be cut by its death."""
        found = {}
        for line in self.log_path.read_text().splitlines():
            with contextlib.suppress(ValueError):
                record = json.loads(line)
                found[record["request_id"]] = record
        return found


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    made = Server(tmp_path / "truth.jsonl").start()
    yield made
    made.kill()


@dataclass
class Sweep:
    """`pdbench sweep` of some cells against a server, in a folder of its own."""

    folder: Path
    url: str
    rates: str = "40,41"
    more: tuple[str, ...] = ()
    out: str = "run"
    process: subprocess.Popen[str] | None = None
    told: str = ""
    limit: int | None = None  # of descriptors
    _files: list[Any] = field(default_factory=list)

    def start(self) -> Sweep:
        return self._begin(
            *("--server", self.url, "--rates", self.rates, "--prompt-lens", "16", "--output-len", str(TOKENS)),
            *("--num-prompts", str(PROMPTS), "--out", self.out, *self.more),
        )

    def resume(self) -> int:
        return self._begin("--resume", self.out).end()

    def _begin(self, *words: str) -> Sweep:
        self._files = [(self.folder / "stdout").open("w+"), (self.folder / "stderr").open("w+")]
        limited = ["prlimit", f"--nofile={self.limit}"] if self.limit else []
        self.process = subprocess.Popen(
            [*limited, *command("sweep", *words)],
            cwd=self.folder,
            env=environment(),
            stdout=self._files[0],
            stderr=self._files[1],
            text=True,
        )
        return self

    def end(self) -> int:
        """Wait for it; what it said is in `told`, and is no traceback."""
        assert self.process is not None
        code = self.process.wait(PATIENCE_S)
        self.told = (self.folder / "stdout").read_text() + (self.folder / "stderr").read_text()
        for file in self._files:
            file.close()
        assert "Traceback" not in self.told, self.told
        return code

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.end()

    def says(self, text: str) -> None:
        until(lambda: text in (self.folder / "stderr").read_text(), f"{text!r} on stderr")

    def interrupt(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGINT)

    def in_cell(self, cell: int, rows: int) -> None:
        """Wait until so many requests of a cell are written down."""

        def written() -> int:
            files = (self.path / "live").glob(f"requests-c{cell:04d}-r00*.jsonl")
            return sum(file.read_bytes().count(b"\n") for file in files)

        until(lambda: written() >= rows, f"{rows} rows of cell {cell}")

    def helper(self, module: str) -> psutil.Process:
        """The process of a part: `recorder_process`, `sampling`."""
        assert self.process is not None
        children = psutil.Process(self.process.pid).children(recursive=True)
        return next(child for child in children if any(word.endswith(module) for word in child.cmdline()))

    @property
    def path(self) -> Path:
        return self.folder / self.out

    # What must hold.
    def readable(self, server: Server) -> pd.DataFrame:
        """The rows: a summary can be made of them, no id is twice, and none says more than the server sent."""
        run = Run.open(self.path)
        summary = summarise(run)
        rows = run.table("requests")
        assert rows["request_id"].is_unique
        known = server.log()
        for row in rows[rows["status"] == "ok"].itertuples():
            assert known[row.request_id]["tokens"] == row.output_tokens == row.chunks == TOKENS
        told = {cell["cell"]: cell["completed"] for cell in summary["cells"]}
        counted = rows[rows["status"] == "ok"].groupby("cell").size().to_dict()
        assert told == {cell: counted.get(cell, 0) for cell in rows["cell"].unique()}
        offsets = run.table("chunks").set_index("request_id")["offset_s"]
        assert all(len(offsets[row.request_id]) == row.chunks for row in rows[rows["chunks"] > 0].itertuples())
        return rows

    def summary(self) -> dict[str, Any]:
        return summarise(Run.open(self.path))

    def states(self) -> dict[int, str]:
        return {entry["cell"]: entry["state"] for entry in Run.open(self.path).document["cell_runs"]}

    def finished(self, server: Server, cells: int = 2) -> pd.DataFrame:
        """Every cell was measured whole, every request of it was answered, once."""
        rows = self.readable(server)
        assert self.states() == dict.fromkeys(range(cells), "done")
        assert rows.groupby("cell").size().to_dict() == dict.fromkeys(range(cells), PROMPTS)
        assert set(rows["status"]) == {"ok"}
        return rows


@pytest.fixture
def sweep(tmp_path: Path, server: Server) -> Iterator[Sweep]:
    made = Sweep(tmp_path, server.url)
    yield made
    if made.process is not None and made.process.poll() is None:
        for child in psutil.Process(made.process.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
        made.process.kill()
        made.process.wait()


VALID_OR_NOT = (0, 3)  # a busy machine may void cells; what was measured is what is looked at here


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 16 MiB."""
    place = tmp_path / "disk"
    place.mkdir()
    if os.geteuid() != 0:
        pytest.skip("needs root: a file system of its own is mounted")
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(place)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.decode().strip()}")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)
