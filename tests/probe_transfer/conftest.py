"""`pdbench probe-transfer` as its users run it: a process, over real NIXL, on loopback only."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

HAS_NIXL = any(importlib.util.find_spec(name) for name in ("nixl", "nixl_cu12", "nixl_cu13", "nixl_rocm"))
needs_nixl = pytest.mark.skipif(not HAS_NIXL, reason="needs NIXL: pip install --no-deps nixl-cu12==1.5.1")
QUICK = ["--duration", "20ms", "--repeats", "1"]
SMALL = ["--bytes", "1MiB", "--descriptors", "64", *QUICK]


@dataclass(frozen=True)
class Ended:
    code: int
    out: str
    err: str

    @property
    def summary(self) -> dict[str, Any]:
        def refuse(constant: str) -> None:
            raise AssertionError(f"{constant} in JSON")

        document: dict[str, Any] = json.loads(self.out, parse_constant=refuse)
        return document


def command(*words: str | Path) -> list[str]:
    return [sys.executable, "-m", "pdbench", "probe-transfer", *map(str, words)]


def environment(**more: str) -> dict[str, str]:
    steering = ("UCX_", "NIXL_", "PDBENCH_TRANSFER_TOKEN", "COLUMNS", "FORCE_COLOR")
    return {**{k: v for k, v in os.environ.items() if not k.startswith(steering)}, "NO_COLOR": "1", **more}


def run(*words: str | Path, cwd: Path, before: list[str] | None = None, **env: str) -> Ended:
    done = subprocess.run(
        [*(before or []), *command(*words)],
        cwd=cwd,
        env=environment(**env),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return Ended(done.returncode, done.stdout, done.stderr)


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start a probe that the test then disturbs. It ends with the test, whatever happens."""
    running: list[subprocess.Popen[str]] = []

    def start(*words: str | Path, **env: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            command(*words),
            cwd=tmp_path,
            env=environment(**env),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        running.append(process)
        return process

    yield start
    for process in running:
        process.kill()
        process.communicate()


def worker_of(process: subprocess.Popen[str], role: str, run_directory: Path) -> psutil.Process:
    """The worker of a probe, once it measures."""
    until = time.monotonic() + 60
    while time.monotonic() < until and process.poll() is None:
        document = run_directory / "run.json"
        sides = json.loads(document.read_text()).get("sides") if document.exists() else None
        if sides and (run_directory / "transfers.jsonl").exists():
            return psutil.Process(int(sides[role]["pid"]))
        time.sleep(0.05)
    raise AssertionError(f"it does not measure: {process.poll()}")


def is_running(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def ends_soon(process: psutil.Process) -> bool:
    until = time.monotonic() + 10
    while is_running(process) and time.monotonic() < until:
        time.sleep(0.02)
    return not is_running(process)


def ended(process: subprocess.Popen[str], send: signal.Signals | None = None) -> Ended:
    if send is not None:
        process.send_signal(send)
    out, err = process.communicate(timeout=60)
    assert "Traceback" not in err, err
    return Ended(process.returncode, out, err)
