"""One cell against the ground-truth server, as `pdbench sweep` runs it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvloop

from pdbench.deployment import Deployment, build
from pdbench.errors import PdbenchError
from pdbench.run import RequestRow, Run
from pdbench.sweep.cell import Alone, Job, run_tag
from pdbench.sweep.plan import Cell, Plan
from pdbench.sweep.workers import Crew

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


@dataclass
class Outcome:
    """What a cell left: its entry, the rows sent back while it ran, and the run directory."""

    entry: dict[str, Any]
    rows: list[RequestRow]
    run: Run
    error: BaseException | None = None

    @property
    def statuses(self) -> list[str]:
        return sorted(row.status for row in self.rows)


def plan_for(cell: Cell, **settings: Any) -> Plan:
    return Plan(**{"cells": (cell,), "duration_s": None, "num_prompts": 8, "timeout_s": 10.0, **settings})


def open_cell(rate: float = 50.0, prompt_len: int = 16, output_len: int = 8) -> Cell:
    return Cell(0, "default", rate, None, prompt_len, output_len)


def closed_cell(streams: int, prompt_len: int = 16, output_len: int = 8) -> Cell:
    return Cell(0, "default", None, streams, prompt_len, output_len)


Meddle = Callable[[Any, asyncio.Event, list[RequestRow]], Any]


def measure(
    directory: Path,
    deployment: Deployment,
    plan: Plan,
    *,
    workers: int | None = None,
    meddle: Meddle | None = None,
    before: Callable[[Run], Any] = lambda run: None,
    **kwargs: Any,
) -> Outcome:
    """Run the plan's only cell as `pdbench sweep` does, on uvloop: in this process, or with workers.

    `meddle` is awaited beside it, with the recorder or the crew.
    """

    async def go() -> Outcome:
        run = Run.create(directory / "run", {"plan": plan.document()})
        before(run)
        rows: list[RequestRow] = []
        stop = asyncio.Event()
        senders: Any = await (Crew.start(workers) if workers else Alone.start())
        meddled = senders if workers else senders.recorder
        beside = asyncio.ensure_future(meddle(meddled, stop, rows)) if meddle else None
        error: BaseException | None = None
        try:
            job = Job(deployment, plan, plan.cells[0], 0, run_tag(run), **kwargs)
            entry = await senders.run_cell(job, run, stop, rows.append)
            if beside is not None:
                await beside
            try:
                senders.check()
            except PdbenchError as failure:
                error = failure
        finally:
            await senders.close()
        return Outcome(entry, rows, run, error)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(go())
