"""Is a cell long enough for its queue to be what it is in a steady state, and for its mean wait to be that queue's?

A run begins with empty slots, and the nearer the load is to what they carry the longer their queue takes to build: the
waits of about 10 rho / (1 - rho)^2 requests are those of a short run, however healthy it looks (200 at 80 % of the
slots, 11,000 at 97 %; a few relaxation times of M/M/c). What the steady mean wait would be is known from rate and
holding time, as `pdbench slots` works it out.

A run that is longer has a mean wait of its own still: waits that follow one another are alike, so that the standard
deviation of the mean of n, from run to run, is about sqrt(0.4 (ca^2 + cs^2) settles / (p n)) of the mean, where a
share p waits and ca and cs are the coefficients of variation of gaps and lengths (heavy-traffic theory as in Whitt,
Planning queueing simulations, 1989; with Poisson arrivals and one length from `settles` requests on within 50 % of
4,000 simulated runs, on 4 to 16 slots used 50 to 90 %).

Where handoffs hold decode's loop, TPOT grows with the batch, and what counts is the rate that full slots complete: at
the limit a cell still has slots free on average, at a TPOT that it does not keep.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

from pdbench.littles_law.batch import Tpot
from pdbench.littles_law.demand import Demand
from pdbench.littles_law.lengths import Lengths
from pdbench.littles_law.steady import steady
from pdbench.littles_law.waits import Waits
from pdbench.report.cell import Measured
from pdbench.report.demand import Slots, slots_of
from pdbench.report.split import split_of

RELAXATIONS = 10.0
ALIKE = 0.4  # of what settles: how many waits in a row are worth one
# Standard deviations from run to run: a mean wait that lacks or has more has another reason than a run's length. Waits
# are skewed, so that one run in a thousand has as much more.
CHANCE_BELOW, CHANCE_ABOVE = 3.0, 5.0
TELLING = 0.25  # of the measured mean TTFT that a steady state would add: what makes a wait a cause, too
AT_LIMIT = 0.95  # of the rate that full slots complete: from here on one run's waits say little of the next one's
EQUAL_LENGTHS = 0.02  # coefficient of variation of output tokens below which they are one length


@dataclass(frozen=True, slots=True)
class ShortRun:
    """A cell whose figures are those of a short run. Without a steady state its times are `None`."""

    requests: int  # of each repeat
    slots_used: float  # share of the slots that the load needs, or of the rate that full slots complete
    settles_after_requests: float | None
    slot_wait_ms: float | None  # as measured; `None` where it could not be divided from other waits
    steady_slot_wait_ms: float | None
    steady_mean_ttft_ms: float | None
    slot_wait_sd_ms: float | None = None  # of the mean of so many requests, from run to run
    steady_requests: int | None = None  # how many hold mean TTFT to `TELLING` of it in 95 % of runs
    full_batch_tpot_ms: float | None = None  # where TPOT grows with the batch

    def document(self) -> dict[str, float]:
        return {name: value for name, value in asdict(self).items() if value is not None}

    def text(self) -> str:
        whole = "the slots"
        if self.full_batch_tpot_ms is not None:
            whole = f"what full slots complete (at a TPOT of {self.full_batch_tpot_ms:.1f} ms)"
        if self.steady_slot_wait_ms is None:
            asks, left = ("needs", "no") if self.full_batch_tpot_ms is None else ("is", "hardly a")
            return (
                f"the load {asks} {self.slots_used:.1%} of {whole}: {left} steady state exists, and the mean TTFT of"
                f" these {self.requests:,} requests is one of a short run"
            )
        at = f"with {self.slots_used:.0%} of the slots in use"
        if self.full_batch_tpot_ms is not None:
            at = f"at {self.slots_used:.0%} of {whole}"
        here = "" if self.slot_wait_ms is None else f" against the {self.slot_wait_ms:,.0f} ms here"
        apart = f"differs by about {self.slot_wait_sd_ms or 0:,.0f} ms"
        why = f"the mean wait of so few requests {apart} from run to run"
        if self.requests < (self.settles_after_requests or 0):
            built = f"takes about {self.settles_after_requests:,.0f} requests to build up"
            why = f"the queue {built}, and these were {self.requests:,}"
        return (
            f"{at} {why}: in a steady state the mean wait for a slot is about"
            f" {self.steady_slot_wait_ms:,.0f} ms{here}, and mean TTFT {self.steady_mean_ttft_ms:,.0f} ms"
        )


def short_run(cell: Measured, line: Tpot | None = None) -> ShortRun | None:
    """`None` where the run is long enough, where its waits are what a steady state's are, or where nobody can say.

    `line` is the TPOT of any batch on all decoders together where handoffs hold their loop.
    """
    slots, ttft = slots_of(cell), cell.answers.mean(cell.answers.ttft_ms)
    moving = cell.stages or cell.plan.get("trace") or cell.answers.count("rejected")
    if cell.rate is None or moving or not slots.demand or not slots.available or not ttft:
        return None
    requests, full_ms = len(cell.answers) // max(1, len(cell.parts)), line and line.at(slots.available)
    used = _used(cell, slots, full_ms)
    if used >= 1:
        return ShortRun(requests, used, None, None, None, None, full_batch_tpot_ms=full_ms) if slots.reached else None
    settles = RELAXATIONS * used / (1 - used) ** 2
    waits, measured_ms = _steady_waits(cell, slots, line), _slot_wait_ms(cell)
    if waits is None or measured_ms is None:
        return None
    wait_ms, several = 1000 * waits.mean_s, requests * max(1, len(cell.parts))
    varies = 1 / burstiness(cell) + _lengths(cell).total_cv ** 2  # of gaps and of lengths: 1 for Poisson and one length
    sd_ms = wait_ms * math.sqrt(ALIKE * varies * settles / max(waits.p_wait, 1e-9) / several)
    lacking = wait_ms - measured_ms
    steady_ttft = max(wait_ms, ttft + lacking)
    by_length = requests < settles or lacking <= CHANCE_BELOW * sd_ms
    if lacking < 0:
        by_length = slots.reached and -lacking <= CHANCE_ABOVE * sd_ms
    at_limit = line is not None and used >= AT_LIMIT and slots.reached and requests < settles
    if not at_limit and not (by_length and abs(lacking) >= TELLING * ttft):
        return None
    enough = several * (2 * sd_ms / (TELLING * steady_ttft)) ** 2
    return ShortRun(
        requests, used, settles, measured_ms, wait_ms, steady_ttft, sd_ms, _two_digits(max(enough, settles)), full_ms
    )


def _two_digits(requests: float) -> int:
    ten: int = 10 ** max(0, len(str(int(requests))) - 2)
    return math.ceil(requests / ten) * ten


def _used(cell: Measured, slots: Slots, full_ms: float | None) -> float:
    """Share of the slots that the load needs, or of the rate that they complete at the TPOT of the full batch."""
    if full_ms is None:
        return (slots.demand or 0.0) / (slots.available or 1)
    tokens = cell.answers.mean(cell.answers.output_tokens) or 1.0
    return (cell.rate or 0.0) * tokens * full_ms / 1000 / (slots.available or 1)


def _steady_waits(cell: Measured, slots: Slots, line: Tpot | None) -> Waits | None:
    """As `pdbench slots` has it, of pools that each get their share of the arrivals."""
    pools, rate = max(1, cell.servers(cell.decoder)), cell.rate or 0.0
    tokens = cell.answers.mean(cell.answers.output_tokens) or 1.0
    held = Tpot(1000 * (slots.demand or 0.0) / rate / tokens)
    if line is not None:
        held = Tpot(line.alone_ms, line.slope_ms * pools)
    one = Demand(rate, tokens, held, _lengths(cell), burstiness(cell)).share(pools)
    return steady(one, max(1, round((slots.available or 0) / pools)), simulate=False).waits


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
