"""The split gives the planted parts back, sums to the mean exactly, and leaves what it cannot know in unexplained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pdbench.probe.scrape import read_page
from pdbench.report.summary import summarise
from tests.report.queue_simulation import World, make_run, simulate, truth

REFERENCE = World(
    rate=8,
    n=240,
    prompt=16384,
    tokens=128,
    prefill_s=0.06,
    transfer_s=0.0712,
    post_s=0.0607,
    step_s=0.0104,
    slots=8,
    sample_s=0.25,
)


def cell_of(path: Path, world: World, **document: Any) -> dict[str, Any]:
    cell: dict[str, Any] = summarise(make_run(path / "run", [[world]], **document))["cells"][0]
    split = cell["ttft_split_ms"]
    assert sum(split.values()) == pytest.approx(cell["mean_ttft_ms"], abs=1e-6)
    return cell


@pytest.mark.parametrize("seed", [1, 2])
def test_healthy_pull_gives_every_part_back(tmp_path: Path, seed: int) -> None:
    world = World(seed=seed)
    split, planted = cell_of(tmp_path, world)["ttft_split_ms"], truth(world, simulate(world))
    assert split["proxy"] == pytest.approx(4.0, abs=0.01) and split["prefill"] == pytest.approx(80.0)
    assert split["prefill_queue"] == pytest.approx(planted["prefill_queue"], abs=0.01)
    assert split["post"] == pytest.approx(5.0) and split["transfer"] == pytest.approx(15.0)
    assert split["first_step"] == pytest.approx(10.0) and split["slot_wait"] == 0.0
    assert split["poll"] == pytest.approx(planted["wait_after_load"], abs=0.1)
    assert split["unexplained"] == pytest.approx(0.0, abs=0.1)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_slot_wait_holds_what_waits_before_and_after_the_load(tmp_path: Path, seed: int) -> None:
    world = World(**{**vars(REFERENCE), "seed": seed})
    split, planted = cell_of(tmp_path, world)["ttft_split_ms"], truth(world, simulate(world))
    assert planted["slot_wait"] > 1500 and planted["wait_after_load"] > 500
    assert split["slot_wait"] == pytest.approx(planted["slot_wait"], rel=0.03)
    assert split["poll"] < 0.03 * planted["slot_wait"]


@pytest.mark.parametrize("used", [0.66, 0.8])
def test_few_that_wait_for_a_slot_wait_as_long_as_they_do(tmp_path: Path, used: float) -> None:
    """At two thirds of the slots a fifth of the requests waits: the look at the end of a wait is theirs alone."""
    worlds = [World(rate=used * 8 / 0.64, n=1000, seed=seed, prefill_s=0.005, transfer_s=0.005) for seed in range(2)]
    for number, world in enumerate(worlds):
        split, planted = cell_of(tmp_path / f"{number}", world)["ttft_split_ms"], truth(world, simulate(world))
        assert 10 < split["slot_wait"] == pytest.approx(planted["slot_wait"], rel=0.15, abs=3.0)


def test_slow_transfer_is_transfer_and_not_slot_wait(tmp_path: Path) -> None:
    split = cell_of(tmp_path, World(rate=1, transfer_s=1.0))["ttft_split_ms"]
    assert split["transfer"] == pytest.approx(995) and split["slot_wait"] == 0.0 and split["poll"] < 30


def test_without_stage_gauges_the_rest_is_never_called_slot_wait(tmp_path: Path) -> None:
    cell = cell_of(tmp_path, World(rate=2, tokens=128, slots=2, stages=False, n=100))
    split = cell["ttft_split_ms"]
    assert "slot_wait" not in split and "poll" not in split and split["unexplained"] > 500
    assert "kv_fetch_stage" in " ".join(cell["notes"])
    assert any(v["code"] == "metrics-missing" and "kv_fetch_stage" in v["evidence"] for v in cell["validity"])


def test_push_takes_the_prefill_leg_out_of_decodes_queue_time(tmp_path: Path) -> None:
    world = World(mode="push", rate=2)
    split = cell_of(tmp_path, world)["ttft_split_ms"]
    assert split["prefill"] == pytest.approx(80.0) and split["transfer"] == pytest.approx(15.0)
    assert split["proxy"] == pytest.approx(2.0, abs=0.01) and split["slot_wait"] == pytest.approx(0.0, abs=1.0)
    assert split["unexplained"] == pytest.approx(0.0, abs=5.0)


def test_whose_nixl_series_move_tells_pull_from_push(tmp_path: Path) -> None:
    for mode in ("pull", "push"):
        run = make_run(tmp_path / mode, [[World(mode=mode)]])
        del run.document["deployments"][0]["mode"]
        assert summarise(run)["cells"][0]["ttft_split_ms"]["transfer"] == pytest.approx(15.0)


def test_colocated(tmp_path: Path) -> None:
    world = World(mode="colocated", rate=6)
    split, planted = cell_of(tmp_path, world)["ttft_split_ms"], truth(world, simulate(world))
    assert set(split) == {"proxy", "prefill_queue", "prefill", "unexplained"}
    assert split["prefill_queue"] == pytest.approx(planted["prefill_queue"], abs=0.01)


def test_only_a_proxy_leaves_everything_unexplained(tmp_path: Path) -> None:
    cell = cell_of(tmp_path, World(pages=()))
    assert set(cell["ttft_split_ms"]) == {"unexplained"} and "No cause" not in cell["verdict"]
    assert "waiting_mean" not in cell and "was not measured" in cell["verdict"]


def test_a_prefill_done_again_on_decode_is_no_first_step(tmp_path: Path) -> None:
    cell = cell_of(tmp_path, World(recompute=True))
    assert "first_step" not in cell["ttft_split_ms"] and "not one decode step" in " ".join(cell["notes"])


def test_dynamo_decode_waits_for_slots_only(tmp_path: Path) -> None:
    def keep(t: float, role: str, rows: list[list[Any]]) -> list[list[Any]]:
        kept = ("running", "waiting", "ttft_s", "itl_s", "e2e_s", "kv_cache_usage")
        return [r for r in rows if role == "decode" and r[1] in kept]

    world = World(rate=3, tokens=128, slots=4, n=150, transfer_s=0.0, tamper=keep)
    run = make_run(tmp_path / "run", [[world]])
    run.document["deployments"][0]["engine"] = "dynamo"
    cell = summarise(run)["cells"][0]
    assert cell["ttft_split_ms"]["slot_wait"] == pytest.approx(truth(world, simulate(world))["slot_wait"], rel=0.1)
    assert "prefill" not in cell["ttft_split_ms"]
    assert cell["ttft_split_ms"]["first_step"] == pytest.approx(10.0, abs=6.0)
    assert not any("waiting gauge" in note for note in cell["notes"])


def test_dynamo_without_decodes_ttft_falls_back_on_its_gauge(tmp_path: Path) -> None:
    def keep(t: float, role: str, rows: list[list[Any]]) -> list[list[Any]]:
        return [r for r in rows if role == "decode" and r[1] in ("running", "waiting")]

    world = World(rate=3, tokens=128, slots=4, n=150, transfer_s=0.0, tamper=keep)
    run = make_run(tmp_path / "run", [[world]])
    run.document["deployments"][0]["engine"] = "dynamo"
    split = summarise(run)["cells"][0]["ttft_split_ms"]
    assert split["slot_wait"] == pytest.approx(truth(world, simulate(world))["slot_wait"], rel=0.1)
    assert "first_step" not in split


SGLANG_MS = {
    ("decode", "stage_s", "decode_bootstrap"): 150.0,
    ("decode", "stage_s", "decode_transferred"): 90.0,
    ("decode", "stage_s", "decode_waiting"): 5.0,
    ("prefill", "stage_s", "prefill_bootstrap"): 160.0,
    ("prefill", "stage_s", "prefill_forward"): 60.0,
    ("prefill", "stage_s", "prefill_transfer_kv_cache"): 11.0,
    ("prefill", "queue_s", ""): 17.0,
}
NAMES = {"stage_s": "per_stage_req_latency_seconds", "queue_s": "queue_time_seconds"}


@pytest.mark.parametrize("slots", [8, 1])
def test_sglangs_stages_are_parts_and_none_is_counted_twice(tmp_path: Path, slots: int) -> None:
    """Pages as SGLang 0.5 writes them, each stage with a length of its own; ranks that repeat a figure beside it."""

    def speak(t: float, role: str, rows: list[list[Any]]) -> list[list[Any]]:
        ended = next((row[5] for row in rows if row[1] == "e2e_s" and row[2] == "count"), 0.0)
        gauges = [r[:2] + r[2:] for r in rows if r[1] in ("running", "waiting") and r[2] == "gauge"]
        lines = []
        for (where, canonical, stage), ms in SGLANG_MS.items():
            for rank in ("0", "1"):
                labels = f'model_name="m",engine_type="{role}",tp_rank="{rank}",dp_rank="0"'
                labels += f',stage="{stage}"' if stage else ""
                if where == role:
                    lines.append(f"sglang:{NAMES[canonical]}_sum{{{labels}}} {ended * ms / 1000}")
                    lines.append(f"sglang:{NAMES[canonical]}_count{{{labels}}} {ended}")
        page = read_page("sglang", ("\n".join(lines) + "\n").encode())
        return [*(["", *row[1:3], "0", *row[4:]] for row in gauges), *map(list, page.rows)]

    run = make_run(tmp_path / "run", [[World(mode="push", slots=slots, rate=1 / slots, n=60, tamper=speak)]])
    run.document["deployments"][0] |= {"engine": "sglang"}
    cell = summarise(run)["cells"][0]
    split = cell["ttft_split_ms"]
    assert split["prefill_queue"] == pytest.approx(17.0) and split["prefill"] == pytest.approx(60.0)
    assert split["transfer"] == pytest.approx(11.0)
    assert split["slot_wait"] + split.get("poll", 0.0) == pytest.approx(155.0)
    assert sum(split.values()) == pytest.approx(cell["mean_ttft_ms"], abs=1e-6)
    lacks = " ".join(one["evidence"] for one in cell["validity"] if one["code"] == "metrics-missing")
    assert "prefill_s" not in lacks and "nixl_xfer_s" not in lacks
