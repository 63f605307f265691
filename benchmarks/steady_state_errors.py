"""False-alarm and detection rates of the not-steady-state judgement, by simulation of FCFS queues.

Every row simulates runs of a G/G/c queue that starts empty: Poisson (or gamma) arrivals at a given share of capacity,
slots held for a fixed or random time, TTFT = base + wait + noise. Usage: python benchmarks/steady_state_errors.py [RUNS]
"""

from __future__ import annotations

import heapq
import sys

import numpy as np

from pdbench.report.answers import Answers
from pdbench.report.steady_state import judge

BASE_S = 0.15


def queue(rng, c, rho, n, law="fixed", hold_s=1.0, gap_cv2=1.0, base_s=BASE_S, tokens=128):
    """One run: Answers of n requests through c slots, and the asked rate."""
    rate = rho * c / hold_s
    gaps = rng.gamma(1 / gap_cv2, gap_cv2 / rate, n)
    arrivals = np.cumsum(gaps)
    holds = {
        "fixed": np.full(n, hold_s) * rng.normal(1, 0.01, n),
        "exponential": rng.exponential(hold_s, n),
        "lognormal1": rng.lognormal(np.log(hold_s) - np.log(2) / 2, np.sqrt(np.log(2)), n),
    }[law]
    free = [0.0] * c
    first = np.empty(n)
    last = np.empty(n)
    ready = arrivals + base_s * rng.lognormal(-0.02, 0.2, n)
    for i in np.argsort(ready, kind="stable"):
        begin = max(ready[i], heapq.heappop(free))
        heapq.heappush(free, begin + holds[i])
        first[i] = begin + 0.01
        last[i] = begin + holds[i] + 0.01
    return answers(arrivals, first, last, tokens), rate, arrivals[-1]


def answers(sent, first, last, tokens=128):
    n = len(sent)
    full = np.full(n, float(tokens))
    return Answers(
        status=np.full(n, "ok"), intended=sent, sent=sent, first=first, last=last, done=last, prompt_len=full,
        output_len=full, prompt_tokens=full, output_tokens=full, cached_tokens=full, chunks=full,
        gaps=tuple(np.array([]) for _ in range(n)), offsets=tuple(np.array([]) for _ in range(n)),
    )  # fmt: skip


HEALTHY = [
    (c, rho, law, cv2, n)
    for c, rho in ((1, 0.5), (1, 0.85), (4, 0.85), (8, 0.5), (8, 0.7), (8, 0.85), (64, 0.85))
    for law, cv2 in (("fixed", 1.0), ("lognormal1", 1.0), ("fixed", 4.0))
    for n in (30, 60, 100, 200, 480, 1000)
]
OVERLOADED = [
    (c, rho, law, 1.0, n)
    for c, rho in ((8, 1.33), (8, 1.2), (8, 1.1), (1, 1.1), (1, 1.33), (64, 1.33))
    for law in ("fixed", "lognormal1")
    for n in (30, 60, 80, 100, 200, 480, 1000)
]


def share(c, rho, law, cv2, n, runs, hold_s):
    fired = grew = peak = 0
    for run in range(runs):
        rng = np.random.default_rng([7, c, int(rho * 100), n, int(cv2), len(law), run])
        seen, rate, end = queue(rng, c, rho, n, law, hold_s=hold_s, gap_cv2=cv2)
        found = judge(seen, 0.0, float(end), rate)
        fired += not found.steady
        grew += found.grows is not None
        peak += found.one_burst
    return fired / runs, grew / runs, peak / runs


def main() -> None:
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 300
    for title, rows in (("healthy: false alarms", HEALTHY), ("overloaded: detected", OVERLOADED)):
        print(f"\n{title} (share of {runs} runs; c, rho, law, arrival CV^2 by number of requests)")
        table: dict[tuple, dict[int, str]] = {}
        for c, rho, law, cv2, n in rows:
            hold = 1.33 if c > 1 else 0.127
            fired, grew, peak = share(c, rho, law, cv2, n, runs, hold)
            table.setdefault((c, rho, law, cv2), {})[n] = f"{fired:.3f}"
        for key, row in table.items():
            print(f"c={key[0]:<3} rho={key[1]:<5} {key[2]:<11} cv2={key[3]:<4}", *(f"{n}:{v}" for n, v in row.items()))


if __name__ == "__main__":
    main()
