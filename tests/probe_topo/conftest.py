"""The stub library, built once with the C compiler of the machine, and a process that reads machines through it."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.probe_topo.hosts import hgx

SOURCE = Path(__file__).with_name("stub") / "nvml.c"
COMPILER = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")

Seen = dict[str, Any]
Look = Callable[..., Seen]


@pytest.fixture(scope="session")
def stub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that holds libnvidia-ml.so.1."""
    if COMPILER is None:
        pytest.skip("no C compiler here to build the NVML stub with")
    folder = tmp_path_factory.mktemp("stub")
    flags = ["-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-fvisibility=hidden"]
    soname = "-Wl,-soname,libnvidia-ml.so.1"
    subprocess.run([COMPILER, *flags, soname, "-o", folder / "libnvidia-ml.so.1", SOURCE], check=True)
    return folder


def environment(stub: Path) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "FORCE_COLOR", "NO_COLOR")}
    return {**kept, "LD_LIBRARY_PATH": str(stub)}


@pytest.fixture(scope="session")
def worker(stub: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "tests.probe_topo.worker"]
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**environment(stub), "FORCE_COLOR": "1", "TERM": "xterm"},
        cwd=Path(__file__).parents[2],
    ) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()
        process.wait(20)


@pytest.fixture(scope="session")
def look(worker: subprocess.Popen[str], tmp_path_factory: pytest.TempPathFactory) -> Look:
    """Read a machine: its table, and what else a request takes. Gives the JSON document, with `views` the texts too."""
    folder = tmp_path_factory.mktemp("tables")
    numbers = itertools.count()

    def ask(table: str | bytes, **request: Any) -> Seen:
        path = folder / f"{next(numbers)}.topo"
        path.write_bytes(table.encode() if isinstance(table, str) else table)
        assert worker.stdin is not None and worker.stdout is not None
        worker.stdin.write(json.dumps({"table": str(path), **request}, default=str) + "\n")
        worker.stdin.flush()
        line = worker.stdout.readline()
        assert line, "the worker ended: its traceback is on stderr"
        seen: Seen = json.loads(line)
        return seen if request.get("views") else seen["document"]

    return ask


@pytest.fixture(scope="session")
def hgx_host(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The root of a healthy eight-GPU host, to be read only."""
    return hgx(tmp_path_factory.mktemp("hgx")).root
