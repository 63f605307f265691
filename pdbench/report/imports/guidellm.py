"""GuideLLM's benchmarks.json (0.8): one benchmark is one cell.

Its requests have the time at which each should have left, so latencies count from there. It keeps the first and last
token of a request and no event between them: gaps are not in the file. `time_per_output_token_ms` holds TTFT there, and
its `inter_token_latency_ms` is what pdbench calls TPOT.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pdbench.errors import UsageError
from pdbench.report.imports.record import Cell, Imported, Request, distribution, known, lengths, measured, whole
from pdbench.report.imports.source import Source

TOOL = "guidellm"
VERSION = 2  # of its file
NAMES = {"mean": "mean", "median": "median", "std": "std_dev"}
PERCENTILES = {"p50": "p50", "p90": "p90", "p95": "p95", "p99": "p99"}
METRICS = {
    "ttft": ("time_to_first_token_ms", 1.0),
    "tpot": ("inter_token_latency_ms", 1.0),
    "e2el": ("request_latency", 1e3),
}
FOREIGN = (
    "time_to_first_token_ms",
    "time_per_output_token_ms",
    "request_latency",
    "requests_per_second",
    "request_concurrency",
)
STATUS = {"successful": "ok", "errored": "failed", "incomplete": "cancelled"}


def recognises(source: Source) -> bool:
    first = source.first()
    about = first.get("metadata") if isinstance(first, Mapping) else None
    return isinstance(about, Mapping) and "guidellm_version" in about and isinstance(first.get("benchmarks"), list)


def read(source: Source) -> Imported:
    document = source.first()
    about = document["metadata"]
    if about.get("version") != VERSION:
        raise UsageError(
            f"{source.path} is of guidellm {about.get('guidellm_version')} (file version {about.get('version')}); "
            f"this reads version {VERSION}.",
            "Measure with guidellm 0.8, or convert the file: guidellm export",
        )
    benchmarks = [each for each in document["benchmarks"] if isinstance(each, Mapping)]
    kinds = {_strategy(each).get("type_") for each in benchmarks}
    if odd := kinds - {"poisson", "constant", "concurrent", "synchronous", "throughput"}:
        named = ", ".join(str(kind) for kind in sorted(odd, key=str))
        raise UsageError(f"{source.path} has benchmarks of the kind {named}, which have no single load.")
    cells = [_cell(each) for each in benchmarks]
    from_when = "the time at which a request should have left" if all(c.requests for c in cells) else "the actual send"
    differs = [
        f"latencies count from {from_when}, on the wall clock",
        "gaps between tokens are not in the file",
        "its time_per_output_token holds TTFT, so it is kept under the tool's name",
    ]
    strategy = _strategy(benchmarks[0]) if benchmarks else {}
    kind = strategy.get("type_")
    model = (benchmarks[0]["config"].get("backend") or {}).get("model") if benchmarks else None
    return Imported(
        TOOL,
        cells,
        differs,
        version=about.get("guidellm_version"),
        model=model,
        created_unix_s=known(benchmarks[0].get("start_time")) if benchmarks else None,
        arrivals=kind if kind in ("poisson", "constant") else None,
    )


def _strategy(benchmark: Mapping[str, Any]) -> Mapping[str, Any]:
    found: Mapping[str, Any] = (benchmark.get("config") or {}).get("strategy") or {}
    return found


def _cell(benchmark: Mapping[str, Any]) -> Cell:
    strategy, metrics = _strategy(benchmark), benchmark.get("metrics") or {}
    totals: Mapping[str, Any] = metrics.get("request_totals") or {}
    requests = list(_requests(benchmark.get("requests") or {}))
    whole_run = len(requests) == (whole(totals.get("total")) or len(requests))  # it may have kept a sample only
    foreign = {name: found for name in FOREIGN if (found := _foreign(metrics.get(name)))}
    rate = known(strategy.get("rate"))
    streams = None if rate is not None else _streams(strategy, requests, totals)
    prompt_len, output_len = lengths(requests)
    if requests and whole_run:
        return Cell(rate, streams, prompt_len, output_len, requests, {}, foreign)
    figures = {"completed": whole(totals.get("successful")), "failed": whole(totals.get("errored"))}
    for ours, (theirs, factor) in METRICS.items():
        record = (metrics.get(theirs) or {}).get("successful") or {}
        figures |= distribution(ours, record, NAMES, factor)  # type: ignore[arg-type]
        figures |= distribution(ours, record.get("percentiles"), PERCENTILES, factor)  # type: ignore[arg-type]
    return Cell(rate, streams, prompt_len, output_len, (), measured(figures), foreign)


def _streams(strategy: Mapping[str, Any], requests: Sequence[Request], totals: Mapping[str, Any]) -> int:
    """Streams of a closed loop; one for `synchronous`, all requests at once for `throughput` without a limit."""
    if strategy.get("type_") == "synchronous":
        return 1
    asked = whole(strategy.get("streams")) or whole(strategy.get("max_concurrency"))
    return min(asked or len(requests), len(requests) or asked or 1) or whole(totals.get("total")) or 1


def _foreign(record: Any) -> dict[str, float]:
    found = record.get("successful") if isinstance(record, Mapping) else None
    if not isinstance(found, Mapping):
        return {}
    more = found.get("percentiles") or {}
    return measured({"mean": known(found.get("mean")), "p50": known(more.get("p50")), "p99": known(more.get("p99"))})


def _requests(groups: Mapping[str, Any]) -> Iterator[Request]:
    for group, status in STATUS.items():
        for record in groups.get(group) or []:
            if (request := _request(record, status)) is not None:
                yield request


def _request(record: Mapping[str, Any], status: str) -> Request | None:
    info: Mapping[str, Any] = record.get("info") or {}
    times = {name: known(value) for name, value in (info.get("timings") or {}).items()}
    sent = times.get("request_start")
    if sent is None:
        return None
    first, last = times.get("first_token_iteration"), times.get("last_token_iteration")
    if status == "ok" and first is None:
        status = "failed"
    due = times.get("targeted_start")
    return Request(
        sent if due is None else due,
        sent,
        first_byte_s=times.get("first_request_iteration"),
        first_token_s=first,
        last_token_s=last if first is not None else None,
        done_s=times.get("request_end"),
        request_id=record.get("request_id"),
        status=status,
        error=str(info.get("error")) if info.get("error") else None,
        prompt_tokens=whole(record.get("prompt_tokens")),
        output_tokens=whole(record.get("output_tokens")),
        cached_tokens=whole(record.get("cached_tokens")),
        chunks=whole(times.get("token_iterations")),
    )
