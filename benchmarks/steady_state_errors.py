"""False-alarm and detection rates of the not-steady-state judgement, by simulation of FCFS queues.

Every row simulates runs of a G/G/c queue that starts empty: Poisson (or gamma) arrivals at a given share of capacity,
slots held for a fixed or random time, TTFT = base + wait + noise.
Usage: python benchmarks/steady_state_errors.py [RUNS]
"""

from __future__ import annotations

import heapq
import sys

import numpy as np

from pdbench.report.answers import Answers
from pdbench.report.events import of_offsets
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
    # Slots are held for different times because answers differ in length: TPOT is the same for all.
    return answers(arrivals, first, last, np.round(1 + tokens * holds / hold_s)), rate, arrivals[-1]


def batch(rng, load, n, tokens=128, step_s=0.007, per_stream_s=0.0005, base_s=BASE_S):
    """One run of an engine without slot limit whose steps grow with the batch: beyond load 1 streams pile up."""
    rate = load / (tokens * per_stream_s)
    arrivals = np.cumsum(rng.exponential(1 / rate, n))
    ready = arrivals + base_s
    first, last, left = np.full(n, np.nan), np.full(n, np.nan), np.full(n, tokens)
    now, come, running = 0.0, 0, np.array([], dtype=int)
    while come < n or len(running):
        if not len(running):
            now = max(now, ready[come])
        while come < n and ready[come] <= now:
            running = np.append(running, come)
            come += 1
        now += step_s + per_stream_s * len(running)
        fresh = running[left[running] == tokens]
        first[fresh] = now
        left[running] -= 1
        last[running[left[running] == 0]] = now
        running = running[left[running] > 0]
    return answers(arrivals, first, last, np.full(n, float(tokens))), rate, arrivals[-1]


def answers(sent, first, last, tokens=None):
    n = len(sent)
    full = np.full(n, 128.0) if tokens is None else tokens
    known = dict.fromkeys(Answers.__slots__, np.full(n, np.nan))
    known |= dict.fromkeys(("prompt_len", "output_len", "prompt_tokens", "output_tokens", "chunks"), full)
    known |= {"status": np.full(n, "ok"), "request_class": np.full(n, "default"), "events": of_offsets([""] * n, {})}
    return Answers(**known | {"intended": sent, "sent": sent, "first": first, "last": last, "done": last})


HEALTHY = [
    (c, rho, law, cv2, n)
    for c, rho in ((1, 0.5), (1, 0.85), (4, 0.85), (8, 0.5), (8, 0.7), (8, 0.85), (32, 0.85))
    for law, cv2 in (("fixed", 1.0), ("lognormal1", 1.0), ("fixed", 4.0))
    for n in (30, 60, 100, 200, 480, 1000)
]
OVERLOADED = [
    (c, rho, law, 1.0, n)
    for c, rho in ((8, 1.33), (8, 1.2), (8, 1.1), (1, 1.1), (1, 1.33), (32, 1.33))
    for law in ("fixed", "lognormal1")
    for n in (30, 60, 80, 100, 200, 480, 1000)
]


def share(c, rho, law, cv2, n, runs, hold_s):
    fired = 0
    for run in range(runs):
        rng = np.random.default_rng([7, c, int(rho * 100), n, int(cv2), len(law), run])
        seen, rate, end = queue(rng, c, rho, n, law, hold_s=hold_s, gap_cv2=cv2)
        found = judge(seen, 0.0, float(end), rate)
        fired += not found.steady
    return fired / runs


def batch_rows(title, runs):
    for load in (0.5, 0.8) if title.startswith("healthy") else (1.2, 1.5):
        shares = []
        for n in (60, 100, 200, 480):
            fired = 0
            for run in range(runs):
                seen, rate, end = batch(np.random.default_rng([11, int(load * 100), n, run]), load, n)
                fired += not judge(seen, 0.0, float(end), rate).steady
            shares.append(f"{n}:{fired / runs:.3f}")
        yield f"load={load} " + " ".join(shares)


def main() -> None:
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 300
    for title, rows in (("healthy: false alarms", HEALTHY), ("overloaded: detected", OVERLOADED)):
        print(f"\n{title} (share of {runs} runs; c, rho, law, arrival CV^2 by number of requests)")
        table: dict[tuple[int, float, str, float], dict[int, str]] = {}
        for c, rho, law, cv2, n in rows:
            hold = 1.33 if c > 1 else 0.127
            table.setdefault((c, rho, law, cv2), {})[n] = f"{share(c, rho, law, cv2, n, runs, hold):.3f}"
        print("\n".join(["batch engine without slots:", *batch_rows(title, runs)]))
        for key, row in table.items():
            print(f"c={key[0]:<3} rho={key[1]:<5} {key[2]:<11} cv2={key[3]:<4}", *(f"{n}:{v}" for n, v in row.items()))


if __name__ == "__main__":
    main()
