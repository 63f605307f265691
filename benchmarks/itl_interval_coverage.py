"""How often the 95 % interval of an ITL percentile holds the true one, by simulation of streams that stall together.

Requests arrive as a Poisson process and make tokens each 10 ms; what disturbs the gaps differs by row:
iid (each gap alone), request (each request has a speed of its own), stalls (all streams stand still now and then),
admission (each arrival holds all others up for 60 ms), bursts (seconds in which every step is slow).
Usage: python benchmarks/itl_interval_coverage.py [RUNS [KIND...]]
"""

from __future__ import annotations

import sys

import numpy as np

from pdbench.report.clustered import clustered_interval, time_blocks
from pdbench.report.statistics import needed_for

KINDS = ("iid", "request", "stalls", "admission", "bursts")
QUANTILES = (0.5, 0.9, 0.99)
STEP_S = 0.010


def gaps(rng, kind, n, rate=4.0, tokens=96):
    """Gaps (ms), the time of each and its request, of `n` requests."""
    arrive = np.cumsum(rng.exponential(1 / rate, n))
    end = arrive[-1] + 20
    # Work done by time t: streams stand still in a stall, and run slower in a burst.
    if kind == "stalls":
        at = np.sort(rng.uniform(0, end, rng.poisson(end)))
        length = rng.exponential(0.06, len(at))
    elif kind == "admission":
        at, length = arrive, rng.lognormal(np.log(0.06), 0.2, n)
    elif kind == "bursts":
        starts = np.sort(rng.uniform(0, end, rng.poisson(end / 12)))
        at = np.concatenate([s + np.arange(0, 1.0, 0.02) for s in starts]) if len(starts) else np.array([])
        length = np.full(len(at), 0.008)
        order = np.argsort(at)
        at, length = at[order], length[order]
    else:
        at = length = np.array([])
    held = np.concatenate(([0.0], np.cumsum(length)))
    found, times, owner = [], [], []
    for i, t in enumerate(arrive):
        speed = rng.lognormal(0, 0.3) if kind == "request" else 1.0
        steps = STEP_S * speed * rng.gamma(25, 1 / 25, tokens)
        clock = t + 0.1 + np.cumsum(steps)
        stamps = clock + held[np.searchsorted(at, clock)] - held[np.searchsorted(at, t + 0.1)]
        found.append(np.diff(stamps) * 1000)
        times.append(stamps[1:])
        owner.append(np.full(tokens - 1, i))
    span = float(np.mean([t[-1] - t[0] for t in times])) + 0.1
    return np.concatenate(found), np.concatenate(times), np.concatenate(owner), span


def coverage(kind, n, runs, seed=0, truth_of=20000):
    """Of each quantile: share of runs that give both ends, share of those that hold the truth, mean effective size."""
    rng = np.random.default_rng(seed)
    truth = np.quantile(gaps(rng, kind, truth_of)[0], QUANTILES)
    seen = {q: [] for q in QUANTILES}
    for _ in range(runs):
        value, time, owner, span = gaps(rng, kind, n)
        clusters = [owner, *time_blocks(time, span)]
        for q, true in zip(QUANTILES, truth, strict=True):
            (low, high), size = clustered_interval(value, q, clusters)
            enough = size >= needed_for(q) and low is not None and high is not None
            seen[q].append((enough, enough and low <= true <= high, size))
    table = {}
    for q, rows in seen.items():
        both = [row for row in rows if row[0]]
        share = np.mean([row[1] for row in both]) if both else np.nan
        table[q] = (len(both) / runs, float(share), float(np.mean([row[2] for row in rows])))
    return table


if __name__ == "__main__":
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    kinds = sys.argv[2:] or KINDS
    print(
        f"share of {runs} runs whose interval has both ends; of these, share that hold the truth; mean effective size"
    )
    for kind in kinds:
        for n in (30, 60, 120, 300, 1000):
            cells = [f"p{100 * q:.0f} {a:4.0%} {b:6.1%} {s:7.0f}" for q, (a, b, s) in coverage(kind, n, runs).items()]
            print(f"{kind:10s} {n:5d} requests   " + "   ".join(cells), flush=True)
