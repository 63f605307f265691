"""The load on the decode slots: rate, output lengths, time per token, and how bursty the arrivals are."""

from __future__ import annotations

import math
from typing import NamedTuple

from pdbench.littles_law.batch import Tpot, running_without_limit
from pdbench.littles_law.lengths import Lengths


class Demand(NamedTuple):
    """`burstiness` is the gamma shape of the gaps, as in vLLM: 1 is Poisson, below 1 burstier, inf constant."""

    qps: float
    out_tokens: float
    tpot: Tpot
    lengths: Lengths = Lengths()
    burstiness: float = 1.0

    @property
    def arrival_cv(self) -> float:
        return 0.0 if math.isinf(self.burstiness) else self.burstiness**-0.5

    def held_s(self, slots: float) -> float:
        """Mean time a request holds a slot when all `slots` run: what limits a full pool."""
        return self.tpot.held_s(self.out_tokens, slots)

    def load(self, slots: float) -> float:
        """Slots that the load needs, by Little's law, at the TPOT of a full batch of `slots`."""
        return self.qps * self.held_s(slots)

    def held_slots(self, slots: int | None) -> float | None:
        """Slots that the load holds on average, at the TPOT that goes with it; in overload at a full batch's.

        `None` where no number of slots is enough: the batch slows down faster than it grows.
        """
        if self.tpot.slope_ms == 0:
            return self.load(1)
        if slots is not None and self.load(slots) >= slots:
            return self.load(slots)
        return running_without_limit(self.qps, self.out_tokens, self.tpot)

    def capacity_qps(self, slots: int) -> float:
        """The rate that a full pool completes."""
        return slots / self.held_s(slots)

    def at(self, qps: float) -> Demand:
        return self._replace(qps=qps)

    def share(self, pools: int) -> Demand:
        """What each of `pools` separate pools gets of requests spread at random: closer to Poisson than the whole."""
        if pools == 1:
            return self
        variance = 1 + (self.arrival_cv**2 - 1) / pools
        return self._replace(qps=self.qps / pools, burstiness=1 / variance)
