"""What `pdbench slots` was asked, checked: the load, the slots there are, and what else bounds them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from pdbench.errors import UsageError
from pdbench.littles_law.batch import Tpot
from pdbench.littles_law.demand import Demand
from pdbench.littles_law.lengths import LAWS, Lengths

if TYPE_CHECKING:
    from pdbench.littles_law.slots_classes import ClassLoad
    from pdbench.littles_law.slots_pool import PoolLimit
    from pdbench.traces import TracedRequest

LARGEST = 1e12  # beyond any load; keeps products finite
MOST_SLOTS = 1_000_000
MOST_DECODERS = 10_000
MOST_PROMPTS = 200_000  # of a run; a longer one is its steady state, or overload


class Question(NamedTuple):
    """`demand` is the load on all decoders together; `max_num_seqs` and `pool` are those of one of them."""

    demand: Demand
    max_num_seqs: int | None
    slo_s: float
    decoders: int = 1
    classes: tuple[ClassLoad, ...] = ()
    trace: tuple[TracedRequest, ...] = ()
    pool: PoolLimit | None = None
    tpot_at_batch: float | None = None
    num_prompts: int | None = None
    normalised: bool = False
    loop_held: str = ""  # what a run showed of handoffs that hold decode's loop
    prefill_ms: float = 0.0  # co-located: the prompt's part of the time a slot is held; `demand` has it in its TPOT

    @property
    def slots(self) -> int | None:
        """Slots of one decoder that can be filled."""
        if self.pool is None:
            return self.max_num_seqs
        return self.pool.slots if self.max_num_seqs is None else min(self.max_num_seqs, self.pool.slots)


def number(value: float | None, option: str, *, above: float = 0.0, least: float | None = None) -> float:
    """`value`, finite and above `above` (or at least `least`)."""
    if value is None:
        raise UsageError(f"{option} is missing.", "For example: pdbench slots --qps 8 --out-tokens 128 --tpot 10.4")
    low = value > above if least is None else value >= least
    if not low or not value <= LARGEST:
        wanted = f"above {above:g}" if least is None else f"of at least {least:g}"
        raise UsageError(f"{option} wants a number {wanted}, not {value:g}.")
    return value


def whole(value: int | None, option: str, most: float = LARGEST) -> int | None:
    if value is not None and not 1 <= value <= most:
        raise UsageError(f"{option} wants a whole number from 1 to {most:,.0f}, not {value}.")
    return value


def tpot_of(tpot_ms: float | None, slope_ms: float | None, at_batch: float | None) -> Tpot:
    """TPOT as a function of the batch; without a slope it is the one number that was measured."""
    tpot_ms = number(tpot_ms, "--tpot")
    if at_batch is not None:
        number(at_batch, "--tpot-at-batch")
    if not slope_ms:
        return Tpot(tpot_ms)
    tpot = Tpot.measured(tpot_ms, number(slope_ms, "--tpot-slope"), at_batch or 1.0)
    if tpot.alone_ms < 0 or tpot.at(1) <= 0:
        raise UsageError(
            f"--tpot {tpot_ms:g} at batch {at_batch or 1:g} with --tpot-slope {slope_ms:g} leaves less than no time.",
            "Give the slope in ms for each further running request, such as 0.1.",
        )
    return tpot


def lengths_of(cv: float | None, law: str, values: Sequence[float] = (), rates: Sequence[float] = ()) -> Lengths:
    """The law of output lengths; `values` with `rates` are classes."""
    cv = number(cv or 0.0, "--out-cv", least=0.0)
    if cv > 100:
        raise UsageError(f"--out-cv wants a coefficient of variation (1 is exponential), not {cv:g}.")
    if law not in LAWS:
        raise UsageError(f"--out-law is one of {', '.join(LAWS)}, not {law!r}.")
    total = math.fsum(rates)
    shares = tuple(rate / total for rate in rates) if rates else None
    return Lengths(cv, law, tuple(values), shares)


def burstiness_of(value: float) -> float:
    if not value > 0:
        raise UsageError("--burstiness is above 0: 1 is Poisson, below 1 burstier, above 1 smoother.")
    if value < 1e-4:
        raise UsageError(f"--burstiness {value:g} is no arrival process that can be told from one single burst.")
    return math.inf if value > 1e6 else value
