"""Turns of a loop whose every stall is known: what is lost, to what, and how sure that is."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from pdbench.report.answers import Answers
from pdbench.report.turns import Turns, turns_of
from pdbench.run import RequestRow, request_record
from tests.report.answered import read_answers

ALONE_S, PER_STREAM_S = 0.006, 0.0003


def loop(
    rate: float, tokens: int, seconds: float, seed: int, stall_s: float = 0.0, hiccup_s: float = 0.0
) -> tuple[Answers, float]:
    """Answers of a loop that admits at turn starts, and the share of the streams' time that was lost.

    `stall_s` is lost at each admission; `hiccup_s` a hundred times in the run, at random.
    """
    rng = np.random.default_rng(seed)
    arrivals = list(np.cumsum(rng.exponential(1 / rate, int(rate * seconds))))
    hiccups = sorted(rng.uniform(0, arrivals[-1], 100))
    streams: list[list[float]] = []
    running: list[list[float]] = []
    t, lost, whole = 0.0, 0.0, 0.0
    while arrivals or running:
        if not running and arrivals:
            t = max(t, arrivals[0])
        fresh: list[list[float]] = []
        while arrivals and arrivals[0] <= t:
            fresh.append([arrivals.pop(0)])
        length = ALONE_S + PER_STREAM_S * (len(running) + len(fresh))
        extra = stall_s * len(fresh)
        while hiccups and hiccups[0] <= t:
            hiccups.pop(0)
            extra += hiccup_s
        lost, whole = lost + extra * len(running), whole + (length + extra) * len(running)
        t += length + extra
        running += fresh
        streams += fresh
        for stream in running:
            stream.append(t)
        running = [stream for stream in running if len(stream) <= tokens]
    rows, offsets = [], {}
    for i, (arrived, *stamps) in enumerate(streams):
        times = {"intended_s": arrived, "sent_s": arrived, "first_token_s": stamps[0], "last_token_s": stamps[-1]}
        row = RequestRow(0, 0, "d", f"r{i}", "d", i, done_s=stamps[-1], status="ok", output_tokens=tokens, **times)
        rows.append(request_record(row))
        offsets[f"r{i}"] = np.array(stamps) - arrived
    return read_answers(rows, offsets), lost / whole


def found(rate: float, tokens: int, seconds: float, seed: int, **planted: float) -> tuple[Turns, float]:
    answers, lost = loop(rate, tokens, seconds, seed, **planted)
    turns = turns_of(answers, 0.0)
    assert turns is not None
    return turns, lost


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("stall_s", [0.01, 0.03, 0.08])
def test_a_stall_at_each_admission_is_measured_and_put_down_to_handoffs(stall_s: float, seed: int) -> None:
    turns, lost = found(4.0, 60, 60.0, seed, stall_s=stall_s)
    assert turns.lost.value == pytest.approx(lost, rel=0.1)
    assert turns.stall_ms is not None and turns.stall_ms.low > 0
    assert turns.stall_ms.value == pytest.approx(stall_s * 1000, rel=0.4)


def test_many_handoffs_a_turn_leave_no_quiet_turn_and_are_measured_all_the_same() -> None:
    """Forty a second, each turn admits one or more: the median of the turns has a stall in it."""
    turns, lost = found(40.0, 40, 40.0, 1, stall_s=0.008)
    assert lost > 0.25 and turns.lost.value == pytest.approx(lost, rel=0.4) and turns.lost.low > 0.1
    assert turns.stall_ms is not None and turns.stall_ms.value == pytest.approx(8.0, rel=0.4)


@pytest.mark.parametrize("seed", range(4))
def test_a_quiet_loop_loses_nothing(seed: int) -> None:
    turns, _ = found(4.0, 60, 40.0, seed)
    assert abs(turns.lost.value) < 0.01 and turns.mean_ms == pytest.approx(turns.quiet_ms, rel=0.01)
    assert turns.slope_ms == pytest.approx(PER_STREAM_S * 1000, rel=0.2)


def test_the_turn_that_is_met_at_random_is_longer_than_the_mean() -> None:
    turns, _ = found(4.0, 60, 60.0, 1, stall_s=0.08)
    assert turns.met_ms > 2 * turns.mean_ms


def test_hiccups_that_have_nothing_to_do_with_handoffs_are_lost_time_and_no_stall() -> None:
    """Over many runs: the interval leaves out 0 as rarely as a 95 % interval may."""
    wrong = 0
    for seed in range(20):
        turns, lost = found(4.0, 60, 40.0, seed, hiccup_s=0.06)
        assert turns.lost.value == pytest.approx(lost, rel=0.25) and turns.lost.value > 0.05
        wrong += turns.stall_ms is not None and turns.stall_ms.low > 0
    assert wrong <= 3


def test_a_few_gaps_say_nothing() -> None:
    answers, _ = loop(4.0, 5, 4.0, 1)
    assert turns_of(answers, 0.0) is None


def test_turns_take_few_bytes_a_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sweep may hold 64 bytes for each event that it keeps, and the gaps themselves are eight of them."""
    monkeypatch.setattr("pdbench.report.events.AT_ONCE", 1000)
    answers, _ = loop(8, 400, 60, 0)
    gaps = int(answers.events.count.sum())
    turns_of(answers, 0.0)  # what it imports is no part of it
    tracemalloc.start()
    try:
        assert turns_of(answers, 0.0) is not None
        assert tracemalloc.get_traced_memory()[1] < 56 * gaps
    finally:
        tracemalloc.stop()
