"""`sglang.benchmark.serving` (bench_serving) --output-file: a line a run.

Even with --output-details no request has a send time, so these cells hold figures only. `server_info` may hold secrets
of the server's command line: it is not taken.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pdbench.errors import UsageError
from pdbench.report.imports.record import Cell, Imported, distribution, known, measured, whole
from pdbench.report.imports.source import Source

TOOL = "sglang bench_serving"
STATISTICS = ("mean", "median", "std", "p90", "p95", "p99")
METRICS = {"ttft": "ttft", "tpot": "tpot", "itl": "itl", "e2el": "e2e_latency"}
FOREIGN = (
    "duration",
    "request_throughput",
    "request_goodput",
    "input_throughput",
    "output_throughput",
    "total_throughput",
    "concurrency",
    "max_concurrent_requests",
    "slo_attainment",
    "accept_length",
)
SIMULATED = "SIMULATED by pdbench testbed"
NATIVE = "sglang"  # the backend whose gaps are divided by the tokens that came in them


def recognises(source: Source) -> bool:
    first = source.first()
    return isinstance(first, Mapping) and "mean_e2e_latency_ms" in first and "random_range_ratio" in first


def read(source: Source) -> Imported:
    runs = [run for run in source.documents() if isinstance(run, Mapping) and "mean_e2e_latency_ms" in run]
    if any(run.get("request_rate") == "trace" for run in runs):
        raise UsageError(
            f"{source.path} replays a trace: its figures are of no single load.", "Import runs at one rate."
        )
    differs = [
        "latencies count from the actual send: how late that was is not in the file",
        "throughput holds the drain and a request to the server, so it is kept under the tool's name",
    ]
    if any(run.get("backend") == NATIVE for run in runs):
        differs.append("ITL is per token there and per event here, so it is kept under the tool's name")
    goodput: Mapping[str, Any] = runs[0].get("goodput_slos_ms") or {}
    return Imported(
        TOOL,
        [_cell(run) for run in runs],
        differs,
        model=_model(runs[0]),
        arrivals="poisson",
        simulated=any(SIMULATED in str(run.get("server_info")) for run in runs),
        goodput_ms={name: limit for name, value in goodput.items() if (limit := known(value)) is not None},
    )


def _cell(run: Mapping[str, Any]) -> Cell:
    rate, streams = known(run.get("request_rate")), whole(run.get("max_concurrency"))
    completed = whole(run.get("completed")) or 0
    native = run.get("backend") == NATIVE
    figures: dict[str, Any] = {"completed": completed, "failed": _failed(run)}
    foreign = {name: known(run.get(name)) for name in FOREIGN}
    for ours, theirs in METRICS.items():
        names = {statistic: f"{statistic}_{theirs}_ms" for statistic in STATISTICS}
        found = distribution(ours, run, names)
        if ours == "itl" and native:
            foreign |= {names[statistic]: known(run.get(names[statistic])) for statistic in STATISTICS}
            continue
        figures |= found
        figures |= {f"p50_{ours}_ms": found.get(f"median_{ours}_ms")}
    for name in ("total_input_tokens", "total_output_tokens"):
        figures[name] = whole(run.get(name))
    sizes = [
        whole((figures[f"total_{side}_tokens"] or 0) / completed) if completed else None for side in ("input", "output")
    ]
    prompts = completed + (figures["failed"] or 0) or 1
    burst = streams or prompts if rate is None else None
    return Cell(
        rate,
        burst,
        sizes[0] or None,
        sizes[1] or None,
        figures=measured(figures),
        foreign=measured(foreign),
        send_s=prompts / rate if rate else None,
        took_s=known(run.get("duration")),
    )


def _failed(run: Mapping[str, Any]) -> int | None:
    errors = run.get("errors")
    return sum(bool(error) for error in errors) if isinstance(errors, list) else None


def _model(run: Mapping[str, Any]) -> str | None:
    info = run.get("server_info")
    found = info.get("model_path") if isinstance(info, Mapping) else None
    return found if isinstance(found, str) else None
