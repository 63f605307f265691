"""One decode server of two is slow: over both the slots look enough, at that one they are not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pdbench.report.summary import summarise
from pdbench.testbed.settings import Settings
from tests.planted.virtual import sweep

BED = Settings(mode="push", decodes=2, prefills=2, max_num_seqs=4, step_base_ms=8, post_fixed_ms=2, lease_s=900)


def measured(path: Path, slow_ms: float, rate: float, seed: int) -> dict[str, Any]:
    def slower(net: Any, cell: Any) -> None:
        for server in net.servers.values():
            if server.place.name == "decode-1":
                server.engine.settings = replace(server.engine.settings, step_base_ms=slow_ms)

    load: dict[str, Any] = {"rates": [rate], "prompt_lens": [1024], "output_len": 80, "duration_s": 90.0}
    (cell,) = summarise(sweep(path / "run", {"bed": BED}, before_cell=slower, seed=seed, **load).run)["cells"]
    return dict(cell)


def void(cell: dict[str, Any]) -> dict[str, str]:
    return {flag["code"]: flag["evidence"] for flag in cell["validity"] if flag["severity"] == "void"}


@pytest.mark.parametrize(("rate", "seed"), [(3.6, 43), (4.0, 44), (4.4, 45)])
def test_a_mean_over_a_queue_that_grows_at_one_server_is_void(tmp_path: Path, rate: float, seed: int) -> None:
    """At 40 ms a token decode-1 carries 1.2 requests/s of the 1.8 to 2.2 that it is sent."""
    cell = measured(tmp_path, 40.0, rate, seed)
    assert "decode-1 alone is full" in void(cell)["not-steady-state"]
    assert "decode-slots" in [cause["cause"] for cause in cell["diagnosis"]]


@pytest.mark.parametrize(("slow_ms", "rate"), [(8.0, 4.0), (8.0, 10.0), (16.0, 3.0)])
def test_two_servers_that_carry_their_load_are_not(tmp_path: Path, slow_ms: float, rate: float) -> None:
    assert "not-steady-state" not in void(measured(tmp_path, slow_ms, rate, 43))
