"""A push deployment: who counts what, and how one request goes."""

import pytest

from pdbench.testbed import truth
from tests.testbed.conftest import Start, value
from tests.testbed.testbed_client import body, ids, one


def test_push_writes_from_prefill_and_counts_there(start: Start) -> None:
    push = start(mode="push", tensor_parallel=8)
    prefill, decode = push.prefill_urls[0], push.decode_urls[0]
    seen = one(push.entry_url, body(ids(4000, 1), 20), "a")
    assert (seen.status, len(seen.times), seen.events[-1]) == (200, 20, "[DONE]")
    assert value(prefill, "vllm:nixl_bytes_transferred_count") == 8  # one handle for each rank
    assert value(prefill, "vllm:nixl_bytes_transferred_sum") == 250 * 16 * 262144
    assert value(decode, "vllm:nixl_bytes_transferred_count") == 0
    assert value(decode, "vllm:prompt_tokens_by_source_total", 'source="external_kv_transfer"') == 4000
    row = truth.read(push.log_dir)["requests"]["a"]["decode"]
    assert row["load_start"] < row["post_start"]  # decode was there before prefill was done
    assert row["post_end"] - row["post_start"] == pytest.approx(0.0083 + 4000 * 3.2e-6)
    assert row["noticed"] - row["transfer_end"] < 0.0011
    assert row["last_token"] - row["first_token"] == pytest.approx(19 * 0.0057, abs=0.02)
    assert value(prefill, "vllm:kv_cache_usage_perc") == 0
    time_s = value(prefill, "vllm:nixl_xfer_time_seconds_sum") / 8
    assert time_s == pytest.approx(row["transfer_end"] - row["post_start"])
    chat = {"messages": [{"role": "user", "content": "hello there"}], "max_tokens": 2, "ignore_eos": True}
    assert one(push.entry_url, chat, "b", path="/v1/chat/completions").body["usage"]["completion_tokens"] == 2


def test_in_push_the_transfer_stage_covers_the_prefill(start: Start) -> None:
    import threading
    import time

    push = start(mode="push", prefill_ms_per_token=0.5)
    decode = push.decode_urls[0]
    sender = threading.Thread(target=one, args=(push.entry_url, body(ids(2000, 1), 2), "slow"))
    sender.start()
    time.sleep(0.5)  # of the 1 s that prefill takes
    assert value(decode, "vllm:num_requests_kv_fetch_by_stage", 'stage="in_progress"') == 1
    assert value(decode, "vllm:num_requests_waiting_by_reason", 'reason="deferred"') == 1
    assert value(decode, "vllm:num_requests_waiting") == 1
    assert value(push.prefill_urls[0], "vllm:num_requests_running") == 1
    sender.join()
    assert value(decode, "vllm:num_requests_waiting") == 0
