"""The simulator against exact results, against the plain heap, and Little's law inside it."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdbench.littles_law.batch import Tpot, batch_waits
from pdbench.littles_law.demand import Demand
from pdbench.littles_law.finite import finite
from pdbench.littles_law.fixed_length import fixed_length_waits
from pdbench.littles_law.lengths import Lengths
from pdbench.littles_law.queueing import exponential_waits
from pdbench.littles_law.replay import replay, replay_batch, summed
from pdbench.littles_law.simulate import _held, _Slots, steady_waits

EXPONENTIAL = Lengths(1.0)


@pytest.mark.parametrize(("slots", "rho"), [(1, 0.5), (4, 0.8), (8, 0.9), (64, 0.95), (200, 0.95)])
def test_exact_for_exponential_lengths(slots: int, rho: float) -> None:
    exact = exponential_waits(slots * rho, slots)
    found = steady_waits(slots * rho, slots, 1.0, EXPONENTIAL, exact, seed=2, effort=0.3)
    assert found.waits.mean_s == pytest.approx(exact.mean_s, abs=2 * found.mean_half_width_s)
    assert found.waits.p_wait == pytest.approx(exact.p_wait, abs=2 * found.p_wait_half_width)
    assert found.waits.p99_s == pytest.approx(exact.p99_s, abs=2 * found.p99_half_width_s)


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_exact_for_equal_lengths(burstiness: float) -> None:
    exact = fixed_length_waits(6.4, 8, burstiness)
    found = steady_waits(6.4, 8, burstiness, Lengths(), exact, seed=4, effort=0.3)
    assert found.waits.mean_s == pytest.approx(exact.mean_s, abs=2 * found.mean_half_width_s)
    assert found.waits.p_wait == pytest.approx(exact.p_wait, abs=2 * found.p_wait_half_width)


@given(st.integers(1, 150), st.integers(0, 2**32 - 1), st.floats(0.3, 2.0))
@settings(max_examples=40, deadline=None)
def test_both_kernels_and_the_heap_agree(slots: int, seed: int, rho: float) -> None:
    rng = np.random.default_rng(seed)
    arrivals = np.cumsum(rng.standard_exponential((60, 3)), axis=0) / (slots * rho)
    held = rng.standard_gamma(0.5, (60, 3)) * 2
    waits = _Slots(np.zeros((slots, 3))).serve(arrivals, held)
    for run in range(3):
        assert waits[:, run].tolist() == pytest.approx(replay(arrivals[:, run].tolist(), held[:, run].tolist(), slots))


@given(st.integers(1, 20), st.integers(0, 2**32 - 1), st.floats(0.3, 1.5))
@settings(max_examples=40, deadline=None)
def test_littles_law(slots: int, seed: int, rho: float) -> None:
    """Time average of the requests in the system = rate x mean time in it, when it starts and ends empty."""
    rng = random.Random(seed)
    arrivals, at = [], 0.0
    for _ in range(200):
        at += rng.expovariate(slots * rho)
        arrivals.append(at)
    held = [rng.expovariate(1.0) for _ in arrivals]
    waits = replay(arrivals, held, slots)
    done = [arrival + wait + time for arrival, wait, time in zip(arrivals, waits, held, strict=True)]
    events = sorted([(t, 1) for t in arrivals] + [(t, -1) for t in done])
    area, here, last = 0.0, 0, 0.0
    for t, step in events:
        area += here * (t - last)
        here, last = here + step, t
    spent = sum(end - start for end, start in zip(done, arrivals, strict=True))
    assert here == 0
    assert area == pytest.approx(spent)
    running = [(round(start + wait, 9), round(end, 9)) for start, wait, end in zip(arrivals, waits, done, strict=True)]
    edges = sorted([(a, 1) for a, _ in running] + [(b, -1) for _, b in running], key=lambda e: (e[0], e[1]))
    most = peak = 0
    for _, step in edges:
        most += step
        peak = max(peak, most)
    assert peak <= slots


def test_replay_with_a_batch_is_the_plain_one_without_a_slope() -> None:
    rng = random.Random(5)
    arrivals = sorted(rng.uniform(0, 50) for _ in range(300))
    tokens = [float(rng.randrange(1, 300)) for _ in arrivals]
    plain = replay(arrivals, [count * 0.008 for count in tokens], 6)
    assert replay_batch(arrivals, tokens, Tpot(8.0), 6) == pytest.approx(plain, abs=1e-9)


@pytest.mark.parametrize(("slots", "use"), [(8, 0.8), (64, 0.9)])
def test_replay_with_a_batch_is_the_birth_death_chain(slots: int, use: float) -> None:
    tpot, rng = Tpot(10.0, 0.1), random.Random(9)
    qps = use * slots / tpot.held_s(200, slots)
    arrivals, at = [], 0.0
    for _ in range(120_000):
        at += rng.expovariate(qps)
        arrivals.append(at)
    found = summed(replay_batch(arrivals, [rng.expovariate(1 / 200) for _ in arrivals], tpot, slots))
    exact = batch_waits(qps, 200, tpot, slots)
    assert exact is not None
    assert found.p_wait == pytest.approx(exact.waits.p_wait, rel=0.1)
    assert found.mean_s == pytest.approx(exact.waits.mean_s, rel=0.2)


@pytest.mark.parametrize(
    "lengths", [Lengths(2.0), Lengths(1.0, "lognormal"), Lengths(0.0, "gamma", (100, 2000), (0.9, 0.1))]
)
def test_lengths_have_their_mean_and_cv(lengths: Lengths) -> None:
    drawn = _held(np.random.default_rng(1), lengths, (400_000, 1))
    assert drawn.mean() == pytest.approx(1.0, rel=0.02)
    assert drawn.std() == pytest.approx(lengths.total_cv, rel=0.05)


def test_overlap_is_what_it_says() -> None:
    rng = np.random.default_rng(2)
    for lengths in (Lengths(1.0), Lengths(0.5), Lengths(1.0, "lognormal")):
        pairs = np.minimum(_held(rng, lengths, (300_000, 1)), _held(rng, lengths, (300_000, 1)))
        assert pairs.mean() == pytest.approx(lengths.overlap, abs=0.004)


def test_fluid_limit_of_an_overloaded_run() -> None:
    """The reference case: 400 prompts at 8/s on 8 slots of 1.331 s wait about 8.1 s on average, 41 ms more each."""
    found = finite(Demand(8, 128, Tpot(10.4)), 8, 400, normalised=True)
    assert found.waits.mean_s == pytest.approx(8.2, rel=0.03)
    assert found.growth_s_per_request == pytest.approx(0.0414, rel=0.05)
    assert finite(Demand(8, 128, Tpot(7.0)), 8, 400, normalised=True).waits.mean_s == pytest.approx(0.29, rel=0.05)


def test_finite_run_with_a_batch() -> None:
    found = finite(Demand(8, 128, Tpot(9.6, 0.1)), 8, 200)
    flat = finite(Demand(8, 128, Tpot(10.4)), 8, 200)
    assert found.waits.mean_s == pytest.approx(flat.waits.mean_s, rel=0.1)
