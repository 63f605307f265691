"""What /server_info answers: the parts of vLLM's configuration that a client looks for."""

from typing import Any

from pdbench.testbed.metrics_page import cache_config
from pdbench.testbed.settings import Place, Settings


def server_info(settings: Settings, place: Place) -> dict[str, Any]:
    """Same keys and nesting as vLLM 0.32, only fewer of them."""
    prefill = place.role == "prefill"
    kv_transfer: dict[str, Any] | None = None
    if place.transfer:
        kv_transfer = {
            "kv_connector": "NixlPushConnector" if place.transfer == "push" else "NixlConnector",
            "engine_id": place.name,
            "kv_buffer_device": "cuda",
            "kv_role": "kv_producer" if prefill else "kv_consumer",
            "kv_port": 14579,
            "kv_connector_extra_config": {"kv_lease_duration": settings.lease_s},
            "kv_connector_module_path": None,
            "enable_permute_local_kv": False,
            "kv_load_failure_policy": "fail",
        }
    return {
        "vllm_config": {
            "model_config": {
                "model": settings.model,
                "served_model_name": settings.model,
                "max_model_len": settings.max_model_len,
                "dtype": "torch.bfloat16",
            },
            "cache_config": cache_config(settings, place.role),
            "parallel_config": {
                "tensor_parallel_size": settings.tensor_parallel,
                "pipeline_parallel_size": 1,
                "data_parallel_size": 1,
            },
            "scheduler_config": {
                "max_num_seqs": settings.prefill_max_num_seqs if prefill else settings.max_num_seqs,
                "max_num_active_seqs": None,
                "max_num_batched_tokens": settings.max_num_batched_tokens,
                "max_num_queued_reqs": (
                    settings.prefill_max_num_queued_reqs if prefill else settings.max_num_queued_reqs
                )
                or None,
                "max_num_queued_tokens": None,
                "enable_chunked_prefill": True,
                "policy": "fcfs",
            },
            "kv_transfer_config": kv_transfer,
        },
        "vllm_env": {"VLLM_SERVER_DEV_MODE": True},
        "system_env": {"simulated": "SIMULATED by pdbench testbed"},
    }
