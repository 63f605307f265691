"""Two ways to the same number: gauges by Little's law against counters, and what theory makes of one against the other.

The mean time in a stage is the area under its gauge divided by the requests that went through; the servers' own sums
and counts say the same in another way. Where the two are apart, one of them is not what it is taken for (a gauge that
stands still, requests of somebody else, a series that means something else in this version).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass

import numpy as np

from pdbench.report.cell import COLOCATED, PULL, Measured
from pdbench.report.demand import slots_of
from pdbench.report.stages import LOADED, LOADING, WAITING

APART = 0.10  # of the larger: as for the validity code littles-law
SIGMAS = 3.0  # of what the samples of the gauge missed
AT_LEAST_MS = 10.0
STAGES = (WAITING, LOADING, LOADED)
MOVES = "prefill_transfer_kv_cache"


@dataclass(frozen=True, slots=True)
class Check:
    """`seen` by one way (a gauge), `counted` by the other, in `unit`; `error` is the standard error of `seen`."""

    name: str
    seen: float
    counted: float
    error: float
    unit: str

    @property
    def agrees(self) -> bool:
        apart = abs(self.seen - self.counted)
        slack = AT_LEAST_MS if self.unit == "ms" else 0.5
        return apart <= max(APART * max(self.seen, self.counted), SIGMAS * self.error, slack)

    def document(self) -> dict[str, object]:
        return {**asdict(self), "agrees": self.agrees}

    def note(self) -> str:
        return (
            f"{self.name}: the gauge says {self.seen:,.1f} {self.unit}, the counters {self.counted:,.1f} {self.unit}"
            f" (standard error {self.error:,.1f})."
        )


def cross_checks(cell: Measured) -> list[Check]:
    """All that the pages of this cell allow."""
    return [check for make in (_stages, _loads, _sends, _running, _prefill_queue, _slots) for check in make(cell)]


def _gauge_ms(
    cell: Measured, role: str, canonical: str, requests: float, counted_ms: float, **labels: str
) -> tuple[float, float] | None:
    """Mean time of a request in a gauge, and the standard error of what the samples missed.

    Of a stay that is shorter than the time between two samples most see nothing: a sample every T meets a stay of d
    with the chance d/T and then counts T for it, so the sum over n requests is off by T sqrt(n d/T (1 - d/T)).
    """
    area = cell.window.integral(role, canonical, **labels)
    if area is None or not requests:
        return None
    gauges = [g for _, _, _, g in cell.window.gauges(role, canonical, **labels)]
    missed = sum(float(np.sum((np.diff(g.value) * np.diff(g.t)) ** 2)) for g in gauges)
    between_ms = 1000 * max((float(np.mean(np.diff(g.t))) for g in gauges if len(g.t) > 1), default=0.0)
    met = min(max(counted_ms, 0.0) / between_ms, 0.5) if between_ms else 0.0
    unseen = between_ms * float(np.sqrt(met * (1 - met) / requests))
    return area / requests * 1000, max(float(np.sqrt(missed)) / 2 / requests * 1000, unseen)


def _stages(cell: Measured) -> Iterator[Check]:
    """Decode's stages together are its queue time."""
    requests, queue = cell.window.delta("decode", "queue_s", "count"), cell.window.mean_ms("decode", "queue_s")
    if not requests or queue is None:
        return
    found = [_gauge_ms(cell, "decode", "kv_fetch_stage", requests, queue, stage=stage) for stage in STAGES]
    known = [pair for pair in found if pair is not None]
    if len(known) == len(found):
        seen, error = sum(ms for ms, _ in known), max(error for _, error in known)
        yield Check("decode's stages against its queue time", seen, queue, error, "ms")


def _loads(cell: Measured) -> Iterator[Check]:
    """In pull a load in progress is at least its transfer; less means that the gauge is not what it says."""
    requests, xfer = cell.window.delta("decode", "queue_s", "count"), cell.window.mean_ms("decode", "nixl_xfer_s")
    if cell.mode != PULL or not requests or xfer is None:
        return
    found = _gauge_ms(cell, "decode", "kv_fetch_stage", requests, xfer, stage=LOADING)
    if found is not None and found[0] < xfer:
        yield Check("decode's loads in progress against NIXL's transfer time", *_flat(found, xfer))


def _sends(cell: Measured) -> Iterator[Check]:
    """SGLang's prefill has a queue of the requests whose KV moves: they are in it as long as its stage says."""
    requests, ms = (
        cell.window.delta("prefill", "stage_s", "count", stage=MOVES),
        cell.window.mean_ms("prefill", "stage_s", stage=MOVES),
    )
    if not requests or ms is None:
        return
    if (found := _gauge_ms(cell, "prefill", "prefill_stage", requests, ms, stage="transfer")) is not None:
        yield Check("prefill's queue of transfers against their stage", *_flat(found, ms))


def _running(cell: Measured) -> Iterator[Check]:
    """Requests hold a slot from the first step to the last token."""
    role = cell.decoder
    requests, held = cell.window.delta(role, "inference_s", "count"), cell.window.mean_ms(role, "inference_s")
    if not requests or held is None:
        return
    if (found := _gauge_ms(cell, role, "running", requests, held)) is not None:
        yield Check(f"{role}'s running against its inference time", *_flat(found, held))


def _prefill_queue(cell: Measured) -> Iterator[Check]:
    role = "colocated" if cell.mode == COLOCATED else "prefill"
    requests, queue = cell.window.delta(role, "queue_s", "count"), cell.window.mean_ms(role, "queue_s")
    if not requests or queue is None:
        return
    if (found := _gauge_ms(cell, role, "waiting", requests, queue)) is not None:
        yield Check(f"{role}'s waiting against its queue time", *_flat(found, queue))


def _flat(found: tuple[float, float], counted: float) -> tuple[float, float, float, str]:
    return found[0], counted, found[1], "ms"


def _slots(cell: Measured) -> Iterator[Check]:
    """Slots that the answers held by Little's law, against the slots that were seen in use over the whole window.

    A request holds one from its first step to its last token. The first step (co-located the prompt, on decode one turn
    with what its handoff does to the loop) is the server's own sum where it has one, else taken to be a TPOT.
    """
    answers, time = cell.answers, cell.window.duration_s
    area, first_s = cell.window.integral(cell.decoder, "running"), cell.window.mean_s(cell.decoder, "prefill_s")
    if area is None or not time or slots_of(cell).held is None:
        return
    steps = answers.output_tokens - (0 if first_s is None else 1)
    held_s = float(np.nansum((steps * answers.tpot_ms)[answers.ok])) / 1000 + answers.count("ok") * (first_s or 0.0)
    gauges = [g for _, _, _, g in cell.window.gauges(cell.decoder, "running")]
    error = float(np.sqrt(sum(float(np.sum((np.diff(g.value) * np.diff(g.t)) ** 2)) for g in gauges))) / 2 / time
    yield Check("slots in use against first step + further tokens x TPOT", area / time, held_s / time, error, "slots")
