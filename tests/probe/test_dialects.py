"""Names that an engine's series go by: TensorRT-LLM's alone and behind Dynamo, vLLM's under Ray, LMCache's."""

from __future__ import annotations

import pytest

from pdbench.probe.scrape import read_page
from pdbench.probe.vocabulary import family_names, guess_engine


@pytest.mark.parametrize("prefix", ["trtllm_", "trtllm:"])
def test_tensorrt_llm_alone_and_behind_dynamo(prefix: str) -> None:
    labels = '{model_name="m",engine_type="trtllm"}'
    told = {"num_requests_running": 3, "num_requests_waiting": 4, "kv_cache_utilization": 0.5, "prompt_tokens_total": 9}
    told |= {"request_queue_time_seconds_sum": 1.5, "kv_transfer_latency_seconds_count": 2, "iteration_latency_sum": 7}
    page = "".join(f"{prefix}{name}{labels} {value}\n" for name, value in told.items()).encode()
    assert guess_engine(family_names(page)) == "trtllm"
    said = {(canonical, kind): value for _, canonical, kind, _, _, value in read_page("trtllm", page).rows}
    assert said == {
        ("running", "gauge"): 3, ("waiting", "gauge"): 4, ("kv_cache_usage", "gauge"): 0.5,
        ("prompt_tokens", "counter"): 9, ("queue_s", "sum"): 1.5, ("kv_transfer_s", "count"): 2,
    }  # fmt: skip


@pytest.mark.parametrize("prefix", ["vllm:", "vllm_", "ray_vllm_", "ray_vllm:"])
def test_vllm_under_ray_by_all_its_names(prefix: str) -> None:
    labels = '{ReplicaId="a#b",WorkerId="7",engine="1",model_name="m"}'
    page = f"{prefix}num_requests_running{labels} 2\n{prefix}nixl_xfer_time_seconds_sum{labels} 0.5\n".encode()
    assert guess_engine(family_names(page)) == "vllm"
    said = {(canonical, kind, engine): value for _, canonical, kind, engine, _, value in read_page("vllm", page).rows}
    assert said == {("running", "gauge", "1"): 2, ("nixl_xfer_s", "sum", "1"): 0.5}


def test_what_lmcache_shows_beside_vllm() -> None:
    page = (
        b'lmcache:num_hit_tokens_total{model_name="m",worker_id="0",role="worker"} 42\nlmcache:time_to_retrieve_sum 2\n'
    )
    assert {(c, k): v for _, c, k, _, _, v in read_page("vllm", page).rows} == {
        ("lmcache_hit_tokens", "counter"): 42,
        ("lmcache_retrieve_s", "sum"): 2,
    }
