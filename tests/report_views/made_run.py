"""A run directory and its summary made up from numbers, so that the views can be tested without servers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pdbench.run import RequestRow, Run, request_record

CELL_S = 20.0
GAP_S = 3.0


def cell_summary(cell: int, rate: float, prompt_len: int, target: str = "testbed", **changes: Any) -> dict[str, Any]:
    """One healthy cell, except that it is overloaded where it asks for more than eight slots."""
    tpot = 5.7 + 0.6 * rate * (prompt_len / 16384)
    needed = rate * 128 * tpot / 1000
    over = needed > 8
    parts = _parts(rate, prompt_len, over)
    ttft = sum(parts.values())
    made: dict[str, Any] = {
        "cell": cell,
        "target": target,
        "loop": "open",
        "request_rate": rate,
        "prompt_len": prompt_len,
        "output_len": 128,
        "duration_s": CELL_S,
        "sent": int(rate * CELL_S),
        "completed": int(rate * CELL_S),
        **dict.fromkeys(("failed", "rejected", "timed_out", "truncated"), 0),
        "offered_rate": rate,
        "request_throughput": rate * (0.72 if over else 0.99),
        "output_throughput": rate * 126,
        "total_token_throughput": rate * (prompt_len + 126),
        "request_goodput": 0.0 if over else rate * 0.97,
        "mean_ttft_ms": ttft,
        "ttft_split_ms": parts,
        "server_means_ms": {"prefill": {"queue": parts["prefill_queue"], "prefill": parts["prefill"]}},
        "client": dict.fromkeys(("lateness_p99_ms", "lateness_max_ms", "loop_lag_p99_ms", "loop_lag_max_ms"), 0.4),
        "validity": [],
        "diagnosis": [],
        "verdict": f"{rate:g} req/s fits: {needed:.1f} of 8 slots.",
        **_gauges(rate, needed, over),
    }
    made["client"]["cpu_share"] = 0.11
    for metric, middle in {"ttft": ttft, "tpot": tpot, "itl": tpot * 0.9, "e2el": ttft + 127 * tpot}.items():
        made |= {f"mean_{metric}_ms": middle, f"median_{metric}_ms": middle * 0.97, f"p90_{metric}_ms": middle * 1.3}
        made[f"p99_{metric}_ms"] = middle * 1.9
        bounds = {"p50": (0.93, 1.01), "p90": (1.2, 1.5)}
        made[f"{metric}_ms_interval"] = {q: [middle * low, middle * high] for q, (low, high) in bounds.items()}
        made[f"{metric}_ms_interval"]["p99"] = [middle * 1.6, None]
    if rate < 2:
        del made["p99_ttft_ms"]
        made["needs"] = {"p99_ttft_ms": 299}
    if over:
        _overload(made)
    return {**made, **changes}


def _parts(rate: float, prompt_len: int, over: bool) -> dict[str, float]:
    return {
        "proxy": 3.1,
        "prefill_queue": 2.0 * rate,
        "prefill": 12.0 + 48.0 * prompt_len / 16384,
        "post": 8.3 + 0.0032 * prompt_len,
        "slot_wait": 1480.0 if over else 0.8 * rate,
        "transfer": 10.5 * prompt_len / 16384,
        "poll": 4.1,
        "first_step": 5.9,
        "unexplained": 41.0 if over else -1.7,
    }


def _gauges(rate: float, needed: float, over: bool) -> dict[str, Any]:
    held = needed * (0.72 if over else 0.99)
    prefill = {"running_mean": 0.4, "running_max": 2, "waiting_mean": 0.1, "waiting_max": 3}
    decode = {
        "running_mean": min(8.0, needed),
        "running_max": 8,
        "kv_cache_usage_mean": 0.41,
        "kv_cache_usage_max": 0.66,
    }
    return {
        "waiting_mean": 9.1 if over else 0.2 * rate,
        "waiting_max": 31 if over else int(rate),
        "slots": {"needed": needed, "held": held, "available": 8, "utilisation": needed / 8, "source": "server"},
        "servers": {"prefill": prefill, "decode": decode},
    }


def _overload(made: dict[str, Any]) -> None:
    needed = made["slots"]["needed"]
    evidence = "TTFT rises 44 ms with every request (38 to 51 by block bootstrap); peak in flight 31 of 160."
    made["validity"] = [
        {"code": "not-steady-state", "severity": "void", "evidence": evidence},
        {
            "code": "too-few-requests",
            "severity": "warn",
            "evidence": "p99 of TTFT rests on 160 requests; it needs 299.",
        },
    ]
    made["diagnosis"] = [
        {
            "cause": "decode-slots",
            "share": 0.86,
            "evidence": [f"{needed:.1f} slots needed, 8 available", "running at 8 for 94% of the window"],
            "advice": "Raise --max-num-seqs on decode to 16 after checking its KV memory, or add a decode instance.",
            "confirm": "waiting falls to 0 at the same rate",
        }
    ]
    made["verdict"] = (
        f"Not steady state: {needed:.1f} decode slots needed, 8 there; TTFT is a figure of the run's length."
    )


def grid_summary(
    rates: Sequence[float] = (1, 2, 4, 8), lens: Sequence[int] = (1024, 16384), targets: Sequence[str] = ("testbed",)
) -> dict[str, Any]:
    """A whole summary; 8 req/s at 16,384 tokens is overloaded."""
    places = [(p, rate, target) for p in lens for rate in rates for target in targets]
    plan = {"arrivals": "poisson", "burstiness": 1.0, "seed": 7, "repeats": 1, "duration_s": CELL_S}
    return {
        "schema": 1,
        "simulated": True,
        "pdbench": "0.1.0",
        "created_unix_s": 1790000000.0,
        "targets": list(targets),
        "plan": {**plan, "goodput_ms": {"ttft": 2000.0, "tpot": 30.0}},
        "cells": [cell_summary(i, rate, p, target) for i, (p, rate, target) in enumerate(places)],
        "verdict": "Decode has too few slots above 6 req/s at 16,384 tokens; 1 of 8 cells is void.",
        "versions": {"pdbench": "0.1.0", "decode-0": "0.32.0+pdbench.testbed"},
    }


def bare_summary() -> dict[str, Any]:
    """The least that a summary may hold: every optional key is absent."""
    cell = {"target": "t", "request_rate": 1.0, "prompt_len": 8, "validity": [], "diagnosis": []}
    return {"schema": 1, "simulated": False, "cells": [cell]}


def server(name: str, role: str, port: int, **facts: Any) -> dict[str, Any]:
    known = {"reachable": True, "engine": "vllm", "version": "0.32.0", "has_metrics": True, "max_model_len": 40960}
    url = f"http://127.0.0.1:{port}"
    known["models"] = ["qwen3-32b"]
    return {"name": name, "role": role, "url": url, "metrics_url": url + "/metrics", "facts": {**known, **facts}}


def run_of(
    path: Path, summary: dict[str, Any], *, requests_a_cell: int = 40, metrics: bool = True, **changes: Any
) -> Run:
    """A run directory with the three tables that such a summary would come from."""
    decode = {**server("decode-0", "decode", 8200, connector="NixlConnector"), "max_num_seqs": 8}
    prefill = server("prefill-0", "prefill", 8100, block_size=16, num_kv_blocks=9000)
    servers = [server("proxy-0", "proxy", 8192, has_metrics=False), prefill, decode]
    target = {"mode": "pull", "engine": "vllm", "model": "qwen3-32b", "servers": servers}
    document = {
        "pdbench": "0.1.0",
        "created_unix_s": 1790000000.0,
        "command": "pdbench sweep --testbed pull --rates 1,2,4,8 --prompt-lens 1024,16384",
        "simulated": summary["simulated"],
        "host": {"python": "3.11.7", "platform": "Linux-6.1", "cpus": 16},
        "plan": summary.get("plan", {}),
        "deployments": [{"target": name, **target} for name in summary.get("targets") or ["t"]],
        "interrupted": False,
        "notes": ["Warm-up: 2 requests over 1 pair."],
        **changes,
    }
    run = Run.create(path, document)
    rng = np.random.default_rng(1)
    start = 2.0
    for cell in summary["cells"]:
        _record_cell(run, cell, start, requests_a_cell, rng, metrics)
        start += CELL_S + GAP_S
    run.save()
    return run


def _record_cell(run: Run, cell: dict[str, Any], start: float, n: int, rng: np.random.Generator, metrics: bool) -> None:
    number, end = cell.get("cell", 0), start + CELL_S
    rows, chunks = [], []
    for i, at in enumerate(start + np.sort(rng.uniform(0, CELL_S, n))):
        ttft = cell.get("mean_ttft_ms", 50.0) / 1000 * rng.uniform(0.6, 1.6)
        gaps = rng.gamma(4, cell.get("median_tpot_ms", 6.0) / 4000, 127) + (rng.random(127) < 0.02) * 0.06
        offsets = ttft + np.concatenate([[0], np.cumsum(gaps)])
        stamps = {"sent_s": at, "connected_s": at, "first_byte_s": at + ttft, "first_token_s": at + ttft}
        stamps |= {"second_token_s": at + offsets[1], "last_token_s": at + offsets[-1], "done_s": at + offsets[-1]}
        counts = {"prompt_len": cell["prompt_len"], "output_len": 128, "output_tokens": 128, "chunks": 128}
        known = {**{name: float(value) for name, value in stamps.items()}, **counts, "status": "ok", "http_status": 200}
        row = RequestRow(number, 0, "default", f"abc-{number}-0-{i}", cell["target"], i, float(at), **known)
        rows.append(request_record(row))
        chunks.append({"request_id": row.request_id, "offset_s": [round(float(o), 6) for o in offsets]})
    _write(run, "requests", number, rows)
    _write(run, "chunks", number, chunks)
    if metrics:
        _write(run, "metrics", number, _scrapes(cell, start, rng))
    run.seal(number, 0)
    entry = {"cell": number, "repeat": 0, "seed": 11 + number, "state": "done", "planned": n, "sent": n}
    entry |= {"start_s": start, "send_end_s": end, "end_s": end + 1, "client": cell.get("client", {})}
    run.document["cell_runs"].append(entry)


def _scrapes(cell: dict[str, Any], start: float, rng: np.random.Generator) -> list[dict[str, Any]]:
    lines = []
    peak, needed = cell.get("waiting_max", 0), cell.get("slots", {}).get("needed", 1)
    for k, t in enumerate(np.arange(start, start + CELL_S + 1, 0.5)):
        decode = (peak * k / 40, min(8, needed + rng.integers(0, 2)))
        prefill = (rng.integers(0, 2), rng.integers(0, 3))
        for role, (waiting, running) in (("prefill", prefill), ("decode", decode)):
            rows = [["vllm:num_requests_waiting", "waiting", "gauge", "0", "{}", float(waiting)]]
            rows.append(["vllm:num_requests_running", "running", "gauge", "0", "{}", float(running)])
            lines.append({"t": float(t), "target": cell["target"], "server": f"{role}-0", "role": role, "rows": rows})
    return lines


def _write(run: Run, table: str, cell: int, rows: list[dict[str, Any]]) -> None:
    run.live_path(table, cell, 0).write_text("".join(json.dumps(row) + "\n" for row in rows))
