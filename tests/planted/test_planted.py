"""Each cause planted alone and in pairs, in virtual time. benchmarks/planted_faults.py has the whole table."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.planted.faults import FAULTS, GEOMETRIES, MILD, STRONG, Dose, Geometry, Plant, healthy, named, planted

ALONE = [(cause, mode) for i, cause in enumerate(FAULTS) for mode in ("pull", "push")[i % 2 : i % 2 + 1]]
PAIRED = [("decode-slots", "proxy"), ("transfer-bandwidth", "proxy"), ("decode-kv-pool", "proxy")]


def causes(path: Path, plant: Plant) -> list[str]:
    return named(path, plant, seed=1)


@pytest.mark.parametrize(("cause", "mode"), ALONE)
def test_a_strong_fault_is_named_and_no_other(tmp_path: Path, cause: str, mode: str) -> None:
    plant = replace(planted(GEOMETRIES[0], mode, (cause,), STRONG), duration_s=20.0)
    found = causes(tmp_path, plant)
    assert set(plant.causes) <= set(found) <= {*plant.causes, *plant.implied}


@pytest.mark.parametrize(("cause", "mode"), [("engine-loop-blocking", "push"), ("completion-polling", "push")])
def test_a_mild_fault_is_named(tmp_path: Path, cause: str, mode: str) -> None:
    assert cause in causes(tmp_path, replace(planted(GEOMETRIES[1], mode, (cause,), MILD), duration_s=25.0))


@pytest.mark.parametrize("pair", PAIRED)
def test_two_at_once_are_both_named(tmp_path: Path, pair: tuple[str, str]) -> None:
    assert set(pair) <= set(causes(tmp_path, replace(planted(GEOMETRIES[0], "push", pair, MILD), duration_s=20.0)))


def test_a_full_pool_with_long_stalls_has_both(tmp_path: Path) -> None:
    """A slot is free just when a handoff comes, so that with few streams nearly every turn is a held-up one."""
    pair = ("decode-slots", "engine-loop-blocking")
    assert set(pair) <= set(causes(tmp_path, replace(planted(GEOMETRIES[1], "push", pair, STRONG), duration_s=20.0)))


FEW = Geometry("a few dozen requests", prompt=4096, output=64, use=0.04)


@pytest.mark.parametrize("mode", ["pull", "push"])
@pytest.mark.parametrize("beside", [{"handoff_stall_ms": 230.0}, {"post_fixed_ms": 230.0}], ids=["stall", "post"])
def test_late_notices_beside_something_that_takes_as_long(tmp_path: Path, mode: str, beside: dict[str, float]) -> None:
    """In a few dozen requests, one of them at a time: both parts are said, by their names or as not distinguishable."""
    plant = Plant(FEW, mode, (), rate=0.8, output=64, settings={"poll_ms": 500.0, **beside})
    found = named(tmp_path, plant, seed=31)
    assert "completion-polling" in found and len(found) == 2
    assert set(found) <= {"completion-polling", "engine-loop-blocking", "not-distinguishable"}


SHORT = {"step_base_ms": 8.0, "prefill_ms_per_token": 0.005, "post_fixed_ms": 1.0, "post_ms_per_token": 0.0005}
SHORT_ANSWERS = Geometry("answers of 8 tokens", prompt=1000, output=8, use=0.05, settings=SHORT)


IN_LINE = [
    (1, "pull", "engine-loop-blocking", STRONG),
    (1, "push", "engine-loop-blocking", STRONG),
    (2, "push", "transfer-fragmentation", MILD),
]


@pytest.mark.parametrize(("geometry", "mode", "beside", "dose"), IN_LINE)
def test_loads_that_stand_in_line_for_seconds_are_not_noticed_late(
    tmp_path: Path, geometry: int, mode: str, beside: str, dose: Dose
) -> None:
    """Behind slots and posts loads last for seconds, of which some tenths are not reckoned: that is no late look."""
    plant = planted(GEOMETRIES[geometry], mode, ("decode-slots", beside), dose)
    found = named(tmp_path, plant, seed=701)
    assert set(plant.causes) <= set(found) <= {*plant.causes, *plant.implied}


def test_a_slow_link_beside_posts_that_meet(tmp_path: Path) -> None:
    """Posts of others vary from block to block of time as the rest does, or what is left over would seem unsure."""
    pair = ("transfer-bandwidth", "engine-loop-blocking")
    assert set(pair) <= set(named(tmp_path, planted(GEOMETRIES[1], "pull", pair, STRONG), seed=801))


def test_a_slow_link_behind_a_queue_of_minutes(tmp_path: Path) -> None:
    """Each request waits for several blocks of time: what the client and the engines then differ by is no noise."""
    slow = {"prefill_ms_per_token": 0.1328, "link_gb_s": 1.67, "kv_bytes_per_token": 57_344, "step_base_ms": 45.0}
    slow["step_per_seq_ms"] = 0.014
    room = {"max_num_seqs": 256, "max_model_len": 70_000, "post_fixed_ms": 3.0, "post_ms_per_token": 0.0}
    long = Geometry("46,871 in, 222 out", prompt=46_871, output=222, use=0.2, settings=slow | room)
    plant = Plant(long, "pull", ("prefill-queue", "transfer-bandwidth"), rate=0.2174, output=222, duration_s=276.0)
    assert {"prefill-queue", "transfer-bandwidth"} <= set(named(tmp_path, plant, seed=3))


def test_a_held_loop_shows_in_first_tokens_that_come_together(tmp_path: Path) -> None:
    """Late looks bring several handoffs to one turn, and their streams end before the next: none stands still."""
    pair = ("completion-polling", "engine-loop-blocking")
    assert set(causes(tmp_path, planted(SHORT_ANSWERS, "push", pair, MILD))) == set(pair)


def test_a_pool_that_is_full_because_handoffs_hold_the_loop(tmp_path: Path) -> None:
    """Each answer loses few turns, and its blocks are held half as long again."""
    pair = ("decode-kv-pool", "engine-loop-blocking")
    plant = replace(planted(SHORT_ANSWERS, "pull", pair, STRONG), duration_s=8.0)
    assert set(causes(tmp_path, plant)) == set(pair)


def test_a_pool_that_preempts_is_not_blamed_on_handoffs(tmp_path: Path) -> None:
    plant = replace(planted(GEOMETRIES[1], "pull", ("decode-kv-pool",), STRONG), duration_s=20.0)
    assert causes(tmp_path, plant) == ["decode-kv-pool"]


@pytest.mark.parametrize("mode", ["pull", "push", "colocated"])
def test_a_healthy_deployment_has_no_cause(tmp_path: Path, mode: str) -> None:
    assert causes(tmp_path, replace(healthy(GEOMETRIES[1], mode), duration_s=20.0)) == []


def test_a_short_wait_for_a_prefill_server_that_is_often_free_is_no_cause(tmp_path: Path) -> None:
    """40% busy: the wait is a quarter of TTFT and two thirds of what computing a prompt takes."""
    calm = replace(healthy(replace(GEOMETRIES[2], use=0.4), "push"), output=20)
    assert named(tmp_path, calm, seed=101) == []


def test_a_long_prompt_that_is_computed_within_a_sentence_is_no_cause(tmp_path: Path) -> None:
    """Co-located, 300 of 350 ms are compute; at 23 ms a token a sentence takes 575."""
    slow = {"prefill_ms_per_token": 0.03, "max_num_seqs": 32, "step_base_ms": 20.0}
    calm = Geometry("long prompts", prompt=8192, output=128, use=0.05, settings=slow)
    assert causes(tmp_path, Plant(calm, "colocated", (), rate=0.5, output=128)) == []
