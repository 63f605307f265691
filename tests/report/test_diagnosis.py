"""Each planted cause alone, two at once, and healthy twins that must have none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pdbench.report.summary import summarise
from tests.report.queue_simulation import Req, World, make_run


def causes(path: Path, world: World) -> dict[str, dict[str, Any]]:
    cell = summarise(make_run(path / "run", [[world]]))["cells"][0]
    return {cause["cause"]: cause for cause in cell["diagnosis"]}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "world",
    [World(), World(mode="push"), World(mode="colocated"), World(rate=5, n=250, slots=16), World(rate=None, streams=4)],
    ids=["pull", "push", "colocated", "busier", "closed"],
)
def test_healthy_cells_have_no_cause(tmp_path: Path, world: World, seed: int) -> None:
    assert causes(tmp_path, World(**{**vars(world), "seed": seed})) == {}


@pytest.mark.parametrize("mode", ["pull", "push", "colocated"])
@pytest.mark.parametrize("seed", range(2))
def test_too_few_slots(tmp_path: Path, mode: str, seed: int) -> None:
    world = World(mode=mode, rate=5, n=200, tokens=128, slots=4, prefill_s=0.02, seed=seed)
    found = causes(tmp_path, world)
    assert list(found) == ["decode-slots"] and found["decode-slots"]["share"] > 0.5
    assert "--max-num-seqs" in found["decode-slots"]["advice"]


@pytest.mark.parametrize("mode", ["pull", "push"])
def test_a_queue_before_prefill(tmp_path: Path, mode: str) -> None:
    found = causes(tmp_path, World(mode=mode, rate=4, n=200, prefill_s=0.24))
    assert list(found) == ["prefill-queue"] and found["prefill-queue"]["share"] > 0.4


def test_a_colocated_server_that_computes_prompts_all_the_time(tmp_path: Path) -> None:
    assert list(causes(tmp_path, World(mode="colocated", rate=4, n=200, prefill_s=0.23, tokens=8, slots=64))) == [
        "prefill-queue"
    ]


def test_slow_prefill_without_a_queue(tmp_path: Path) -> None:
    found = causes(tmp_path, World(rate=0.5, n=60, prefill_s=0.8, prefill_servers=4))
    assert list(found) == ["prefill-compute"]


def test_a_slow_link(tmp_path: Path) -> None:
    found = causes(tmp_path, World(rate=1, n=100, transfer_s=0.9, link_gb_s=50.0))
    assert (
        list(found) == ["transfer-bandwidth"] and "of the declared 50 GB/s" in found["transfer-bandwidth"]["evidence"]
    )
    assert (
        "no link_gb_s" in causes(tmp_path / "b", World(rate=1, n=100, transfer_s=0.9))["transfer-bandwidth"]["evidence"]
    )


def test_a_long_post_is_not_the_link(tmp_path: Path) -> None:
    assert "transfer-bandwidth" not in causes(tmp_path, World(transfer_s=0.2, post_s=0.17))


def test_two_at_once(tmp_path: Path) -> None:
    found = causes(tmp_path, World(rate=5, n=150, tokens=128, slots=5, prefill_s=0.195))
    assert set(found) == {"decode-slots", "prefill-queue"}


def test_our_own_client(tmp_path: Path) -> None:
    assert "client" in causes(tmp_path, World(client={"cpu_share": 1.0}))


def test_overload_without_stage_gauges_has_no_share(tmp_path: Path) -> None:
    found = causes(tmp_path, World(rate=8, n=200, tokens=128, slots=4, stages=False))
    assert found["decode-slots"]["share"] is None and "cannot be said" in found["decode-slots"]["evidence"]


def test_a_wait_without_stage_gauges_is_not_named(tmp_path: Path) -> None:
    found = causes(tmp_path, World(rate=2.4, n=200, tokens=128, slots=4, stages=False))
    assert list(found) == ["not-distinguishable"] and "kv_fetch_by_stage" in found["not-distinguishable"]["evidence"]


def test_a_stall_an_admission_is_worked_out_from_a_cell_at_low_load(tmp_path: Path) -> None:
    def world(rate: float, step_s: float, n: int) -> World:
        return World(
            rate=rate, n=n, prompt=16384, tokens=128, step_s=step_s, prefill_s=0.06, transfer_s=0.07, post_s=0.06
        )

    cells = summarise(make_run(tmp_path / "run", [[world(1, 0.007, 60)], [world(8, 0.0104, 240)]]))["cells"]
    evidence = cells[1]["diagnosis"][0]["evidence"]
    assert (
        "from 7.0 ms at low load to 10.4 ms" in evidence
        and "at most 6" in evidence
        and "ms at each admission" in evidence
    )
    assert cells[0]["diagnosis"] == []


def test_handoffs_that_worked_are_not_missed_where_nobody_counts_them(tmp_path: Path) -> None:
    """In push prefill moves the KV: decode's page has failures only, and without prefill's nobody says all failed."""

    def failed(r: Req) -> None:
        if r.i % 5 == 0:
            r.row = {"status": "failed", "error": "reset"}

    def some_failed(t: float, role: str, rows: list[list[Any]]) -> list[list[Any]]:
        return [[*row[:-1], t] if "nixl_failed_transfers" in row else row for row in rows]

    world = World(mode="push", pages=("decode",), spoil=[failed], tamper=some_failed)
    assert "mixed-modes" not in causes(tmp_path, world)
