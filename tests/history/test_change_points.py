"""Change points: planted ones are found where they are, and histories without any rarely show one."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pdbench.report.history.change_points import change_points, memory_beside_trends, trend_spread, with_memory
from pdbench.report.history.story import SURE_Z
from pdbench.report.statistics import mann_kendall_z


def noise(seed: int, runs: int, series: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 0.02, (series, runs))


@pytest.mark.parametrize("at", [3, 10, 17])
def test_a_planted_step_is_found_at_its_run_and_in_its_series_only(at: int) -> None:
    values = noise(at, 20, 6)
    values[2, at:] += 0.15
    found = change_points(list(values))
    assert found[2] == [at]
    assert [points for k, points in enumerate(found) if k != 2] == [[]] * 5


def test_up_and_down_again_are_two_changes() -> None:
    values = noise(1, 30, 4)
    values[0, 10:20] += 0.2
    assert change_points(list(values))[0] == [10, 20]


def test_one_odd_run_is_no_level() -> None:
    values = noise(2, 20, 4)
    values[0, 8] += 0.2
    assert change_points(list(values))[0] == []


def test_runs_without_a_value_are_passed_over() -> None:
    values = noise(3, 24, 2)
    values[0, 12:] += 0.2
    values[0, [4, 9, 12, 20]] = math.nan
    assert change_points(list(values))[0] == [13], "the first run that has a value of the new level"


def test_short_and_constant_series_say_nothing() -> None:
    step = np.concatenate([np.zeros(5), np.ones(4)])
    assert change_points([step, np.ones(9), np.full(9, math.nan)]) == [[], [], []]
    assert change_points([np.ones(20)]) == [[]]


def test_histories_without_a_change_show_one_in_about_five_percent() -> None:
    histories, false = 60, 0
    for seed in range(histories):
        false += any(change_points(list(noise(100 + seed, 14, 4))))
    # Three standard errors above 5 %.
    assert false <= histories * 0.05 + 3 * math.sqrt(histories * 0.05 * 0.95)


def weather(seed: int, runs: int, series: int, memory: float) -> np.ndarray:
    """Runs that each have a share of what is odd in the one before."""
    values = np.random.default_rng(seed).normal(0, 0.02, (series, runs))
    for run in range(1, runs):
        values[:, run] = memory * values[:, run - 1] + math.sqrt(1 - memory**2) * values[:, run]
    return values


@pytest.mark.parametrize("memory", [0.0, 0.4, 0.8])
@pytest.mark.parametrize("step", [0.0, 0.2])
def test_memory_is_measured_whatever_levels_there_are(memory: float, step: float) -> None:
    values = weather(1, 60, 16, memory)
    values[:, 20:] += step
    assert with_memory(list(values))[1] == pytest.approx(memory, abs=0.15)
    assert with_memory([np.ones(20), np.full(20, math.nan), np.arange(5.0)])[1] == 0.0


def test_weather_is_rarely_called_a_change_and_a_large_change_is_still_found() -> None:
    """Without a measured memory more than half of such histories show a change that is none."""
    quiet = [weather(seed, 16, 8, 0.6) for seed in range(40)]
    assert sum(any(change_points(list(values))) for values in quiet) <= 10
    found = 0
    for values in quiet:
        values[3, 8:] += 0.2
        found += any(abs(at - 8) <= 1 for at in change_points(list(values))[3])
    assert found >= 30


@pytest.mark.parametrize(("memory", "drift"), [(0.0, 0.0), (0.6, 0.0), (0.3, 0.01)])
def test_weather_is_no_trend_and_a_trend_is_one_in_it(memory: float, drift: float) -> None:
    """20 runs of 2 %: without a correction one in seven series of memory 0.6 has a trend at the level of 1 %."""
    rng = np.random.default_rng(8)
    plain = found = 0
    for _ in range(20):
        state = rng.normal(0, 1, (16, 20))
        for run in range(1, 20):
            state[:, run] = memory * state[:, run - 1] + np.sqrt(1 - memory**2) * state[:, run]
        series = list(0.02 * state + drift * np.arange(20))
        needed = SURE_Z * trend_spread(20, memory_beside_trends(series, change_points(series)))
        scores = [abs(mann_kendall_z(values)) for values in series]
        plain += sum(score >= SURE_Z for score in scores)
        found += sum(score >= needed for score in scores)
    assert found / 320 >= 0.9 if drift else found / 320 <= 0.02
    assert not (memory == 0.6 and not drift) or plain / 320 > 0.08
