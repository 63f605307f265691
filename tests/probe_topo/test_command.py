"""`pdbench topo` as it is run: exit codes, streams, files, on machines with and without a driver."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.probe_topo.conftest import environment
from tests.probe_topo.tables import fails, h200, l40s, table

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def topo(stub: Path, tmp_path: Path) -> Run:
    """`pdbench topo` on a machine; None is one without libnvidia-ml."""

    def run(machine: list[str] | None, *words: str) -> subprocess.CompletedProcess[str]:
        env = environment(stub if machine is not None else tmp_path)
        (tmp_path / "machine.topo").write_text(table(machine or []))
        done = subprocess.run(
            [sys.executable, "-m", "pdbench", "topo", *words],
            capture_output=True,
            text=True,
            timeout=60,
            env={**env, "NVML_STUB_FILE": str(tmp_path / "machine.topo")},
        )
        assert "Traceback" not in done.stderr, done.stderr
        return done

    return run


LOST = fails(["nvmlDeviceGetHandleByIndex_v2"], 15, 1)


@pytest.mark.parametrize(
    ("machine", "words", "code"),
    [
        (h200(2), [], 0),
        (l40s(), [], 0),
        ([*h200(2), *LOST], [], 0),
        (["init 9"], [], 0),
        (["init 18"], [], 0),
        (None, [], 0),
        (l40s(), ["--role", "prefill=0", "--role", "decode=1"], 0),
        (h200(2), ["--role", "prefill=0", "decode=7"], 1),
        ([*h200(2), *LOST], ["--role", "prefill=0,decode=1"], 1),
        (None, ["--role", "prefill=0", "--role", "decode=1"], 1),
        (h200(2), ["--role", "master=0"], 2),
        (h200(2), ["--role", ""], 2),
        (h200(2), ["--frobnicate"], 2),
        (h200(2), ["--html", "/does/not/exist/page.html"], 74),
    ],
)
def test_exit_codes(topo: Run, machine: list[str] | None, words: list[str], code: int) -> None:
    assert topo(machine, *words).returncode == code


def test_without_a_driver_the_rest_is_reported(topo: Run) -> None:
    done = topo(None)
    assert "no NVIDIA driver here" in done.stdout and "kernel" in done.stdout and "/dev/shm" in done.stdout
    seen = json.loads(topo(None, "--json").stdout)
    assert seen["gpus"] == [] and seen["pairs"] == [] and seen["nvml"]["code"] == "no-library"


def test_a_mismatch_says_what_to_do(topo: Run) -> None:
    said = " ".join(topo(["init 18"]).stdout.split())
    assert "driver mismatch" in said and "Reboot" in said


def test_a_plan_that_cannot_work_is_told_on_both_streams(topo: Run) -> None:
    done = topo(h200(2), "--role", "prefill=0", "--role", "decode=7", "--json")
    assert json.loads(done.stdout)["plan"]["works"] is False
    assert "GPU 7 does not exist" in done.stderr


@pytest.mark.parametrize(("machine", "said"), [(None, "cannot be judged here"), (h200(2), "cannot work")])
def test_why_a_plan_fails_is_said_once(topo: Run, machine: list[str] | None, said: str) -> None:
    done = topo(machine, "--role", "prefill=0", "--role", "decode=7")
    assert done.returncode == 1 and "--role" in done.stderr
    told = " ".join((done.stdout + done.stderr).split())
    assert told.count("This plan") == 1 and f"This plan {said}" in told


def test_the_page_is_written_and_named(topo: Run, tmp_path: Path) -> None:
    page = tmp_path / "topo.html"
    done = topo(l40s(), "--html", str(page))
    assert str(page) in done.stdout and page.read_text().startswith("<!doctype html>")
    assert "\x1b" not in done.stdout, "no colours into a pipe"
