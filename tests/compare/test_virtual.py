"""From sweep to gate on the practice deployment in virtual time: a planted fault fails and is explained, its healthy
twin does not; a run of two targets leads with their difference."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pdbench.report.command import conclude
from pdbench.report.compare.comparison import Comparison, compare
from pdbench.report.compare.gate import Rules
from pdbench.report.compare.sides import BASE, NEW, read_side
from pdbench.report.summary import summarise
from pdbench.testbed.settings import Settings
from tests.planted.virtual import sweep

HEALTHY = Settings()
LOAD: dict[str, Any] = {"rates": [6.0], "prompt_lens": [1024], "output_len": 8, "duration_s": 2.5, "repeats": 5}


def measured(path: Path, targets: Mapping[str, Settings], **load: Any) -> None:
    run = sweep(path, targets, **{**LOAD, **load}).run
    run.write_json("summary.json", summarise(run))


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("base") / "run"
    measured(path, {"default": HEALTHY})
    return path


def judged(base: Path, new: Path, rules: Rules | None = None) -> Comparison:
    return compare(read_side(base, BASE), read_side(new, NEW), rules or Rules())


@pytest.mark.parametrize(
    ("planted", "part"),
    [
        ({"post_fixed_ms": 14.0}, "post"),
        ({"prefill_ms_per_token": 0.012}, "prefill"),
        ({"link_gb_s": 40.0}, "transfer"),
        ({"proxy_ms": 6.0}, "proxy"),
    ],
)
def test_a_planted_fault_fails_and_its_part_explains_it(
    base: Path, tmp_path: Path, planted: dict[str, float], part: str
) -> None:
    measured(tmp_path / "run", {"default": replace(HEALTHY, **planted)})  # type: ignore[arg-type]
    found = judged(base, tmp_path / "run")
    assert found.status == "failed"
    (cell,) = found.cells
    sure = [each for each in cell.parts if each.sure]
    assert max(sure, key=lambda each: each.change_ms).name == part
    change = next(change for change in cell.gates if change.metric == "mean_ttft_ms")
    assert change.base is not None and change.new is not None
    assert sum(each.change_ms for each in cell.parts) == pytest.approx(change.new - change.base, rel=0.05)


def test_the_healthy_twin_passes(base: Path, tmp_path: Path) -> None:
    """The same deployment with a slightly faster link: a change without which nobody would be the wiser."""
    measured(tmp_path / "run", {"default": replace(HEALTHY, link_gb_s=410.0)})
    assert judged(base, tmp_path / "run").status == "passed"


def test_a_summary_kept_as_a_baseline_says_the_same_as_its_run(base: Path, tmp_path: Path) -> None:
    measured(tmp_path / "run", {"default": replace(HEALTHY, post_fixed_ms=14.0)})
    kept = tmp_path / "baseline.json"
    kept.write_text((base / "summary.json").read_text())
    assert judged(kept, tmp_path / "run").gates[0][1] == judged(base, tmp_path / "run").gates[0][1]


def test_a_run_of_two_targets_leads_with_the_difference_and_what_explains_it(tmp_path: Path) -> None:
    push = replace(HEALTHY, mode="push")
    load = {**LOAD, "rates": [8.0], "prompt_lens": [8192], "output_len": 64, "duration_s": 4.0}
    summary = conclude(sweep(tmp_path / "run", {"pull": HEALTHY, "push": push}, **load).run)
    assert summary["verdict"].startswith("SIMULATED. push is better than pull: 8 req/s x 8,192 tokens")
    assert " ms of TTFT" in summary["verdict"]
    stored = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert stored["comparison"]["base"]["target"] == "pull"
    assert {fact["name"] for fact in stored["comparison"]["differs"]} >= {"mode"}
    page = (tmp_path / "run" / "report.html").read_text()
    assert page.index("push against pull") < page.index("The grid")
    seeds = [[repeat["seed"] for repeat in cell["repeats"]] for cell in stored["cells"]]
    assert seeds[0] == seeds[1] and len(set(seeds[0])) == 5
    order = json.loads((tmp_path / "run" / "run.json").read_text())["cell_runs"]
    names = {cell["cell"]: cell["target"] for cell in stored["cells"]}
    assert [names[entry["cell"]] for entry in order] == ["pull", "push", "push", "pull"] * 2 + ["pull", "push"]
