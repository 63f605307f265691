"""Runs whose pages were read in part or not at all: only what the data that are left can settle is named."""

from __future__ import annotations

from copy import copy, deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pdbench.report.material import material
from pdbench.report.summary import summarise
from pdbench.run import Run
from pdbench.testbed.settings import Settings
from tests.planted.faults import FAULTS, GEOMETRIES, STRONG, Plant, healthy, planted
from tests.planted.virtual import sweep

UNKNOWN = "not-distinguishable"
OWN = {"client", "admission"}  # the client's own data tell


def judged(run: Run, *roles: str) -> dict[str, Any]:
    """The cell as judged with these roles given beside the proxy, and no others."""
    seen, read = copy(run), material(run)
    seen.document = deepcopy(run.document)
    (deployment,) = seen.document["deployments"]
    deployment["servers"] = [one for one in deployment["servers"] if one["role"] in ("proxy", *roles)]
    if not roles:
        deployment.pop("mode", None)
    pages = copy(read.metrics)
    pages.sources = [source for source in pages.sources if source.role in roles]
    (cell,) = summarise(seen, replace(read, metrics=pages))["cells"]
    found: dict[str, Any] = cell
    return found


def causes(cell: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {cause["cause"]: cause for cause in cell["diagnosis"]}


def run_of(path: Path, plant: Plant) -> Run:
    bed = plant.geometry.bed(plant.mode, **plant.settings)
    load: dict[str, Any] = {"rates": [plant.rate], "prompt_lens": [plant.geometry.prompt], "output_len": plant.output}
    return sweep(path / "run", {"default": bed}, duration_s=15.0, sabotage=plant.sabotage, **load).run


ALTERNATELY = [(cause, ("push", "pull")[i % 2]) for i, cause in enumerate(FAULTS)]


@pytest.mark.parametrize(("cause", "mode"), ALTERNATELY)
def test_a_strong_fault_is_named_only_from_the_pages_that_show_it(tmp_path: Path, cause: str, mode: str) -> None:
    plant = planted(GEOMETRIES[0], mode, (cause,), STRONG)
    run, there = run_of(tmp_path, plant), {*plant.causes, *plant.implied}
    unscraped = causes(judged(run))
    assert unscraped and set(unscraped) <= OWN & there | {UNKNOWN}
    for role in ("prefill", "decode"):
        found = causes(judged(run, role))
        assert found and set(found) <= there | {UNKNOWN}


@pytest.mark.parametrize("mode", ["pull", "push"])
def test_a_healthy_deployment_has_no_cause_whatever_is_read(tmp_path: Path, mode: str) -> None:
    run = run_of(tmp_path, healthy(GEOMETRIES[1], mode))
    assert "nothing stands out to the client" in judged(run)["verdict"]
    for roles in ((), ("prefill",), ("decode",)):
        assert causes(judged(run, *roles)) == {}


def test_full_slots_behind_a_proxy_alone_are_blamed_on_nobody(tmp_path: Path) -> None:
    """Handoffs that are posted on decode's loop make streams stand still, and slots are what requests wait for."""
    full: dict[str, Any] = {"rates": [8], "prompt_lens": [16384], "output_len": 128, "seed": 2, "prompt_seed": 2}
    run = sweep(tmp_path / "run", {"default": Settings(max_num_seqs=8)}, duration_s=8.0, **full).run
    assert {"decode-slots", "engine-loop-blocking"} <= set(causes(judged(run, "prefill", "decode")))
    ((name, cause),) = causes(judged(run)).items()
    assert name == UNKNOWN and cause["advice"].startswith("Give --prefill URL --decode URL")
    for said in ("decode's slots", "KV blocks", "prefill's queue", "the transfer", "TTFT", "TPOT", "needs 10.1 slots"):
        assert said in cause["evidence"]
    assert cause["share"] == 1.0 and "engine-loop-blocking" not in judged(run)["verdict"]


def test_a_ttft_that_grows_is_said_to(tmp_path: Path) -> None:
    few = Settings(max_num_seqs=2)
    load: dict[str, Any] = {"rates": [6], "prompt_lens": [512], "output_len": 96, "duration_s": 10.0}
    cell = judged(sweep(tmp_path / "run", {"default": few}, **load).run)
    assert "TTFT grows" in causes(cell)[UNKNOWN]["evidence"]
    assert "its cause is not-distinguishable" in cell["verdict"] and "Give --prefill URL" in cell["verdict"]


def test_the_page_that_is_missing_is_the_one_to_give(tmp_path: Path) -> None:
    run = run_of(tmp_path, planted(GEOMETRIES[0], "pull", ("decode-slots",), STRONG))
    cause = causes(judged(run, "prefill"))[UNKNOWN]
    assert cause["advice"].startswith("Give --decode URL,") and "prefill's queue" not in cause["evidence"]


def test_streams_in_closed_loop_that_meet_at_prefill_are_not_its_fault(tmp_path: Path) -> None:
    """Posts on decode's loop let them go together; without its page nobody can say so, nor blame prefill."""
    bed, load = Settings(), {"streams": [8], "prompt_lens": [16384], "output_len": 128, "duration_s": 12.0}
    run = sweep(tmp_path / "run", {"default": bed}, **load).run  # type: ignore[arg-type]
    assert set(causes(judged(run, "prefill", "decode"))) == {"engine-loop-blocking"}
    assert set(causes(judged(run, "prefill"))) == {UNKNOWN}


def test_streams_that_wait_for_posts_of_others_are_not_looked_for_late(tmp_path: Path) -> None:
    """Which posts meet depends on when prefill lets requests go."""
    bed, load = Settings(post_fixed_ms=250.0), {"streams": [6], "prompt_lens": [1024], "output_len": 64}
    run = sweep(tmp_path / "run", {"default": bed}, duration_s=25.0, **load).run  # type: ignore[arg-type]
    assert set(causes(judged(run, "prefill", "decode"))) == {"engine-loop-blocking"}
    assert "completion-polling" not in causes(judged(run, "decode"))
