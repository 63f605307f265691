"""Who follows the advice of a co-located server that is short of slots gets a steady cell, by either way it names."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from pdbench.report.summary import summarise
from pdbench.testbed.settings import Settings
from tests.planted.virtual import sweep

SHAPES = {
    "long-prompts": (Settings(mode="colocated"), 8.0, 16384, 128),
    "small-chunks": (Settings(mode="colocated", max_num_seqs=4, max_num_batched_tokens=2048), 4.0, 16384, 128),
}


def measured(path: Path, shape: tuple[Settings, float, int, int], slots: int, rate: float) -> dict[str, Any]:
    settings, _, prompt_len, output_len = shape
    bed = Settings(**{**vars(settings), "max_num_seqs": slots})
    done = sweep(
        path, {"bed": bed}, rates=[rate], prompt_lens=[prompt_len], output_len=output_len, duration_s=20.0, seed=1
    )
    cell: dict[str, Any] = summarise(done.run)["cells"][0]
    return cell


@pytest.mark.parametrize("name", SHAPES)
def test_the_slots_and_the_rate_that_are_advised_hold_a_steady_cell(tmp_path: Path, name: str) -> None:
    shape = SHAPES[name]
    slots, rate = shape[0].max_num_seqs, shape[1]
    short = measured(tmp_path / "short", shape, slots, rate)
    cause = short["diagnosis"][0]
    assert "not-steady-state" in [flag["code"] for flag in short["validity"] if flag["severity"] == "void"]
    assert cause["cause"] == "decode-slots" and "without a handoff" not in cause["evidence"]
    advised = re.search(r"--max-num-seqs on the server to (\d+) or lower the rate to ([\d.]+) req/s", cause["advice"])
    assert advised is not None, cause["advice"]
    for way, *load in (("slots", int(advised[1]), rate), ("rate", slots, float(advised[2]))):
        followed = measured(tmp_path / way, shape, int(load[0]), load[1])
        assert [flag for flag in followed["validity"] if flag["severity"] == "void"] == [], followed["verdict"]
        waited = followed["ttft_split_ms"]["prefill_queue"]
        assert waited < 0.3 * (followed["mean_e2el_ms"] - waited), followed["verdict"]  # 10 % on average over runs
        assert "decode-slots" not in [cause["cause"] for cause in followed["diagnosis"]], "advice that asks for more"
