"""The scheduler in virtual time: exact schedules, no processes."""

import pytest

from pdbench.testbed.request import RUNNING, WAITING
from pdbench.testbed.settings import Settings
from tests.testbed.testbed_client import poisson
from tests.testbed.testbed_virtual import Pull, engine, reference, request, run, tpot_ms

PULL = Settings(mode="pull")
PUSH = Settings(mode="push")


@pytest.mark.parametrize("settings", [PULL, PUSH])
def test_alone_a_stream_takes_one_idle_step_a_token(settings: Settings) -> None:
    requests = reference(settings, [0.0, 5.0, 10.0])
    assert tpot_ms(requests) == pytest.approx(5.7)
    stamps = requests[1].stamps
    assert stamps["post_end"] - stamps["post_start"] == pytest.approx(0.0083 + 16384 * 3.2e-6)
    assert stamps["transfer_end"] - stamps["transfer_start"] == pytest.approx(16384 * 262144 / 400e9)
    assert stamps["first_token"] - stamps["admitted"] == pytest.approx(0.0057)


def test_posting_costs_what_the_published_run_says() -> None:
    stamps = reference(PULL, [0.0], prompt=2000)[0].stamps
    assert 1000 * (stamps["post_end"] - stamps["post_start"]) == pytest.approx(14.7)


def test_descriptors_cost_posting_time() -> None:
    stamps = reference(Settings(descriptors=10_000, us_per_descriptor=2.5), [0.0], prompt=2000)[0].stamps
    assert 1000 * (stamps["post_end"] - stamps["post_start"]) == pytest.approx(14.7 + 25.0)


@pytest.mark.parametrize(("mode", "stall_s"), [("pull", 0.0083 + 4096 * 3.2e-6), ("push", 0.0)])
def test_pull_stalls_running_streams_by_the_post_and_push_does_not(mode: str, stall_s: float) -> None:
    settings = Settings(mode=mode, step_per_seq_ms=0.0)
    first, second = reference(settings, [0.0, 0.3], prompt=4096, output=100)
    for stream, expected in ((first, 99 * 0.0055 + stall_s), (second, 99 * 0.0055)):  # its own post comes before
        assert stream.stamps["last_token"] - stream.stamps["first_token"] == pytest.approx(expected)


@pytest.mark.parametrize(("settings", "expected"), [(PULL, 10.4), (PUSH, 7.0)])
def test_the_reference_case_has_the_published_tpot(settings: Settings, expected: float) -> None:
    runs = [reference(settings, poisson(8, 400, seed)) for seed in (3, 4, 5)]
    measured = sum(map(tpot_ms, runs)) / len(runs)
    assert measured == pytest.approx(expected, rel=0.03)


def test_pull_is_unstable_and_push_is_not() -> None:
    arrivals = [i / 8 for i in range(200)]
    for settings, low, high in ((PULL, 41, 49), (PUSH, -1, 1)):
        requests = reference(settings, arrivals)
        ttft = [r.stamps["first_token"] - r.stamps["sent"] for r in requests]
        growth_ms = 1000 * (ttft[-1] - ttft[8]) / (len(ttft) - 9)
        assert low <= growth_ms <= high


def test_one_free_slot_starts_the_loads_of_all_that_wait() -> None:
    made = engine(Settings(mode="pull", max_num_seqs=1))
    requests = [request(str(i), 160, 20, 0.0 if i == 0 else 0.02) for i in range(4)]
    run(made, requests)
    starts = [r.stamps["load_start"] for r in requests]
    assert starts[0] < starts[1] == starts[2] == starts[3] == requests[0].stamps["done"]
    noticed, admitted = requests[3].stamps["noticed"], requests[3].stamps["admitted"]
    assert noticed < requests[1].stamps["done"] < admitted  # its KV waits for a slot: completed_waiting
    posts = [(r.stamps["post_start"], r.stamps["post_end"]) for r in requests[1:]]
    assert posts[0][1] == pytest.approx(posts[1][0]) and posts[1][1] == pytest.approx(posts[2][0])


def test_the_stage_gauges_follow() -> None:
    made = engine(Settings(mode="pull", max_num_seqs=1))
    for i in range(3):
        made.submit(request(str(i), 160, 20, 0.0))
    assert made.stages() == {
        "running": 0, "capacity": 3, "waiting_to_start": 3, "in_progress": 0, "completed_waiting": 0
    }  # fmt: skip
    step = made.begin_step(0.0)
    assert step is not None
    assert made.stages()["in_progress"] == 3
    made.end_step(step, step.duration_s)
    made.begin_step(1.0)
    stages = made.stages()
    assert (stages["running"], stages["completed_waiting"], stages["capacity"]) == (1, 2, 0)


def test_a_full_kv_pool_keeps_requests_waiting_although_slots_are_free() -> None:
    made = engine(Settings(mode="pull", decode_blocks=20, prefill_blocks=20, max_model_len=320))
    first, second = request("a", 192, 20, 0.0), request("b", 192, 20, 0.0)
    made.submit(first)
    made.submit(second)
    made.begin_step(0.0)
    assert (first.stage, second.stage) == ("loading", WAITING)
    assert made.stages()["waiting_to_start"] == 1 and made.pool.usage == pytest.approx(12 / 20)
    made.abort(first, 0.1)
    made.begin_step(0.2)
    assert second.stage == "loading"


def test_running_out_of_blocks_preempts_the_youngest_which_then_computes_its_prompt_itself() -> None:
    made = engine(Settings(mode="pull", decode_blocks=20, prefill_blocks=20, max_model_len=320))
    first, second = request("a", 160, 40, 0.0), request("b", 150, 40, 0.0)
    run(made, [first, second])
    assert (first.preempted, second.preempted) == (0, 1)
    assert second.generated == 40 and made.metrics.counters["vllm:num_preemptions", ""] == 1
    assert made.pool.available == 20


def test_a_prompt_without_remote_kv_is_computed_on_decode_and_stalls_its_streams() -> None:
    made = engine(PULL)
    first = request("a", 16, 60, 0.0)
    second = request("b", 12288, 2, 0.1, remote=False)
    run(made, [first, second])
    longer = first.stamps["last_token"] - first.stamps["first_token"] - 59 * 0.0057
    assert longer == pytest.approx(12288 * 60 / 16384 / 1000 + 0.0002, abs=1e-6)  # chunks of 8191 and 4097
    assert made.metrics.counters["vllm:prompt_tokens_by_source", "local_compute"] == 12288


def test_colocated_prompts_share_the_token_budget_in_order() -> None:
    made = engine(Settings(mode="colocated"), role="colocated")
    first, second = request("a", 12000, 2, 0.0, remote=False), request("b", 5000, 2, 0.0, remote=False)
    made.submit(first)
    made.submit(second)
    step = made.begin_step(0.0)
    assert step is not None and step.chunks == [(first, 8192)]
    made.end_step(step, step.duration_s)
    step = made.begin_step(step.duration_s)
    assert step is not None and step.chunks == [(first, 3808), (second, 4384)]
    assert second.stage == RUNNING


def test_prefill_takes_one_prompt_at_a_time() -> None:
    made = engine(PULL, role="prefill")
    run(made, requests := [request(str(i), 16384, 1, 0.0, remote=False) for i in range(3)])
    assert [r.stamps["prefill_end"] for r in requests] == pytest.approx([0.06, 0.12, 0.18])


def test_a_slow_poll_delays_noticing_and_nothing_else() -> None:
    quick, slow = (reference(Settings(poll_ms=poll), [0.0])[0].stamps for poll in (0.0, 40.0))
    assert quick["transfer_end"] == slow["transfer_end"]
    assert 0 <= quick["noticed"] - quick["transfer_end"] <= 0.0011
    assert 0.0011 < slow["noticed"] - slow["transfer_end"] <= 0.041


def test_transfers_take_turns_on_the_link() -> None:
    made = engine(Settings(mode="pull", link_gb_s=1.0))
    requests = run(made, [request(str(i), 160, 2, 0.0) for i in range(3)])
    starts = [r.stamps["transfer_start"] for r in requests]
    ends = [r.stamps["transfer_end"] for r in requests]
    assert starts[1:] == ends[:-1]
    assert ends[-1] - starts[0] == pytest.approx(3 * 160 * 262144 / 1e9)


def test_a_request_that_ends_before_its_read_releases_the_remote_blocks() -> None:
    made = engine(Settings(mode="pull", max_num_seqs=1))
    made.submit(waiting := request("a", 160, 2, 5.0))
    made.abort(waiting, 1.0)
    assert isinstance(made.fetch, Pull) and made.fetch.dropped_ids == ["a"]
    assert made.metrics.counters["vllm:request_success", "abort"] == 1
    assert made.stages()["capacity"] == 0
