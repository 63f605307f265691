"""What is drawn before a cell begins, against what its name promises, and prompts against each other token by token."""

from __future__ import annotations

import json
import math
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdbench.errors import UsageError
from pdbench.sweep.fit import fitted
from pdbench.sweep.options import merged, plan_from
from pdbench.sweep.plan import Plan, plan_of
from pdbench.sweep.prompts import asked_ids
from pdbench.sweep.schedule import Schedule, cell_schedule
from pdbench.sweep.stages import Stage, bent, expected
from tests.sweep.test_arrivals import gaps

TRACES = Path(os.environ.get("PDBENCH_TRACES", "traces"))


def plan(**flags: Any) -> Plan:
    return plan_from(merged({"seed": "3", **flags}, {}, ""), ["default"])


def drawn(made: Plan, repeat: int = 0, cell: int = 0) -> Schedule:
    return cell_schedule(made, made.cells[cell], repeat)


def integrated(stages: tuple[Stage, ...], until_s: float) -> float:
    """Requests due by a time, by the midpoint rule on the rate itself."""
    total, start = 0.0, 0.0
    for stage in stages:
        t = (np.arange(20_000) + 0.5) / 20_000 * stage.duration_s
        share = t / stage.duration_s
        ratio = stage.end / stage.start if stage.exponential else 1.0
        rate = stage.start * ratio**share if stage.exponential else stage.start + (stage.end - stage.start) * share
        total += float(rate[t + start < until_s].sum()) * stage.duration_s / 20_000
        start += stage.duration_s
    return total


rates = st.floats(0.2, 50)
stage = st.builds(Stage, st.floats(0.5, 100), rates, rates, st.booleans())


@given(st.lists(stage, min_size=1, max_size=4), st.floats(0.01, 0.99))
@settings(deadline=None)
def test_a_moving_rate_is_integrated_exactly(stages, share):
    """At the time of the n-th request n requests are due: the closed forms against the integral of the rate."""
    assert integrated(tuple(stages), math.inf) == pytest.approx(expected(stages), rel=1e-4)
    count = share * expected(stages)
    (at_s,) = bent(np.array([count]), stages)
    assert integrated(tuple(stages), float(at_s)) == pytest.approx(count, rel=0.01, abs=0.02)


def test_a_ramp_from_nothing_and_to_nothing():
    up, down = (drawn(plan(ramp=ramp, duration="10s", arrivals="constant")).offset_s for ramp in ("0:8", "8:0"))
    assert up[:3] == pytest.approx(np.sqrt(np.array([1, 2, 3]) * 2 / 0.8))  # n = 0.4 t^2
    assert len(up) == len(down) == 39  # 40 are due at the very end
    assert down[-1] == pytest.approx(10 - math.sqrt(1 / 0.4))


@pytest.mark.parametrize(
    ("flags", "by_quarter"),
    [
        ({"ramp": "1:9"}, [2, 4, 6, 8]),
        ({"ramp": "1:16", "ramp_up_strategy": "exponential"}, [1.443, 2.885, 5.771, 11.542]),  # 4/ln 16 x differences
        ({"steps": ["1,2,4,8"]}, [1, 2, 4, 8]),
        ({"steps": ["6,2", "2,6"]}, [6, 2, 2, 6]),  # equal steps stay
        ({"rates": ["5"]}, [5, 5, 5, 5]),
    ],
)
def test_counts_follow_the_rate_and_stay_poisson(flags, by_quarter):
    counts = np.array(
        [
            np.histogram(drawn(plan(**flags, duration="40s"), repeat).offset_s, bins=4, range=(0, 40))[0]
            for repeat in range(400)
        ]
    )
    due = 10 * np.array(by_quarter)
    assert counts.mean(axis=0) == pytest.approx(due, abs=4 * np.sqrt(due / 400).max())
    assert counts.var(axis=0) / due == pytest.approx(np.ones(4), abs=0.35)


def test_a_ramp_lasts_as_long_as_its_requests_take():
    """As vllm bench serve ramps over --num-prompts."""
    made = plan(ramp="1:7", num_prompts="200", arrivals="constant")
    assert made.duration_s == pytest.approx(50) and made.cells[0].request_rate == 4
    assert len(drawn(made)) == 199  # one more is due at the end itself


MIX = {"classes": ["chat:512/32@6", "agent:2048/lognormal:200:1@1.5"]}


def test_classes_are_processes_of_their_own_and_together_poisson():
    made = plan(**MIX, duration="4000s")
    schedule = drawn(made)
    assert (made.cells[0].request_rate, made.cells[0].prompt_len, made.cells[0].output_len) == (7.5, 819, 66)
    for number, rate in ((0, 6.0), (1, 1.5), (None, 7.5)):
        of = schedule.class_of == number if number is not None else np.full(len(schedule), True)
        between = gaps(schedule.offset_s[of]) * rate
        assert between.mean() == pytest.approx(1, abs=4 / math.sqrt(len(between)))
        distance = np.abs(np.arange(1, of.sum() + 1) / of.sum() - (1 - np.exp(-np.sort(between)))).max()
        assert distance < 1.95 / math.sqrt(of.sum())
    chat = schedule.class_of == 0
    assert set(schedule.prompt_len[chat]) == {512} and set(schedule.output_len[chat]) == {32}
    lengths = schedule.output_len[~chat]
    assert set(schedule.prompt_len[~chat]) == {2048} and lengths.min() >= 1
    assert lengths.mean() == pytest.approx(200, rel=0.06) and lengths.std() / lengths.mean() == pytest.approx(
        1, rel=0.1
    )
    assert [schedule.ask(i).request_class for i in range(50)] == ["chat" if c else "agent" for c in chat[:50]]


def test_rates_scale_classes():
    made = plan(**MIX, rates=["15,30"], duration="500s")
    counts = [np.bincount(drawn(made, cell=cell).class_of) for cell in (0, 1)]
    assert counts[0] / 500 == pytest.approx([12, 3], rel=0.1) and counts[1] / 500 == pytest.approx([24, 6], rel=0.1)
    ramped = plan(**MIX, ramp="0:30", duration="400s")
    assert np.bincount(drawn(ramped).class_of) / 400 == pytest.approx([12, 3], rel=0.1)


@given(st.sampled_from([MIX, {"ramp": "1:8"}, {"rates": ["4"], "prefix_len": 100, "num_prefixes": 3}]), st.data())
@settings(deadline=None, max_examples=20)
def test_a_shorter_cell_is_the_beginning_of_a_longer_one(flags, data):
    """Seeds decide each part by itself, so that one limit more changes nothing before it."""
    n = data.draw(st.integers(1, 200))
    whole, part = drawn(plan(**flags, duration="60s")), drawn(plan(**flags, duration="60s", num_prompts=str(n)))
    n = min(n, len(whole))
    for name in ("offset_s", "class_of", "prompt_len", "output_len", "prefix_of", "shared_len"):
        assert np.array_equal(getattr(part, name), getattr(whole, name)[:n]), name


@pytest.mark.parametrize("flags", [MIX, {"steps": ["1,2"]}, {"output_len": ["lognormal:100:0.5"], "rates": ["3"]}])
def test_whoever_draws_it_draws_the_same_and_repeats_differ(flags):
    made = plan(**flags, duration="30s", repeats=2)
    again = plan_of(json.loads(json.dumps(made.document())))
    assert again == made
    first, copy, other = drawn(made), pickle.loads(pickle.dumps(drawn(again))), drawn(made, repeat=1)
    assert np.array_equal(first.offset_s, copy.offset_s) and np.array_equal(first.output_len, copy.output_len)
    assert [first.ask(i) for i in range(len(first))] == [copy.ask(i) for i in range(len(first))]
    assert first.offset_s[:5].tolist() != other.offset_s[:5].tolist()


def test_targets_get_the_same_load():
    made = plan_from(merged({**MIX, "seed": "3"}, {}, ""), ["a", "b"])
    one, other = (cell_schedule(made, cell, 0) for cell in made.cells)
    assert np.array_equal(one.offset_s, other.offset_s) and np.array_equal(one.output_len, other.output_len)


def shared_with_earlier(prompts: list[list[int]]) -> list[int]:
    """By comparing tokens: the longest beginning that any earlier prompt has too."""

    def common(one: list[int], other: list[int]) -> int:
        return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))

    return [max((common(each, prompts[i]) for i in range(place)), default=0) for place, each in enumerate(prompts)]


def prompts_of(schedule: Schedule) -> list[list[int]]:
    return [asked_ids(9, i, schedule.ask(i), 4000).tolist() for i in range(len(schedule))]


def test_prefixes_are_shared_within_a_class_and_counted():
    made = plan(classes=["a:40/4@5", "b:60/4@5"], prefix_len=24, num_prefixes=3, num_prompts="80")
    schedule = drawn(made)
    prompts = prompts_of(schedule)
    beginnings = {(schedule.ask(i).request_class, tuple(prompt[:24])) for i, prompt in enumerate(prompts)}
    assert len({tokens for _, tokens in beginnings}) == len(beginnings) == 6
    seen = shared_with_earlier(prompts)
    assert all(told <= real <= told + 2 for told, real in zip(schedule.shared_len, seen, strict=True))  # or by chance
    assert sorted(set(schedule.shared_len)) == [0, 24] and (schedule.shared_len == 0).sum() == 6
    assert [len(prompt) for prompt in prompts] == schedule.prompt_len.tolist()


def trace_of(tmp_path: Path, rows: list[dict[str, Any]]) -> str:
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def mooncake(at_ms: int, length: int, output: int, ids: list[int]) -> dict[str, Any]:
    return {"timestamp": at_ms, "input_length": length, "output_length": output, "hash_ids": ids}


ROWS = [
    mooncake(1000, 1100, 5, [0, 1, 2]),
    mooncake(1000, 1536, 500, [0, 1, 3]),
    mooncake(4000, 700, 9, [0, 4]),
    mooncake(7000, 1100, 5, [0, 1, 2]),
    mooncake(9000, 10, 1, [5]),
]


def test_a_trace_is_replayed_with_its_times_lengths_and_shared_blocks(tmp_path):
    made = plan(trace=trace_of(tmp_path, ROWS), speed=["2,4"])
    assert [cell.speed for cell in made.cells] == [2, 4]
    assert [cell.request_rate for cell in made.cells] == [pytest.approx(5 / 8 * 2), pytest.approx(5 / 8 * 4)]
    schedule = drawn(made)
    assert schedule.offset_s.tolist() == [0, 0, 1.5, 3, 4]
    assert drawn(made, cell=1).offset_s.tolist() == [0, 0, 0.75, 1.5, 2]
    assert schedule.prompt_len.tolist() == [1100, 1536, 700, 1100, 10]
    assert schedule.output_len.tolist() == [5, 500, 9, 5, 1]
    assert schedule.shared_len.tolist() == [0, 1024, 512, 1100, 0]
    real = shared_with_earlier(prompts_of(schedule))
    assert all(told <= seen <= told + 2 for told, seen in zip(schedule.shared_len, real, strict=True))
    assert [len(prompt) for prompt in prompts_of(schedule)] == schedule.prompt_len.tolist()


def test_limits_of_a_trace_are_in_the_time_of_the_replay(tmp_path):
    path = trace_of(tmp_path, ROWS)
    cut = plan(trace=path, duration="3.5s", speed=["2"])
    assert len(drawn(cut)) == 4 and cut.cells[0].request_rate == pytest.approx(4 / 3.5) and not drawn(cut).complete
    whole = plan(trace=path, duration="60s")
    assert whole.cells[0].request_rate == 5 / 8 and drawn(whole).complete
    assert len(drawn(plan(trace=path, duration="100s", num_prompts="3"))) == 3
    with pytest.raises(UsageError, match="no rate"):
        plan(trace=path, num_prompts="2")  # both came at once


@given(st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=4), min_size=2, max_size=8), st.integers(0, 511))
@settings(deadline=None, max_examples=20)
def test_shared_blocks_are_those_of_the_prompts_themselves(tmp_path_factory, chains, cut):
    """Any trace of chained blocks: what the schedule calls shared is what the prompts have in common."""
    rows = []
    for place, chain in enumerate(chains):
        # As in Mooncake an id stands for its block and all before it.
        ids = [hash(tuple(chain[: i + 1])) & 0xFFFF for i in range(len(chain))]
        rows.append(mooncake(1000 * place, len(ids) * 512 - cut, 1, ids))
    made = plan(trace=trace_of(tmp_path_factory.mktemp("trace"), rows))
    schedule = drawn(made)
    real = shared_with_earlier(prompts_of(schedule))
    assert all(told <= seen <= told + 2 for told, seen in zip(schedule.shared_len, real, strict=True))


def test_what_does_not_fit_is_cut_and_told(tmp_path, fit_deployment):
    made = fitted(plan(trace=trace_of(tmp_path, ROWS)), [fit_deployment(1200)])
    schedule = drawn(made)
    assert schedule.prompt_len.tolist() == [1100, 1199, 700, 1100, 10]
    assert schedule.output_len.tolist() == [5, 1, 9, 5, 1]
    assert made.notes == ("1 answers and 1 prompts of 5 requests were cut to fit into max_model_len 1,200.",)
    drawn_long = plan(rates=["5"], prompt_lens=["1000"], output_len=["lognormal:100:2"], num_prompts="400")
    short = fitted(drawn_long, [fit_deployment(1200)])
    assert drawn(short).output_len.max() == 200
    cut = int((drawn(drawn_long).output_len > 200).sum())
    assert short.notes == (f"{cut} answers of 400 requests were cut to fit into max_model_len 1,200.",)
    assert fitted(short, [fit_deployment(1100)]) == short, "a resumed run goes on with its load"
    roomy = fitted(plan(trace=trace_of(tmp_path, ROWS)), [fit_deployment(4096), fit_deployment(32768)])
    assert (roomy.max_model_len, roomy.notes) == (4096, ())


def test_a_fixed_length_that_does_not_fit_is_refused(fit_deployment):
    for flags in ({"prompt_lens": ["1000"], "output_len": ["201"]}, {"classes": ["a:1100/101@1"]}):
        with pytest.raises(UsageError, match="max_model_len 1200"):
            fitted(plan(**flags), [fit_deployment(1200)])


def test_another_file_under_the_old_name_is_refused(tmp_path):
    made = plan(trace=trace_of(tmp_path, ROWS))
    assert len(drawn(made)) == 5
    path = trace_of(tmp_path, ROWS[:3])
    from pdbench.sweep.lengths import the_trace

    the_trace.cache_clear()  # another process
    with pytest.raises(UsageError, match=f"{path} is not the trace"):
        drawn(made)


@pytest.mark.parametrize(
    ("file", "requests", "mean_rate", "median_in", "median_out", "shared"),
    [
        ("AzureLLMInferenceTrace_code.csv", 8819, 2.57, 1469, 13, None),
        ("AzureLLMInferenceTrace_conv.csv", 19366, 5.53, 1020, 129, None),
        ("mooncake_synthetic_trace.jsonl", 3993, 3.91, 11587, 69, 0.640),
    ],
)
def test_public_traces(file, requests, mean_rate, median_in, median_out, shared):
    """Figures of the files as published, counted by other means."""
    if not (TRACES / file).exists():
        pytest.skip(f"{file} is not here: PDBENCH_TRACES names the folder")
    made = plan(trace=str(TRACES / file))
    schedule = drawn(made)
    assert len(schedule) == requests and made.cells[0].request_rate == pytest.approx(mean_rate, abs=0.01)
    assert np.median(schedule.prompt_len) == median_in and np.median(schedule.output_len) == median_out
    if shared is not None:
        blocks = sum(-(-int(told) // 512) for told in schedule.shared_len) / sum(map(len, schedule.blocks))
        assert blocks == pytest.approx(shared, abs=0.0006)
