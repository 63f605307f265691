"""Intervals of TTFT percentiles against simulated queues and waves whose true percentiles are known."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pdbench.report.answers import QUANTILES, latencies
from pdbench.report.compare.pairs import figure
from pdbench.report.independent import Alike, alike_of, independent_sizes, streams_of
from pdbench.report.statistics import Floats, needed_for
from pdbench.run import RequestRow, request_record
from tests.report.answered import read_answers

SIMULATED = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "wait_interval_coverage.py"))
RUNS = 100
LEAST = 0.93 - 2 * (0.93 * 0.07 / RUNS) ** 0.5  # nominal 95 %, less two standard errors of a share of the runs
Q = tuple(QUANTILES.values())


def sizes(values: Floats, repeat: Floats | None = None, stream: Floats | None = None) -> dict[float, float]:
    unknown = np.full(len(values), np.nan)
    alike = alike_of(unknown if repeat is None else repeat, unknown if stream is None else stream, unknown)
    return independent_sizes(values, np.sort(values), alike, Q)


@pytest.mark.parametrize(("kind", "before"), [("md8-0.8", 0.6), ("phases", 0.8), ("3xphases", 0.8)])
def test_what_is_claimed_of_waits_that_are_alike_is_true(kind: str, before: float) -> None:
    """And was not, when each request counted as one."""
    true = SIMULATED["truth"](kind, runs=60)
    found, earlier = (SIMULATED["coverage"](kind, 501, RUNS, true, today) for today in (True, False))
    assert all(holds >= LEAST for _, _, holds, _ in found.values()), found
    assert all(holds <= before for _, _, holds, _ in earlier.values()), earlier
    assert found[0.5][0] > 0.5 and found[0.99][0] < 0.1 and found[0.99][3] < 150


@pytest.mark.parametrize("n", [300, 500])
def test_independent_requests_keep_their_interval(n: int) -> None:
    found = SIMULATED["coverage"]("iid", n, 4 * RUNS, SIMULATED["truth"]("iid", runs=60))
    for given, holds, _, size in found.values():
        assert given >= 0.95 and holds >= 0.93 - (0.93 * 0.07 / RUNS) ** 0.5 and size > 0.95 * n


def test_a_burst_at_the_start_is_one_event() -> None:
    """Sixteen streams begin at once: the slowest 3 % of 500 requests are all of the first wave."""
    values = np.random.default_rng(0).lognormal(0, 0.1, 500)
    values[:16] *= np.arange(1, 17)
    assert sizes(values, stream=np.arange(500.0) % 16)[0.99] < 100
    mixed = np.random.default_rng(1).permutation(values)
    assert sizes(mixed, stream=np.arange(500.0) % 16) == dict.fromkeys(Q, 500.0)


def test_repeats_that_differ_are_clusters_from_three_on() -> None:
    rng = np.random.default_rng(2)
    repeat = np.repeat(np.arange(5.0), 100)
    values = rng.lognormal(0.5 * np.array([0, 2, 1, 4, 3])[repeat.astype(int)], 0.2)
    assert sizes(values, repeat)[0.5] < 10
    assert sizes(rng.permutation(values), repeat) == dict.fromkeys(Q, 500.0)


def test_blocks_end_with_their_repeat() -> None:
    """Two repeats of another level each: what jumps between them is no memory of a queue."""
    rng = np.random.default_rng(3)
    values = rng.lognormal(0, 0.2, 400)
    halves = Alike(np.repeat([0, 1], 200))
    edges = next(iter(SIMULATED["independent_sizes"].__globals__["_blocks"](values[None, :], halves)))
    assert edges.members.sum() == 400 and not edges.follows[np.cumsum(edges.members) - edges.members == 200].any()


def test_equal_values_are_not_alike_by_their_order() -> None:
    assert sizes(np.ones(300)) == dict.fromkeys(Q, 300.0)
    sent = np.sort(np.random.default_rng(5).uniform(0, 400, 300))
    assert sizes((sent + 0.2 - sent) * 1000) == dict.fromkeys(Q, 300.0)
    rng = np.random.default_rng(4)
    assert sizes(rng.permutation(np.append(rng.random(290), [np.inf] * 10)))[0.99] == 300
    assert all(np.isfinite(list(sizes(np.arange(float(n))).values())).all() for n in range(1, 60))


def closed_loop(places: Floats, n: int, repeat: int = 0) -> list[dict[str, Any]]:
    """Requests of streams whose TTFT is that of their place in the wave, 1 s an answer."""
    rng = np.random.default_rng(repeat)
    rows = []
    for i in range(n):
        turn, stream = divmod(i, len(places))
        at = 2.0 * turn + 0.01 * stream
        first, last = at + places[stream] * rng.lognormal(0, 0.001), at + 1.99
        row = RequestRow(0, repeat, "default", f"r{repeat}-{i}", "default", i, intended_s=at, sent_s=at, done_s=last,
                         first_token_s=first, last_token_s=last, prompt_tokens=100, output_tokens=10, chunks=0,
                         status="ok", prompt_len=100, output_len=10)  # fmt: skip
        rows.append(request_record(row))
    return rows


def test_streams_are_found_by_whose_answer_ended() -> None:
    rng = np.random.default_rng(5)
    ready, sent, done, true = np.zeros(6), [], [], []
    for _ in range(200):
        who = int(ready.argmin())
        true.append(who)
        sent.append(ready[who])
        ready[who] += rng.lognormal(0, 0.5)
        done.append(ready[who] - 1e-6)
    found = streams_of(np.array(sent), np.array(done))
    assert len(set(zip(found, true, strict=True))) == 6


def test_five_hundred_requests_of_sixteen_places_are_sixteen() -> None:
    rows = closed_loop(np.linspace(0.05, 0.8, 16), 500)
    seen = read_answers(rows, {}, closed=True)
    found = latencies(seen)
    assert found["ttft_ms_interval"]["p99"][1] is None and 500 * 299 / 16 <= found["needs"]["p99_ttft_ms"] < 20_000
    assert "p50_ttft_ms" not in found["needs"]
    low, high = found["ttft_ms_interval"]["p50"]
    assert low < 350 and high > 500
    assert "p99_ttft_ms" not in latencies(seen, settles=False).get("needs", {})
    entry = {"repeat": 0, "completed": 500, **found}
    assert figure(entry, "p99_ttft_ms") == found["p99_ttft_ms"]  # between repeats its spread is seen, not guessed
    assert figure({**entry, "completed": needed_for(0.99) - 1}, "p99_ttft_ms") is None
