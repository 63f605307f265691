"""A small simulation of a P/D pair, event by event, and the run directory that pdbench would have made of it.

It shares no code with the formulas of pdbench. What each server would show follows vLLM 0.32: decode starts loads only
in a moment with a free slot and then for everything that waits, a loaded request waits for a slot with its KV already
there, histograms are filled when a request ends, gauges are what is true at the scrape.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from pdbench.run import RequestRow, Run, request_record


@dataclass
class World:
    """What is simulated; times in s."""

    rate: float | None = 2.0
    streams: int | None = None
    n: int = 120
    mode: str = "pull"  # pull, push, colocated
    prompt: int = 1024
    tokens: int = 64
    proxy_s: float = 0.004
    prefill_s: float = 0.08
    prefill_servers: int = 1
    transfer_s: float = 0.020
    post_s: float = 0.005
    step_s: float = 0.010
    slots: int = 8
    seed: int = 1
    burst_cv2: float = 1.0
    arrivals: str = "poisson"
    stages: bool = True  # decode's page has kv_fetch_stage
    pages: tuple[str, ...] = ("prefill", "decode", "colocated")
    known_slots: bool = True
    link_gb_s: float | None = None
    kv_bytes_per_token: int = 131072
    sample_s: float = 0.5
    recompute: bool = False
    spoil: list[Callable[[Req], None]] = field(default_factory=list)
    client: dict[str, Any] = field(default_factory=dict)
    tamper: Callable[[float, str, list[list[Any]]], list[list[Any]]] | None = None  # (t, role, rows) -> rows
    plan: dict[str, Any] = field(default_factory=dict)
    times: np.ndarray | None = None  # arrivals in place of drawn ones


@dataclass
class Req:
    i: int
    arrive: float
    prefill_start: float = 0.0
    prefill_end: float = 0.0
    decode_in: float = 0.0
    load_start: float = 0.0
    load_end: float = 0.0
    admitted: float = 0.0
    first: float = 0.0
    last: float = 0.0
    offsets: list[float] = field(default_factory=list)
    row: dict[str, Any] = field(default_factory=dict)  # overrides of the row


def simulate(w: World) -> list[Req]:
    rng = np.random.default_rng(w.seed)
    if w.times is not None:
        reqs = [Req(i, float(t)) for i, t in enumerate(w.times)]
        _serve(w, reqs)
        return reqs
    if w.rate is not None:
        if w.arrivals == "constant":
            gaps = np.full(w.n, 1 / w.rate)
        else:
            gaps = rng.gamma(1 / w.burst_cv2, w.burst_cv2 / w.rate, w.n)
        reqs = [Req(i, t) for i, t in enumerate(np.cumsum(gaps))]
        _serve(w, reqs)
        return reqs
    assert w.streams is not None
    # A closed loop: the k-th stream's next request arrives when its last one ended; solved by repeated passes.
    reqs = [Req(i, 0.0) for i in range(w.n)]
    for _ in range(w.n // w.streams + 2):
        _serve(w, reqs)
        ends: list[float] = [0.001 * k for k in range(w.streams)]
        heapq.heapify(ends)
        for r in reqs:
            r.arrive = heapq.heappop(ends)
            heapq.heappush(ends, r.last + 0.001)
    _serve(w, reqs)
    return reqs


def _serve(w: World, reqs: list[Req]) -> None:
    hold = w.tokens * w.step_s
    if w.mode == "colocated":
        free = [0.0] * w.slots
        engine = 0.0
        for r in reqs:
            begin = max(r.arrive + w.proxy_s, heapq.heappop(free), engine)
            r.prefill_start = r.admitted = begin
            r.prefill_end = r.first = engine = begin + w.prefill_s
            r.last = r.first + (w.tokens - 1) * w.step_s
            heapq.heappush(free, r.last)
            r.decode_in = r.load_start = r.load_end = r.arrive
            r.offsets = [r.first - r.arrive + k * w.step_s for k in range(w.tokens)]
        return
    servers = [0.0] * w.prefill_servers
    for r in reqs:
        begin = max(r.arrive + w.proxy_s / 2, heapq.heappop(servers))
        r.prefill_start, r.prefill_end = begin, begin + w.prefill_s
        heapq.heappush(servers, r.prefill_end)
        r.decode_in = r.arrive + w.proxy_s / 2 if w.mode == "push" else r.prefill_end + w.proxy_s / 2
    _decode(w, sorted(reqs, key=lambda r: r.decode_in), hold)


def _decode(w: World, queue: list[Req], hold: float) -> None:
    """Slots, loads and admission, event by event."""
    events: list[tuple[float, int, str, Req]] = []
    for r in queue:
        heapq.heappush(events, (r.decode_in, r.i, "in", r))
    running = 0
    waiting: list[Req] = []
    loaded: list[Req] = []

    def start_loads(t: float) -> None:
        for r in waiting:
            r.load_start = t
            transfer = 0.0 if w.recompute else w.transfer_s
            r.load_end = max(t, r.prefill_end if w.mode == "push" else t) + transfer
            heapq.heappush(events, (r.load_end, r.i, "loaded", r))
        waiting.clear()

    def admit(t: float) -> None:
        nonlocal running
        while loaded and running < w.slots:
            r = loaded.pop(0)
            # The engine looks only between steps.
            r.admitted = t if running == 0 else t + w.step_s / 2
            running += 1
            r.first = r.admitted + w.step_s + (w.prefill_s if w.recompute else 0.0)
            r.last = r.first + (w.tokens - 1) * w.step_s
            r.offsets = [r.first - r.arrive + k * w.step_s for k in range(w.tokens)]
            heapq.heappush(events, (r.last, r.i, "done", r))

    while events:
        t, _, what, r = heapq.heappop(events)
        if what == "in":
            waiting.append(r)
        elif what == "loaded":
            loaded.append(r)
        else:
            running -= 1
        admit(t)
        if running < w.slots:
            start_loads(t)


def truth(w: World, reqs: list[Req]) -> dict[str, float]:
    """Mean ms of each planted part, from the simulation's own stamps."""

    def mean(of: Callable[[Req], float]) -> float:
        return float(np.mean([of(r) for r in reqs])) * 1000

    return {
        "ttft": mean(lambda r: r.first - r.arrive),
        "prefill_queue": mean(
            lambda r: r.prefill_start - r.arrive - (w.proxy_s if w.mode == "colocated" else w.proxy_s / 2)
        ),
        "prefill": w.prefill_s * 1000,
        "slot_wait": mean(lambda r: r.load_start - r.decode_in + max(0.0, r.admitted - r.load_end - w.step_s / 2)),
        "wait_after_load": mean(lambda r: r.admitted - r.load_end),
    }


def rows_at(w: World, reqs: list[Req], role: str, t: float) -> list[list[Any]]:
    """The page of one server at time t, as the sampler would store it."""
    out: list[list[Any]] = []

    def put(canonical: str, kind: str, value: float, **labels: str) -> None:
        name = f"vllm:{canonical}" if kind in ("gauge", "counter") else f"vllm:{canonical}_{kind}"
        out.append([name, canonical, kind, "0", json.dumps(labels), float(value)])

    def histogram(canonical: str, values: Iterable[float]) -> None:
        kept = list(values)
        put(canonical, "sum", sum(kept))
        put(canonical, "count", len(kept))

    put("process_start_s", "gauge", 1.0e9)
    if role == "prefill":
        ended = [r for r in reqs if r.prefill_end <= t]
        asked = w.proxy_s / 2
        put("running", "gauge", sum(r.prefill_start <= t < r.prefill_end for r in reqs))
        put("waiting", "gauge", sum(r.arrive + asked <= t < r.prefill_start for r in reqs))
        histogram("queue_s", (r.prefill_start - r.arrive - asked for r in ended))
        histogram("prefill_s", (r.prefill_end - r.prefill_start for r in ended))
        histogram("e2e_s", (r.prefill_end - r.arrive - asked for r in ended))
        histogram("ttft_s", (r.prefill_end - r.arrive - asked for r in ended))
        put("prompt_tokens", "counter", w.prompt * len(ended))
        put("prefix_cache_queries", "counter", w.prompt * len(ended))
        put("prefix_cache_hits", "counter", 0)
        histogram("nixl_xfer_s", (w.transfer_s for r in reqs if w.mode == "push" and r.load_end <= t))
        histogram("nixl_post_s", (w.post_s for r in reqs if w.mode == "push" and r.load_end <= t))
        put("nixl_kv_expired", "counter", 0)
        put("nixl_used_after_expiry", "counter", 0)
        return _tampered(w, t, role, out)
    in_at: Callable[[Req], float] = (lambda r: r.arrive + w.proxy_s) if role == "colocated" else (lambda r: r.decode_in)
    ended = [r for r in reqs if r.last <= t]
    put("running", "gauge", sum(r.admitted <= t < r.last for r in reqs))
    put("waiting", "gauge", sum(in_at(r) <= t < r.admitted for r in reqs))
    histogram("queue_s", (r.admitted - in_at(r) for r in ended))
    histogram("prefill_s", (r.first - r.admitted for r in ended))
    histogram("e2e_s", (r.last - in_at(r) for r in ended))
    histogram("ttft_s", (r.first - in_at(r) for r in reqs if r.first <= t))
    put("request_success", "counter", len(ended), finished_reason="length")
    made = sum(min(w.tokens, max(0, int((t - r.first) / w.step_s + 1e-9) + 1)) for r in reqs if r.first <= t)
    put("generation_tokens", "counter", made)
    put("prefix_cache_queries", "counter", w.prompt * len(ended))
    put("prefix_cache_hits", "counter", 0)
    put("kv_cache_usage", "gauge", 0.2)
    if role == "decode":
        _handoff(w, reqs, t, len(ended), put, histogram)
    return _tampered(w, t, role, out)


def _handoff(w: World, reqs: list[Req], t: float, ended: int, put: Any, histogram: Any) -> None:
    """What only decode's page has."""
    moved = [r for r in reqs if r.load_end <= t]
    if w.stages:
        stages = {
            "waiting_to_start": sum(r.decode_in <= t < r.load_start for r in reqs),
            "in_progress": sum(r.load_start <= t < r.load_end for r in reqs),
            "completed_waiting": sum(r.load_end <= t < r.admitted for r in reqs),
        }
        for stage, value in stages.items():
            put("kv_fetch_stage", "gauge", value, stage=stage)
    pulled = moved if w.mode == "pull" and not w.recompute else []
    histogram("nixl_xfer_s", (w.transfer_s for _ in pulled))
    histogram("nixl_post_s", (w.post_s for _ in pulled))
    histogram("nixl_nbytes", (w.prompt * w.kv_bytes_per_token for _ in pulled))
    local = w.prompt if w.recompute else 0
    put("prompt_tokens_by_source", "counter", local * ended, source="local_compute")
    put("prompt_tokens_by_source", "counter", (w.prompt - local) * ended, source="external_kv_transfer")
    put("prompt_tokens", "counter", w.prompt * ended)
    put("nixl_failed_transfers", "counter", 0)


def _tampered(w: World, t: float, role: str, rows: list[list[Any]]) -> list[list[Any]]:
    return w.tamper(t, role, rows) if w.tamper is not None else rows


def deployment_of(w: World) -> dict[str, Any]:
    roles = ["colocated"] if w.mode == "colocated" else ["proxy", "prefill", "decode"]
    servers: list[dict[str, Any]] = []
    for i, role in enumerate(roles):
        server: dict[str, Any] = {"name": f"{role}-0", "role": role, "url": f"http://127.0.0.1:{8000 + i}"}
        if role in ("decode", "colocated") and w.known_slots:
            server["max_num_seqs"] = w.slots
        servers.append(server)
    found: dict[str, Any] = {"target": "default", "servers": servers, "engine": "vllm", "mode": w.mode}
    return found | ({"link_gb_s": w.link_gb_s} if w.link_gb_s else {})


def make_run(path: Path, worlds: list[list[World]], **document: Any) -> Run:
    """A run directory: one cell for each inner list, one repeat for each of its worlds."""
    cells = []
    for k, repeats in enumerate(worlds):
        w = repeats[0]
        cells.append(
            {
                "cell": k,
                "target": "default",
                "request_rate": w.rate,
                "max_concurrency": w.streams,
                "prompt_len": w.prompt,
            }
            | {"output_len": w.tokens, "loop": "open" if w.rate is not None else "closed"}
        )
    first = worlds[0][0]
    plan = {
        "cells": cells,
        "arrivals": first.arrivals,
        "burstiness": 1.0,
        "ignore_eos": True,
        "endpoint": "completions",
    }
    run = Run.create(
        path,
        {"pdbench": "0.1.0", "simulated": False, "deployments": [deployment_of(first)], "plan": plan | first.plan}
        | document,
    )
    entries = run.document["cell_runs"]
    origin = 5.0
    for k, repeats in enumerate(worlds):
        for repeat, w in enumerate(repeats):
            origin = write_cell(run, k, repeat, w, origin, entries) + 3.0
    run.save()
    run.finish()
    return Run.open(path)


def write_cell(run: Run, cell: int, repeat: int, w: World, origin: float, entries: list[dict[str, Any]]) -> float:
    reqs = simulate(w)
    ids = {r.i: f"0000-{cell}-{repeat}-{r.i}" for r in reqs}
    for spoil in w.spoil:
        for r in reqs:
            spoil(r)
    with (
        run.live_path("requests", cell, repeat).open("w") as rows,
        run.live_path("chunks", cell, repeat).open("w") as chunks,
    ):
        for r in reqs:
            times: dict[str, float | None] = {
                "connected_s": None,
                "intended_s": r.arrive,
                "sent_s": r.arrive,
                "first_token_s": r.first,
                "last_token_s": r.last,
                "done_s": r.last + 0.001,
            }
            shifted = {
                name: origin + value
                for name, value in (times | {k: v for k, v in r.row.items() if k in times}).items()
                if value is not None
            }
            known: dict[str, Any] = {
                "prompt_tokens": w.prompt,
                "output_tokens": w.tokens,
                "chunks": w.tokens,
                "status": "ok",
            }
            known |= {"prompt_len": w.prompt, "output_len": w.tokens}
            known |= {k: v for k, v in r.row.items() if k not in times}
            named = {"request_class": "default", "request_id": ids[r.i], "target": "default", "index": r.i}
            row = RequestRow(cell, repeat, **(named | shifted | known))
            rows.write(json.dumps(request_record(row)) + "\n")
            chunks.write(json.dumps({"request_id": ids[r.i], "offset_s": r.offsets}) + "\n")
    end = max(r.last for r in reqs) + 0.05
    roles = [role for role in (["colocated"] if w.mode == "colocated" else ["prefill", "decode"]) if role in w.pages]
    with run.live_path("metrics", cell, repeat).open("w") as metrics:
        for t in (-0.01, *np.arange(w.sample_s, end, w.sample_s), end + 0.01):
            for role in roles:
                scrape = {"t": origin + float(t), "target": "default", "server": f"{role}-0", "role": role}
                metrics.write(json.dumps({**scrape, "rows": rows_at(w, reqs, role, float(t))}) + "\n")
    run.seal(cell, repeat)
    send_end = max(r.arrive for r in reqs)
    entries.append(
        {
            "cell": cell,
            "repeat": repeat,
            "seed": w.seed,
            "state": "done",
            "start_s": origin,
            "send_end_s": origin + send_end,
        }
        | {
            "end_s": origin + end,
            "planned": w.n,
            "sent": w.n,
            "client": {"loop_lag_p99_ms": 0.5, "cpu_share": 0.1} | w.client,
        }
    )
    return origin + end
