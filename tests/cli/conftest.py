"""pdbench as its users run it: a process, its output and its exit code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pdbench.testbed.launch import Running, running
from pdbench.testbed.settings import Settings


@dataclass(frozen=True)
class Ended:
    code: int
    out: str
    err: str

    @property
    def summary(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self.out)
        return document


def command(*words: str | Path) -> list[str]:
    return [sys.executable, "-m", "pdbench", *map(str, words)]


def environment(**more: str) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if k not in ("PDBENCH_API_KEY", "COLUMNS", "FORCE_COLOR")}
    return {**kept, "NO_COLOR": "1", **more}


@pytest.fixture
def pdbench(tmp_path: Path) -> Callable[..., Ended]:
    """Run a command line in an empty directory."""

    def run(*words: str | Path, env: dict[str, str] | None = None, cwd: Path = tmp_path, timeout: float = 120) -> Ended:
        done = subprocess.run(
            command(*words), cwd=cwd, env=environment(**(env or {})), capture_output=True, text=True, timeout=timeout
        )
        assert "Traceback" not in done.stderr, done.stderr
        return Ended(done.returncode, done.stdout, done.stderr)

    return run


@pytest.fixture
def testbed() -> Iterator[Callable[..., Running]]:
    """Start testbeds with given settings on free ports; they end with the test."""
    from contextlib import ExitStack

    with ExitStack() as stack:
        yield lambda **settings: stack.enter_context(running(Settings(**settings).on_free_ports()))


def roles(bed: Running) -> list[str]:
    """The flags that name every server of a testbed."""
    words = ["--proxy", bed.proxy_url] if bed.proxy_url else []
    words += [word for url in bed.prefill_urls for word in ("--prefill", url)]
    words += [word for url in bed.decode_urls for word in ("--decode", url)]
    words += [word for url in bed.server_urls for word in ("--server", url)]
    return [str(word) for word in words]
