"""One decode server of three is slow a token: its slots fill, and what is short is not slots."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pdbench.report.summary import summarise
from pdbench.testbed.settings import Settings
from tests.planted.virtual import sweep

OUTPUT, SLOTS = 64, 4
BED = Settings(decodes=3, prefills=2, max_num_seqs=SLOTS, lease_s=900)


def slots_named(path: Path, bed: Settings, rate: float, plant: Callable[[Any], None]) -> tuple[dict[str, Any], Any]:
    """The `decode-slots` of a cell with what was planted, and the truth log."""
    load: dict[str, Any] = {"rates": [rate], "prompt_lens": [1024], "output_len": OUTPUT, "duration_s": 20.0}
    done = sweep(path / "run", {"bed": bed}, before_cell=lambda net, cell: plant(net), **load)
    (cell,) = summarise(done.run)["cells"]
    return next(cause for cause in cell["diagnosis"] if cause["cause"] == "decode-slots"), done.truth["bed"]


@pytest.mark.parametrize(("mode", "slow"), [("pull", "decode-1"), ("push", "decode-2")])
def test_the_slow_one_of_three_is_named_before_slots_are_added(tmp_path: Path, mode: str, slow: str) -> None:
    """At 22 ms a token it needs 4.2 slots for its third of 9 requests/s; the others, at 6 ms, 1.2 of their 4."""

    def slower(net: Any) -> None:
        for server in net.servers.values():
            if server.place.name == slow:
                server.engine.settings = replace(server.engine.settings, step_base_ms=22.0)

    found, truth = slots_named(tmp_path, replace(BED, mode=mode), 9.0, slower)
    assert found["advice"].startswith(f"Find out why {slow} is slow before adding slots")
    said = found["evidence"].partition(f"{slow} is slow: ")[2]
    made = [row for row in truth if row["server"] == slow and "done" in row]
    pace_ms = np.mean([1000 * (row["done"] - row["first_token"]) / (OUTPUT - 1) for row in made])
    assert float(said.split(" ms")[0]) == pytest.approx(pace_ms, rel=0.05)
    assert "with at most 1." in said and f"of {SLOTS} slots in use on average" in said
    assert not any(other in found["evidence"] for other in {"decode-0", "decode-1", "decode-2"} - {slow})


def test_three_that_are_equal_lack_slots(tmp_path: Path) -> None:
    found, _ = slots_named(tmp_path, BED, 30.0, lambda net: None)
    assert "slow" not in found["evidence"] + found["advice"] and "--max-num-seqs" in found["advice"]


def test_one_that_is_sent_most_is_full_and_not_slow(tmp_path: Path) -> None:
    """Alike, but with three of five requests its batch is larger, and each stream more adds 6 ms to a step."""

    def uneven(net: Any) -> None:
        first, second, third = (server.place for server in net.servers.values() if server.place.role == "decode")
        net._proxy._decodes = itertools.cycle([first, second, second, third, second])

    found, truth = slots_named(tmp_path, replace(BED, step_base_ms=4.0, step_per_seq_ms=6.0), 4.5, uneven)
    pace = {
        name: np.mean([row["done"] - row["first_token"] for row in truth if row["server"] == name and "done" in row])
        for name in ("decode-0", "decode-1", "decode-2")
    }
    assert pace["decode-1"] > 1.5 * max(pace["decode-0"], pace["decode-2"])
    assert "slow" not in found["evidence"] + found["advice"]
