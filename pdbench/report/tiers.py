"""How many requests a second does each tier carry, which gives way first, and where did the run see its knee?

Prefill carries (servers / time to compute a prompt), decode (slots / time that a request holds one, at full batch), the
link (bandwidth / bytes of a prompt). The knee is between the highest rate of a shape that kept up and the lowest that
did not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pdbench.report import steady_state
from pdbench.report.cell import COLOCATED, PUSH, Measured
from pdbench.report.demand import prefill_hold_s, slots_of
from pdbench.report.grid import shapes
from pdbench.report.handoffs import handoffs_of
from pdbench.report.link_use import link_use
from pdbench.report.wording import two_digits

KEEPS_UP = 0.98  # achieved over asked rate
BUSY_RUNNING = 0.9  # of the slots: a TPOT measured above is that of a full batch


@dataclass(frozen=True, slots=True)
class Tiers:
    """Capacities in requests/s of one shape on one target; `None`: not known."""

    target: str
    prompt_len: int | None
    output_len: int | None
    prefill_qps: float | None
    decode_qps: float | None
    link_qps: float | None
    kept_up_qps: float | None  # the highest rate of the run that did
    gave_way_qps: float | None  # the lowest that did not

    @property
    def first(self) -> str | None:
        """The tier with the lowest capacity."""
        known = {"prefill": self.prefill_qps, "decode": self.decode_qps, "the link": self.link_qps}
        some = {name: value for name, value in known.items() if value is not None}
        return min(some, key=lambda name: some[name]) if some else None

    def document(self) -> dict[str, Any]:
        return {**asdict(self), "first": self.first}

    def text(self) -> str:
        parts = [
            f"{name} carries {two_digits(value)} req/s"
            for name, value in (("prefill", self.prefill_qps), ("decode", self.decode_qps), ("the link", self.link_qps))
            if value is not None
        ]
        seen = []
        if self.kept_up_qps is not None:
            seen.append(f"{self.kept_up_qps:g} req/s kept up")
        if self.gave_way_qps is not None:
            seen.append(f"{self.gave_way_qps:g} did not")
        first = f" ({self.first} gives way first)" if self.first is not None and len(parts) > 1 else ""
        return f"By what was measured {', '.join(parts)}{first}; {', '.join(seen) or 'no rate was judged'}."


def tiers(cells: Sequence[Measured]) -> list[Tiers]:
    """One entry for each target and shape with an open loop."""
    return [found for same in shapes(cells) if (found := _of(same)) is not None]


def _of(cells: Sequence[Measured]) -> Tiers | None:
    cells = sorted((cell for cell in cells if cell.rate is not None), key=lambda cell: cell.rate or 0.0)
    if not cells:
        return None
    calm, full, shape = cells[0], cells[-1], cells[0].cell
    kept: list[Measured] = []
    lost: list[Measured] = []
    for cell in cells:
        (kept if _keeps_up(cell) else lost).append(cell)
    return Tiers(
        str(shape.get("target")),
        shape.get("prompt_len"),
        shape.get("output_len"),
        _prefill_qps(calm),
        _decode_qps(full),
        _link_qps(cells),
        kept[-1].rate if kept else None,
        lost[0].rate if lost else None,
    )


def _keeps_up(cell: Measured) -> bool:
    loads = [part.load for part in cell.parts]
    steady = all(steady_state.judge(x.answers, x.start, x.send_end, cell.rate).steady for x in loads)
    slots = slots_of(cell)
    asked = sum(len(load.answers) for load in loads)
    answered = sum(load.answers.count("ok") for load in loads)
    return steady and answered >= KEEPS_UP * asked and not (slots.reached and slots.overload())


def _prefill_qps(cell: Measured) -> float | None:
    """Servers over what a prompt takes each; from the calmest cell, where prompts don't share a server."""
    if cell.mode == COLOCATED:
        return None
    spent = cell.window.mean_s("prefill", "prefill_s")
    return cell.servers("prefill") / spent if spent else None


def _decode_qps(cell: Measured) -> float | None:
    """Slots over what a request holds one for at full batch: TPOT as measured where they were full, else as the turns
    of the loop grow with the batch."""
    slots, tokens = slots_of(cell), cell.answers.mean(cell.answers.output_tokens)
    tpot = cell.answers.mean(cell.answers.tpot_ms)
    if not slots.available or not tokens or tpot is None:
        return None
    turns = cell.turns
    if turns is not None and turns.slope_ms is not None and turns.streams < BUSY_RUNNING * slots.available:
        tpot += turns.slope_ms * (slots.available - turns.streams)
    held_s = tokens * tpot / 1000 + (prefill_hold_s(cell) or 0.0)
    return slots.available / held_s if held_s > 0 else None


def _link_qps(cells: Sequence[Measured]) -> float | None:
    """What it was seen to carry in the busiest cell where transfers shared it, else what is declared."""
    seen = [use.carries for cell in cells if (use := link_use(cell)) is not None and use.carries is not None]
    return seen[-1] if seen else _declared_qps(cells[0])


def _declared_qps(cell: Measured) -> float | None:
    link = cell.deployment.get("link_gb_s")
    role = "prefill" if cell.mode == PUSH else "decode"
    moved, requests = handoffs_of(cell, role), cell.answers.count("ok")
    if not link or moved is None or not moved.nbytes or not requests:
        return None
    qps = float(link) * 1e9 / (moved.nbytes / requests)
    return qps if math.isfinite(qps) else None
