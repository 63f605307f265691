"""How far is the capacity that a search finds from the truth, and how often does its interval hold it?

Searches of exact M/D/c queues, with the search's own code: the SLO is `p99 wait <= the p99 of the steady state at a
known use`, so that the true capacity is that use (tests/littles_law/truth).
Usage: python benchmarks/capacity_errors.py [SEEDS]
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.capacity.queue import search
from tests.capacity.test_search import true_p99

CASES = ((4, 0.7), (8, 0.5), (8, 0.8), (8, 0.9), (256, 0.95))
BUDGETS = (1e9, 2000.0)  # service times


def main(seeds: int) -> None:
    print(
        "| slots | true use | budget, service times | median error | 90 % within | within 5 % | interval holds it |",
        end="",
    )
    print(" settled | requests |\n|--:|--:|--:|--:|--:|--:|--:|--:|--:|")
    for budget in BUDGETS:
        for slots, use in CASES:
            row(slots, use, budget, seeds)


def row(slots: int, use: float, budget: float, seeds: int) -> None:
    errors, bounded, covered, settled, requests = [], 0, 0, 0, []
    for seed in range(seeds):
        answer, why, probes = search(slots, true_p99(slots, use), seed, budget)
        requests.append(sum(probe.requests for probe in probes))
        settled += why == "settled"
        if answer.rate is not None:
            errors.append(answer.rate / (use * slots) - 1)
        if answer.bounded and answer.low is not None and answer.high is not None:
            bounded += 1
            covered += answer.low <= use * slots <= answer.high
    off = np.abs(errors)
    limit = "none" if budget >= 1e9 else f"{budget:,.0f}"
    share = f"{covered / bounded:.0%}" if bounded else "-"
    near = f"{np.quantile(off, 0.9):.1%} | {np.mean(off <= 0.05):.0%}"
    print(
        f"| {slots} | {use} | {limit} | {np.median(errors):+.1%} | {near} |"
        f" {share} of {bounded} | {settled / seeds:.0%} | {np.mean(requests):,.0f} |",
        flush=True,
    )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 40)
