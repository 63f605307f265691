"""Runs of real vLLM with known truth: from how each pair was started, and from what a change of slots did."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pdbench.report.summary import exit_code_of, summarise
from tests.report.vllm_captures import capture_run, captured


def summary(path: Path, name: str, **options: Any) -> dict[str, Any]:
    found = summarise(capture_run(path / "run", name, **options))
    cell = found["cells"][0]
    bench = captured(name)
    assert cell["mean_ttft_ms"] == pytest.approx(bench["mean_ttft_ms"], rel=1e-3)
    assert cell["mean_tpot_ms"] == pytest.approx(bench["mean_tpot_ms"], rel=1e-3)
    assert sum(cell["ttft_split_ms"].values()) == pytest.approx(cell["mean_ttft_ms"], abs=1e-6)
    return found


def causes(cell: dict[str, Any]) -> list[str]:
    return [cause["cause"] for cause in cell["diagnosis"]]


@pytest.mark.parametrize(("name", "queue_s"), [("pd-pull-d4-512x64-r2", 5.55), ("pd-pull-d4-512x64-r4", 20.59)])
@pytest.mark.parametrize("slots", [4, None])
def test_four_slots_where_eight_would_do(tmp_path: Path, name: str, queue_s: float, slots: int | None) -> None:
    """With 16 slots the same load waited 0.29 s, although its transfers were slower: they were not the cause."""
    found = summary(tmp_path, name, slots=slots)
    cell = found["cells"][0]
    split = cell["ttft_split_ms"]
    assert causes(cell) == ["decode-slots"] and exit_code_of(found) == 3
    assert cell["slots"]["available"] == 4 and cell["slots"]["needed"] > 5
    assert cell["slots"]["source"] == ("given" if slots else "inferred")
    assert split["slot_wait"] == pytest.approx(queue_s * 1000, rel=0.03)
    assert split["transfer"] + split["post"] < 50
    assert "not-steady-state" in [v["code"] for v in cell["validity"]] and "not steady state" in found["verdict"]


def test_push_reads_prefills_nixl_series(tmp_path: Path) -> None:
    cell = summary(tmp_path, "pd-push-d4-512x64-r2")["cells"][0]
    assert cell["nixl"]["role"] == "prefill" and causes(cell) == ["decode-slots"]
    assert cell["ttft_split_ms"]["slot_wait"] == pytest.approx(6800, rel=0.05)


def test_a_pair_within_capacity_has_no_cause_and_is_valid(tmp_path: Path) -> None:
    found = summary(tmp_path, "pd-pull-d4-512x64-r1")
    assert causes(found["cells"][0]) == [] and exit_code_of(found) == 0


def test_prefill_is_named_first_where_its_queue_is_longest(tmp_path: Path) -> None:
    cell = summary(tmp_path, "pd-pull-d4-2048x64-r1")["cells"][0]
    assert causes(cell)[0] == "prefill-queue"
    assert cell["ttft_split_ms"]["prefill_queue"] == pytest.approx(4060, rel=0.01)
    assert "not-steady-state" in [v["code"] for v in cell["validity"]]


def test_without_its_stage_gauge_decodes_queue_is_not_named(tmp_path: Path) -> None:
    cell = summary(tmp_path, "pd-pull-d4-512x64-r2", stages=False, slots=None)["cells"][0]
    assert "slot_wait" not in cell["ttft_split_ms"] and cell["ttft_split_ms"]["unexplained"] > 5000
    assert all(cause["share"] is None or cause["cause"] == "not-distinguishable" for cause in cell["diagnosis"])


@pytest.mark.parametrize("name", ["single-s4-512x64-r2", "single-s4-2048x64-r1"])
def test_a_colocated_server_short_of_slots(tmp_path: Path, name: str) -> None:
    cell = summary(tmp_path, name)["cells"][0]
    assert causes(cell) == ["decode-slots"] and set(cell["ttft_split_ms"]) == {
        "proxy",
        "prefill_queue",
        "prefill",
        "unexplained",
    }
    unknown = summary(tmp_path / "b", name, slots=None)["cells"][0]
    assert "decode-slots" in causes(unknown) or "not distinguishable" in unknown["diagnosis"][0]["evidence"]
