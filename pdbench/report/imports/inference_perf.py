"""inference-perf's report folder (0.7): a stage is a cell; seconds there, milliseconds here.

With per_request_lifecycle_metrics.json each request has its start and the time of every chunk; which stage it is of
is told by the counts of the stages, in the order of the starts. Without it a stage has figures only.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from pdbench.report.imports.record import Cell, Imported, Request, distribution, known, lengths, measured, whole
from pdbench.report.imports.source import Source

TOOL = "inference-perf"
NAMES = {"mean": "mean", "median": "median", "p50": "median", "p90": "p90", "p95": "p95", "p99": "p99"}
METRICS = {"ttft": "time_to_first_token", "e2el": "request_latency"}
CLIENT_COUNTED = ("time_per_output_token", "inter_token_latency", "normalized_time_per_output_token")
STAGE = re.compile(r"stage_(\d+)_lifecycle_metrics\.json")


def recognises(source: Source) -> bool:
    return any(_is_stage(each) or _is_per_request(each) for each in source.documents())


def _is_stage(document: Any) -> bool:
    return isinstance(document, Mapping) and {"load_summary", "successes", "failures"} <= set(document)


def _is_per_request(document: Any) -> bool:
    return isinstance(document, list) and bool(document) and {"start_time", "end_time", "info"} <= set(document[0])


def read(source: Source) -> Imported:
    stages = _stages(source)
    records: list[Any] = next((each for each in source.documents() if _is_per_request(each)), [])
    requests = sorted((_request(record) for record in records), key=lambda request: request.sent_s)
    cells, place = [], 0
    by_count = sum(_count(stage) for stage in stages) == len(requests)
    for stage in stages:
        mine = requests[place : place + _count(stage)] if by_count else ()
        place += len(mine)
        cells.append(_cell(stage, mine))
    if not stages:
        cells = [Cell(None, len(requests), *lengths(requests), requests)]
    differs = ["latencies count from the actual send: how late each one was is not in the files"]
    if not all(cell.requests for cell in cells):
        differs.append("TPOT and ITL count tokens by the client's tokenizer, so they are kept under the tool's name")
    return Imported(TOOL, cells, differs, model=_model(records))


def _stages(source: Source) -> list[Mapping[str, Any]]:
    """The stages in order; of a single file, whatever it is."""
    named = [(int(found[1]), docs) for name, docs in source.files.items() if (found := STAGE.fullmatch(name))]
    if named:
        return [docs[0] for _, docs in sorted(named) if _is_stage(docs[0])]
    return [each for each in source.documents() if _is_stage(each)][:1]


def _count(stage: Mapping[str, Any]) -> int:
    return sum(whole((stage.get(side) or {}).get("count")) or 0 for side in ("successes", "failures"))


def _cell(stage: Mapping[str, Any], requests: Sequence[Request]) -> Cell:
    load: Mapping[str, Any] = stage["load_summary"]
    successes: Mapping[str, Any] = stage["successes"] or {}
    rate, streams = known(load.get("requested_rate")), whole(load.get("concurrency"))
    streams = None if rate is not None else streams or _count(stage) or 1
    latency: Mapping[str, Any] = successes.get("latency") or {}
    foreign = {name: _seconds(latency.get(name)) for name in (*METRICS.values(), *CLIENT_COUNTED)}
    foreign["schedule_delay"] = _seconds(load.get("schedule_delay"))
    foreign["throughput"] = measured({k: known(v) for k, v in (successes.get("throughput") or {}).items()})
    kept = {name: found for name, found in foreign.items() if found}
    if requests:
        return Cell(rate, streams, *lengths(requests), requests, {}, kept)
    failed = whole((stage.get("failures") or {}).get("count"))
    figures: dict[str, Any] = {"completed": whole(successes.get("count")), "failed": failed}
    for ours, theirs in METRICS.items():
        figures |= distribution(ours, latency.get(theirs), NAMES, 1e3)
    sizes = [whole((successes.get(name) or {}).get("median")) for name in ("prompt_tokens", "output_tokens")]
    return Cell(
        rate,
        streams,
        sizes[0],
        sizes[1],
        (),
        measured(figures),
        kept,
        known(load.get("send_duration")),
        known(stage.get("benchmark_time_seconds")),
    )


def _seconds(record: Any) -> dict[str, float]:
    names = ("mean", "median", "p90", "p99")
    return measured({name: known(record.get(name)) for name in names}) if isinstance(record, Mapping) else {}


def _request(record: Mapping[str, Any]) -> Request:
    sent, ended = float(record["start_time"]), known(record.get("end_time"))
    info: Mapping[str, Any] = record.get("info") or {}
    answer: Mapping[str, Any] = info.get("response_metrics") or {}
    usage: Mapping[str, Any] = answer.get("server_usage") or {}
    stamps = [stamp for each in answer.get("chunk_times") or [] if (stamp := known(each)) is not None]
    error: Mapping[str, Any] = record.get("error") or {}
    if error or not stamps:
        said = ": ".join(str(error[key]) for key in ("error_type", "error_msg") if error.get(key)) or "no output"
        return Request(sent, sent, done_s=ended, status="failed", error=said)
    output = whole(usage.get("completion_tokens"))
    prompt = whole(usage.get("prompt_tokens"))
    return Request(
        sent,
        sent,
        offsets_s=tuple(stamp - sent for stamp in stamps),
        first_token_s=stamps[0],
        last_token_s=stamps[-1],
        done_s=ended,
        prompt_tokens=whole(info.get("input_tokens")) if prompt is None else prompt,
        output_tokens=whole(answer.get("output_tokens")) if output is None else output,
        chunks=len(stamps),
    )


def _model(records: Sequence[Mapping[str, Any]]) -> str | None:
    """The model that the first request asked for."""
    found = re.search(r'"model": ?"([^"]+)"', str(records[0].get("request", ""))) if records else None
    return found[1] if found else None
