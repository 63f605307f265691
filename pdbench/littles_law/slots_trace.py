"""A trace's own arrivals and lengths, replayed on the slots: no formula knows how real traffic clusters."""

from __future__ import annotations

import math
import random
from typing import Any

from pdbench.littles_law.replay import replay, replay_batch, summed
from pdbench.littles_law.slots_question import Question
from pdbench.littles_law.steady import Estimate
from pdbench.littles_law.waits import Waits

PEAK_S = 60.0


class TraceWaits:
    """Waits of a trace whose clock is stretched to a rate; with several decoders each request goes to one at random."""

    def __init__(self, question: Question) -> None:
        self.question = question
        self.offsets_s = [request.at_s for request in question.trace]
        self.tokens = [float(request.output_tokens) for request in question.trace]
        self.own_qps = (len(self.offsets_s) - 1) / self.offsets_s[-1]
        rng = random.Random(0)
        self.decoder = [rng.randrange(question.decoders) for _ in self.offsets_s]

    def waits_at(self, qps: float, slots: int) -> Waits | None:
        """Waits when each decoder gets `qps` on average, from an empty start; `None` when that is overload."""
        demand = self.question.demand.at(qps)
        if demand.load(slots) >= slots:
            return None
        if qps <= 0:
            return Waits(0.0, 0.0, 0.0, 0.0, 0.0)
        stretch = self.own_qps / (qps * self.question.decoders)
        waits: list[float] = []
        for decoder in range(self.question.decoders):
            arrivals = [at * stretch for at, to in zip(self.offsets_s, self.decoder, strict=True) if to == decoder]
            tokens = [count for count, to in zip(self.tokens, self.decoder, strict=True) if to == decoder]
            if demand.tpot.slope_ms > 0:
                waits += replay_batch(arrivals, tokens, demand.tpot, slots)
            else:
                waits += replay(arrivals, [demand.tpot.held_s(count, slots) for count in tokens], slots)
        return summed(waits)

    def estimate(self, qps: float, slots: int) -> Estimate:
        waits = self.waits_at(qps, slots)
        count = len(self.tokens)
        if waits is None:
            return Estimate(None, "fluid limit", "the mean rate alone is beyond the slots")
        return Estimate(waits, f"replay of {count} traced requests", "this trace once; another day differs", False)

    def facts(self) -> dict[str, Any]:
        """The trace in figures, and its fullest minute as the load asks for it."""
        demand, count = self.question.demand, len(self.tokens)
        stretch = self.own_qps / demand.qps
        peak = max(_in_windows([at * stretch for at in self.offsets_s], PEAK_S).values())
        slots = self.question.slots or 1
        return {
            "requests": count,
            "own_qps": self.own_qps,
            "mean_output_tokens": math.fsum(self.tokens) / count,
            "peak_minute_qps": peak / PEAK_S,
            "peak_minute_slots_needed": peak / PEAK_S * demand.held_s(slots),
        }


def _in_windows(offsets_s: list[float], width_s: float) -> dict[int, int]:
    counts: dict[int, int] = {}
    for at in offsets_s:
        counts[int(at // width_s)] = counts.get(int(at // width_s), 0) + 1
    return counts
