"""The published case over real HTTP: 16k prompts, 128 tokens, 8 requests/s, 8 slots; about 10 s a mode.

Counted on the simulated schedule (truth log) where a noisy machine could blur it, and at the client where it matters.
"""

import pytest

from pdbench.testbed import truth
from tests.testbed.conftest import Start, value
from tests.testbed.testbed_client import load

pytestmark = pytest.mark.alone


@pytest.mark.parametrize(("mode", "tpot_ms", "growth_ms"), [("pull", 10.3, (38, 52)), ("push", 6.9, (-2, 2))])
def test_the_reference_case(start: Start, mode: str, tpot_ms: float, growth_ms: tuple[float, float]) -> None:
    count, rate = 60, 8.0
    for _ in range(3):
        deployment = start(mode=mode)
        seen = load(deployment.entry_url, [i / rate for i in range(count)], prompt=16384, output=128)
        logs = truth.read(deployment.log_dir)
        if not any(event["event"] == "overrun" for event in logs["events"]):
            break  # otherwise the machine froze for a quarter of a second or more, and the run says nothing
    assert all(s.status == 200 and len(s.times) == 128 for s in seen)
    rows = [logs["requests"][s.request_id]["decode"] for s in seen]
    simulated_ms = 1000 * sum((r["last_token"] - r["first_token"]) / 127 for r in rows) / count
    assert simulated_ms == pytest.approx(tpot_ms, rel=0.04)
    client_ms = 1000 * sum(s.tpot for s in seen) / count
    assert client_ms == pytest.approx(simulated_ms, rel=0.03)
    growth = 1000 * (seen[-1].ttft - seen[8].ttft) / (count - 9)
    assert growth_ms[0] < growth < growth_ms[1]
    decode = deployment.decode_urls[0]
    assert value(decode, "vllm:generation_tokens_total") == count * 128
    assert value(decode, "vllm:prompt_tokens_by_source_total", 'source="external_kv_transfer"') == count * 16384
    writer = decode if mode == "pull" else deployment.prefill_urls[0]
    assert value(writer, "vllm:nixl_bytes_transferred_sum") == count * 16384 * 262144
    queue_s = value(decode, "vllm:request_queue_time_seconds_sum")
    assert queue_s == pytest.approx(sum(r["admitted"] - r["queued"] for r in rows))
    if mode == "pull":
        assert sum(r["batch_at_admission"] == 8 for r in rows) > count / 2


def test_a_colocated_prompt_stalls_running_streams(start: Start) -> None:
    colocated = start(mode="colocated", prefill_ms_per_token=0.02)
    seen = load(colocated.entry_url, [0.0, 0.3], prompt=8192, output=120)
    rows = truth.read(colocated.log_dir)["requests"]
    first, second = (rows[s.request_id]["colocated"] for s in seen)
    assert first["last_token"] - first["first_token"] > 119 * 0.0057 + 8192 * 0.02 / 1000
    assert second["first_token"] - second["admitted"] == pytest.approx(8192 * 0.02 / 1000 + 0.0114, abs=0.002)
