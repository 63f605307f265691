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


@pytest.mark.parametrize("mode", ["colocated", "pull"])
@pytest.mark.parametrize("tokens", [2, 8, 64])
def test_a_first_step_is_counted_once(tmp_path: Path, mode: str, tokens: int) -> None:
    """A slot is held for the first step and a TPOT for each further token: whether that step is a prompt's (here a
    fifth of a turn) or a turn on decode, gauge and counters agree, and a gauge that is a fifth off is told."""

    world = World(mode=mode, rate=60.0, n=320, tokens=tokens, step_s=0.05, slots=400)
    world.prefill_s, world.transfer_s, world.sample_s = 0.01, 0.005, 0.1
    (check,) = slots_in_use(tmp_path / "healthy", world)
    assert check["agrees"] and check["seen"] == pytest.approx(check["counted"], rel=0.03)
    world.tamper = lambda t, role, rows: [scaled(row) if role in ("colocated", "decode") else row for row in rows]
    (check,) = slots_in_use(tmp_path / "wrong", world)
    assert not check["agrees"]


def scaled(row: list[Any]) -> list[Any]:
    """A gauge of running requests that shows a quarter more than there are."""
    return [*row[:-1], row[-1] * 1.25] if "running" in row else row


def slots_in_use(path: Path, world: World) -> list[dict[str, Any]]:
    (cell,) = summarise(make_run(path, [[world]]))["cells"]
    return [check for check in cell["cross_checks"] if check["name"].startswith("slots in use")]


@pytest.mark.parametrize("tokens", [2, 8])
def test_slots_of_short_answers_beside_prefill(tmp_path: Path, tokens: int) -> None:
    """Co-located, what holds slots is known exactly: rate x (prefill + (tokens - 1) x TPOT)."""
    world = World(mode="colocated", rate=8.0, n=80, tokens=tokens, step_s=0.05, slots=64, prefill_s=0.08)
    (cell,) = summarise(make_run(tmp_path, [[world]]))["cells"]
    slots = cell["slots"]
    held = world.prefill_s + (tokens - 1) * world.step_s
    assert slots["needed"] + slots["prefill_held"] == pytest.approx(8.0 * held, rel=1e-3)
