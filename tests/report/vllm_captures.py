"""Runs of real vLLM 0.32 on CPU (`vllm bench serve`, pages sampled at 1 Hz) as run directories.

The captures hold what was recorded and nothing else: request times, output gaps, and the counters and gauges of both
servers under vLLM's names. The names are mapped here by hand, apart from the tool's own vocabulary.
"""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

from pdbench.run import RequestRow, Run, request_record

FOLDER = Path(__file__).parent / "captures"
HISTOGRAMS = {
    "nixl_xfer_time_seconds": "nixl_xfer_s",
    "nixl_post_time_seconds": "nixl_post_s",
    "nixl_bytes_transferred": "nixl_nbytes",
    "nixl_num_descriptors": "nixl_descriptors",
    "time_to_first_token_seconds": "ttft_s",
    "inter_token_latency_seconds": "itl_s",
    "e2e_request_latency_seconds": "e2e_s",
    "request_queue_time_seconds": "queue_s",
    "request_inference_time_seconds": "inference_s",
    "request_prefill_time_seconds": "prefill_s",
    "request_decode_time_seconds": "decode_s",
}
GAUGES = {
    "num_requests_running": "running",
    "num_requests_waiting": "waiting",
    "num_requests_waiting_by_reason": "waiting_by_reason",
    "num_requests_kv_fetch_by_stage": "kv_fetch_stage",
    "kv_cache_usage_perc": "kv_cache_usage",
}
COUNTERS = {
    "nixl_num_failed_transfers_total": "nixl_failed_transfers",
    "nixl_num_failed_notifications_total": "nixl_failed_notifications",
    "nixl_num_kv_expired_reqs_total": "nixl_kv_expired",
    "nixl_num_notifications_after_expiry_total": "nixl_used_after_expiry",
    "prompt_tokens_total": "prompt_tokens",
    "prompt_tokens_by_source_total": "prompt_tokens_by_source",
    "generation_tokens_total": "generation_tokens",
    "request_success_total": "request_success",
    "num_preemptions_total": "preemptions",
    "external_prefix_cache_hits_total": "external_prefix_cache_hits",
}


def captured(name: str) -> dict[str, Any]:
    with gzip.open(FOLDER / f"{name}.json.gz", "rt") as file:
        found: dict[str, Any] = json.load(file)
    return found


def capture_run(path: Path, name: str, *, slots: int | None = 4, stages: bool = True) -> Run:
    """The run directory that pdbench would have written. `stages=False` leaves out the gauge of fetch stages."""
    capture = captured(name)
    mode = {"pd-pull": "pull", "pd-push": "push"}.get(name[:7], "colocated")
    roles = {"P": "prefill", "D": "decode"} if mode != "colocated" else {"D": "colocated"}
    prompt, output = capture["requests"][0][3], capture["requests"][0][4]
    cell = {"cell": 0, "target": "default", "request_rate": capture["request_rate"], "max_concurrency": None}
    cell |= {"prompt_len": prompt, "output_len": output, "loop": "open"}
    names = ["proxy", "prefill", "decode"] if mode != "colocated" else ["colocated"]
    servers: list[dict[str, Any]] = [{"name": f"{role}-0", "role": role, "url": "http://127.0.0.1"} for role in names]
    if slots is not None:
        servers[-1]["max_num_seqs"] = slots
    deployment = {"target": "default", "engine": "vllm", "mode": mode, "servers": servers}
    plan = {"cells": [cell], "arrivals": "poisson", "burstiness": 1.0, "ignore_eos": True, "endpoint": "completions"}
    run = Run.create(path, {"pdbench": "0.1.0", "deployments": [deployment], "plan": plan})
    with run.live_path("requests", 0, 0).open("w") as rows, run.live_path("chunks", 0, 0).open("w") as chunks:
        for i, (sent, ttft, latency, tokens_in, tokens_out, gaps) in enumerate(capture["requests"]):
            times = {"intended_s": sent, "sent_s": sent, "first_token_s": sent + ttft, "last_token_s": sent + latency}
            counts = {"prompt_tokens": prompt, "output_tokens": tokens_out, "chunks": len(gaps) + 1}
            asked = {"prompt_len": prompt, "output_len": output}
            assert abs(tokens_in - prompt) < 100
            row = RequestRow(
                0, 0, "default", f"r{i}", "default", i, done_s=sent + latency, status="ok", **times, **counts, **asked
            )
            rows.write(json.dumps(request_record(row)) + "\n")
            offsets = [ttft]
            for gap in gaps:
                offsets.append(offsets[-1] + gap)
            chunks.write(json.dumps({"request_id": f"r{i}", "offset_s": offsets}) + "\n")
    with run.live_path("metrics", 0, 0).open("w") as metrics:
        for page in capture["pages"]:
            for key, role in roles.items():
                if key in page:
                    scrape = {"t": page["t"], "target": "default", "server": f"{role}-0", "role": role}
                    metrics.write(json.dumps({**scrape, "rows": list(_rows(page[key], stages))}) + "\n")
    run.seal(0, 0)
    starts = [request[0] for request in capture["requests"]]
    ends = [request[0] + request[2] for request in capture["requests"]]
    entry = {
        "cell": 0,
        "repeat": 0,
        "seed": 0,
        "state": "done",
        "start_s": min(starts) - 0.01,
        "send_end_s": max(starts),
    }
    run.document["cell_runs"].append({**entry, "end_s": max(ends), "client": {}})
    run.finish()
    run.save()
    return Run.open(path)


def _rows(page: dict[str, float], stages: bool) -> Any:
    for key, value in page.items():
        name, _, rest = key.partition("{")
        labels = json.dumps(dict(re.findall(r'(\w+)="([^"]*)"', rest)))
        if name in GAUGES:
            if stages or name not in ("num_requests_kv_fetch_by_stage", "num_requests_waiting_by_reason"):
                yield [f"vllm:{name}", GAUGES[name], "gauge", "0", labels, value]
        elif name in COUNTERS:
            yield [f"vllm:{name}", COUNTERS[name], "counter", "0", labels, value]
        else:
            base, _, kind = name.rpartition("_")
            if base in HISTOGRAMS and kind in ("sum", "count"):
                yield [f"vllm:{name}", HISTOGRAMS[base], kind, "0", labels, value]
