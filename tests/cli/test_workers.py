"""`pdbench sweep --workers`: the same job from several processes, and one of them killed."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import psutil
import pytest

from pdbench.testbed.launch import Running
from tests.cli.conftest import Ended, command, environment, roles

Run = Callable[..., Ended]
Bed = Callable[..., Running]


def workers_of(process: subprocess.Popen[str]) -> list[psutil.Process]:
    children = psutil.Process(process.pid).children()
    return [child for child in children if "pdbench.sweep.worker_process" in child.cmdline()]


def wait_for_lines(path: Path, count: int) -> None:
    limit = time.monotonic() + 30
    while not (path.exists() and path.read_bytes().count(b"\n") >= count):
        assert time.monotonic() < limit, f"{path} did not grow"
        time.sleep(0.02)


def test_a_killed_worker_is_told_the_sweep_goes_on_and_resume_mends_it(
    pdbench: Run, testbed: Bed, tmp_path: Path
) -> None:
    words = [*roles(testbed(mode="colocated")), "--rates", "20,30", "--prompt-lens", "64", "--output-len", "8"]
    line = command("sweep", *words, "--num-prompts", "80", "--workers", "2", "--out", "run")
    with subprocess.Popen(
        line, cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as sweep:
        wait_for_lines(tmp_path / "run" / "live" / "requests-c0000-r00-w001.jsonl", 5)
        (_, second) = sorted(workers_of(sweep), key=lambda process: process.pid)
        second.kill()
        out, err = sweep.communicate(timeout=60)
    assert sweep.returncode == 0, out + err
    assert "not measured: a load worker was lost" in " ".join(out.split())
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    cut, whole = summary["cells"]
    assert (cut["state"], cut["failed"], whole["state"]) == ("interrupted", 0, "done")
    flags = {flag["code"]: flag for flag in cut["validity"]}
    assert flags["arrivals-off"]["severity"] == "void" and "signal 9" in flags["arrivals-off"]["evidence"]
    assert "arrivals-off" not in {flag["code"] for flag in whole["validity"]} and whole["completed"] == 80
    rows = pd.read_parquet(tmp_path / "run" / "requests.parquet")
    kept = rows[rows["cell"] == 0]
    assert cut["not_measured"] == 80 - len(kept) > 0 and (kept["worker"] == 0).sum() == 40
    notes = json.loads((tmp_path / "run" / "run.json").read_text())["notes"]
    assert any("load worker 1 was lost" in note for note in notes)

    again = pdbench("sweep", "--resume", "run", "--workers", "3", "--json")
    assert again.code == 0, again.err
    assert [cell["state"] for cell in again.summary["cells"]] == ["done", "done"]
    assert again.summary["cells"][0]["completed"] == 80 and "not_measured" not in again.summary["cells"][0]
    rows = pd.read_parquet(tmp_path / "run" / "requests.parquet")
    assert len(rows) == 160 and rows["request_id"].is_unique
    assert sorted(rows[rows["cell"] == 0]["worker"].unique()) == [0, 1, 2]


@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_once_and_twice(testbed: Bed, tmp_path: Path, times: int) -> None:
    words = [*roles(testbed(mode="colocated")), "--rates", "20", "--prompt-lens", "64", "--output-len", "8"]
    line = command("sweep", *words, "--duration", "60s", "--workers", "2", "--out", "run")
    with subprocess.Popen(
        line, cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as sweep:
        wait_for_lines(tmp_path / "run" / "live" / "requests-c0000-r00-w001.jsonl", 5)
        workers = workers_of(sweep)
        for _ in range(times):
            sweep.send_signal(signal.SIGINT)
        _, err = sweep.communicate(timeout=60)
    assert sweep.returncode == 130 and "Traceback" not in err, err
    assert "--resume run --workers 2" in " ".join(err.split()), err
    assert len(workers) == 2 and not psutil.wait_procs(workers, timeout=10)[1]
    from pdbench.run import Run as Directory

    rows = Directory.open(tmp_path / "run").table("requests")
    assert set(rows["status"]) <= {"ok", "cancelled"} and (rows["status"] == "ok").sum() >= 10
    assert rows["request_id"].is_unique and set(rows["worker"]) == {0, 1}
