"""Planted faults and unhappy ends, with real processes."""

import asyncio
import itertools
import json
import os
import signal
import threading
import time

import aiohttp
import pytest

from pdbench.testbed import truth
from tests.testbed.conftest import Start, eventually, value
from tests.testbed.testbed_client import body, ids, load, one

pytestmark = pytest.mark.alone


def two_hops(deployment: object, prompt: list[int], wait_s: float) -> None:
    """What a proxy does, with a pause between the legs."""
    prefill, decode = deployment.prefill_urls[0], deployment.decode_urls[0]  # type: ignore[attr-defined]
    asked = {**body(prompt, 1), "stream": False, "kv_transfer_params": {"do_remote_decode": True}}
    params = one(prefill, asked, "hop").body["kv_transfer_params"]
    time.sleep(wait_s)
    assert len(one(decode, body(prompt, 3, kv_transfer_params=params), "hop").times) == 3


def test_a_lease_that_ends_shows_on_prefill_only(start: Start) -> None:
    pull = start(lease_s=0.3)
    prefill, decode = pull.prefill_urls[0], pull.decode_urls[0]
    two_hops(pull, ids(200, 1), wait_s=0.8)
    assert value(prefill, "vllm:nixl_num_kv_expired_reqs_total") == 1
    assert value(prefill, "vllm:kv_cache_usage_perc") == 0
    eventually(lambda: value(prefill, "vllm:nixl_num_notifications_after_expiry_total") == 1)
    assert value(decode, "vllm:nixl_num_failed_transfers_total") == 0  # decode noticed nothing
    assert [e["request_id"] for e in truth.read(pull.log_dir)["events"] if e["event"] == "expired"] == ["hop"]


def test_heartbeats_keep_a_lease_while_the_request_waits_for_a_slot(start: Start) -> None:
    pull = start(lease_s=0.6, max_num_seqs=1)
    seen = load(pull.entry_url, [0.0, 0.05], prompt=100, output=350)  # the first holds the slot for 2 s
    assert [len(s.times) for s in seen] == [350, 350]
    assert seen[1].ttft > 1.5
    assert value(pull.prefill_urls[0], "vllm:nixl_num_kv_expired_reqs_total") == 0


@pytest.mark.parametrize(("mode", "decode_mode"), [("push", "pull"), ("pull", "push")])
def test_mixed_modes_fail_at_the_first_request(start: Start, mode: str, decode_mode: str) -> None:
    mixed = start(mode=mode, decode_mode=decode_mode)
    seen = one(mixed.entry_url, body(ids(100, 1), 8), "m")
    assert seen.status == 200 and seen.times == []
    assert json.loads(seen.events[0]) == {
        "error": {"message": "Internal server error", "type": "InternalServerError", "param": None, "code": 500}
    }
    assert seen.events[1] == "[DONE]"
    assert one(mixed.entry_url, {**body(ids(100, 1), 8), "stream": False}, "n").status == 500
    decode = mixed.decode_urls[0]
    assert value(decode, "vllm:nixl_num_failed_transfers_total") >= 2
    assert value(decode, "vllm:request_success_total", 'finished_reason="error"') == 2
    assert value(decode, "vllm:kv_cache_usage_perc") == 0


@pytest.mark.parametrize("mode", ["pull", "push"])
def test_dropped_params_make_decode_compute_the_prompt(start: Start, mode: str) -> None:
    dropping = start(mode=mode, drop_kv_params=True)
    seen = one(dropping.entry_url, body(ids(1600, 1), 4), "d")
    assert len(seen.times) == 4
    decode = dropping.decode_urls[0]
    assert value(decode, "vllm:prompt_tokens_by_source_total", 'source="local_compute"') == 1600
    assert value(decode, "vllm:prompt_tokens_by_source_total", 'source="external_kv_transfer"') == 0
    assert value(decode, "vllm:nixl_bytes_transferred_count") == 0
    row = truth.read(dropping.log_dir)["requests"]["d"]["decode"]
    assert row["prefill_end"] - row["prefill_start"] == pytest.approx(1600 * 60 / 16384 / 1000)


@pytest.mark.parametrize("mode", ["pull", "push", "colocated"])
def test_a_client_that_leaves_frees_slots_and_blocks(start: Start, mode: str) -> None:
    deployment = start(mode=mode, max_num_seqs=1)
    server = (deployment.decode_urls or deployment.server_urls)[0]

    async def leave() -> None:
        async with aiohttp.ClientSession() as session:
            url = f"{deployment.entry_url}/v1/completions"
            runs = await session.post(url, json=body(ids(64, 1), 2000))
            await runs.content.readline()  # it has the slot
            waits = await session.post(url, json=body(ids(64, 2), 2000))
            for answer in (runs, waits):
                answer.close()

    asyncio.run(leave())
    eventually(lambda: value(server, "vllm:request_success_total", 'finished_reason="abort"') == 2)
    assert value(server, "vllm:num_requests_running") == value(server, "vllm:num_requests_waiting") == 0
    assert value(server, "vllm:kv_cache_usage_perc") == 0
    if deployment.prefill_urls:
        eventually(lambda: value(deployment.prefill_urls[0], "vllm:kv_cache_usage_perc") == 0)
    assert len(one(deployment.entry_url, body(ids(64, 3), 3)).times) == 3


def test_an_admission_limit_answers_503_and_counts(start: Start) -> None:
    pull = start(max_num_seqs=1, max_num_queued_reqs=1)
    seen = load(pull.entry_url, [0.0, 0.15, 0.3, 0.35], prompt=32, output=150)
    assert sorted(s.status for s in seen) == [200, 200, 503, 503]
    decode = pull.decode_urls[0]
    assert value(decode, "vllm:admission_rejections_total", 'reason="max_num_queued_reqs"') == 2
    assert next(s for s in seen if s.status == 503).body["error"]["code"] == 503


def test_every_third_request_ends_in_an_error_event(start: Start) -> None:
    faulty = start(mode="colocated", error_every=3, error_after_tokens=5)
    seen = [one(faulty.entry_url, body([300], 8), f"e{i}") for i in range(3)]
    assert [len(s.times) for s in seen] == [8, 8, 4]
    assert json.loads(seen[2].events[-2])["error"]["code"] == 500


def test_a_stall_stops_all_tokens_once(start: Start) -> None:
    stalled = start(mode="colocated", stall_at_s=0.3, stall_s=0.7)
    seen = one(stalled.entry_url, body([300], 100), "s")
    gaps = sorted(b - a for a, b in itertools.pairwise(seen.times))
    assert gaps[-1] == pytest.approx(0.7, abs=0.1) and gaps[-2] < 0.2
    assert [e["event"] for e in truth.read(stalled.log_dir)["events"] if e["event"] == "stall"] == ["stall"]


def test_a_key_is_asked_for_under_v1_only(start: Start) -> None:
    locked = start(api_key="secret")
    assert one(locked.entry_url, body([300], 1)).status == 401
    assert one(locked.entry_url, body([300], 1), headers={"Authorization": "Bearer no"}).body == {
        "error": "Unauthorized"
    }
    assert len(one(locked.entry_url, body([300], 2), headers={"Authorization": "Bearer secret"}).times) == 2
    assert value(locked.decode_urls[0], "vllm:num_requests_running") == 0


def test_the_proxy_delay_is_added_and_requests_go_round(start: Start) -> None:
    slow = start(proxy_ms=150.0, prefills=2, decodes=2)
    seen = [one(slow.entry_url, body([300] * 20, 2), f"p{i}") for i in range(4)]
    assert all(s.ttft > 0.15 for s in seen)
    rows = truth.read(slow.log_dir)["requests"]
    assert [rows[f"p{i}"]["decode"]["server"] for i in range(4)] == ["decode-0", "decode-1"] * 2
    assert [rows[f"p{i}"]["prefill"]["server"] for i in range(4)] == ["prefill-0", "prefill-1"] * 2


def test_dead_servers(start: Start) -> None:
    pull = start(step_base_ms=20.0)
    seen: list[object] = []

    def broken() -> None:
        try:
            seen.append(one(pull.entry_url, body([300], 500), "cut"))
        except aiohttp.ClientError as error:
            seen.append(error)

    sender = threading.Thread(target=broken)
    sender.start()
    eventually(lambda: value(pull.decode_urls[0], "vllm:num_requests_running") == 1)
    os.kill(pull.pids["decode-0"], signal.SIGKILL)
    sender.join()
    assert isinstance(seen[0], aiohttp.ClientError)  # a broken stream, not a clean end
    answer = one(pull.entry_url, body([300], 5), "no-decode")
    assert answer.status == 502 and "SIMULATED" in answer.body["error"]["message"]
    os.kill(pull.pids["prefill-0"], signal.SIGKILL)
    eventually(lambda: one(pull.entry_url, body([300], 5), "no-prefill").status == 502)
    assert "prefill" in one(pull.entry_url, body([300], 5), "no-prefill").body["error"]["message"]


def test_decode_fails_a_request_whose_prefill_died_before_the_read(start: Start) -> None:
    pull = start()
    asked = {**body(ids(100, 1), 1), "stream": False, "kv_transfer_params": {"do_remote_decode": True}}
    params = one(pull.prefill_urls[0], asked, "x").body["kv_transfer_params"]
    os.kill(pull.pids["prefill-0"], signal.SIGKILL)
    time.sleep(0.1)
    answer = one(pull.decode_urls[0], {**body(ids(100, 1), 3, kv_transfer_params=params), "stream": False}, "x")
    assert answer.status == 500
    unknown = {**params, "remote_engine_id": "somebody-else"}
    assert one(pull.decode_urls[0], {**body(ids(100, 1), 3, kv_transfer_params=unknown), "stream": False}).status == 500
