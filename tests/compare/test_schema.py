"""The published JSON Schema of summary.json: real summaries of every kind hold to it, broken ones do not."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from pdbench.report.command import conclude
from pdbench.testbed.settings import Settings
from tests.compare.made import edited
from tests.compare.test_transfers import transfer
from tests.planted.virtual import sweep
from tests.report_views.made_run import bare_summary, grid_summary

SCHEMA = json.loads(resources.files("pdbench.report").joinpath("summary.schema.json").read_text())
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)
SMALL: dict[str, Any] = {"prompt_lens": [512], "output_len": 8, "duration_s": 1.5}


def problems(summary: dict[str, Any]) -> list[str]:
    return [f"{error.json_path}: {error.message[:200]}" for error in VALIDATOR.iter_errors(summary)]


def test_the_schema_is_one() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize(
    ("targets", "load"),
    [
        ({"pull": Settings(), "push": Settings(mode="push")}, {"rates": [6.0], "repeats": 2}),
        ({"default": Settings(mode="colocated")}, {"streams": [2], "repeats": 1}),
        ({"default": Settings(max_num_seqs=1)}, {"rates": [30.0], "duration_s": 3.0}),  # overloaded, hence void
        ({"default": Settings(error_every=3)}, {"rates": [8.0]}),
    ],
    ids=["two targets", "closed loop", "void", "failures"],
)
def test_what_runs_write_holds_to_it(tmp_path: Path, targets: dict[str, Settings], load: dict[str, Any]) -> None:
    summary = conclude(sweep(tmp_path / "run", targets, **{**SMALL, **load}).run)
    assert problems(summary) == []
    assert problems(json.loads((tmp_path / "run" / "summary.json").read_text())) == []


@pytest.mark.parametrize("summary", [grid_summary(), bare_summary(), transfer(1)], ids=["grid", "least", "transfer"])
def test_other_summaries_hold_to_it(summary: dict[str, Any]) -> None:
    assert problems(summary) == []


@pytest.mark.parametrize(
    ("summary", "edit"),
    [
        (grid_summary(), lambda summary: summary.pop("cells")),
        (grid_summary(), lambda summary: summary.update(kind="transfer")),
        (grid_summary(), lambda summary: summary["cells"][0].update(mean_ttft_ms=0)),  # never a legal TTFT
        (grid_summary(), lambda summary: summary["cells"][0].update(repeats=[{"seed": 3}])),
        (grid_summary(), lambda summary: summary["cells"][0].update(loop="half open")),
        (transfer(1), lambda summary: summary["results"][0].update(op="PULL")),
        (transfer(1), lambda summary: summary["results"][0].pop("gb_s")),
    ],
)
def test_broken_summaries_do_not(summary: dict[str, Any], edit: Callable[[dict[str, Any]], Any]) -> None:
    assert problems(edited(summary, lambda document: edit(document) and None))
