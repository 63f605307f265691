"""How many decode slots does a load hold, and how long does a request wait for one? Closed forms without numpy.

A slot is one of `max-num-seqs`. `slots_held` is Little's law: a mean, silent on waits. Waits come from M/M/c (Erlang C:
Poisson arrivals, exponential holding), and from the fluid limit when the load is beyond the slots.
"""

from __future__ import annotations

import math

from pdbench.littles_law.incomplete_gamma import log_density, upper

RECURSION_SLOTS = 2000


def slots_held(qps: float, out_tokens: float, tpot_ms: float) -> float:
    """Mean slots that `qps` requests/s of `out_tokens` tokens at `tpot_ms` hold (Little's law)."""
    if min(qps, out_tokens, tpot_ms) < 0:
        raise ValueError("slots_held: no argument may be negative")
    return qps * out_tokens * tpot_ms / 1000


def max_qps(slots: float, out_tokens: float, tpot_ms: float) -> float | None:
    """Highest rate at which the slots keep up; `None` when a request holds none."""
    held_s = out_tokens * tpot_ms / 1000
    return slots / held_s if held_s > 0 else None


def erlang_b(load: float, slots: float) -> float:
    """Blocking probability of M/M/c/c for an offered load in slots; `slots` need not be whole (Hayward).

    By the stable recursion up to 2,000 slots, beyond that and for parts of a slot as Poisson density over Poisson tail.
    """
    if load < 0 or slots < 0:
        raise ValueError("erlang_b: load and slots may not be negative")
    if load == 0:
        return 0.0 if slots > 0 else 1.0
    if slots <= RECURSION_SLOTS and slots == int(slots):
        return _recursion(load, int(slots), 1.0, 0.0)
    whole = math.floor(slots)
    tail = upper(slots + 1, load)
    if tail > 1e-250:
        return min(1.0, math.exp(log_density(slots, load)) / tail)
    start = upper(slots - whole + 1, load)  # far beyond the slots: from a part of a slot upwards
    part = math.exp(log_density(slots - whole, load)) / start if start > 1e-250 else 1.0
    return _recursion(load, whole, part, slots - whole)


def _recursion(load: float, steps: int, blocked: float, start: float) -> float:
    for k in range(1, steps + 1):
        blocked = load * blocked / (start + k + load * blocked)
    return blocked


def erlang_c(load: float, slots: float) -> float:
    """Probability that a request waits in M/M/c; 1 when the load is not below the slots."""
    if load >= slots:
        return 1.0
    blocked = erlang_b(load, slots)
    return blocked / (1 - load / slots * (1 - blocked))


def mean_wait_s(load: float, slots: int, held_s: float) -> float | None:
    """Mean wait in M/M/c of requests that hold a slot for `held_s`; `None` when there is no steady state."""
    if load >= slots:
        return None
    return erlang_c(load, slots) * held_s / (slots - load)


def wait_quantile_s(load: float, slots: int, held_s: float, q: float) -> float | None:
    """The `q` quantile (0 to 1) of the steady-state wait in M/M/c; `None` when there is no steady state."""
    if load >= slots:
        return None
    waits = erlang_c(load, slots)
    return 0.0 if waits <= 1 - q else math.log(waits / (1 - q)) * held_s / (slots - load)


def growth_s_per_request(qps: float, slots: int, held_s: float) -> float:
    """How much longer each request waits than the one before it beyond capacity (fluid limit): S/c - 1/rate, or 0."""
    if qps <= 0 or slots < 1:
        raise ValueError("growth_s_per_request: wants qps > 0 and slots >= 1")
    return max(0.0, held_s / slots - 1 / qps)


def overload_mean_wait_s(qps: float, slots: int, held_s: float, requests: int) -> float:
    """Mean wait of the first `requests` requests after an empty start (fluid limit); 0 within capacity."""
    return max(0, requests - slots) / 2 * growth_s_per_request(qps, slots, held_s)


def implied_stall_s(tpot_ms: float, tpot0_ms: float, out_tokens: float, running: float) -> float | None:
    """Stall per admission that lifts TPOT from `tpot0_ms` to `tpot_ms` with `running` streams.

    While a request makes its `out_tokens - 1` gaps, the other `running - 1` slots each admit about one request, so
    TPOT = TPOT0 + (c-1)s/(N-1). `None` when nothing runs beside it.
    """
    if running <= 1 or out_tokens <= 1:
        return None
    return (tpot_ms - tpot0_ms) * (out_tokens - 1) / (running - 1) / 1000
