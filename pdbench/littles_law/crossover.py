"""From which bandwidth does handing KV over cost less than the interference that it removes?

Two co-located instances at half the rate each, against one prefill and one decode instance at the whole rate. A prefill
on a co-located instance stalls the streams that decode there: TPOT rises by what prefills take of the engine's time.
In TTFT the pair loses: one prefill queue at the whole rate, a transfer, and a decode step more.
"""

from __future__ import annotations

from dataclasses import dataclass

from pdbench.littles_law.batch import Tpot

# Simulated break-even transfers lie at these shares of (stalled decodes) x (prefill time).
RULE_SHARE = (0.6, 0.8)
MAX_LINK_USE = 0.7


@dataclass(frozen=True, slots=True)
class BreakEven:
    """The longest transfer at which P/D is no slower. Negative: P/D loses even when the transfer takes no time."""

    colocated_tpot_ms: float
    disaggregated_tpot_ms: float
    stalled_decodes: float
    total_latency_ms: float
    ttft_ms: float


def colocated_tpot_ms(qps: float, prefill_ms: float, out_tokens: float, tpot: Tpot) -> float | None:
    """TPOT on one co-located instance at `qps`; `None` when prefills and decodes together exceed it."""
    left = 1 - qps * prefill_ms / 1000
    if left <= 0:
        return None
    share = 1 - qps / 1000 * out_tokens * tpot.slope_ms / left
    return tpot.alone_ms / left / share if share > 0 else None


def decode_tpot_ms(qps: float, out_tokens: float, tpot: Tpot) -> float | None:
    """TPOT on one decode instance at `qps`; `None` when the batch would grow without end."""
    return colocated_tpot_ms(qps, 0.0, out_tokens, tpot)


def queue_wait_ms(qps: float, service_ms: float) -> float | None:
    """Mean wait of an M/D/1 queue; `None` when it has no steady state."""
    load = qps * service_ms / 1000
    return load * service_ms / (2 * (1 - load)) if load < 1 else None


def overloaded(qps: float, prefill_ms: float, out_tokens: float, tpot: Tpot) -> list[str]:
    """Which instances of `break_even` such a load has growing without end."""
    alone = {
        "prefill": queue_wait_ms(qps, prefill_ms),
        "decode": decode_tpot_ms(qps, out_tokens, tpot),
        "co-located": colocated_tpot_ms(qps / 2, prefill_ms, out_tokens, tpot),
    }
    return [name for name, found in alone.items() if found is None]


def break_even(qps: float, prefill_ms: float, out_tokens: float, tpot: Tpot) -> BreakEven | None:
    """Break-even transfer of two GPUs at `qps` in all; `None` where one of the two ways cannot carry the load."""
    together = colocated_tpot_ms(qps / 2, prefill_ms, out_tokens, tpot)
    apart = decode_tpot_ms(qps, out_tokens, tpot)
    wait_apart, wait_together = queue_wait_ms(qps, prefill_ms), queue_wait_ms(qps / 2, prefill_ms)
    if together is None or apart is None or wait_apart is None or wait_together is None:
        return None
    in_ttft = -(wait_apart - wait_together) - 1.5 * apart
    stalled = qps / 2 * out_tokens * together / 1000
    return BreakEven(together, apart, stalled, (out_tokens - 1) * (together - apart) + in_ttft, in_ttft)


def crossover_gb_s(wire_bytes: float, budget_ms: float, fixed_ms: float = 0.0, hidden: float = 0.0) -> float | None:
    """Bandwidth of all links together at which what is exposed takes `budget_ms`; `None`: none is enough."""
    if budget_ms <= fixed_ms:
        return None
    return wire_bytes * (1 - hidden) / ((budget_ms - fixed_ms) / 1000) / 1e9


def link_load_gb_s(qps: float, wire_bytes: float) -> float:
    """What the links must carry at least, all together, whatever a single transfer takes."""
    return qps * wire_bytes / 1e9 / MAX_LINK_USE


@dataclass(frozen=True, slots=True)
class Need:
    """GB/s of all links together. Both conditions must hold: a transfer short enough for total latency (`None`: no
    bandwidth makes it so), and the bytes of all prompts carried."""

    latency_gb_s: float | None
    load_gb_s: float

    @property
    def gb_s(self) -> float | None:
        return None if self.latency_gb_s is None else max(self.latency_gb_s, self.load_gb_s)

    @property
    def binds(self) -> str:
        """The condition that asks for more: `latency` or `load`."""
        return "latency" if self.latency_gb_s is None or self.latency_gb_s >= self.load_gb_s else "load"
