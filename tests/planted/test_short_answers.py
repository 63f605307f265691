"""Answers of a few tokens have few gaps or none: what holds decode's loop is judged by what comes before them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pdbench.report.summary import summarise
from pdbench.testbed.settings import Settings
from tests.planted.virtual import sweep

LOOP = "engine-loop-blocking"


def causes(path: Path, settings: Settings, **load: Any) -> dict[str, dict[str, Any]]:
    (cell,) = summarise(sweep(path / "run", {"default": settings}, **load).run)["cells"]
    return {cause["cause"]: cause for cause in cell["diagnosis"]}


@pytest.mark.parametrize("tokens", [1, 2, 4])
def test_posts_that_hold_the_loop_are_named_without_gaps(tmp_path: Path, tokens: int) -> None:
    """A post of 21 ms for 25 requests a second: half of the loop's time."""
    load: dict[str, Any] = {"rates": [25], "prompt_lens": [4096], "output_len": tokens, "duration_s": 6.0}
    found = causes(tmp_path / "held", Settings(), **load)
    assert set(found) == {LOOP} and found[LOOP]["share"] > 0.5
    assert "TPOT" not in found[LOOP]["advice"] and "21 ms a request" in found[LOOP]["evidence"]
    assert not causes(tmp_path / "free", Settings(post_fixed_ms=0, post_ms_per_token=0), **load)


def test_streams_in_closed_loop_wait_for_each_others_posts_whatever_they_answer(tmp_path: Path) -> None:
    found = causes(tmp_path, Settings(), streams=[3], prompt_lens=[4096], output_len=1, duration_s=4.0)
    assert set(found) == {LOOP} and "for others' posts" in found[LOOP]["evidence"]


def test_a_held_first_step_without_gaps_is_not_called_polling(tmp_path: Path) -> None:
    """With one token an answer nothing tells a step that something holds from one that is long."""
    load: dict[str, Any] = {"streams": [2], "prompt_lens": [512], "output_len": 1, "duration_s": 4.0}
    quick: dict[str, Any] = {"post_fixed_ms": 0.5, "post_ms_per_token": 0.0005, "step_base_ms": 12}
    found = causes(tmp_path / "held", Settings(handoff_stall_ms=50, **quick), **load)
    assert set(found) == {"not-distinguishable"} and "62 ms" in found["not-distinguishable"]["evidence"]
    assert not causes(tmp_path / "free", Settings(**quick), **load)


def test_no_tpot_is_promised_where_most_turns_hold_a_post(tmp_path: Path) -> None:
    load: dict[str, Any] = {"rates": [25], "prompt_lens": [4096], "duration_s": 6.0}
    (short,) = causes(tmp_path / "short", Settings(), output_len=8, **load).values()
    assert short["cause"] == LOOP and "falls to about" not in short["advice"]
    long = causes(tmp_path / "long", Settings(max_num_seqs=32), output_len=64, **{**load, "rates": [12]})
    assert "TPOT then falls to about" in long[LOOP]["advice"]


def test_posts_are_said_as_a_share_of_the_loops_time_and_lose_nothing_where_no_stream_runs(tmp_path: Path) -> None:
    """One stream in closed loop posts while it makes no token."""
    load: dict[str, Any] = {"streams": [1], "prompt_lens": [4096], "output_len": 64, "duration_s": 12.0}
    found = causes(tmp_path, Settings(post_fixed_ms=100), **load)
    evidence = found[LOOP]["evidence"]
    assert "% of its time: no stream ran beside" in evidence and "lost in turns" not in evidence
