"""What joins two GPUs, through the real NVML binding and the stub of its library."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.probe_topo import conftest as topo
from tests.probe_topo.tables import h200, l40s, table

stub = topo.stub  # the fixture that builds the library
SCRIPT = """
import json
from pdbench.probe.topo.machine import look
from pdbench.probe.transfer.wiring import gpu_pair
one, other = (gpu.pci.upper() for gpu in look().gpus[:2])
print(json.dumps([gpu_pair(one, "0000" + other), gpu_pair(one, one), gpu_pair(one, None), gpu_pair(one, "0:ff:00.0")]))
"""


@pytest.mark.parametrize(
    ("machine", "path", "connection", "gb_s"),
    [(h200(), "nvswitch", "NV18", 450.0), (l40s("NS"), "host", "SYS", None)],
    ids=["H200 behind NVSwitch", "L40S without peer access"],
)
def test_the_pair_is_found_by_its_addresses(
    stub: Path, tmp_path: Path, machine: list[str], path: str, connection: str, gb_s: float | None
) -> None:
    """CUDA and NVML write an address differently; one GPU alone, or one that NVML does not know, is no pair."""
    (tmp_path / "machine.topo").write_text(table(machine))
    env = {**os.environ, "LD_LIBRARY_PATH": str(stub), "NVML_STUB_FILE": str(tmp_path / "machine.topo")}
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    pair, *others = json.loads(done.stdout)
    assert (pair["gpus"], pair["path"], pair["connection"]) == ([0, 1], path, connection)
    assert gb_s is None or pair["gb_s"] == gb_s
    assert others == [None, None, None]
