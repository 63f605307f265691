"""Steady-state waits by the best method for the load at hand, with the method's name and its known error.

A formula answers where one is good. Where none is (heavy-tailed or mixed lengths, bursts with lengths that vary) a
simulation does, unless too few of its requests would wait or it would need too many to be any better than the formula.
"""

from __future__ import annotations

from typing import NamedTuple

from pdbench.littles_law.batch import batch_waits
from pdbench.littles_law.demand import Demand
from pdbench.littles_law.fixed_length import fixed_length_waits
from pdbench.littles_law.queueing import bursty_waits, exponential_waits, poisson_waits, relaxation
from pdbench.littles_law.waits import NO_WAIT, Waits, exponential_tail

HEAVY_LOGNORMAL_CV = 0.5
FORMULA_CV = 2.0
FEWEST_WAITING = 2e-5  # P(wait) below which a simulation sees next to none
MOST_SIMULATED_SLOTS = 20_000
LONGEST_MEMORY = 1e5  # requests after which the queue has forgotten; beyond, heavy-traffic formulas are the better ones


class Estimate(NamedTuple):
    """`waits` is None where there is no steady state."""

    waits: Waits | None
    method: str
    error: str
    simulated: bool = False


def steady(demand: Demand, slots: int, *, simulate: bool = True, effort: float = 1.0, seed: int = 0) -> Estimate:
    """Waits in seconds of `demand` on `slots`. `effort` below 1 makes a simulation that much shorter."""
    load, held_s = demand.load(slots), demand.held_s(slots)
    if load >= slots:
        return Estimate(None, "fluid limit", "exact for the growth in the long run; a run's own figures scatter")
    if load == 0:
        return Estimate(NO_WAIT, "no load", "exact")
    if demand.tpot.slope_ms > 0:
        return _batch(demand, slots)
    formula = _formula(demand, load, slots)
    assert formula.waits is not None
    if simulate and _is_poor(demand) and _can_simulate(demand, load, slots, formula.waits):
        return _simulated(demand, slots, formula.waits, effort, seed)
    return Estimate(formula.waits.scaled(held_s), formula.method, formula.error)


def _formula(demand: Demand, load: float, slots: int) -> Estimate:
    """In units of the holding time."""
    lengths, cs = demand.lengths, demand.lengths.total_cv
    if cs == 0:
        waits = fixed_length_waits(load, slots, demand.burstiness)
        name = "M/D/c" if demand.burstiness == 1 else "G/D/c"
        return Estimate(waits, f"{name}, Spitzer's identity", "exact for equal lengths; percentiles within 3 %")
    if demand.burstiness == 1:
        waits = poisson_waits(load, slots, cs)
        if cs == 1 and not lengths.mixed and lengths.law == "gamma":
            return Estimate(waits, "Erlang C", "exact for exponential lengths")
        return Estimate(waits, "interpolation between M/D/c and M/M/c", _interpolation_error(demand))
    waits = bursty_waits(load, slots, demand.arrival_cv, cs, lengths.overlap)
    return Estimate(waits, "Hayward's approximation", "mean and p99 within 5 % in the median, 32 % at worst")


def _interpolation_error(demand: Demand) -> str:
    if _is_poor(demand):
        return "the mean up to 12 % too high at CV 1, 65 % at CV 2; p99 up to 68 % off"
    if demand.lengths.total_cv <= 1:
        return "mean within 2 %, P(wait) and p99 within 5 %"
    return "mean and p99 within 5 %, P(wait) within 8 %"


def _is_poor(demand: Demand) -> bool:
    """Whether no formula is good for these lengths and arrivals."""
    lengths = demand.lengths
    if lengths.total_cv == 0:
        return False
    if lengths.mixed or demand.burstiness != 1 or lengths.total_cv > FORMULA_CV:
        return True
    return lengths.law == "lognormal" and lengths.total_cv > HEAVY_LOGNORMAL_CV


def _can_simulate(demand: Demand, load: float, slots: int, guess: Waits) -> bool:
    if guess.p_wait < FEWEST_WAITING or slots > MOST_SIMULATED_SLOTS:
        return False
    return load * relaxation(load, slots, demand.arrival_cv, demand.lengths.total_cv) <= LONGEST_MEMORY


def _simulated(demand: Demand, slots: int, guess: Waits, effort: float, seed: int) -> Estimate:
    from pdbench.littles_law.simulate import steady_waits

    load = demand.load(slots)
    found = steady_waits(load, slots, demand.burstiness, demand.lengths, guess, seed=seed, effort=effort)
    mean = found.waits.mean_s
    share = f"mean +-{found.mean_half_width_s / mean:.0%}" if mean > 0 else "no wait was seen"
    tail = f", p99 +-{found.p99_half_width_s / found.waits.p99_s:.0%}" if found.waits.p99_s > 0 else ""
    size = f"{found.customers / 1e6:.1f} million requests"
    return Estimate(found.waits.scaled(demand.held_s(slots)), f"simulation, {size}", f"95 %: {share}{tail}", True)


def _batch(demand: Demand, slots: int) -> Estimate:
    """The birth-death chain, corrected by what other lengths and arrivals do to a pool of fixed speed."""
    found = batch_waits(demand.qps, demand.out_tokens, demand.tpot, slots)
    if found is None:
        return Estimate(None, "fluid limit", "exact for the growth in the long run; a run's own figures scatter")
    exponential = exponential_waits(demand.load(slots), slots)
    own = _formula(demand, demand.load(slots), slots).waits
    assert own is not None
    waits = found.waits
    if exponential.p_wait > 0 and exponential.mean_s > 0:
        p_wait = min(1.0, waits.p_wait * own.p_wait / exponential.p_wait)
        waits = exponential_tail(p_wait, waits.mean_s * own.mean_s / exponential.mean_s)
    error = "exact for exponential lengths; within 10 % of an engine simulation for others up to 90 % use"
    return Estimate(waits, "birth-death chain, TPOT rising with the batch", error)
