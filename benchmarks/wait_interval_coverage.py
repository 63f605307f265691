"""How often the 95 % interval of a TTFT percentile holds the true one, by simulation of requests that wait together.

Open loops through 8 slots, first come first served: iid (no queue), md8-RHO (Poisson arrivals, all hold a slot equally
long), mg8-RHO (lognormal, CV 1). Closed loops of 16 streams, one prefill at a time, decode in steps of 40 ms: once
(answers of one length, all begin at once), phases (begun at random), jitter (prefill varies by 20 %), loose (lognormal
lengths, in which no wave lasts). `3x` before a kind: three repeats pooled. True are the percentiles of an ensemble of
such runs in steady state; open loops begin in it, closed ones when their streams do.
Usage: python benchmarks/wait_interval_coverage.py [RUNS [today|before [KIND...]]]
"""

from __future__ import annotations

import sys

import numpy as np

from pdbench.report.independent import alike_of, independent_sizes
from pdbench.report.statistics import needed_for, quantile_interval

KINDS = (
    "iid",
    "md8-0.5",
    "md8-0.8",
    "md8-0.95",
    "mg8-0.8",
    "once",
    "phases",
    "jitter",
    "loose",
    "3xphases",
    "3xmd8-0.8",
)
CLOSED = ("once", "phases", "jitter", "loose")
QUANTILES = (0.5, 0.9, 0.99)
SLOTS, STREAMS, STEP_S, PREFILL_S, DECODE_S = 8, 16, 0.040, 0.008, 0.4


def open_loop(rng, kind, runs, n, warm):
    """TTFT (s) in the order of sending, a row a run, without the first `warm` requests; no streams."""
    law, _, rho = kind.partition("-")
    shape = (runs, n + warm)
    held = rng.lognormal(-np.log(2) / 2, np.log(2) ** 0.5, shape) if law == "mg8" else np.ones(shape)
    sent = np.cumsum(rng.exponential(1 / (SLOTS * float(rho or 1)), shape), axis=1)
    waited, free, rows = np.zeros(shape), np.zeros((runs, SLOTS)), np.arange(runs)
    for i in range(n + warm if law != "iid" else 0):
        slot = free.argmin(axis=1)
        begins = np.maximum(sent[:, i], free[rows, slot])
        free[rows, slot] = begins + held[:, i]
        waited[:, i] = begins - sent[:, i]
    return (waited + rng.lognormal(np.log(0.05), 0.3, shape))[:, warm:], np.full((runs, n), np.nan)


def closed_loop(rng, kind, runs, n, warm):
    """The same of streams that each send when their last answer has ended, and which stream it was."""
    ready = rng.uniform(0, 1e-4 if kind == "once" else DECODE_S, (runs, STREAMS))
    free, rows, shape = np.zeros(runs), np.arange(runs), (runs, n + warm)
    waited, stream = np.empty(shape), np.empty(shape)
    for i in range(n + warm):
        who = ready.argmin(axis=1)
        sent = ready[rows, who]
        work = rng.lognormal(0, 0.2, runs) if kind in ("jitter", "loose") else 1.0
        free = np.maximum(sent, free) + PREFILL_S * work
        length = rng.lognormal(-0.125, 0.5, runs) if kind == "loose" else 1.0
        ready[rows, who] = STEP_S * np.ceil((free + DECODE_S * length) / STEP_S) + rng.uniform(0, 1e-5, runs)
        waited[:, i], stream[:, i] = free - sent, who
    client = rng.lognormal(0, 0.01, shape)
    return (waited * client)[:, warm:], stream[:, warm:]


def drawn(rng, kind, runs, n, warm=None):
    """TTFT, stream and repeat of each request, a row a run."""
    repeats, kind = (3, kind[2:]) if kind.startswith("3x") else (1, kind)
    loop = closed_loop if kind in CLOSED else open_loop
    if warm is None:
        warm = 0 if kind in CLOSED else 3000 if "0.95" in kind else 300
    parts = [loop(rng, kind, runs, n // repeats, warm) for _ in range(repeats)]
    ttft, stream = (np.concatenate(each, axis=1) for each in zip(*parts, strict=True))
    return ttft, stream, np.repeat(np.arange(repeats), n // repeats).astype(float)


def truth(kind, seed=1, runs=500):
    kind = kind.removeprefix("3x")
    rng = np.random.default_rng(seed)
    n, warm = (320, 640) if kind in CLOSED else (10000, 3000)
    return np.quantile(drawn(rng, kind, 8 * runs if kind in CLOSED else runs, n, warm)[0], QUANTILES)


def coverage(kind, n, runs, true, today=True, seed=7):
    """Of each quantile: share of runs that give both ends, share of those that hold the truth, share of all runs whose
    ends, as far as they have any, hold it, and mean effective size."""
    ttft, stream, repeat = drawn(np.random.default_rng(seed), kind, runs, n)
    seen = {q: [] for q in QUANTILES}
    for values, streams in zip(ttft, stream, strict=True):
        ordered, sizes = np.sort(values), dict.fromkeys(QUANTILES, float(len(values)))
        if today:
            sizes = independent_sizes(values, ordered, alike_of(repeat, streams, np.full(n, np.nan)), QUANTILES)
        for q, value in zip(QUANTILES, true, strict=True):
            low, high = quantile_interval(ordered, q, int(sizes[q]), ordered=True)
            given = sizes[q] >= needed_for(q) and low is not None and high is not None
            holds = (low is None or low <= value) and (high is None or value <= high)
            seen[q].append((given, given and holds, holds, sizes[q]))
    table = {}
    for q, rows in seen.items():
        given, both, holds, size = np.mean(rows, axis=0)
        table[q] = (given, both / given if given else np.nan, holds, size)
    return table


if __name__ == "__main__":
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    today = sys.argv[2] != "before" if len(sys.argv) > 2 else True
    print(f"of {runs} runs: share with both ends (given); of these, share that hold the truth (holds);")
    print("share of all whose ends, as far as they have any, hold it (true); mean effective size")
    for kind in sys.argv[3:] or KINDS:
        true = truth(kind)
        for n in (90, 300, 501, 3000):
            found = coverage(kind, n, runs, true, today)
            cells = [f"p{100 * q:.0f} {a:4.0%} {b:6.1%} {c:6.1%} {s:5.0f}" for q, (a, b, c, s) in found.items()]
            print(f"{kind:9s} {n:5d}   " + "   ".join(cells), flush=True)
