"""Is a cell long enough for its queue to be what it is in a steady state?

A run begins with empty slots, and the nearer the load is to what they carry the longer their queue takes to build: the
waits of about 10 rho / (1 - rho)^2 requests are those of a short run, however healthy it looks (200 at 80 % of the
slots, 11,000 at 97 %; a few relaxation times of M/M/c). What the steady mean wait would be is known from rate and
holding time, as `pdbench slots` works it out.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

from pdbench.littles_law.batch import Tpot
from pdbench.littles_law.demand import Demand
from pdbench.littles_law.lengths import Lengths
from pdbench.littles_law.steady import steady
from pdbench.report.cell import Measured
from pdbench.report.demand import slots_of
from pdbench.report.split import split_of

RELAXATIONS = 10.0
TELLING = 0.25  # of the measured mean TTFT that a steady state would add: what makes a wait a cause, too
EQUAL_LENGTHS = 0.02  # coefficient of variation of output tokens below which they are one length


@dataclass(frozen=True, slots=True)
class ShortRun:
    """A cell whose figures are those of a short run. Without a steady state its times are `None`."""

    requests: int
    slots_used: float  # share of the slots that the load needs
    settles_after_requests: float | None
    slot_wait_ms: float | None  # as measured; `None` where it could not be divided from other waits
    steady_slot_wait_ms: float | None
    steady_mean_ttft_ms: float | None

    def document(self) -> dict[str, float]:
        return {name: value for name, value in asdict(self).items() if value is not None}

    def text(self) -> str:
        if self.steady_slot_wait_ms is None:
            return (
                f"the load needs {self.slots_used:.1%} of the slots: no steady state exists, and the mean TTFT of these"
                f" {self.requests:,} requests is one of a short run"
            )
        here = "" if self.slot_wait_ms is None else f" against the {self.slot_wait_ms:,.0f} ms here"
        return (
            f"with {self.slots_used:.0%} of the slots in use the queue takes about {self.settles_after_requests:,.0f}"
            f" requests to build up, and these were {self.requests:,}: in a steady state the mean wait for a slot is"
            f" about {self.steady_slot_wait_ms:,.0f} ms{here}, and mean TTFT {self.steady_mean_ttft_ms:,.0f} ms"
        )


def short_run(cell: Measured) -> ShortRun | None:
    """`None` where the run is long enough, where its waits are what a steady state's are, or where nobody can say."""
    slots, ttft = slots_of(cell), cell.answers.mean(cell.answers.ttft_ms)
    moving = cell.stages or cell.plan.get("trace") or cell.answers.count("rejected")
    if cell.rate is None or moving or not slots.demand or not slots.available or not ttft:
        return None
    requests, used = len(cell.answers) // max(1, len(cell.parts)), slots.demand / slots.available
    if used >= 1:
        return ShortRun(requests, used, None, None, None, None) if slots.reached else None
    settles = RELAXATIONS * used / (1 - used) ** 2
    if requests >= settles:
        return None
    wait_ms, measured_ms = _steady_wait_ms(cell, slots.demand, slots.available), _slot_wait_ms(cell)
    if wait_ms is None or measured_ms is None or wait_ms - measured_ms < TELLING * ttft:
        return None
    return ShortRun(requests, used, settles, measured_ms, wait_ms, ttft + wait_ms - measured_ms)


def _steady_wait_ms(cell: Measured, demand: float, available: int) -> float | None:
    """As `pdbench slots` has it, of pools that each get their share of the arrivals."""
    pools, rate = max(1, cell.servers(cell.decoder)), cell.rate or 0.0
    tokens = cell.answers.mean(cell.answers.output_tokens) or 1.0
    held = Tpot(1000 * demand / rate / tokens)
    one = Demand(rate, tokens, held, _lengths(cell), burstiness(cell)).share(pools)
    waits = steady(one, max(1, round(available / pools)), simulate=False).waits
    return None if waits is None else 1000 * waits.mean_s


def _lengths(cell: Measured) -> Lengths:
    tokens = cell.answers.output_tokens[cell.answers.ok]
    cv = float(tokens.std() / tokens.mean()) if len(tokens) and tokens.mean() > 0 else 0.0
    return Lengths(cv) if cv > EQUAL_LENGTHS else Lengths()


def burstiness(cell: Measured) -> float:
    kind = str(cell.plan.get("arrivals", "poisson"))
    return {"constant": math.inf, "gamma": float(cell.plan.get("burstiness") or 1.0)}.get(kind, 1.0)


def _slot_wait_ms(cell: Measured) -> float | None:
    """Where requests never met full slots none waited for one, whatever gauges there are."""
    split = split_of(cell)
    if split is not None and split.for_slots is not None:
        return split.for_slots
    return None if slots_of(cell).reached else 0.0
