"""Names that an engine's series go by: TensorRT-LLM's alone and behind Dynamo, vLLM's under Ray, older, LMCache's."""

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


def test_sglangs_ranks_have_shares_of_a_transfer_and_copies_of_the_rest() -> None:
    """0.5.23: two data-parallel ranks, each of two tensor-parallel ones and two stages of the pipeline."""
    page = b"".join(
        b'sglang:%s{dp_rank="%d",engine_type="prefill",moe_ep_rank="0",pp_rank="%d",tp_rank="%d"} %d\n'
        % (name, dp, pp, 2 * dp + tp, value)
        for dp in range(2)
        for tp in range(2)
        for pp in range(2)
        for name, value in ((b"kv_transfer_total_mb_sum", 10 + dp), (b"num_transfer_failed_reqs_total", 3))
    )
    rows = read_page("sglang", page).rows
    for dp, mib in (("0", 10), ("1", 11)):
        shares = [value for _, name, _, engine, _, value in rows if (name, engine) == ("kv_transfer_nbytes", dp)]
        assert shares == [mib * 2**20] * 4
        assert [v for _, name, _, engine, _, v in rows if (name, engine) == ("failed_transfers", dp)] == [3]
    assert len({row[:5] for row in rows}) == len(rows), "one row for one series"


OLD_OFFLOAD = {"total_bytes_total": 8e9, "total_time_total": 0.5, "size_count": 40, "size_sum": 8e9}


def offload(page: bytes) -> dict[tuple[str, str, str], float]:
    return {(name, kind, labels): value for _, name, kind, _, labels, value in read_page("vllm", page).rows}


@pytest.mark.parametrize(
    ("way", "canonical", "labels"),
    [
        ("CPU_to_GPU", "load", "{}"),
        ("GPU_to_CPU", "store", "{}"),
        ("SHARED_STORAGE_to_GPU", "load", '{"medium":"shared storage"}'),
        ("GPU_to_SHARED_STORAGE", "store", '{"medium":"shared storage"}'),
    ],
)
def test_an_offloads_older_series_have_the_direction_as_a_label(way: str, canonical: str, labels: str) -> None:
    page = "".join(
        f'vllm:kv_offload_{name}{{engine="0",model_name="m",transfer_type="{way}"}} {value}\n'
        for name, value in OLD_OFFLOAD.items()
    )
    assert offload(page.encode()) == {
        (f"offload_{canonical}_nbytes", "counter", labels): 8e9,
        (f"offload_{canonical}_s", "counter", labels): 0.5,
        (f"offload_{canonical}_each_nbytes", "count", labels): 40,
        (f"offload_{canonical}_each_nbytes", "sum", labels): 8e9,
    }


def test_older_series_beside_those_that_took_their_place_count_once() -> None:
    """vLLM 0.2x shows both; a direction that nothing took yet is under its old name only."""
    labels = 'engine="0",model_name="m"'
    old = "".join(
        f'vllm:kv_offload_total_bytes_total{{{labels},transfer_type="{way}"}} {value}\n'
        for way, value in (("CPU_to_GPU", 5), ("GPU_to_CPU", 0))
    )
    both = f"{old}vllm:kv_offload_load_bytes_total{{{labels}}} 5\n".encode()
    assert offload(both) == {("offload_load_nbytes", "counter", "{}"): 5, ("offload_store_nbytes", "counter", "{}"): 0}
    (row,) = (row for row in read_page("vllm", both).rows if row[1] == "offload_load_nbytes")
    assert row[0] == "vllm:kv_offload_load_bytes_total"


def test_what_hisparse_brings_back_to_its_buffers() -> None:
    told = {"cache_hits_total": 90, "cache_misses_total": 10, "host_to_device_bytes_total": 4096, "pending_spills": 2}
    page = "".join(f'vllm:hisparse_{name}{{engine="0",model_name="m"}} {value}\n' for name, value in told.items())
    assert offload(page.encode()) == {
        ("hisparse_hits", "counter", "{}"): 90, ("hisparse_misses", "counter", "{}"): 10,
        ("hisparse_load_nbytes", "counter", "{}"): 4096,
    }  # fmt: skip
