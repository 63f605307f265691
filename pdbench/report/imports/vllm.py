"""`vllm bench serve --save-result`, plain and with --save-detailed: one JSON object a run, or several in a file.

Without --save-detailed there are figures only. With it, each request has its send, TTFT and gaps on one clock.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pdbench.errors import UsageError
from pdbench.report.imports.record import METRICS, Cell, Imported, Request, known, lengths, measured, whole
from pdbench.report.imports.source import Source

TOOL = "vllm bench serve"
DETAILS = ("start_times", "ttfts", "itls", "input_lens", "output_lens", "errors")
STATISTICS = ("mean", "median", "std", "p50", "p90", "p95", "p99")
FOREIGN = (
    "duration",
    "request_throughput",
    "request_goodput",
    "output_throughput",
    "total_token_throughput",
    "max_concurrent_requests",
    "max_output_tokens_per_s",
)
CHAT = "TTFT ends at the first event with choices, which on chat may hold no text"
CUT = "an answer that was cut off counts as answered"


def recognises(source: Source) -> bool:
    first = source.first()
    if not isinstance(first, Mapping) or "tokenizer_id" not in first or "request_throughput" not in first:
        return False
    return "model_id" in first and ("endpoint_type" in first or "backend" in first)


def read(source: Source) -> Imported:
    runs = [run for run in source.documents() if isinstance(run, Mapping) and "request_throughput" in run]
    if any("ramp_up_strategy" in run for run in runs):
        raise UsageError(f"{source.path} is of a ramp: its figures are of no single load.", "Import runs at one rate.")
    cells = [_cell(run) for run in runs]
    detailed = all(cell.requests for cell in cells)
    queued = detailed and all("queue_times" in run for run in runs)
    from_when = "the client's release" if queued else "the actual send"
    differs = [f"latencies count from {from_when}: how late that was is not in the file", CHAT, CUT]
    first = runs[0]
    shape = known(first.get("burstiness"))
    return Imported(
        TOOL,
        cells,
        differs,
        model=first.get("model_id"),
        created_unix_s=_created(first.get("date")),
        arrivals=None if shape is None else "poisson" if shape == 1 else "gamma",
        burstiness=shape,
    )


def _cell(run: Mapping[str, Any]) -> Cell:
    rate, streams = known(run.get("request_rate")), whole(run.get("max_concurrency"))
    requests = _requests(run, open_loop=rate is not None)
    prompts = whole(run.get("num_prompts")) or whole(run.get("completed")) or 1
    if requests:
        prompt_len, output_len = lengths(requests)
        figures: dict[str, Any] = {}
    else:
        figures = _figures(run)
        completed = figures.get("completed") or 1
        prompt_len = whole((known(run.get("total_input_tokens")) or 0) / completed) or None
        output_len = whole((known(run.get("total_output_tokens")) or 0) / completed) or None
    foreign = measured({name: known(run.get(name)) for name in FOREIGN})
    # All at once is a burst: as many streams as prompts.
    streams = streams or prompts if rate is None else None
    return Cell(
        rate,
        streams,
        prompt_len,
        output_len,
        requests,
        figures,
        foreign,
        prompts / rate if rate else None,
        foreign.get("duration"),
    )


def _figures(run: Mapping[str, Any]) -> dict[str, Any]:
    names = [f"{statistic}_{metric}_ms" for metric in METRICS for statistic in STATISTICS]
    counts = {
        name: whole(run.get(name)) for name in ("completed", "failed", "total_input_tokens", "total_output_tokens")
    }
    figures = measured({**counts, **{name: known(run.get(name)) for name in names}})
    if "mean_e2el_ms" not in figures:
        figures |= _end_to_end(run, figures)
    for metric in METRICS:
        if (median := figures.get(f"median_{metric}_ms")) is not None:
            figures.setdefault(f"p50_{metric}_ms", median)
    return figures


def _end_to_end(run: Mapping[str, Any], figures: Mapping[str, Any]) -> dict[str, float]:
    """E2EL from the latencies that every file has, where none of them is a failure's."""
    values = [known(value) for value in run.get("latencies") or []]
    e2els = [value * 1000 for value in values if value]
    if not e2els or figures.get("failed") or len(e2els) != figures.get("completed"):
        return {}
    quantiles = {"median": 0.5, "p90": 0.9, "p99": 0.99}
    found = {f"{name}_e2el_ms": float(np.quantile(e2els, q)) for name, q in quantiles.items()}
    return {"mean_e2el_ms": float(np.mean(e2els)), **found}


def _requests(run: Mapping[str, Any], open_loop: bool) -> Sequence[Request]:
    columns = [run.get(name) for name in DETAILS]
    if not all(isinstance(column, list) and column for column in columns):
        return ()
    n = min(len(column) for column in columns if column is not None)
    queues = run.get("queue_times") or [0.0] * n
    latencies = run.get("latencies") or [None] * n
    rows = zip(*(column[:n] for column in columns if column is not None), queues[:n], latencies[:n], strict=True)
    return [_request(open_loop, *row) for row in rows]


def _request(
    open_loop: bool,
    start: float,
    ttft: float,
    gaps: Sequence[float],
    prompt: int,
    output: int,
    error: str,
    queue: float,
    latency: float | None,
) -> Request:
    intended = start - queue if open_loop else start  # a stream of a closed loop is free when it sends
    if error or not ttft:  # 0 stands for no token there
        said = str(error).strip().splitlines()
        done = start + latency if latency else None
        return Request(intended, start, done_s=done, status="failed", error=said[-1] if said else "no output")
    offsets = tuple(itertools.accumulate(gaps, initial=ttft))
    last = start + offsets[-1]
    return Request(
        intended,
        start,
        offsets_s=offsets,
        first_token_s=start + ttft,
        last_token_s=last,
        done_s=max(last, start + latency) if latency else last,
        prompt_tokens=whole(prompt),
        output_tokens=whole(output),
        chunks=len(offsets),
    )


def _created(date: Any) -> float | None:
    """`20261130-001725` in the local time of this machine, as the file has it."""
    try:
        return time.mktime(time.strptime(str(date), "%Y%m%d-%H%M%S"))
    except ValueError:
        return None
