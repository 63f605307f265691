"""Gauges against counters: what was not sampled is no contradiction, what stands still is one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pdbench.report.summary import summarise
from tests.report.queue_simulation import World, make_run


def contradictions(path: Path, world: World) -> list[str]:
    notes: list[str] = summarise(make_run(path, [[world]]))["cells"][0]["notes"]
    return [note for note in notes if ": the gauge says " in note]


def test_short_stays_that_no_sample_met(tmp_path: Path) -> None:
    """Twenty loads of 25 ms under a sample every 500 ms: the gauge is mostly 0, and the counters are right."""
    for seed in range(1, 13):
        world = World(rate=1.0, n=20, transfer_s=0.02, seed=seed)
        assert not contradictions(tmp_path / str(seed), world), seed


def still(t: float, role: str, rows: list[list[Any]]) -> list[list[Any]]:
    return [[*row[:-1], 0.0] if role == "decode" and "running" in row else row for row in rows]


@pytest.mark.parametrize(("tamper", "count"), [(None, 0), (still, 1)])
def test_a_gauge_that_stands_still(tmp_path: Path, tamper: Any, count: int) -> None:
    found = contradictions(tmp_path / "run", World(rate=4.0, n=120, tamper=tamper))
    assert len(found) >= count and bool(found) == bool(count)
    assert all("slots" in note or "running" in note for note in found)
