"""First come, first served on c slots, simulated: many independent replicates at once, one request of each a step.

The state is what Kiefer and Wolfowitz (1955) keep: when each slot of each replicate will be free. Few slots are kept
sorted, so that a step is a handful of vectorised minima; many slots are searched. Unit of time: S.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pdbench.littles_law.lengths import Lengths
from pdbench.littles_law.queueing import relaxation
from pdbench.littles_law.waits import QUANTILES, Waits

Floats = npt.NDArray[np.float64]

SORTED_SLOTS = 96  # up to here the sorted state is the faster one
CHUNK_CUSTOMERS = 400_000
KEPT_WAITS = 1_000_000
POOL = 20_000  # lengths to draw running requests from
GROUPS = 20  # of replicates, for the interval
T_95_19 = 2.093  # Student's t, 95 %, 19 degrees of freedom
RELATIVE_ERROR_AIM = 0.012
MIN_CUSTOMERS, MAX_CUSTOMERS = 400_000, 12_000_000
MAX_SLOT_VISITS = 1.5e9


@dataclass(frozen=True, slots=True)
class Simulated:
    """Steady-state waits with their 95 % half-widths; `None` where the replicates are too few to tell."""

    waits: Waits
    p_wait_half_width: float
    mean_half_width_s: float
    p99_half_width_s: float
    customers: int


@dataclass(frozen=True, slots=True)
class FiniteRun:
    """Expected figures of one run that starts empty."""

    waits: Waits
    mean_sd: float
    last_tenth_mean: float
    growth_per_request: float
    makespan: float


class _Slots:
    """When each slot of each replicate is free; all replicates move one request at a time."""

    def __init__(self, free: Floats) -> None:
        """`free` has a row a slot and a column a replicate."""
        self.sorted = len(free) <= SORTED_SLOTS
        if self.sorted:
            self.free = np.sort(free, axis=0)
            self.spare = np.empty_like(self.free)
        else:
            self.free = np.ascontiguousarray(free.T)
            self.flat = self.free.reshape(-1)
            self.rows = np.arange(self.free.shape[0]) * self.free.shape[1]

    def serve(self, arrivals: Floats, held: Floats) -> Floats:
        """Waits of one chunk (a row a request, a column a replicate)."""
        starts = np.empty_like(arrivals)
        (self._serve_sorted if self.sorted else self._serve_searched)(arrivals, held, starts)
        starts -= arrivals
        return starts

    def _serve_sorted(self, arrivals: Floats, held: Floats, starts: Floats) -> None:
        free, spare = self.free, self.spare
        done = np.empty(free.shape[1])
        for k in range(len(arrivals)):
            np.maximum(free[0], arrivals[k], out=starts[k])
            np.add(starts[k], held[k], out=done)
            # Without its first row, with `done` in its place: row i becomes max(free[i], min(done, free[i + 1])).
            np.minimum(free[1:], done, out=spare[:-1])
            spare[-1] = done
            np.maximum(spare, free, out=spare)
            free, spare = spare, free
        self.free, self.spare = free, spare

    def _serve_searched(self, arrivals: Floats, held: Floats, starts: Floats) -> None:
        free, flat, rows = self.free, self.flat, self.rows
        for k in range(len(arrivals)):
            first = free.argmin(axis=1)
            first += rows
            np.maximum(flat[first], arrivals[k], out=starts[k])
            flat[first] = starts[k] + held[k]


def _gaps(rng: np.random.Generator, burstiness: float, size: tuple[int, int]) -> Floats:
    """Gaps with mean 1."""
    if math.isinf(burstiness):
        return np.ones(size)
    if burstiness == 1:
        return rng.standard_exponential(size)
    return rng.standard_gamma(burstiness, size) / burstiness


def _held(rng: np.random.Generator, lengths: Lengths, size: tuple[int, int]) -> Floats:
    """Holding times with mean 1."""
    if lengths.cv == 0:
        held = np.ones(size)
    elif lengths.law == "lognormal":
        variance = math.log1p(lengths.cv**2)
        held = np.exp(rng.standard_normal(size) * math.sqrt(variance) - variance / 2)
    elif lengths.cv == 1:
        held = rng.standard_exponential(size)
    else:
        held = rng.standard_gamma(lengths.cv**-2, size) * lengths.cv**2
    if lengths.values:
        values = np.asarray(lengths.values, dtype=float) / lengths.between_mean
        held *= values[rng.choice(len(values), size=size, p=lengths.shares)]
    return held


def customers_needed(load: float, slots: int, ca: float, cs: float, p_wait: float) -> float:
    """Requests after which the mean of waits that are correlated so long is known to about RELATIVE_ERROR_AIM."""
    memory = load * relaxation(load, slots, ca, cs)
    return 2 * memory * 2 / max(p_wait, 1e-12) / RELATIVE_ERROR_AIM**2


def steady_waits(
    load: float, slots: int, burstiness: float, lengths: Lengths, guess: Waits, *, seed: int = 0, effort: float = 1.0
) -> Simulated:
    """Steady-state waits at `load` slots. `guess` (a formula's) sets where replicates start and how many they are."""
    rng = np.random.default_rng(seed)
    ca = 0.0 if math.isinf(burstiness) else burstiness**-0.5
    most = min(MAX_CUSTOMERS, MAX_SLOT_VISITS / slots) * effort
    wanted = customers_needed(load, slots, ca, lengths.total_cv, guess.p_wait) * effort
    customers = min(most, max(MIN_CUSTOMERS * min(1.0, effort), wanted))
    memory = load * relaxation(load, slots, ca, lengths.total_cv)
    warm = math.ceil(3 * memory + 3 * load * lengths.total_cv + slots)
    replicates = int(min(2000, max(2 * GROUPS, customers / (3 * warm))) // GROUPS * GROUPS)
    steps = math.ceil(customers / replicates)
    pool = _Slots(_start(rng, load, slots, lengths, guess, replicates))
    clock = np.zeros(replicates)
    sums, waited, kept = np.zeros(replicates), np.zeros(replicates), []
    chunk = max(1, CHUNK_CUSTOMERS // replicates)
    every = max(1, steps * replicates // KEPT_WAITS)
    for begin, size, measured in _chunks(warm, steps, chunk):
        arrivals = np.cumsum(_gaps(rng, burstiness, (size, replicates)), axis=0) / load + clock
        waits = pool.serve(arrivals, _held(rng, lengths, (size, replicates)))
        clock = arrivals[-1]
        if measured:
            sums += waits.sum(axis=0)
            waited += (waits > 0).sum(axis=0)
            kept.append(waits[(-begin) % every :: every])
    return _summed(sums / steps, waited / steps, np.concatenate(kept), steps * replicates)


def _chunks(warm: int, steps: int, chunk: int) -> list[tuple[int, int, bool]]:
    """(first step, steps, whether they count) until `warm` and `steps` are done."""
    parts = [(begin, min(chunk, warm - begin), False) for begin in range(0, warm, chunk)]
    return parts + [(begin, min(chunk, steps - begin), True) for begin in range(0, steps, chunk)]


def _start(
    rng: np.random.Generator, load: float, slots: int, lengths: Lengths, guess: Waits, replicates: int
) -> Floats:
    """Slots near their steady state: a backlog as large as the guess's, or a Poisson number of busy slots.

    What is left of a running request is a uniform part of a length drawn with probability in proportion to itself.
    """
    pool = np.cumsum(_held(rng, lengths, (POOL, 1))[:, 0])
    size = (slots, replicates)
    met = np.searchsorted(pool, rng.random(size) * pool[-1])
    left = np.diff(pool, prepend=0.0)[met] * rng.random(size)
    queued = rng.random(replicates) < guess.p_wait
    scale = guess.mean_s / guess.p_wait if guess.p_wait > 0 else 0.0
    backlog = np.where(queued, rng.standard_exponential(replicates) * scale, 0.0)
    running = np.where(queued, slots, np.minimum(rng.poisson(load, replicates), slots - 1))
    busy = np.arange(slots)[:, None] < running
    return np.where(busy, left, 0.0) + backlog


def _summed(means: Floats, waited: Floats, kept: Floats, customers: int) -> Simulated:
    p50, p90, p99 = (float(q) for q in np.quantile(kept, QUANTILES))
    waits = Waits(float(waited.mean()), float(means.mean()), p50, p90, p99)
    columns = np.array_split(np.arange(len(means)), GROUPS)
    groups = [float(np.quantile(kept[:, part], 0.99)) for part in columns]

    def half_width(values: Sequence[float]) -> float:
        return T_95_19 * float(np.std(values, ddof=1)) / math.sqrt(GROUPS)

    return Simulated(
        waits,
        half_width([float(waited[part].mean()) for part in columns]),
        half_width([float(means[part].mean()) for part in columns]),
        half_width(groups),
        customers,
    )


def finite_run(
    load: float,
    slots: int,
    burstiness: float,
    lengths: Lengths,
    requests: int,
    *,
    runs: int,
    normalised: bool = False,
    seed: int = 0,
) -> FiniteRun:
    """Waits of the first `requests` requests after an empty start, at any load.

    `normalised` rescales the arrivals so that the last one is at requests / rate, as vllm bench serve does.
    """
    arrivals, held = draws(burstiness, lengths, (requests, runs), seed)
    arrivals /= load
    if normalised:
        arrivals *= requests / load / arrivals[-1]
    waits = _Slots(np.zeros((min(slots, requests), runs))).serve(arrivals, held)
    means = waits.mean(axis=0)
    return FiniteRun(
        waits=Waits(float((waits > 0).mean()), float(means.mean()), *order_statistics(waits)),
        mean_sd=float(means.std(ddof=1)) if runs > 1 else 0.0,
        last_tenth_mean=float(waits[-max(1, requests // 10) :].mean()),
        growth_per_request=growth(waits),
        makespan=float((arrivals + waits + held).max(axis=0).mean()),
    )


def draws(burstiness: float, lengths: Lengths, size: tuple[int, int], seed: int) -> tuple[Floats, Floats]:
    """Arrival times at rate 1 and lengths with mean 1, a column a run."""
    rng = np.random.default_rng(seed)
    arrivals = np.cumsum(_gaps(rng, burstiness, size), axis=0)
    return arrivals, _held(rng, lengths, size)


def order_statistics(waits: Floats) -> tuple[float, float, float]:
    """p50, p90 and p99 of each run (the smallest wait that its share does not exceed), averaged over the runs."""
    places = [max(0, math.ceil(q * len(waits)) - 1) for q in QUANTILES]
    p50, p90, p99 = np.partition(waits, places, axis=0)[places].mean(axis=1).tolist()
    return p50, p90, p99


def growth(waits: Floats) -> float:
    """How much longer a request waits than the one before it: least squares over the average of the runs."""
    if len(waits) < 2:
        return 0.0
    index = np.arange(len(waits)) - (len(waits) - 1) / 2
    return float(index @ waits.mean(axis=1) / (index @ index))
