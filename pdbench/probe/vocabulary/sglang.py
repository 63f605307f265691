"""SGLang 0.5: enough to see queues, transfers and latencies; names read from its release, not from a running pair.

Its queues are disjoint: a request in the decode server's prealloc queue (waiting for room, what vLLM calls
`waiting_to_start`) or transfer queue is not in `num_queue_reqs`. Every tensor-parallel rank may repeat a gauge.
"""

from __future__ import annotations

from pdbench.probe.vocabulary.series import Vocabulary, counter, gauge, histogram


def _stage(name: str) -> tuple[tuple[str, str], ...]:
    return (("stage", name),)


SGLANG = Vocabulary(
    name="sglang",
    marks=("sglang:", "sglang_"),
    rank_labels=("dp_rank",),
    model_labels=("model_name",),
    copy_labels=("tp_rank", "pp_rank", "moe_ep_rank"),
    series=(
        gauge("running", "sglang:num_running_reqs"),
        gauge("waiting", "sglang:num_queue_reqs"),
        gauge("kv_fetch_stage", "sglang:num_decode_prealloc_queue_reqs", add=_stage("waiting_to_start")),
        gauge("kv_fetch_stage", "sglang:num_decode_transfer_queue_reqs", add=_stage("in_progress")),
        gauge("prefill_stage", "sglang:num_prefill_bootstrap_queue_reqs", add=_stage("bootstrap")),
        gauge("prefill_stage", "sglang:num_prefill_inflight_queue_reqs", add=_stage("transfer")),
        gauge("kv_cache_usage", "sglang:token_usage"),
        gauge("block_size", "sglang:page_size", edge_only=True),
        gauge("num_kv_blocks", "sglang:num_pages", edge_only=True),
        counter("preemptions", "sglang:num_retracted_requests"),
        counter("prompt_tokens", "sglang:prompt_tokens"),
        counter("generation_tokens", "sglang:generation_tokens"),
        counter("cached_tokens", "sglang:cached_tokens"),
        counter("failed_transfers", "sglang:num_transfer_failed_reqs"),
        histogram("ttft_s", "sglang:time_to_first_token_seconds"),
        histogram("itl_s", "sglang:inter_token_latency_seconds", "sglang:time_per_output_token_seconds"),
        histogram("tpot_s", "sglang:request_time_per_output_token_seconds"),
        histogram("e2e_s", "sglang:e2e_request_latency_seconds"),
        histogram("queue_s", "sglang:queue_time_seconds"),
        histogram("stage_s", "sglang:per_stage_req_latency_seconds"),
        # Of prefill, once a request on every tensor- and pipeline-parallel rank, each of its own share (in MiB).
        histogram("kv_transfer_s", "sglang:kv_transfer_latency_ms", scale=1e-3, shares=True),
        histogram("kv_transfer_nbytes", "sglang:kv_transfer_total_mb", scale=2.0**20, shares=True),
    ),
)
