"""What a whole grid says: overlap of the transfer, what each tier carries, and when P/D cannot win."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pdbench.report.summary import summarise
from pdbench.testbed.settings import Settings
from tests.planted.virtual import Done, sweep


def grid(path: Path, settings: Settings, **load: Any) -> tuple[dict[str, Any], Done]:
    done = sweep(path / "run", {"bed": settings}, **load)
    return summarise(done.run), done


@pytest.mark.parametrize(("mode", "pieces"), [("pull", 1), ("push", 1), ("push", 64)])
def test_the_hidden_part_of_a_transfer_is_what_the_engine_hid(tmp_path: Path, mode: str, pieces: int) -> None:
    transfer = {"link_gb_s": 25.0, "post_fixed_ms": 2.0, "post_ms_per_token": 0.0}
    bed = Settings(mode=mode, push_pieces=pieces, prefill_ms_per_token=0.02, **transfer)
    load: dict[str, Any] = {"rates": [0.5], "prompt_lens": [2048, 8192], "output_len": 16, "num_prompts": 20}
    summary, done = grid(tmp_path, bed, duration_s=None, **load)
    (found,) = summary["hidden_transfer"]
    exposed: dict[int, list[float]] = {2048: [], 8192: []}
    decoded = {r["request_id"]: r for r in done.truth["bed"] if r["server"] == "decode-0" and "transfer_end" in r}
    for row in (r for r in done.truth["bed"] if r["server"] == "prefill-0" and "prompt_tokens" in r):
        moved = decoded[row["request_id"]]["transfer_end"] - row["prefill_end"]
        exposed[row["prompt_tokens"]].append(moved * 1000)
    grown = float(np.mean(exposed[8192]) - np.mean(exposed[2048]))
    truth = 1 - grown / found["transfer_growth_ms"]
    assert found["hidden"] == pytest.approx(truth, abs=0.06)
    assert found["hidden"] < 0.06 if pieces == 1 else found["hidden"] > 0.6


def test_each_tiers_capacity_and_the_knee(tmp_path: Path) -> None:
    bed = Settings(mode="push", max_num_seqs=4, prefill_ms_per_token=0.05)
    load: dict[str, Any] = {"rates": [2, 4, 12], "prompt_lens": [1024], "output_len": 64, "duration_s": 15.0}
    summary, _ = grid(tmp_path, bed, **load)
    (tiers,) = summary["tiers"]
    assert tiers["prefill_qps"] == pytest.approx(1000 / (1024 * 0.05), rel=0.02)
    assert tiers["decode_qps"] == pytest.approx(4 / (64 * (5.5 + 4 * 0.2) / 1000), rel=0.05)
    assert tiers["first"] == "decode" and "link_qps" not in tiers
    assert (tiers["kept_up_qps"], tiers["gave_way_qps"]) == (4, 12)


def test_counsel_against_disaggregation_where_it_cannot_win_and_none_where_it_can(tmp_path: Path) -> None:
    """Many streams that a long prefill would stall, against a short prefill beside few."""
    few: dict[str, Any] = {"rates": [2], "prompt_lens": [256], "output_len": 32, "duration_s": 10.0}
    (cell,) = grid(tmp_path / "few", Settings(mode="push"), **few)[0]["cells"]
    (counsel,) = (one for one in cell["counsel"] if one["topic"] == "handoff")
    assert "P/D cannot win in latency" in counsel["text"] and any("P/D cannot win" in note for note in cell["notes"])
    posts: dict[str, Any] = {"rates": [2], "prompt_lens": [16384], "output_len": 128, "duration_s": 15.0}
    (cell,) = grid(tmp_path / "posts", Settings(mode="pull"), **posts)[0]["cells"]
    (counsel,) = (one["text"] for one in cell["counsel"] if one["topic"] == "handoff")
    assert counsel.startswith("Once engine-loop-blocking is mended, a handoff still has its post in TTFT, 61 ms")
    bed = Settings(mode="push", max_num_seqs=64, prefill_ms_per_token=0.05, step_per_seq_ms=0.05)
    many: dict[str, Any] = {"rates": [5], "prompt_lens": [2048], "output_len": 256, "duration_s": 10.0}
    (cell,) = grid(tmp_path / "many", bed, **many)[0]["cells"]
    assert [one["topic"] for one in cell.get("counsel", [])] == []


def test_decode_that_is_full_is_told_that_disaggregation_is_no_capacity(tmp_path: Path) -> None:
    load: dict[str, Any] = {"rates": [10], "prompt_lens": [256], "output_len": 64, "duration_s": 10.0}
    (cell,) = grid(tmp_path, Settings(mode="pull", max_num_seqs=2), **load)[0]["cells"]
    assert "decode-full" in [one["topic"] for one in cell["counsel"]]
