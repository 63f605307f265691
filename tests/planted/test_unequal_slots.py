"""One decode server of two has fewer slots, known or not: it fills, and the advice is for it alone."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from pdbench.report.summary import summarise
from pdbench.testbed.settings import Settings
from tests.planted.virtual import sweep

SLOTS = 8
BED = Settings(mode="pull", decodes=2, max_num_seqs=SLOTS, lease_s=900)


def measured(path: Path, rate: float, own: int, known: bool, duration_s: float = 25.0) -> dict[str, Any]:
    """A cell in which decode-0 has `own` slots. Not `known`: it is said to have as many as the other."""

    def fewer(net: Any, cell: Any) -> None:
        for server in net.servers.values():
            if server.place.name == "decode-0":
                server.engine.slots = own

    load: dict[str, Any] = {"rates": [rate], "prompt_lens": [1024], "output_len": 64, "duration_s": duration_s}
    run = sweep(path, {"bed": BED}, before_cell=fewer, **load).run
    if known:
        (server,) = (s for s in run.document["deployments"][0]["servers"] if s["name"] == "decode-0")
        server["facts"]["max_num_seqs"] = own
    (cell,) = summarise(run)["cells"]
    return dict(cell)


def void(cell: dict[str, Any]) -> dict[str, str]:
    return {flag["code"]: flag["evidence"] for flag in cell["validity"] if flag["severity"] == "void"}


def number(pattern: str, text: str) -> float:
    found = re.search(pattern, text)
    assert found is not None, text
    return float(found[1])


@pytest.mark.parametrize(("rate", "void_for"), [(8.0, "decode-0 alone is full"), (4.0, "")])
def test_one_that_runs_fewer_than_was_said_is_full(tmp_path: Path, rate: float, void_for: str) -> None:
    """It carries 2.6 of the 4 req/s that it is sent (of 2, with a queue), and 7 slots are only said to be there."""
    cell = measured(tmp_path / "run", rate, own=1, known=False)
    (cause,) = cell["diagnosis"]
    assert cause["cause"] == "decode-slots" and void_for in void(cell).get("not-steady-state", "")
    assert f"decode-0 runs 1 of the {SLOTS} that it is said to have" in cause["evidence"]
    assert "decode-1" not in cause["evidence"] + cause["advice"]
    assert cell["slots"]["available"] == SLOTS + 1 and cell["slots"]["source"] == "inferred"
    assert cell["ttft_split_ms"]["slot_wait"] > 0.6 * cell["mean_ttft_ms"]


def test_slots_and_rates_are_advised_for_the_one_that_is_full(tmp_path: Path) -> None:
    rate = 8.0
    cell = measured(tmp_path / "run", rate, own=1, known=True)
    (cause,) = (cause for cause in cell["diagnosis"] if cause["cause"] == "decode-slots")
    enough = number(r"Raise --max-num-seqs to (\d+) on decode-0 \(has 1\)", cause["advice"])
    lower = number(r"lower the rate to ([\d.]+) req/s", cause["advice"])
    limit_ms = number(r"about (\d+) ms or less by the model", cause["advice"])
    raised = measured(tmp_path / "raised", rate, own=int(enough), known=True)
    lowered = measured(tmp_path / "lowered", lower, own=1, known=True, duration_s=100 / lower)
    for then in (raised, lowered):
        assert then["ttft_split_ms"]["slot_wait"] <= limit_ms
        assert "decode-slots" not in [cause["cause"] for cause in then["diagnosis"]]


def test_one_that_has_fewer_and_enough_is_not_short(tmp_path: Path) -> None:
    cell = measured(tmp_path / "run", 4.0, own=4, known=False)
    assert not cell["diagnosis"] and not void(cell) and cell["slots"]["available"] == 2 * SLOTS


def test_a_limit_that_nobody_sees_is_said_to_be_so(tmp_path: Path) -> None:
    """decode-0 runs 1, then 3 and 1 again: requests wait, and no number of slots explains it."""

    def changes(net: Any, cell: Any) -> None:
        engine = next(server.engine for server in net.servers.values() if server.place.name == "decode-0")
        for second, own in enumerate([1, 1, 3, 1, 1, 3] * 5):
            asyncio.get_running_loop().call_later(second, setattr, engine, "slots", own)

    load: dict[str, Any] = {"rates": [12.0], "prompt_lens": [1024], "output_len": 64, "duration_s": 25.0}
    (cell,) = summarise(sweep(tmp_path / "run", {"bed": BED}, before_cell=changes, **load).run)["cells"]
    assert cell["ttft_split_ms"]["slot_wait"] > 0.5 * cell["mean_ttft_ms"]
    (cause,) = (cause for cause in cell["diagnosis"] if cause["cause"] == "not-distinguishable")
    assert "no server was seen with all its slots in use" in cause["evidence"] and cause["share"] > 0.5
