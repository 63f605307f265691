"""The ground-truth server as a process."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from pdbench.deployment import Deployment, ServerFacts, build
from tests.sweep.one_cell import SERVER, GroundTruth


def started(stack: contextlib.ExitStack, log: Path, flags: tuple[str, ...]) -> GroundTruth:
    log.touch()
    process = subprocess.Popen(
        [sys.executable, str(SERVER), "--log", str(log), *flags], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    stack.callback(process.communicate, timeout=10)  # closes its stdin, which ends it
    assert process.stdout is not None
    return GroundTruth(int(process.stdout.readline()), log)


@pytest.fixture
def ground_truth(tmp_path: Path) -> Iterator[Callable[..., GroundTruth]]:
    """Start ground-truth servers: `ground_truth("--ttft", "20")`."""
    with contextlib.ExitStack() as stack:
        yield lambda *flags: started(stack, tmp_path / "truth.jsonl", flags)


@pytest.fixture(scope="session")
def quick_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GroundTruth]:
    """One server for all tests that do not look at its log: first token after 5 ms, the others each 2 ms."""
    with contextlib.ExitStack() as stack:
        yield started(stack, tmp_path_factory.mktemp("truth") / "truth.jsonl", ("--ttft", "5", "--itl", "2"))


@pytest.fixture
def fit_deployment() -> Callable[[int], Deployment]:
    """A deployment whose only server has a context of so many tokens."""

    def made(max_model_len: int) -> Deployment:
        bare = build("default", [("proxy", "http://127.0.0.1:1")], model="m")
        facts = ServerFacts(max_model_len=max_model_len)
        return replace(bare, servers=tuple(replace(server, facts=facts) for server in bare.servers))

    return made
