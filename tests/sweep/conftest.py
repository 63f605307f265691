"""The ground-truth server as a process, and a way to run one cell against it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import uvloop

from pdbench.deployment import Deployment, build
from pdbench.run import RequestRow, Run
from pdbench.sweep.cell import run_cell
from pdbench.sweep.plan import Cell, Plan
from pdbench.sweep.recorder import Recorder

SERVER = Path(__file__).parents[1] / "groundtruth" / "server.py"


@dataclass
class GroundTruth:
    """A running ground-truth server. `log` maps request ids to what it wrote down."""

    port: int
    log_path: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def deployment(self, mode: str = "", key: str | None = None) -> Deployment:
        url = f"{self.url}/fail/{mode}" if mode else self.url
        return build("default", [("colocated", url)], key=key, model="ground-truth")

    def log(self) -> dict[str, dict[str, Any]]:
        records = [json.loads(line) for line in self.log_path.read_text().splitlines()]
        return {record["request_id"]: record for record in records}


@pytest.fixture
def ground_truth(tmp_path: Path) -> Iterator[Callable[..., GroundTruth]]:
    """Start ground-truth servers: `ground_truth("--ttft", "20")`."""
    with contextlib.ExitStack() as stack:

        def start(*flags: str) -> GroundTruth:
            log = tmp_path / f"truth-{len(list(tmp_path.iterdir()))}.jsonl"
            log.touch()
            process = subprocess.Popen(
                [sys.executable, str(SERVER), "--log", str(log), *flags],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            stack.callback(_end, process)
            assert process.stdout is not None
            return GroundTruth(int(process.stdout.readline()), log)

        yield start


def _end(process: subprocess.Popen[bytes]) -> None:
    process.communicate(timeout=10)  # closes its stdin, which ends it


@dataclass
class Outcome:
    """What a cell left: its entry, the rows sent back while it ran, and the run directory."""

    entry: dict[str, Any]
    rows: list[RequestRow]
    run: Run
    error: BaseException | None = None
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def statuses(self) -> list[str]:
        return sorted(row.status for row in self.rows)


def plan_for(cell: Cell, **settings: Any) -> Plan:
    return Plan(**{"cells": (cell,), "duration_s": None, "num_prompts": 8, "timeout_s": 10.0, **settings})


def open_cell(rate: float = 50.0, prompt_len: int = 16, output_len: int = 8) -> Cell:
    return Cell(0, "default", rate, None, prompt_len, output_len)


def closed_cell(streams: int, prompt_len: int = 16, output_len: int = 8) -> Cell:
    return Cell(0, "default", None, streams, prompt_len, output_len)


Meddle = Callable[[Recorder, asyncio.Event, list[RequestRow]], Any]


def measure(
    directory: Path, deployment: Deployment, plan: Plan, *, repeat: int = 0, meddle: Meddle | None = None, **kwargs: Any
) -> Outcome:
    """Run the plan's only cell as `pdbench sweep` does, on uvloop. `meddle` is awaited beside it."""

    async def go() -> Outcome:
        run = Run.create(directory / f"run{repeat}", {"plan": plan.document()})
        rows: list[RequestRow] = []
        stop = asyncio.Event()
        recorder = await Recorder.start()
        beside = asyncio.ensure_future(meddle(recorder, stop, rows)) if meddle else None
        try:
            entry = await run_cell(deployment, plan, plan.cells[0], repeat, run, recorder, stop, rows.append, **kwargs)
            if beside is not None:
                await beside
            error = recorder.failed.result() if recorder.failed.done() else None
        finally:
            await recorder.close()
        return Outcome(entry, rows, run, error)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(go())
