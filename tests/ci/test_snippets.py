"""The CI snippets of docs/ci.md are run: every shell step of every job, in order, against the practice deployment.

Between the steps the measured figures are made exact, so that what `compare` and `history` must say is known anywhere.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from pdbench.testbed.launch import Running

ROOT = Path(__file__).parents[2]
SMALL = "--rates 40 --prompt-lens 64 --output-len 4 --num-prompts 4 --repeats 5"
FIGURES = ("mean_ttft_ms", "median_ttft_ms", "mean_tpot_ms", "request_throughput")


def jobs() -> Iterator[tuple[str, dict[str, str], list[str]]]:
    """(name, variables, shell steps) of each job in the document."""
    for block in re.findall(r"^```yaml\n(.*?)^```", (ROOT / "docs" / "ci.md").read_text(), re.DOTALL | re.MULTILINE):
        document = yaml.safe_load(block)
        if "jobs" in document:
            for job in document["jobs"].values():
                steps = [step["run"] for step in job["steps"] if "run" in step]
                yield document["name"], job.get("env") or {}, steps
        else:
            for name, job in document.items():
                yield name, job.get("variables") or {}, job["script"]


JOBS = {name: (variables, steps) for name, variables, steps in jobs()}


class Runner:
    """A workspace with pip and pdbench on its path, as on a CI runner."""

    def __init__(self, workspace: Path, load: str) -> None:
        self.workspace = workspace
        (workspace / "perf").mkdir()
        tools = workspace / ".tools"
        tools.mkdir()
        for name in ("pdbench", "pip"):
            (tools / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" -m {name} "$@"\n')
            (tools / name).chmod(0o755)
        self.environment = {
            **os.environ,
            "PATH": f"{tools}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "PIP_NO_INDEX": "1",
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "GITHUB_STEP_SUMMARY": str(workspace / "step.md"),
            "GITHUB_SHA": "abc123",
            "PDBENCH_SWEEP": load,
        }

    def run(self, step: str) -> int:
        done = subprocess.run(
            ["bash", "-eo", "pipefail", "-c", step],
            cwd=self.workspace, env=self.environment, capture_output=True, text=True, timeout=240,
        )  # fmt: skip
        assert "Traceback" not in done.stderr, done.stderr
        assert done.returncode in (0, 1, 3), done.stderr
        return done.returncode


def exact(path: Path, **factors: float) -> dict[str, Any]:
    """The summary with every repeat valid and its figures round; of a target in `factors` times that."""
    summary: dict[str, Any] = json.loads(path.read_text())
    for cell in summary["cells"]:
        cell["validity"] = []
        factor = factors.get(cell["target"], 1.0)
        for repeat in cell["repeats"]:
            wobble = 1 + 0.001 * (repeat["repeat"] % 2)
            values = dict.fromkeys(FIGURES, 100.0 * factor * wobble) | {"request_throughput": 4.0}
            repeat.update(values, validity=[], valid=True)
    return summary


@pytest.fixture
def runner(tmp_path: Path, testbed: Callable[..., Running]) -> Runner:
    bed = testbed(mode="pull")
    recipe = 'mode = "pull"\n'
    for role, url in (("proxy", bed.proxy_url), ("prefill", bed.prefill_urls[0]), ("decode", bed.decode_urls[0])):
        recipe += f'[[server]]\nrole = "{role}"\nurl = "{url}"\n'
    made = Runner(tmp_path, SMALL)
    for name in ("deployment", "main", "new"):
        (tmp_path / "perf" / f"{name}.toml").write_text(recipe)
    return made


def test_every_snippet_is_here() -> None:
    assert set(JOBS) == {"handoff", "baseline", "side by side", "nightly"}
    assert all(steps and "PDBENCH_SWEEP" in variables for variables, steps in JOBS.values())
    words = {word for _, steps in JOBS.values() for step in steps for word in re.findall(r"\$(\w+)", step)}
    assert words == {"PDBENCH_SWEEP"}, "nothing but the load is taken from outside"


def load_of(name: str) -> str:
    """The snippet's own target with a load of two seconds."""
    recipe = re.match(r"--recipe \S+", JOBS[name][0]["PDBENCH_SWEEP"])
    return f"{recipe[0] if recipe else ''} {SMALL}"


HANDOFFS = [steps for name, _, steps in jobs() if name == "handoff"]


@pytest.mark.parametrize("steps", HANDOFFS, ids=["github", "gitlab"])
def test_the_gate_against_a_committed_baseline(runner: Runner, steps: list[str]) -> None:
    runner.environment["PDBENCH_SWEEP"] = load_of("handoff")
    *before, gate = steps
    for step in before:
        assert runner.run(step) in (0, 3)
    run = runner.workspace / "run" / "summary.json"
    (runner.workspace / "perf" / "baseline.json").write_text(json.dumps(exact(run)))
    for slower, code in ((1.0, 0), (1.3, 1)):
        run.write_text(json.dumps(exact(run, default=slower)))
        assert runner.run(gate) == code
        for name in ("compare.html", "compare.xml", "compare.md"):
            assert (runner.workspace / name).stat().st_size > 100


def test_a_baseline_is_made_and_accepted(runner: Runner) -> None:
    runner.environment["PDBENCH_SWEEP"] = load_of("baseline")
    for step in JOBS["baseline"][1]:
        # A busy host may void the cells, which ends the step: then the file is not made, and should not be.
        code = runner.run(step)
    kept = runner.workspace / "perf" / "baseline.json"
    assert kept.exists() == (code == 0)
    summary = json.loads((runner.workspace / "run" / "summary.json").read_text())
    assert summary["revision"] == "abc123"


def test_side_by_side(runner: Runner) -> None:
    *before, gate = JOBS["side by side"][1]
    for step in before:
        assert runner.run(step) in (0, 3)
    run = runner.workspace / "both" / "summary.json"
    for slower, code in ((1.0, 0), (1.3, 1)):
        run.write_text(json.dumps(exact(run, new=slower)))
        assert runner.run(gate) == code
    assert (runner.workspace / "step.md").read_text().count("### SIMULATED: pdbench: gate") == 2


def test_nights_become_a_history(runner: Runner) -> None:
    runner.environment["PDBENCH_SWEEP"] = load_of("nightly")
    pip, sweep, *after = JOBS["nightly"][1]
    assert runner.run(pip) == 0
    assert runner.run(sweep) in (0, 3)
    run = runner.workspace / "run" / "summary.json"
    nights = runner.workspace / "perf" / "history"
    nights.mkdir()
    healthy = exact(run)
    for night in range(1, 13):
        earlier = healthy["created_unix_s"] - night * 86400
        (nights / f"{night}.json").write_text(json.dumps({**healthy, "created_unix_s": earlier}))
    run.write_text(json.dumps(exact(run, default=1.5)))
    for step in after[:-1]:
        assert runner.run(step) == 0
    assert runner.run(after[-1]) == 0, "one slow night is no level"
    assert (runner.workspace / "history.html").exists()
