"""Posts: what a long one is, and what the loop that it holds does to the slots and to what is advised of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pdbench.littles_law.slots_answer import answer
from pdbench.littles_law.slots_from_run import as_reported, questions_of_run
from pdbench.littles_law.slots_text import figure, headline, notes_of_run
from pdbench.report.summary import summarise
from pdbench.testbed.settings import Settings
from tests.planted.virtual import sweep


def cells(path: Path, bed: Settings, **load: Any) -> list[dict[str, Any]]:
    done = sweep(path / "run", {"bed": bed}, **{"rates": [0.8], "duration_s": 40.0, "seed": 32, **load})
    found: list[dict[str, Any]] = summarise(done.run)["cells"]
    return found


def by_name(cell: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {cause["cause"]: cause for cause in cell["diagnosis"]}


@pytest.mark.parametrize("seed", [32, 33])
def test_a_long_post_of_one_length_may_be_a_copy_or_not(tmp_path: Path, seed: int) -> None:
    (cell,) = cells(tmp_path, Settings(mode="push", post_fixed_ms=230.0), prompt_lens=[4096], seed=seed)
    (cause,) = cell["diagnosis"]
    assert cause["cause"] == "not-distinguishable" and cause["share"] > 0.8
    assert "128 descriptors are too few" in cause["evidence"] and "--prompt-lens" in cause["advice"]


def test_two_prompt_lengths_tell_a_copy_from_a_slow_post(tmp_path: Path) -> None:
    lens: dict[str, Any] = {"prompt_lens": [2048, 4096], "output_len": 32}
    copied = Settings(mode="push", post_fixed_ms=0.0, post_ms_per_token=0.06)
    assert [list(by_name(cell)) for cell in cells(tmp_path / "copied", copied, **lens)] == [["transfer-bandwidth"]] * 2
    slow = Settings(mode="push", post_fixed_ms=230.0, post_ms_per_token=0.0)
    for cell in cells(tmp_path / "slow", slow, **lens):
        assert "it is no copy" in by_name(cell)["not-distinguishable"]["evidence"]


def test_bytes_that_no_link_could_have_carried_afterwards_were_copied_in_the_post(tmp_path: Path) -> None:
    bed = Settings(mode="push", post_fixed_ms=230.0, link_gb_s=20000.0)
    (cell,) = cells(tmp_path, bed, prompt_lens=[4096])
    assert list(by_name(cell)) == ["transfer-bandwidth"]


def test_more_slots_are_not_advised_where_posts_hold_the_loop(tmp_path: Path) -> None:
    """Short answers: 150 posts a second of 12 ms each are more than a loop has time for, whatever slots there are."""
    load: dict[str, Any] = {"rates": [150], "prompt_lens": [1024], "output_len": 8, "duration_s": 8.0}
    (cell,) = cells(tmp_path, Settings(mode="pull"), **load)
    slots, loop = by_name(cell)["decode-slots"], by_name(cell)["engine-loop-blocking"]
    assert "no number of slots carries it" in slots["advice"] and "Raise" not in slots["advice"]
    assert cell["decode_loop"]["share"] == pytest.approx(150 * 0.01158, rel=0.02) and "on the loop" in loop["evidence"]
    (tmp_path / "summary.json").write_text(json.dumps({"schema": 1, "cells": [cell]}))
    ((_, question),) = questions_of_run(tmp_path, 0.1, None, 1)
    said = answer(question)
    assert said["slots_for_slo"] is None and "held-loop" in [warning["code"] for warning in said["warnings"]]


@pytest.mark.parametrize("mode", ["colocated", "pull"])
def test_slots_of_a_run_are_the_reports(tmp_path: Path, mode: Any) -> None:
    """A co-located request holds its slot during its prefill too; where posts hold the loop, TPOT is no one number."""
    found = cells(tmp_path, Settings(mode=mode), rates=[4], prompt_lens=[16384], output_len=128, duration_s=8.0)
    (tmp_path / "summary.json").write_text(json.dumps({"schema": 1, "cells": found}))
    for cell, (measured, question) in zip(found, questions_of_run(tmp_path, 0.1, None, 1), strict=True):
        reported = cell["slots"]["needed"] + (cell["slots"].get("prefill_held", 0.0))
        document = as_reported({**measured, **answer(question)})
        assert bool(question.loop_held) == (mode == "pull")
        assert document["slots_needed"] == pytest.approx(reported)
        assert f"{figure(reported)} of 8 slots" in headline(document)
        notes = " ".join(notes_of_run([document]))
        if question.loop_held:
            assert f"{figure(reported)} slots at the TPOT measured" in notes
            assert "of the rate that full slots complete" in headline(document)
        else:
            assert document["tpot_ms"] == pytest.approx(cell["mean_tpot_ms"]) and "TPOT measured" not in notes
    held = [cell["slots"].get("prefill_held", 0.0) for cell in found]
    assert min(held) > 0.05 if mode == "colocated" else not any(held)


def test_slots_that_would_do_without_the_posts_are_the_loops_fault(tmp_path: Path) -> None:
    load: dict[str, Any] = {"rates": [60], "prompt_lens": [1024], "output_len": 8, "duration_s": 15.0}
    (pull,) = cells(tmp_path / "pull", Settings(mode="pull"), **load)
    (push,) = cells(tmp_path / "push", Settings(mode="push"), **load)
    assert list(by_name(pull)) == ["engine-loop-blocking"] and list(by_name(push)) == []
    assert by_name(pull)["engine-loop-blocking"]["share"] > 0.9
    assert "enough if the loop were not held" in by_name(pull)["engine-loop-blocking"]["evidence"]


@pytest.mark.parametrize("slots", [19, 60])
def test_a_load_at_the_limit_of_a_held_loop_is_no_steady_cell(tmp_path: Path, slots: int) -> None:
    """Of 19 slots 16 are needed at the TPOT of 40 s; ten minutes of it wait four to nine seconds for one."""
    load: dict[str, Any] = {"rates": [8], "prompt_lens": [16384], "output_len": 128, "seed": 0}
    (cell,) = cells(tmp_path, Settings(mode="pull", max_num_seqs=slots), **load)
    assert cell["slots"]["utilisation"] < 0.95
    flags = {one["code"]: one for one in cell["validity"]}
    if slots == 60:
        assert "not-steady-state" not in flags
        return
    flag = flags["not-steady-state"]
    assert flag["severity"] == "warn" and "of what full slots complete" in flag["evidence"]
    (tmp_path / "summary.json").write_text(json.dumps({"schema": 1, "cells": [cell]}))
    ((_, question),) = questions_of_run(tmp_path, 0.1, None, 1)
    assert 0.95 <= cell["short_run"]["slots_used"] == pytest.approx(answer(question)["utilisation"])
