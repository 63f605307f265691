"""Intervals of gap percentiles against simulated streams whose true percentiles are known."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pdbench.report.answers import latencies
from pdbench.report.clustered import clustered_interval, effective_size, time_blocks
from pdbench.run import RequestRow, request_record
from tests.report.answered import read_answers

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "itl_interval_coverage.py"
RUNS = 60


@pytest.mark.parametrize("kind", ["iid", "request", "stalls", "admission"])
def test_the_interval_holds_the_true_percentile(kind: str) -> None:
    """95 % nominal; 90 % is asked of 60 runs less two standard errors of that share, of those that give an interval."""
    found: dict[float, tuple[float, float, float]] = runpy.run_path(str(BENCHMARK))["coverage"](
        kind, 120, RUNS, truth_of=4000
    )
    for given, holds, _ in found.values():
        assert given > 0.4 and holds >= 0.9 - 2 * (0.9 * 0.1 / (given * RUNS)) ** 0.5


def test_gaps_that_stall_together_are_few_observations() -> None:
    """100 blocks of 50 gaps, of which five stall as a whole: about 100 observations, not 5,000."""
    block = np.repeat(np.arange(100), 50)
    stalled = block % 20 == 7
    assert effective_size(stalled, [block]) < 120
    mixed = np.random.default_rng(0).permutation(stalled)
    assert effective_size(mixed, [block]) > 2500
    assert effective_size(np.zeros(5000, dtype=bool), [block]) == 5000


def test_two_clusters_bound_nothing() -> None:
    values = np.arange(1000.0)
    assert clustered_interval(values, 0.5, [np.repeat([0, 1], 500)]) == ((None, None), 0.0)


def test_longer_blocks_only_where_many_remain() -> None:
    assert [int(b.max()) + 1 for b in time_blocks(np.arange(0.0, 60.5, 0.5), 1.0)] == [61, 31, 16]
    assert len(time_blocks(np.arange(0.0, 10.0, 0.5), 1.0)) == 1


def seen(stall: bool) -> dict[str, Any]:
    """90 requests of 100 tokens over 45 s; with `stall` all that runs then stands still three times for 0.4 s."""
    rng = np.random.default_rng(3)
    rows, chunks = [], {}
    for i in range(90):
        at = i / 2
        stamps = at + 0.2 + np.cumsum(0.01 * rng.gamma(30, 1 / 30, 100))
        if stall:
            stamps += 0.4 * np.searchsorted([10.25, 20.25, 30.25], stamps) - 0.4 * np.searchsorted(
                [10.25, 20.25, 30.25], at + 0.2
            )
        chunks[f"r{i}"] = stamps - at
        row = RequestRow(0, 0, "default", f"r{i}", "default", i, intended_s=at, sent_s=at, first_token_s=stamps[0],
                         last_token_s=stamps[-1], done_s=stamps[-1], prompt_tokens=100, output_tokens=100, chunks=100,
                         status="ok", prompt_len=100, output_len=100)  # fmt: skip
        rows.append(request_record(row))
    return latencies(read_answers(rows, chunks))


def test_p99_itl_is_a_point_long_before_p99_ttft_is() -> None:
    found = seen(stall=False)
    low, high = found["itl_ms_interval"]["p99"]
    assert low < found["p99_itl_ms"] < high and high / low < 1.2
    assert "p99_itl_ms" not in found["needs"] and found["needs"]["p99_ttft_ms"] == 299


def test_rare_common_stalls_need_more_requests_than_there_are() -> None:
    """The slowest fiftieth of the gaps are two events."""
    values = np.concatenate((np.full(4900, 10.0) + np.linspace(0, 1, 4900), np.full(100, 400.0)))
    block = np.concatenate((np.arange(4900) // 50, np.full(50, 98), np.full(50, 99)))
    (_, high), size = clustered_interval(values, 0.99, [block])
    assert high is None and size < 299
    assert "p99_itl_ms" in seen(stall=True)
