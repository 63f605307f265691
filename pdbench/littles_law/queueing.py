"""Waits for one of c slots, in the steady state, by formula. Unit of time: S, the mean time a request holds a slot.

`load` is the offered load in slots (rate x S) and must be below `slots`; ca and cs are the coefficients of variation of
the gaps between arrivals and of the holding times. No numpy.

- exponential holding, Poisson arrivals: Erlang C, exact (A. K. Erlang, 1917).
- any holding with cs <= 1, Poisson: interpolation in cs^2 between equal and exponential holding (Page 1972; Cosmetatos
  1975; Tijms 2003 for the percentiles).
- cs > 1, Poisson: the same line continued for the mean, Erlang C for P(wait), one exponential for the percentiles.
- gamma arrivals: equal holding exactly (`fixed_length`); else Hayward's approximation (Fredericks 1980).
"""

from __future__ import annotations

import math

from pdbench.littles_law.fixed_length import fixed_length_waits
from pdbench.littles_law.slots import erlang_c
from pdbench.littles_law.waits import NO_WAIT, Waits, exponential_tail


def exponential_waits(load: float, slots: float) -> Waits:
    """M/M/c: exact."""
    if load <= 0:
        return NO_WAIT
    p_wait = erlang_c(load, slots)
    return exponential_tail(p_wait, p_wait / (slots - load))


def poisson_waits(load: float, slots: int, cs: float) -> Waits:
    """M/G/c by interpolation between equal and exponential holding times."""
    exponential = exponential_waits(load, slots)
    if cs == 1:
        return exponential
    fixed = fixed_length_waits(load, slots)
    if cs < 1:
        return exponential.blended(fixed, cs * cs)
    return exponential_tail(exponential.p_wait, cs * cs * exponential.mean_s + (1 - cs * cs) * fixed.mean_s)


def cosmetatos_mean(load: float, slots: int) -> float:
    """Mean wait of M/D/c by Cosmetatos' formula; the tool itself uses the exact value of `fixed_length_waits`."""
    rho = load / slots
    if rho <= 0:
        return 0.0
    correction = (1 - rho) * (slots - 1) * (math.sqrt(4 + 5 * slots) - 2) / (16 * rho * slots)
    return (1 + correction) / 2 * exponential_waits(load, slots).mean_s


def bursty_waits(load: float, slots: int, ca: float, cs: float, overlap: float) -> Waits:
    """G/G/c by Hayward: as if there were slots/z servers for load/z, z the peakedness of the arrivals.

    `overlap` is E min(S1, S2) / E S of two holding times (`peakedness_overlap`).
    """
    peakedness = 1 + (ca * ca - 1) * overlap
    if load <= 0 or peakedness <= 1e-6:
        return NO_WAIT
    p_wait = erlang_c(load / peakedness, slots / peakedness)
    return exponential_tail(p_wait, p_wait * (ca * ca + cs * cs) / (2 * (slots - load)))


def relaxation(load: float, slots: int, ca: float, cs: float) -> float:
    """How long the queue remembers, in S: what comes so much later no longer depends on what is now."""
    rho = load / slots
    return max(1.0, (ca * ca + cs * cs) / 2 / (slots * (1 - math.sqrt(rho)) ** 2))
