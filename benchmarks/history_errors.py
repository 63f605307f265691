"""How often `pdbench history` shows a change that is none, and how often it finds one: histories of 16 series.

Runs are independent, or resemble their neighbours (AR(1)), which shuffling cannot know. Changes below 5 % do not count,
as in the program.
Usage: python benchmarks/history_errors.py [HISTORIES [RUNS ...]]
"""

from __future__ import annotations

import sys

import numpy as np

from pdbench.report.history.change_points import change_points
from pdbench.report.history.story import levels_of

SERIES = 16
EFFECT = 0.05


def history(rng: np.random.Generator, runs: int, sd: float, memory: float) -> np.ndarray:
    """Logarithms of a metric: a row a series."""
    state = rng.normal(0, 1, (SERIES, runs))
    for run in range(1, runs):
        state[:, run] = memory * state[:, run - 1] + np.sqrt(1 - memory**2) * state[:, run]
    return sd * state


def changed(values: np.ndarray) -> list[list[int]]:
    """First runs of new levels, a list a series."""
    points = change_points(list(values))
    return [[start for start, _ in levels_of(row, at, EFFECT)][1:] for row, at in zip(values, points, strict=True)]


def main() -> None:
    histories, *lengths = [int(word) for word in sys.argv[1:]] or [400]
    print(f"{histories} histories of {SERIES} series; % of them. A step is in one series, in the middle or 4 runs ago")
    print("runs   SD  memory   false alarm   found +10 %  exact run   found +20 %  exact run   +20 % 4 runs ago")
    for runs in lengths or (12, 20):
        for sd in (0.02, 0.05):
            for memory in (0.0, 0.2, 0.3, 0.6):
                rng = np.random.default_rng([runs, int(1000 * sd), int(10 * memory)])
                counts = np.zeros(6)
                for _ in range(histories):
                    quiet = history(rng, runs, sd, memory)
                    counts[0] += any(changed(quiet))
                    for place, (step, at) in enumerate(((0.1, runs // 2), (0.2, runs // 2), (0.2, runs - 4))):
                        stepped = quiet.copy()
                        stepped[0, at:] += np.log1p(step)
                        found = changed(stepped)[0]
                        counts[1 + 2 * place] += bool(found)
                        if place < 2:
                            counts[2 + 2 * place] += at in found
                shown = 100 * counts / histories
                print(
                    f"{runs:>4} {sd:>4.0%} {memory:>7} {shown[0]:>13.1f} {shown[1]:>13.1f} {shown[2]:>10.1f} "
                    f"{shown[3]:>13.1f} {shown[4]:>10.1f} {shown[5]:>18.1f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
