"""vLLM, from the last V0 names to 0.32; `vllm_` and `ray_vllm_` forms of a name (Ray) are accepted by the reader.

Counters are shown as `X_total`. Two names look alike: `time_per_output_token_seconds` was the gap between tokens (now
`inter_token_latency_seconds`), `request_time_per_output_token_seconds` is newer and a mean per request.
"""

from __future__ import annotations

from pdbench.probe.vocabulary.series import Series, Vocabulary, counter, gauge, histogram

# Where OffloadingConnector's older series say that KV went, for a load and for a save; the second is llm-d's backend.
_WAYS = {"load": ("CPU_to_GPU", "SHARED_STORAGE_to_GPU"), "store": ("GPU_to_CPU", "GPU_to_SHARED_STORAGE")}


def _older(canonical: str, kind: str, name: str, now: str) -> tuple[Series, ...]:
    """A series whose direction was a label: bytes and seconds as today, of the load and of the save."""
    return tuple(
        Series(
            canonical.format(way),
            kind,
            (f"vllm:kv_offload_{name}",),
            where=(("transfer_type", way_said),),
            add=(("medium", "shared storage"),) if "SHARED" in way_said else (),
            before=f"vllm:kv_offload_{now.format(way)}",
        )
        for way, said in _WAYS.items()
        for way_said in said
    )


VLLM = Vocabulary(
    name="vllm",
    marks=("vllm:", "vllm_", "ray_vllm"),
    rank_labels=("engine",),
    model_labels=("model_name",),
    series=(
        gauge("running", "vllm:num_requests_running"),
        gauge("waiting", "vllm:num_requests_waiting"),
        gauge("waiting_by_reason", "vllm:num_requests_waiting_by_reason"),
        gauge("kv_fetch_stage", "vllm:num_requests_kv_fetch_by_stage"),
        gauge("kv_cache_usage", "vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
        gauge("cache_config", "vllm:cache_config_info", edge_only=True),
        counter("preemptions", "vllm:num_preemptions"),
        counter("prompt_tokens", "vllm:prompt_tokens"),
        counter("prompt_tokens_by_source", "vllm:prompt_tokens_by_source"),
        counter("generation_tokens", "vllm:generation_tokens"),
        counter("request_success", "vllm:request_success"),
        counter("prefix_cache_queries", "vllm:prefix_cache_queries", "vllm:gpu_prefix_cache_queries"),
        counter("prefix_cache_hits", "vllm:prefix_cache_hits", "vllm:gpu_prefix_cache_hits"),
        counter("external_prefix_cache_queries", "vllm:external_prefix_cache_queries"),
        counter("external_prefix_cache_hits", "vllm:external_prefix_cache_hits"),
        counter("admission_rejections", "vllm:admission_rejections"),
        histogram("ttft_s", "vllm:time_to_first_token_seconds"),
        histogram("itl_s", "vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"),
        histogram("tpot_s", "vllm:request_time_per_output_token_seconds"),
        histogram("e2e_s", "vllm:e2e_request_latency_seconds"),
        histogram("queue_s", "vllm:request_queue_time_seconds"),
        histogram("inference_s", "vllm:request_inference_time_seconds"),
        histogram("prefill_s", "vllm:request_prefill_time_seconds"),
        histogram("decode_s", "vllm:request_decode_time_seconds"),
        histogram("nixl_xfer_s", "vllm:nixl_xfer_time_seconds"),
        histogram("nixl_post_s", "vllm:nixl_post_time_seconds"),
        histogram("nixl_nbytes", "vllm:nixl_bytes_transferred"),
        histogram("nixl_descriptors", "vllm:nixl_num_descriptors"),
        counter("nixl_failed_transfers", "vllm:nixl_num_failed_transfers"),
        counter("nixl_failed_notifications", "vllm:nixl_num_failed_notifications"),
        counter("nixl_kv_expired", "vllm:nixl_num_kv_expired_reqs"),
        counter("nixl_used_after_expiry", "vllm:nixl_num_notifications_after_expiry"),
        # Other connectors that show something of their own; MoRI-IO and Mooncake P/D have log lines at most, FlexKV a
        # page of its own.
        counter("offload_load_nbytes", "vllm:kv_offload_load_bytes"),  # also of SimpleCPUOffloadConnector
        counter("offload_load_s", "vllm:kv_offload_load_time"),
        histogram("offload_load_each_nbytes", "vllm:kv_offload_load_size"),
        counter("offload_store_nbytes", "vllm:kv_offload_store_bytes"),
        counter("offload_store_s", "vllm:kv_offload_store_time"),
        histogram("offload_store_each_nbytes", "vllm:kv_offload_store_size"),
        *_older("offload_{}_nbytes", "counter", "total_bytes", "{}_bytes"),
        *_older("offload_{}_s", "counter", "total_time", "{}_time"),
        *_older("offload_{}_each_nbytes", "histogram", "size", "{}_size"),
        counter("offload_no_room", "vllm:kv_offload_allocation_failure"),
        counter("offload_tier_queries", "vllm:kv_offload_tiering_chunk_queries"),
        counter("offload_tier_hits", "vllm:kv_offload_tiering_chunk_hits"),
        counter("offload_tier_read_nbytes", "vllm:kv_offload_tiering_read_bytes"),
        counter("offload_tier_read_s", "vllm:kv_offload_tiering_read_time"),
        counter("offload_tier_read_failures", "vllm:kv_offload_tiering_promotion_job_failures"),
        counter("offload_tier_write_nbytes", "vllm:kv_offload_tiering_write_bytes"),
        counter("offload_tier_write_s", "vllm:kv_offload_tiering_write_time"),
        counter("offload_tier_write_failures", "vllm:kv_offload_tiering_cascade_job_failures"),
        histogram("store_operation_s", "vllm:mooncake_store_operation_time_seconds"),
        counter("store_nbytes", "vllm:mooncake_store_operation_bytes"),
        counter("store_failed_keys", "vllm:mooncake_store_operation_failed_keys"),
        counter("lmcache_requested_tokens", "lmcache:num_requested_tokens"),  # LMCache's own, on the same page
        counter("lmcache_hit_tokens", "lmcache:num_hit_tokens"),
        histogram("lmcache_retrieve_s", "lmcache:time_to_retrieve"),
        histogram("lmcache_store_s", "lmcache:time_to_store"),
        histogram("hf3fs_load_s", "vllm:hf3fs_load_duration_seconds"),
        histogram("hf3fs_save_s", "vllm:hf3fs_save_duration_seconds"),
        counter("hf3fs_failed_loads", "vllm:hf3fs_num_failed_load"),
        counter("hf3fs_failed_saves", "vllm:hf3fs_num_failed_save"),
        counter("hisparse_hits", "vllm:hisparse_cache_hits"),  # of rows wanted in its buffers on the GPU
        counter("hisparse_misses", "vllm:hisparse_cache_misses"),
        counter("hisparse_load_nbytes", "vllm:hisparse_host_to_device_bytes"),
        Series("params_n", "histogram", ("vllm:request_params_n",), edge_only=True),
    ),
)
