"""Both errors of the not-steady-state judgement, by a simulation that shares no code with it."""

from __future__ import annotations

import heapq
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pdbench.report.answers import Answers
from pdbench.report.events import of_offsets
from pdbench.report.steady_state import Steadiness, judge

MORIIO = json.loads((Path(__file__).parent / "captures" / "moriio-ttft.json").read_text())


def answers(sent: np.ndarray, first: np.ndarray, last: np.ndarray) -> Answers:
    n = len(sent)
    tokens = np.full(n, 128.0)
    known: dict[str, Any] = dict.fromkeys(Answers.__slots__, np.full(n, np.nan))
    known |= dict.fromkeys(("prompt_len", "output_len", "prompt_tokens", "output_tokens", "chunks"), tokens)
    known |= {"status": np.full(n, "ok"), "request_class": np.full(n, "default"), "events": of_offsets([""] * n, {})}
    return Answers(**known | {"intended": sent, "sent": sent, "first": first, "last": last, "done": last})


def slots(seed: int, c: int, rho: float, n: int, hold_s: float = 1.33, cv2: float = 1.0) -> Steadiness:
    """First come, first served through c slots held for a fixed time, from an empty start."""
    rng = np.random.default_rng(seed)
    rate = rho * c / hold_s
    sent = np.cumsum(rng.gamma(1 / cv2, cv2 / rate, n))
    free = [0.0] * c
    first = np.empty(n)
    for i, t in enumerate(sent + 0.15 * rng.lognormal(0, 0.2, n)):
        begin = max(t, heapq.heappop(free))
        heapq.heappush(free, begin + hold_s)
        first[i] = begin + 0.01
    return judge(answers(sent, first, first + hold_s), 0.0, float(sent[-1]), rate)


@pytest.mark.parametrize(
    ("c", "rho", "n"), [(1, 0.85, 60), (1, 0.85, 200), (4, 0.85, 100), (8, 0.85, 60), (8, 0.7, 30)]
)
def test_healthy_queues_seldom_raise_an_alarm(c: int, rho: float, n: int) -> None:
    hold = 1.33 if c > 1 else 0.127
    assert sum(not slots(seed, c, rho, n, hold).steady for seed in range(60)) <= 3


def test_bursty_arrivals_below_capacity_are_no_overload() -> None:
    assert sum(not slots(seed, 8, 0.8, 200, cv2=4.0).steady for seed in range(60)) <= 3


@pytest.mark.parametrize(("n", "at_least"), [(80, 36), (200, 39), (480, 40)])
def test_the_reference_overload_is_seen(n: int, at_least: int) -> None:
    seen = [slots(seed, 8, 1.33, n) for seed in range(40)]
    assert sum(not s.steady for s in seen) >= at_least
    growth = [s.growth_ms for s in seen if s.growth_ms is not None]
    assert np.median(growth) == pytest.approx(41.4, abs=6)  # S/c - 1/rate


@pytest.mark.parametrize("series", ["read_ttft_s", "write_ttft_s"])
@pytest.mark.parametrize("arrivals", range(4))
def test_published_runs_that_grow_11_ms_a_request(series: str, arrivals: int) -> None:
    """Their arrival times are not published; whatever they were, the mean is a figure of the 100 requests."""
    ttft = np.array(MORIIO[series])
    gaps = np.full(100, 1 / 8) if arrivals == 0 else np.random.default_rng(arrivals).exponential(1 / 8, 100)
    sent = np.cumsum(gaps)
    seen = judge(answers(sent, sent + ttft, sent + ttft + 7.6), 0.0, float(sent[-1]), 8.0)
    assert seen.ttft_grows and seen.growth_ms == pytest.approx(12, abs=2)


def test_streams_that_pile_up_without_a_slot_limit() -> None:
    """TTFT stays flat while every token takes longer: steps that grow with the batch, beyond capacity."""
    n, rate = 300, 10.0
    sent = np.arange(n) / rate
    hold = 1.0 + 0.06 * np.arange(n)
    seen = judge(answers(sent, sent + 0.1, sent + 0.1 + hold), 0.0, float(sent[-1]), rate)
    assert seen.flight_grows and not seen.ttft_grows and not seen.steady
    flat = judge(answers(sent, sent + 0.1, sent + 1.1), 0.0, float(sent[-1]), rate)
    assert flat.steady


def test_nearly_all_requests_in_flight_at_once() -> None:
    """200 prompts at 10/s against 3.3/s: 198 in flight; 640 in a closed loop of 562 (cases of public trackers)."""
    sent = np.sort(np.random.default_rng(1).uniform(0, 2, 200))
    last = np.maximum.accumulate(np.arange(200) / 3.3) + 2.2
    assert judge(answers(sent, last - 0.5, last), 0.0, 2.0, 100.0).one_burst
    burst = np.zeros(64)
    ends = 1.0 + np.arange(64) * 0.1
    assert judge(answers(burst, ends - 0.5, ends), 0.0, 0.1, None, 60).one_burst


def test_a_steady_closed_loop_passes() -> None:
    rng = np.random.default_rng(2)
    hold = rng.lognormal(0, 0.05, (40, 4))
    ends = np.cumsum(hold, axis=0)
    sent = (ends - hold).ravel()
    order = np.argsort(sent)
    sent, last = sent[order], ends.ravel()[order]
    assert judge(answers(sent, sent + 0.1, last), 0.0, float(sent[-1]), None, 4).steady


@pytest.mark.parametrize("n", [1, 3, 8])
def test_few_requests_at_a_low_rate_pass(n: int) -> None:
    sent = np.arange(n) * 2.0
    assert judge(answers(sent, sent + 0.2, sent + 1.2), 0.0, max(1.0, float(sent[-1])), 0.5).steady
