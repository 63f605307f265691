"""Leaving blocks out: nothing is lost or counted twice, and independent blocks give the interval of a mean."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pdbench.report.blocks import jackknife, without_each_block
from pdbench.report.cell import Measured
from pdbench.report.split import split_of
from pdbench.report.summary import measured_cells
from tests.report.queue_simulation import World, make_run


def cell(path: Path, *worlds: World) -> Measured:
    (found,) = measured_cells(make_run(path / "run", [list(worlds)]))
    return found


@pytest.mark.parametrize("repeats", [1, 2])
def test_what_is_left_out_adds_up_to_the_whole(tmp_path: Path, repeats: int) -> None:
    whole = cell(tmp_path, *(World(seed=seed) for seed in range(repeats)))
    less = list(without_each_block(whole))
    assert len(less) == 10 * repeats
    assert sum(len(whole.answers) - len(one.answers) for one in less) == len(whole.answers)
    for role, name, kind in (
        ("decode", "queue_s", "sum"),
        ("prefill", "prefill_s", "count"),
        ("decode", "ttft_s", "sum"),
    ):
        total = whole.window.delta(role, name, kind)
        assert total is not None
        left_out = [total - (one.window.delta(role, name, kind) or 0.0) for one in less]
        assert sum(left_out) == pytest.approx(total) and min(left_out) >= -1e-9
    area = whole.window.integral("decode", "running")
    assert area is not None
    assert sum(area - (one.window.integral("decode", "running") or 0.0) for one in less) == pytest.approx(
        area, rel=1e-6
    )


def test_a_cell_that_is_too_short_is_not_cut(tmp_path: Path) -> None:
    assert list(without_each_block(cell(tmp_path, World(n=12)))) == []


def test_the_interval_of_independent_blocks_is_students() -> None:
    values = np.random.default_rng(1).normal(5.0, 1.0, 10)
    without = [float(np.delete(values, i).mean()) for i in range(10)]
    found = jackknife(float(values.mean()), without)
    assert found is not None
    assert found.high - found.low == pytest.approx(2 * 2.262 * values.std(ddof=1) / 10**0.5, rel=0.01)
    assert jackknife(1.0, [1.0, None, 1.0, 1.0, 1.0, 1.0]) is None and jackknife(1.0, [1.0] * 4) is None


def test_the_split_of_what_is_left_holds_the_planted_parts(tmp_path: Path) -> None:
    for less in without_each_block(cell(tmp_path, World())):
        split = split_of(less)
        assert split is not None
        assert split.parts["prefill"] == pytest.approx(80.0, rel=0.05) and split.parts["post"] == pytest.approx(
            5.0, rel=0.05
        )
