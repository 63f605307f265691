"""Probes of an exact M/D/c queue, without any server: waits in units of the service time, by Lindley's recursion.

With equal service times slots are taken in turn, so request i starts when it comes or when request i - c has left.
"""

from __future__ import annotations

import numpy as np

from pdbench.report.capacity.fit import Batches
from pdbench.report.capacity.probe import Probe
from pdbench.report.capacity.search import FIRST_REQUESTS, Found, found, next_step
from pdbench.report.capacity.slo import batched
from pdbench.report.statistics import Floats
from pdbench.sweep.search_options import FIRST_RATE


def waits(rate: float, requests: int, slots: int, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """(arrivals, waits) of so many requests after an empty start."""
    arrives = np.cumsum(rng.exponential(1 / rate, requests))
    starts = arrives.copy()
    for place in range(slots, requests):
        starts[place] = max(arrives[place], starts[place - slots] + 1.0)
    return arrives, starts - arrives


def probe(cell: int, rate: float, requests: int, slots: int, p99: float, rng: np.random.Generator) -> Probe:
    """One probe with the SLO `p99 wait <= p99`."""
    arrives, wait = waits(rate, requests, slots, rng)
    over, of = batched([(wait > p99) / 0.01, np.ones(requests)])
    late = requests / (arrives[-1] + wait[-1])
    steady = rate < slots or late > 0.98 * rate
    values = (float(np.quantile(wait, 0.99)),)
    spent_s = float(arrives[-1] + wait[-1] + 1)
    took_s = 1 + float(wait.mean())
    return Probe(
        cell, rate, requests, spent_s, (Batches(rate, over, of, 100.0),), values, steady, late, took_s, float(slots)
    )


def search(slots: int, p99: float, seed: int, budget_s: float = 1e9) -> tuple[Found, str, list[Probe]]:
    """A whole search, as a sweep would make it."""
    rng = np.random.default_rng(seed)
    probes = [probe(0, FIRST_RATE, FIRST_REQUESTS, slots, p99, rng)]
    while not isinstance(step := next_step(probes, budget_s - sum(p.spent_s for p in probes)), str):
        probes.append(probe(len(probes), step.rate, step.requests, slots, p99, rng))
    return found(probes), step, probes
