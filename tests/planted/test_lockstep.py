"""Streams of a closed loop in lockstep miss no token while posts hold decode's loop: they wait for the posts all the
same, and what the report says of it is what is gone without the posts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pdbench.report.summary import summarise
from pdbench.testbed.settings import Settings
from tests.planted.virtual import sweep

BED: dict[str, Any] = {"step_base_ms": 9.0, "step_per_seq_ms": 0.1, "max_num_seqs": 12, "prefill_ms_per_token": 0.006}


def measured(path: Path, streams: int, post_ms: float, **bed: Any) -> dict[str, Any]:
    settings = Settings(**{"mode": "pull", "post_ms_per_token": 0.0, "post_fixed_ms": post_ms, **BED, **bed})
    done = sweep(
        path, {"bed": settings}, streams=[streams], prompt_lens=[1900], output_len=140, duration_s=25.0, seed=5
    )
    cell: dict[str, Any] = summarise(done.run)["cells"][0]
    return cell


@pytest.mark.parametrize(("streams", "post_ms"), [(2, 90.0), (3, 150.0), (6, 90.0), (10, 60.0)])
def test_posts_take_what_is_gone_without_them(tmp_path: Path, streams: int, post_ms: float) -> None:
    held, free = measured(tmp_path / "held", streams, post_ms), measured(tmp_path / "free", streams, 1.0)
    assert free["diagnosis"] == []
    (cause,) = held["diagnosis"]
    assert cause["cause"] == "engine-loop-blocking" and "posted one after the other" in cause["evidence"]
    # Streams that leave decode together also meet before prefill, which is not counted as posting's.
    gone = held["mean_ttft_ms"] - free["mean_ttft_ms"] - held["ttft_split_ms"]["prefill_queue"]
    assert cause["share"] * held["mean_ttft_ms"] == pytest.approx(gone, rel=0.1)
    assert held["ttft_split_ms"]["slot_wait"] == 0


def test_streams_let_go_together_are_no_want_of_prefill(tmp_path: Path) -> None:
    """16k prompts on the default testbed: a second prefill makes TTFT no shorter, posts off the loop do."""
    load: dict[str, Any] = {"streams": [6], "prompt_lens": [16384], "output_len": 128, "duration_s": 25.0}
    found = {}
    for name, bed in (("one", {}), ("two", {"prefills": 2}), ("free", {"post_fixed_ms": 0.5, "post_ms_per_token": 0})):
        done = sweep(tmp_path / name, {"bed": Settings(mode="pull", **bed)}, **load)
        found[name] = summarise(done.run)["cells"][0]
    assert [cause["cause"] for cause in found["one"]["diagnosis"]] == ["engine-loop-blocking"]
    assert found["two"]["mean_ttft_ms"] > found["one"]["mean_ttft_ms"] > 2 * found["free"]["mean_ttft_ms"]
