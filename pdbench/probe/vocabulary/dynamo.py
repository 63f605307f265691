"""NVIDIA Dynamo: the frontend's page and its workers', which also show their engine's own names (`vllm:`, `sglang:`).

A prefill worker of Dynamo's mocker shows no engine names at all, so the prefill leg comes from the component's request
duration: queue + prefill + KV transfer. The router's estimate of the transfer is an upper bound that contains the
decode worker's slot wait; it has a name of its own (`est_transfer_s`) so that nobody takes it for a transfer time.
"""

from __future__ import annotations

from pdbench.probe.vocabulary.series import Vocabulary, counter, gauge, histogram

_GENERATE = (("dynamo_endpoint", "generate"),)
_PREFILL = (("dynamo_component", "prefill"), *_GENERATE)

DYNAMO = Vocabulary(
    name="dynamo",
    marks=("dynamo_",),
    model_labels=("model",),
    series=(
        gauge("frontend_stage_requests", "dynamo_frontend_stage_requests"),
        gauge("frontend_queued", "dynamo_frontend_queued_requests"),
        gauge("frontend_inflight", "dynamo_frontend_inflight_requests"),
        gauge("router_pending", "dynamo_frontend_router_queue_pending_requests"),
        histogram("frontend_ttft_s", "dynamo_frontend_time_to_first_token_seconds"),
        histogram("frontend_itl_s", "dynamo_frontend_inter_token_latency_seconds"),
        histogram("frontend_e2e_s", "dynamo_frontend_request_duration_seconds"),
        histogram("frontend_cached_tokens", "dynamo_frontend_cached_tokens"),
        histogram("frontend_prompt_tokens", "dynamo_frontend_input_sequence_tokens"),
        gauge("max_num_seqs", "dynamo_frontend_model_max_num_seqs", edge_only=True),
        gauge("num_kv_blocks", "dynamo_frontend_model_total_kv_blocks", edge_only=True),
        gauge("block_size", "dynamo_frontend_model_kv_cache_block_size", edge_only=True),
        histogram("est_transfer_s", "dynamo_component_router_kv_transfer_estimated_latency_seconds"),
        gauge("inflight", "dynamo_component_inflight_requests", where=_GENERATE),
        histogram("prefill_leg_s", "dynamo_component_request_duration_seconds", where=_PREFILL),
        counter("rejections", "dynamo_rejection_request"),
    ),
)
