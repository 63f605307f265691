"""In closed loop who follows the slot advice has no wait that is a cause, and the rate that the report said."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from pdbench.report.summary import summarise
from pdbench.testbed.settings import Settings
from tests.planted.virtual import sweep

STREAMS = 12


def measured(path: Path, slots: int, streams: int) -> dict[str, Any]:
    bed = Settings(mode="push", max_num_seqs=slots, post_fixed_ms=2.0, post_ms_per_token=0.0005)
    done = sweep(path, {"bed": bed}, streams=[streams], output_len=96, duration_s=20.0, seed=3)
    cell: dict[str, Any] = summarise(done.run)["cells"][0]
    return cell


def test_slots_for_the_streams_or_fewer_streams(tmp_path: Path) -> None:
    (cause,) = measured(tmp_path / "short", 4, STREAMS)["diagnosis"]
    assert cause["cause"] == "decode-slots" and "12 streams in closed loop hold" in cause["evidence"]
    assert "same rate" not in cause["confirm"] and "req/s" not in cause["advice"]
    advised = re.search(r"to (\d+) for 12 streams in closed loop, .*; or lower it to (\d+) streams", cause["advice"])
    assert advised is not None, cause["advice"]
    for slots, streams in ((int(advised[1]), STREAMS), (4, int(advised[2]))):
        assert measured(tmp_path / f"{slots}-{streams}", slots, streams)["diagnosis"] == []
    said = re.search(r"make about ([\d.]+) instead of", cause["confirm"])
    rate = measured(tmp_path / "all", STREAMS, STREAMS)["request_throughput"]
    assert said is not None and float(said[1]) == pytest.approx(rate, rel=0.1)


def test_a_rate_of_hundreds_is_no_power_of_ten(tmp_path: Path) -> None:
    bed = Settings(mode="push", max_num_seqs=8, post_fixed_ms=2.0, post_ms_per_token=0.0005)
    done = sweep(tmp_path, {"bed": bed}, streams=[20], output_len=16, prompt_lens=[64], duration_s=4.0, seed=3)
    confirm = " ".join(cause["confirm"] for cause in summarise(done.run)["cells"][0]["diagnosis"])
    said = re.search(r"make about (\d+) instead of \d+ req/s", confirm)
    assert said is not None and int(said[1]) > 100 and "e+" not in confirm
