"""One pull deployment, its API and its counters."""

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from pdbench.testbed import truth
from pdbench.testbed.launch import Running, running
from pdbench.testbed.settings import Settings
from tests.testbed.conftest import eventually, page, value
from tests.testbed.testbed_client import MODEL, body, ids, one


@pytest.fixture(scope="module")
def pull() -> Iterator[Running]:
    with running(Settings(mode="pull").on_free_ports()) as deployment:
        yield deployment


def get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=10) as response:
        return json.load(response)


def test_one_stream_end_to_end(pull: Running) -> None:
    prefill, decode = pull.prefill_urls[0], pull.decode_urls[0]
    assert pull.proxy_url is not None
    before = {n: value(decode, f"vllm:{n}") for n in ("nixl_bytes_transferred_sum", "generation_tokens_total")}
    seen = one(pull.proxy_url, body(ids(1000, 1), 12), "first")
    assert (seen.status, len(seen.times), seen.events[-1]) == (200, 12, "[DONE]")
    chunk, last, usage = (json.loads(seen.events[i]) for i in (0, -3, -2))
    assert chunk["id"] == "cmpl-first" and chunk["choices"][0]["finish_reason"] is None and "usage" not in chunk
    assert last["choices"][0]["finish_reason"] == "length"
    assert usage["choices"] == []
    assert usage["usage"] == {"prompt_tokens": 1000, "total_tokens": 1012, "completion_tokens": 12}
    assert value(decode, "vllm:nixl_bytes_transferred_sum") - before["nixl_bytes_transferred_sum"] == 63 * 16 * 262144
    assert value(decode, "vllm:generation_tokens_total") - before["generation_tokens_total"] == 12
    assert value(decode, "vllm:prompt_tokens_by_source_total", 'source="local_compute"') == 0
    assert value(prefill, "vllm:nixl_bytes_transferred_count") == 0
    assert value(prefill, "vllm:kv_cache_usage_perc") == 0


def test_the_truth_log_has_every_stage_in_order(pull: Running) -> None:
    assert pull.proxy_url is not None
    one(pull.proxy_url, body(ids(500, 2), 5), "stages")
    eventually(lambda: truth.read(pull.log_dir)["requests"].get("stages", {}).keys() >= {"proxy", "prefill", "decode"})
    rows = truth.read(pull.log_dir)["requests"]["stages"]
    decode = rows["decode"]
    stages = "received queued load_start post_start post_end transfer_start transfer_end noticed admitted"
    instants = [decode[name] for name in f"{stages} first_token last_token".split()]
    assert instants == sorted(instants)
    assert rows["proxy"]["received"] < rows["prefill"]["received"] < rows["proxy"]["decode_sent"] < decode["received"]
    assert decode["first_token"] <= decode["first_token_written"] <= rows["proxy"]["first_byte"] + 1
    assert (decode["output_tokens"], decode["external_tokens"], decode["status"]) == (5, 500, "length")


def test_chat_names_the_role_before_the_first_token(pull: Running) -> None:
    assert pull.proxy_url is not None
    messages = [{"role": "user", "content": "one two three"}, {"role": "user", "content": "four"}]
    chat = {**body(None, 3), "messages": messages, "max_completion_tokens": 3}
    del chat["prompt"], chat["max_tokens"]
    seen = one(pull.proxy_url, chat, "talk", path="/v1/chat/completions")
    first, second = (json.loads(event) for event in seen.events[:2])
    assert first["id"] == "chatcmpl-talk"
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert second["choices"][0]["delta"]["content"].strip()
    assert json.loads(seen.events[-2])["usage"]["prompt_tokens"] == 4


def test_continuous_usage_counts_along(pull: Running) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    seen = one(pull.decode_urls[0], body("a text of five words", 4, stream_options=options))
    counts = [json.loads(event)["usage"]["completion_tokens"] for event in seen.events[:-1]]
    assert counts == [1, 2, 3, 4, 4]


def test_without_streaming_one_json_object(pull: Running) -> None:
    seen = one(pull.decode_urls[0], {**body("x y", 6), "stream": False})
    assert seen.body["usage"]["completion_tokens"] == 6 and seen.body["choices"][0]["finish_reason"] == "length"
    assert len(seen.body["choices"][0]["text"].split()) == 6


def test_real_ends_come_early_and_repeat(pull: Running) -> None:
    asked = {**body("x y", 4000), "stream": False, "ignore_eos": False}
    lengths = [one(pull.decode_urls[0], asked, "same-id").body for _ in range(2)]
    assert lengths[0]["choices"][0]["finish_reason"] == "stop"
    assert lengths[0]["usage"] == lengths[1]["usage"]


def test_prefill_describes_its_blocks_as_vllm_does(pull: Running) -> None:
    prefill = pull.prefill_urls[0]
    asked = {**body(ids(100, 3), 1), "stream": False, "kv_transfer_params": {"do_remote_decode": True}}
    answer = one(prefill, asked, "hop").body["kv_transfer_params"]
    assert set(answer) == {
        "do_remote_prefill", "do_remote_decode", "remote_block_ids", "remote_engine_id", "remote_request_id",
        "remote_host", "remote_port", "tp_size", "dcp_size", "pp_size", "remote_num_tokens",
        "remote_blocks_expiry_time", "transfer_mode", "remote_prefill_cached_tokens",
    }  # fmt: skip
    assert answer["transfer_mode"] == "pull" and len(answer["remote_block_ids"][0]) == 7
    assert answer["remote_request_id"].startswith("cmpl-hop-0-")
    assert value(prefill, "vllm:kv_cache_usage_perc") > 0  # pinned, though nothing runs or waits
    assert one(pull.decode_urls[0], body(ids(100, 3), 2, kv_transfer_params=answer), "hop").times
    assert value(prefill, "vllm:kv_cache_usage_perc") == 0


def test_a_repeated_prompt_hits_the_prefix_cache_of_prefill(pull: Running) -> None:
    prefill = pull.prefill_urls[0]
    asked = {**body(ids(4096, 4), 1), "stream": False}
    one(prefill, asked, "cold")
    before = value(prefill, "vllm:prefix_cache_hits_total")
    one(prefill, asked, "warm")
    assert value(prefill, "vllm:prefix_cache_hits_total") - before == 4080  # all full blocks but the last token's
    rows = truth.read(pull.log_dir)["requests"]
    times = {n: rows[n]["prefill"]["prefill_end"] - rows[n]["prefill"]["prefill_start"] for n in ("cold", "warm")}
    assert times == pytest.approx({"cold": 0.015, "warm": 0.015 * 16 / 4096})


@pytest.mark.parametrize(
    ("change", "status", "text"),
    [
        ({"prompt": [300] * 40000}, 400, "maximum context length is 32768 tokens. However, your prompt contains 40000"),
        ({"prompt": [300, 151936]}, 400, "Token id 151936 is out of vocabulary"),
        ({"prompt": [-1]}, 400, "Token id -1 is out of vocabulary"),
        ({"prompt": []}, 400, "must be provided"),
        ({"prompt": [[300], [301]]}, 400, "one prompt a request"),
        ({"prompt": [300, "x"]}, 400, "one prompt a request"),
        ({"max_tokens": 0}, 400, "max_tokens must be at least 1, got 0."),
        ({"model": "nope"}, 404, "The model `nope` does not exist. Valid aliases: simulated-qwen3-32b."),
        ({"kv_transfer_params": "x"}, 400, "JSON objects"),
    ],
)
def test_what_is_refused_is_refused_as_vllm_does(pull: Running, change: dict[str, Any], status: int, text: str) -> None:
    for url in (pull.decode_urls[0], pull.proxy_url):
        assert url is not None
        if url == pull.proxy_url and ("max_tokens" in change or "kv_transfer_params" in change):
            continue  # the proxy sets these for prefill
        seen = one(url, {**body([300], 4), **change})
        assert seen.status == status
        assert text in seen.body["error"]["message"] and seen.body["error"]["code"] == status


def test_more_tokens_than_fit_are_silently_not_generated(pull: Running) -> None:
    seen = one(pull.decode_urls[0], {**body([300] * 32764, 100), "stream": False})
    assert (seen.status, seen.body["usage"]["completion_tokens"]) == (200, 4)


def test_what_is_not_json_is_a_400(pull: Running) -> None:
    assert pull.proxy_url is not None
    request = urllib.request.Request(f"{pull.proxy_url}/v1/completions", data=b"hello", method="POST")
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request, timeout=10)
    assert refused.value.code == 400
    refused.value.close()


def test_the_servers_say_what_they_are(pull: Running) -> None:
    assert pull.proxy_url is not None
    for url in (pull.proxy_url, *pull.prefill_urls, *pull.decode_urls):
        assert get(f"{url}/version")["version"] == "0.32.0+pdbench.testbed"
        model = get(f"{url}/v1/models")["data"][0]
        assert (model["id"], model["max_model_len"]) == (MODEL, 32768)
        assert urllib.request.urlopen(f"{url}/health", timeout=10).status == 200
    info = get(f"{pull.decode_urls[0]}/server_info?config_format=json")["vllm_config"]
    assert info["scheduler_config"]["max_num_seqs"] == 8
    assert info["kv_transfer_config"]["kv_connector"] == "NixlConnector"
    assert info["kv_transfer_config"]["kv_role"] == "kv_consumer"
    with pytest.raises(urllib.error.HTTPError) as missing:
        page(pull.proxy_url)
    assert missing.value.code == 404
    missing.value.close()
