"""AIPerf's profile_export.jsonl (a line a request) and profile_export_aiperf.json (figures), or the folder of both.

Its `inter_token_latency` is what pdbench calls TPOT, its `inter_chunk_latency` is ITL. Output tokens are the server's
where it told them, else the client's own count.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from pdbench.report.imports.record import Cell, Imported, Request, distribution, known, lengths, measured, whole
from pdbench.report.imports.source import Source

TOOL = "aiperf"
NAMES = {"mean": "avg", "median": "p50", "std": "std", "p50": "p50", "p90": "p90", "p95": "p95", "p99": "p99"}
METRICS = {
    "ttft": "time_to_first_token",
    "tpot": "inter_token_latency",
    "itl": "inter_chunk_latency",
    "e2el": "request_latency",
}
FOREIGN = ("request_throughput", "output_token_throughput", "benchmark_duration", "goodput", "effective_concurrency")
PROFILING = "profiling"
TOKENS_APART = 0.02


def recognises(source: Source) -> bool:
    return any(_is_request(each) or _is_summary(each) for each in source.documents())


def _is_request(document: Any) -> bool:
    return isinstance(document, Mapping) and "benchmark_phase" in (document.get("metadata") or {})


def _is_summary(document: Any) -> bool:
    return isinstance(document, Mapping) and "aiperf_version" in document and "request_latency" in document


def read(source: Source) -> Imported:
    records = [each for each in source.documents() if _is_request(each)]
    records = [each for each in records if each["metadata"]["benchmark_phase"] == PROFILING]
    summary: Mapping[str, Any] = next((each for each in source.documents() if _is_summary(each)), {})
    config: Mapping[str, Any] = summary.get("input_config") or {}
    requests = [_request(record) for record in records]
    phase = _phase(config)
    kind = phase.get("type")
    models = [item.get("name") for item in (config.get("models") or {}).get("items") or []]
    from_when = "the moment a send was released" if requests else "the actual send"
    differs = [
        f"latencies count from {from_when}, on the wall clock: a schedule that fell behind was moved, and arrivals "
        "without a free slot were skipped",
        "its inter_token_latency is read as TPOT, its inter_chunk_latency as ITL",
    ]
    if not requests and not _same_tokens(summary):
        differs[-1] = "its client counts other tokens than the server, so its inter_token_latency is no TPOT"
    first = min((request.sent_s for request in requests), default=None)
    return Imported(
        TOOL,
        [_cell(phase, requests, summary, config)],
        differs,
        version=summary.get("aiperf_version"),
        model=models[0] if models and isinstance(models[0], str) else None,
        created_unix_s=first,
        arrivals=kind if kind in ("poisson", "gamma", "constant") else None,
        burstiness=known(phase.get("smoothness")),
    )


def _phase(config: Mapping[str, Any]) -> Mapping[str, Any]:
    phases: Sequence[Mapping[str, Any]] = config.get("phases") or []
    return next((phase for phase in phases if phase.get("kind") == PROFILING), {})


def _cell(
    phase: Mapping[str, Any], requests: Sequence[Request], summary: Mapping[str, Any], config: Mapping[str, Any]
) -> Cell:
    rate, streams = known(phase.get("rate")), whole(phase.get("concurrency"))
    if rate is None and streams is None:
        streams = len(requests) or whole(_average(summary, "request_count")) or 1
    streams = None if rate is not None else streams
    foreign: dict[str, Any] = measured({name: _average(summary, name) for name in FOREIGN})
    prompt_len, output_len = lengths(requests) if requests else _asked(config)
    if requests:
        return Cell(rate, streams, prompt_len, output_len, requests, {}, foreign)
    completed, failed = _average(summary, "request_count"), _average(summary, "error_request_count")
    figures: dict[str, Any] = {"completed": whole(completed), "failed": whole(failed or 0.0)}
    for ours, theirs in METRICS.items():
        if ours == "tpot" and not _same_tokens(summary):
            foreign[theirs] = _average(summary, theirs)
            continue
        figures |= distribution(ours, summary.get(theirs), NAMES)
    return Cell(rate, streams, prompt_len, output_len, (), measured(figures), measured(foreign))


def _same_tokens(summary: Mapping[str, Any]) -> bool:
    """Whether the client's tokenizer counts the answers' tokens as the server does; TPOT is per token."""
    client, server = _average(summary, "output_sequence_length"), _average(summary, "usage_completion_tokens")
    return client is None or server is None or abs(client - server) <= TOKENS_APART * server


def _average(summary: Mapping[str, Any], tag: str) -> float | None:
    record = summary.get(tag)
    return known(record.get("avg")) if isinstance(record, Mapping) else None


def _asked(config: Mapping[str, Any]) -> tuple[int | None, int | None]:
    prompts = next((each.get("prompts") or {} for each in config.get("datasets") or []), {})
    prompt, output = (whole((prompts.get(name) or {}).get("mean")) for name in ("isl", "osl"))
    return prompt, output


def _request(record: Mapping[str, Any]) -> Request:
    about, metrics = record["metadata"], record.get("metrics") or {}

    def value(tag: str) -> Any:
        found = metrics.get(tag)
        return found.get("value") if isinstance(found, Mapping) else None

    sent = about["request_start_ns"] / 1e9
    issued = known(about.get("credit_issued_ns"))
    ended, head = known(about.get("request_end_ns")), known(about.get("request_ack_ns"))
    times = {
        "intended_s": sent if issued is None else issued / 1e9,
        "sent_s": sent,
        "first_byte_s": None if head is None else head / 1e9,
        "done_s": None if ended is None else ended / 1e9,
        "request_id": about.get("x_request_id"),
    }
    ttft = known(value("time_to_first_token"))
    error: Mapping[str, Any] = record.get("error") or {}
    if error or about.get("was_cancelled") or not ttft:
        said = ": ".join(str(error[key]) for key in ("type", "message") if error.get(key)) or "no output"
        return Request(**times, status="cancelled" if about.get("was_cancelled") else _status(error), error=said)
    gaps = [gap for each in value("inter_chunk_latency") or [] if (gap := known(each)) is not None]
    offsets = tuple(ms / 1000 for ms in itertools.accumulate(gaps, initial=ttft))
    output = whole(value("usage_completion_tokens"))
    prompt = whole(value("usage_prompt_tokens"))
    return Request(
        **times,
        offsets_s=offsets,
        first_token_s=sent + offsets[0],
        last_token_s=sent + offsets[-1],
        prompt_tokens=whole(value("input_sequence_length")) if prompt is None else prompt,
        output_tokens=whole(value("output_sequence_length")) if output is None else output,
        chunks=len(offsets),
    )


def _status(error: Mapping[str, Any]) -> str:
    return "rejected" if error.get("code") in (429, 503) else "failed"
