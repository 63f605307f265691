"""What a report costs: `pdbench report` on made-up runs, and how soon Chromium shows the page.

    .venv/bin/python benchmarks/report.py                      the rows of docs/report.md
    .venv/bin/python benchmarks/report.py 8x1000x100           cells x requests a cell x tokens

CPU is that of the whole process with its start; first paint and load are wall time of a browser that is warm.
"""

from __future__ import annotations

import asyncio
import json
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

sys.path.insert(0, str(Path(__file__).parents[1]))

from pdbench.run import Run, _schemas
from tests.report_views.chromium import ALL_DRAWN, BINARY, chromium

SIZES = ("1x1000x100", "10x1000x100", "100x1000x20", "100x10000x3")
PAINTED = "performance.getEntriesByName('first-contentful-paint')[0].startTime"
LOADED = "performance.getEntriesByType('navigation')[0].loadEventEnd"
RATES = 10


def made(path: Path, cells: int, requests: int, tokens: int) -> Run:
    """A healthy run: Poisson sends, gamma gaps with a stall now and then, pages every half second."""
    rng = np.random.default_rng(1)
    grid = [(1 + cell % RATES, 256 * (1 + cell // RATES)) for cell in range(cells)]
    planned = [
        {"cell": cell, "target": "t", "request_rate": float(rate), "prompt_len": prompt, "output_len": tokens}
        for cell, (rate, prompt) in enumerate(grid)
    ]
    plan = {"cells": planned, "repeats": 1, "arrivals": "poisson", "goodput_ms": {"ttft": 500.0, "tpot": 30.0}}
    servers = [{"name": f"{role}-0", "role": role, "url": "http://127.0.0.1:1"} for role in ("prefill", "decode")]
    deployments = [{"target": "t", "mode": "pull", "engine": "vllm", "servers": servers}]
    run = Run.create(path, {"simulated": True, "plan": plan, "deployments": deployments})
    pieces: dict[str, list[pa.Table]] = {"requests": [], "chunks": [], "metrics": []}
    start = 5.0
    for cell in planned:
        ends = _cell(pieces, cell, requests, tokens, start, rng)
        entry = {"cell": cell["cell"], "repeat": 0, "state": "done", "start_s": start, **ends}
        run.document["cell_runs"].append(entry)
        start = ends["end_s"] + 2
    for table, schema in _schemas().items():
        pq.write_table(pa.concat_tables(piece.cast(schema) for piece in pieces[table]), path / f"{table}.parquet")
    for folder in ("live", "parts"):
        (path / folder).rmdir()
    run.save()
    return run


def _cell(
    pieces: dict[str, list[pa.Table]], cell: dict[str, Any], n: int, tokens: int, start: float, rng: np.random.Generator
) -> dict[str, float]:
    sent = start + np.cumsum(rng.exponential(1 / cell["request_rate"], n))
    ttft = 0.05 + cell["prompt_len"] / 160_000 + rng.gamma(2, 0.02, n)
    gaps = rng.gamma(4, 0.0015, (n, tokens - 1)) + (rng.random((n, tokens - 1)) < 0.01) * 0.05
    offsets = np.concatenate([ttft[:, None], ttft[:, None] + np.cumsum(gaps, axis=1)], axis=1)
    last = sent + offsets[:, -1]
    ids = pa.array([f"made-{cell['cell']}-0-{i}" for i in range(n)])
    schema = _schemas()["requests"]
    columns: dict[str, Any] = {name: pa.nulls(n, schema.field(name).type) for name in schema.names}
    same = {"cell": cell["cell"], "repeat": 0, "class": "default", "target": "t", "status": "ok", "stamp": "kernel"}
    same |= {"prompt_len": cell["prompt_len"], "prompt_tokens": cell["prompt_len"], "http_status": 200}
    same |= dict.fromkeys(("output_len", "output_tokens", "chunks"), tokens)
    columns |= {name: pa.array([value] * n) for name, value in same.items()}
    stamps = {"intended_s": sent - 0.0003, "sent_s": sent, "first_byte_s": sent + ttft, "first_token_s": sent + ttft}
    stamps |= {"second_token_s": sent + offsets[:, 1], "last_token_s": last, "done_s": last + 0.001}
    columns |= {name: pa.array(value) for name, value in stamps.items()}
    pieces["requests"].append(pa.table({**columns, "request_id": ids, "index": pa.array(range(n))}))
    bounds = pa.array(np.arange(0, n * tokens + 1, tokens, dtype=np.int32))
    pieces["chunks"].append(
        pa.table({"request_id": ids, "offset_s": pa.ListArray.from_arrays(bounds, pa.array(offsets.ravel()))})
    )
    t = np.arange(start - 0.5, last.max() + 1, 0.5)
    for role in ("prefill", "decode"):
        for gauge, mean in (("waiting", 0.3), ("running", 3.0)):
            about = {"target": "t", "server": f"{role}-0", "role": role, "engine": "0", "metric": gauge}
            about |= {"canonical": gauge, "kind": "gauge", "labels": "{}"}
            values = {name: [value] * len(t) for name, value in about.items()}
            pieces["metrics"].append(pa.table({"t": t, **values, "value": rng.poisson(mean, len(t)).astype(float)}))
    return {"send_end_s": float(sent[-1]), "end_s": float(last.max())}


async def opened(page_file: Path) -> tuple[float, float]:
    """First paint and load in ms, the middle of three openings after a first one."""
    found = []
    async with chromium() as page:
        for _ in range(4):
            await page.open(page_file)
            await page.run(ALL_DRAWN)
            found.append((float(await page.run(PAINTED)), float(await page.run(LOADED))))
    return sorted(found[1:])[1]


def main() -> None:
    print("| run | events | CPU, s | report.html, MB | first paint, ms | loaded, ms |\n|---|---|---|---|---|---|")
    for size in sys.argv[1:] or SIZES:
        cells, requests, tokens = (int(part) for part in size.split("x"))
        with tempfile.TemporaryDirectory() as folder:
            run = made(Path(folder) / "run", cells, requests, tokens)
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            command = [sys.executable, "-m", "pdbench", "report", str(run.path)]
            subprocess.run(command, stdout=subprocess.DEVNULL, check=False)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            page_file = run.path / "report.html"
            assert json.loads((run.path / "summary.json").read_text())["cells"]
            times = " | ".join(f"{ms:.0f}" for ms in asyncio.run(opened(page_file))) if BINARY else "- | -"
            megabytes = page_file.stat().st_size / 1e6
            print(f"| {size} | {cells * requests * tokens:,} | {cpu:.1f} | {megabytes:.2f} | {times} |", flush=True)


if __name__ == "__main__":
    main()
