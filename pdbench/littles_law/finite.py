"""What one run of K requests will show, at any load: benchmarks start empty and stop, so no steady state is in them."""

from __future__ import annotations

import random
from dataclasses import dataclass

from pdbench.littles_law.demand import Demand
from pdbench.littles_law.waits import Waits

SIMULATED_REQUESTS = 400_000
RUNS = (20, 4000)
BATCH_REQUESTS = 80_000  # where TPOT follows the batch, one request at a time
BATCH_RUNS = (20, 400)


@dataclass(frozen=True, slots=True)
class Finite:
    """`waits` are the expected figures of one run: its mean and its own percentiles, averaged over `runs` runs."""

    requests: int
    runs: int
    waits: Waits
    mean_sd_s: float  # standard deviation of a run's mean wait from run to run
    last_tenth_mean_s: float
    growth_s_per_request: float
    makespan_s: float
    normalised: bool


def finite(demand: Demand, slots: int, requests: int, *, normalised: bool = False, seed: int = 0) -> Finite:
    """The first `requests` requests after an empty start; `normalised` as vllm bench serve rescales its arrivals."""
    if demand.tpot.slope_ms > 0:
        return _with_batch(demand, slots, requests, normalised, seed)
    from pdbench.littles_law.simulate import finite_run

    runs = _runs(SIMULATED_REQUESTS, requests, RUNS)
    held_s = demand.held_s(slots)
    found = finite_run(
        demand.load(slots), slots, demand.burstiness, demand.lengths, requests,
        runs=runs, normalised=normalised, seed=seed,
    )  # fmt: skip
    return Finite(
        requests,
        runs,
        found.waits.scaled(held_s),
        found.mean_sd * held_s,
        found.last_tenth_mean * held_s,
        found.growth_per_request * held_s,
        found.makespan * held_s,
        normalised,
    )


def _runs(budget: int, requests: int, bounds: tuple[int, int]) -> int:
    return max(bounds[0], min(bounds[1], budget // requests))


def _with_batch(demand: Demand, slots: int, requests: int, normalised: bool, seed: int) -> Finite:
    """As `finite`, with the pace of the batch, one request at a time."""
    import numpy as np

    from pdbench.littles_law.replay import replay_batch
    from pdbench.littles_law.simulate import draws, growth, order_statistics

    runs = max(2, _runs(BATCH_REQUESTS, requests, BATCH_RUNS) if requests <= BATCH_REQUESTS else 2)
    arrivals, lengths = draws(demand.burstiness, demand.lengths, (requests, runs), random.Random(seed).getrandbits(32))
    arrivals /= demand.qps
    if normalised:
        arrivals *= requests / demand.qps / arrivals[-1]
    tokens = lengths * demand.out_tokens
    waits = np.empty((requests, runs))
    for run in range(runs):
        waits[:, run] = replay_batch(arrivals[:, run].tolist(), tokens[:, run].tolist(), demand.tpot, slots)
    means = waits.mean(axis=0)
    ends = arrivals + waits + tokens * demand.tpot.at(slots) / 1000
    return Finite(
        requests,
        runs,
        Waits(float((waits > 0).mean()), float(means.mean()), *order_statistics(waits)),
        float(means.std(ddof=1)),
        float(waits[-max(1, requests // 10) :].mean()),
        growth(waits),
        float(ends.max(axis=0).mean()),
        normalised,
    )
