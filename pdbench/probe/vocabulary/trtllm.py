"""TensorRT-LLM (`trtllm-serve`: `trtllm_`; behind Dynamo: `trtllm:`); names read, not seen on a running server."""

from __future__ import annotations

from pdbench.probe.vocabulary.series import Vocabulary, counter, gauge, histogram

TRTLLM = Vocabulary(
    name="trtllm",
    marks=("trtllm:", "trtllm_"),
    model_labels=("model_name",),
    series=(
        gauge("running", "trtllm:num_requests_running"),
        gauge("waiting", "trtllm:num_requests_waiting"),
        gauge("kv_cache_usage", "trtllm:kv_cache_utilization"),
        gauge("max_num_seqs", "trtllm:max_num_active_requests", edge_only=True),
        gauge("block_size", "trtllm:kv_cache_tokens_per_block", edge_only=True),
        counter("prompt_tokens", "trtllm:prompt_tokens"),
        counter("generation_tokens", "trtllm:generation_tokens"),
        counter("cached_tokens", "trtllm:prompt_cached_tokens"),
        counter("request_success", "trtllm:request_success"),
        histogram("ttft_s", "trtllm:time_to_first_token_seconds"),
        histogram("itl_s", "trtllm:time_per_output_token_seconds"),
        histogram("e2e_s", "trtllm:e2e_request_latency_seconds"),
        histogram("queue_s", "trtllm:request_queue_time_seconds"),
        histogram("prefill_s", "trtllm:request_prefill_time_seconds"),
        histogram("decode_s", "trtllm:request_decode_time_seconds"),
        histogram("kv_transfer_s", "trtllm:kv_transfer_latency_seconds"),
    ),
)
