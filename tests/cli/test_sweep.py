"""The main job, end to end, on the practice deployment."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from pdbench.deployment import build
from pdbench.errors import Interrupted, PdbenchError, StorageError
from pdbench.run import Run as RunDirectory
from pdbench.sweep.command import _last_words
from pdbench.sweep.plan import Cell, Plan
from pdbench.testbed.launch import Running
from pdbench.testbed.truth import read as read_truth
from tests.cli.conftest import Ended, command, environment, roles

Run = Callable[..., Ended]
Bed = Callable[..., Running]
SMALL = ["--prompt-lens", "512", "--output-len", "16"]
FILES = {"run.json", "requests.parquet", "chunks.parquet", "metrics.parquet", "summary.json", "report.html"}


@pytest.mark.alone
def test_a_healthy_sweep_ends_with_a_verdict_a_report_and_zero(pdbench: Run, testbed: Bed, tmp_path: Path) -> None:
    bed = testbed(mode="pull")
    ended = pdbench("sweep", *roles(bed), "--rates", "4,8", *SMALL, "--duration", "5s", "--out", "run")
    assert ended.code == 0, ended.out + ended.err
    assert "SIMULATED" in ended.out
    assert ended.out.rstrip().endswith("report.html")
    assert all(len(line) <= 80 for line in ended.out.splitlines()[:-1])
    assert {path.name for path in (tmp_path / "run").iterdir()} == FILES
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["schema"], summary["simulated"], len(summary["cells"])) == (1, True, 2)
    for cell in summary["cells"]:
        assert cell["failed"] == 0
        assert not [flag for flag in cell["validity"] if flag["severity"] == "void"], cell["validity"]
        assert cell["diagnosis"] == []
        parts = cell["ttft_split_ms"]
        assert sum(parts.values()) == pytest.approx(cell["mean_ttft_ms"], abs=1e-6)


@pytest.mark.alone
def test_what_is_reported_is_what_the_servers_logged(pdbench: Run, testbed: Bed, tmp_path: Path) -> None:
    bed = testbed(mode="pull")
    ended = pdbench("sweep", *roles(bed), "--rates", "6", *SMALL, "--num-prompts", "40", "--out", "run", "--json")
    (cell,) = ended.summary["cells"]
    rows = pd.read_parquet(tmp_path / "run" / "requests.parquet")
    origin = json.loads((tmp_path / "run" / "run.json").read_text())["clock"]["origin_monotonic_ns"] / 1e9
    truth = read_truth(bed.log_dir)["requests"]
    assert cell["completed"] == len(rows) == 40
    errors = []
    for row in rows.itertuples():
        logged = truth[row.request_id]["decode"]
        assert row.output_tokens == 16
        errors.append(row.first_token_s + origin - logged["first_token_written"])
    assert 0 <= np.median(errors) < 0.01
    # Means over the cell, from the simulated schedule of each stage.
    engine = [truth[request_id]["prefill"] for request_id in rows["request_id"]]
    compute = np.mean([one["prefill_end"] - one["prefill_start"] for one in engine]) * 1000
    assert cell["ttft_split_ms"]["prefill"] == pytest.approx(compute, rel=0.05, abs=0.3)


def test_json_leaves_stdout_to_the_summary(pdbench: Run, testbed: Bed, tmp_path: Path) -> None:
    bed = testbed(mode="colocated")
    ended = pdbench("sweep", *roles(bed), "--rates", "4", *SMALL, "--num-prompts", "12", "--out", "run", "--json")
    assert ended.summary == json.loads((tmp_path / "run" / "summary.json").read_text())
    again = pdbench("report", "run", "--json")
    assert again.summary["cells"][0]["mean_ttft_ms"] == ended.summary["cells"][0]["mean_ttft_ms"]


def test_a_closed_loop_says_so(pdbench: Run, testbed: Bed) -> None:
    bed = testbed(mode="push")
    words = ["--max-concurrency", "4", *SMALL, "--num-prompts", "40", "--out", "run"]
    shown = pdbench("sweep", *roles(bed), *words)
    assert "closed loop" in shown.out.lower()
    (cell,) = pdbench("report", "run", "--json").summary["cells"]
    assert (cell["loop"], cell["max_concurrency"], cell.get("request_rate")) == ("closed", 4, None)
    assert cell["completed"] == 40


def test_chat_prompts_have_the_length_that_was_asked_for(pdbench: Run, testbed: Bed, tmp_path: Path) -> None:
    bed = testbed(mode="pull")
    words = ["--endpoint", "chat", "--rates", "4", *SMALL, "--num-prompts", "12", "--out", "run", "--json"]
    (cell,) = pdbench("sweep", *roles(bed), *words).summary["cells"]
    assert cell["completed"] == 12
    lengths = pd.read_parquet(tmp_path / "run" / "requests.parquet")["prompt_tokens"]
    assert lengths.between(512 * 0.98, 512 * 1.02).all()


def test_ctrl_c_saves_what_was_measured_reports_it_and_can_be_gone_on_with(
    pdbench: Run, testbed: Bed, tmp_path: Path
) -> None:
    bed = testbed(mode="pull")
    words = ["sweep", *roles(bed), "--rates", "5,10", *SMALL, "--duration", "6s", "--out", "run"]
    started = subprocess.Popen(
        command(*words), cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    live = tmp_path / "run" / "live"
    deadline = time.monotonic() + 60
    while not any(p.stat().st_size > 2000 for p in live.glob("requests-c0001*")) and time.monotonic() < deadline:
        time.sleep(0.05)
    started.send_signal(signal.SIGINT)
    out, err = started.communicate(timeout=30)
    assert started.returncode == 130, err
    assert "--resume" in err
    assert "Traceback" not in err
    assert {path.name for path in (tmp_path / "run").iterdir()} == FILES
    rows = pd.read_parquet(tmp_path / "run" / "requests.parquet")
    assert set(rows["cell"]) == {0, 1}
    assert "report.html" in out
    ended = pdbench("sweep", "--resume", "run", "--json")
    assert ended.code == 0, ended.err
    assert [cell["cell"] for cell in ended.summary["cells"]] == [0, 1]
    after = pd.read_parquet(tmp_path / "run" / "requests.parquet")
    first = rows[rows["cell"] == 0].sort_values("request_id")["first_token_s"].tolist()
    assert after[after["cell"] == 0].sort_values("request_id")["first_token_s"].tolist() == first
    assert after["request_id"].is_unique
    assert (after["status"] == "ok").all()
    assert after["intended_s"].max() > rows["intended_s"].max()
    again = pdbench("sweep", "--resume", "run", "--json")
    assert "nothing was left to measure" in again.err and "nothing was left" not in ended.err
    assert again.summary["cells"][1]["mean_ttft_ms"] == ended.summary["cells"][1]["mean_ttft_ms"]


def test_two_signals_at_once_are_one(testbed: Bed, tmp_path: Path) -> None:
    """GNU timeout signals its group, then the command again."""
    bed = testbed(mode="colocated")
    started = subprocess.Popen(
        command("sweep", *roles(bed), "--rates", "10", *SMALL, "--duration", "20s", "--out", "run"),
        cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    live = tmp_path / "run" / "live"
    deadline = time.monotonic() + 60
    while not any(p.stat().st_size > 500 for p in live.glob("requests*")) and time.monotonic() < deadline:
        time.sleep(0.02)
    started.terminate()
    time.sleep(0.05)
    started.terminate()
    out, err = started.communicate(timeout=30)
    assert started.returncode == 130 and "Traceback" not in err, err
    assert "sweep --resume run" in err.splitlines()[-1] and "report.html" in out


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_resume_that_is_ended_before_its_first_cell_names_its_run(tmp_path: Path, number: signal.Signals) -> None:
    """The server takes the connection and says nothing, so discovery waits."""
    plan = Plan((Cell(0, "default", 1.0, None, 16, 4),), num_prompts=1, duration_s=None)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        deployment = build("default", [("colocated", f"http://127.0.0.1:{silent.getsockname()[1]}")], model="m")
        document = {"plan": plan.document(), "deployments": [deployment.document()], "notes": []}
        run = RunDirectory.create(tmp_path / "my run", document)
        started = subprocess.Popen(
            command("sweep", "--resume", "my run"),
            cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        silent.settimeout(60)
        asked, _ = silent.accept()
        with asked:
            started.send_signal(number)
            _, err = started.communicate(timeout=30)
    assert started.returncode == 130 and "Traceback" not in err, err
    assert f"pdbench sweep --resume '{run.path.name}'" in err


@pytest.mark.parametrize("ends", [KeyboardInterrupt(), asyncio.CancelledError(), StorageError("full.", "Free space.")])
def test_the_last_words_name_the_run(tmp_path: Path, ends: BaseException) -> None:
    run = RunDirectory.create(tmp_path / "my run", {})
    with pytest.raises(PdbenchError) as last, _last_words([run], ""):
        raise ends
    assert f"pdbench sweep --resume '{run.path}'" in last.value.hint and "pdbench report" in last.value.hint
    with pytest.raises(Interrupted) as nothing, _last_words([], ""):
        raise KeyboardInterrupt
    assert not nothing.value.hint


@pytest.mark.alone
def test_a_slow_proxy_is_the_cause_that_is_named(pdbench: Run, testbed: Bed) -> None:
    bed = testbed(mode="push", proxy_ms=150)
    (cell,) = pdbench("sweep", *roles(bed), "--rates", "4", *SMALL, "--num-prompts", "24", "--json").summary["cells"]
    assert cell["ttft_split_ms"]["proxy"] == pytest.approx(150, abs=20)
    # On a busy machine the client's own sends may be late too.
    assert [cause["cause"] for cause in cell["diagnosis"] if cause["cause"] != "client"] == ["proxy"]


def test_the_same_seed_twice_is_void_and_a_fresh_one_is_not(pdbench: Run, testbed: Bed) -> None:
    """A second run of the same prompts measures the prefix cache."""
    bed = testbed(mode="pull")
    words = ["sweep", *roles(bed), "--rates", "4", *SMALL, "--num-prompts", "12", "--json"]
    assert pdbench(*words, "--seed", "7", "--out", "first").code == 0
    again = pdbench(*words, "--seed", "7", "--out", "second")
    assert again.code == 3
    assert "prefix-cache-hits" in [flag["code"] for flag in again.summary["cells"][0]["validity"]]
    for name in ("third", "fourth"):
        assert pdbench(*words, "--out", name).code == 0


def test_latencies_of_the_admitted_only_are_called_that(pdbench: Run, testbed: Bed) -> None:
    bed = testbed(mode="colocated", max_num_queued_reqs=1, max_num_seqs=2)
    words = ["--rates", "30", "--prompt-lens", "256", "--output-len", "32", "--num-prompts", "90", "--json"]
    (cell,) = pdbench("sweep", *roles(bed), *words).summary["cells"]
    assert cell["rejected"] > 9
    assert cell["failed"] == 0
    assert cell["completed"] + cell["rejected"] == 90
    assert "admission" in [cause["cause"] for cause in cell["diagnosis"]]
    assert "not-steady-state" not in [flag["code"] for flag in cell["validity"]]
