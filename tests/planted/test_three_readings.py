"""A published run, read with the tool's own eyes: 1,744 ms pull against 540 ms push at 8 requests/s of 16k prompts.

What pdbench must say of such a run by itself: the slots that it needs make it an overload, so its TTFT is a figure of
the run's length; the prompt tokens it asks for are more than prefill computes, so the prefix cache answered; and what
TPOT rises by fits a stall of about 61 ms an admission.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from pdbench.report.summary import summarise
from pdbench.testbed.settings import Settings
from tests.planted.virtual import sweep

COLD = 1000 / 32000  # ms to compute a prompt token at the 32k tokens/s that those GPUs can
HITS = 1 - 60 / 16384 / COLD  # what must have been cached for a prompt to take 60 ms


@pytest.fixture(scope="module")
def read(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The summary of 100 requests on each of the two, and pull's cell of it."""
    bed = {"prefill_ms_per_token": COLD, "repeated_share": HITS}
    targets = {mode: Settings(mode=mode, **bed) for mode in ("push", "pull")}
    load: dict[str, Any] = {"rates": [8], "prompt_lens": [16384], "output_len": 128, "num_prompts": 100}
    path: Path = tmp_path_factory.mktemp("published") / "run"
    return summarise(sweep(path, targets, duration_s=None, link_gb_s=400.0, **load).run)


def cell(read: dict[str, Any], target: str) -> dict[str, Any]:
    found: dict[str, Any] = next(c for c in read["cells"] if c["target"] == target)
    return found


def test_the_mean_is_a_figure_of_the_runs_length(read: dict[str, Any]) -> None:
    pull = cell(read, "pull")
    assert pull["slots"]["needed"] == pytest.approx(10.6, abs=0.6) and pull["slots"]["available"] == 8
    assert "not-steady-state" in [v["code"] for v in pull["validity"] if v["severity"] == "void"]
    assert "figure of this run's length" in read["verdict"] + pull["verdict"] + str(pull["validity"])
    slots = next(c for c in pull["diagnosis"] if c["cause"] == "decode-slots")
    assert f"needs {pull['slots']['needed']:.1f} decode slots of 8" in slots["evidence"]


def test_the_prefix_cache_answered(read: dict[str, Any]) -> None:
    for target in ("pull", "push"):
        (hits,) = (v for v in cell(read, target)["validity"] if v["code"] == "prefix-cache-hits")
        assert hits["severity"] == "void"
        asked, times, possible = re.search(
            r"([\d,]+) prompt tokens/s are asked for, ([\d.]+) times the ([\d,]+) that prefill", hits["evidence"]
        ).groups()  # type: ignore[union-attr]
        assert asked == "131,072" and float(times) == pytest.approx(4.1, abs=0.1)
        assert int(possible.replace(",", "")) == pytest.approx(32000, rel=0.01)
        assert "impossible" in hits["evidence"]


def test_the_rise_of_tpot_fits_a_stall_an_admission(read: dict[str, Any]) -> None:
    """The post takes 61 ms on pull's decode loop and none of push's."""
    pull, push = cell(read, "pull"), cell(read, "push")
    assert pull["mean_tpot_ms"] == pytest.approx(10.4, abs=0.5) and push["mean_tpot_ms"] == pytest.approx(7.0, abs=0.3)
    blocking = next(c for c in pull["diagnosis"] if c["cause"] == "engine-loop-blocking")
    said = re.search(
        r"against ([\d.]+) ms on push at the same load, .* about (\d+) ms at each admission", blocking["evidence"]
    )
    assert said is not None and float(said[1]) == pytest.approx(push["mean_tpot_ms"], abs=0.05)
    assert int(said[2]) == pytest.approx(61, abs=6)
    assert "engine-loop-blocking" not in [c["cause"] for c in push["diagnosis"]]
