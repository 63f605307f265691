"""What did the handoffs move, and how long did it take, by whose pages?

vLLM's NIXL series are of the side that posts (in pull decode), SGLang's of prefill. Both count a transfer for each rank
that moved its share, so bytes add up over the ranks, and bytes over seconds are the speed of one rank.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pdbench.counted import bytes_unsure, time_unsure
from pdbench.deployment import from_document
from pdbench.littles_law.kv import effective_gb_s
from pdbench.report.cell import Measured

NIXL, SGLANG = "NIXL", "SGLang"
BYTES, TIME = "bytes", "time"
# Of each: time, bytes, what says that it is there, and the roles whose pages may have it.
SERIES = {
    NIXL: ("nixl_xfer_s", "nixl_nbytes", "nixl_xfer_s", ("decode", "prefill")),
    SGLANG: ("kv_transfer_s", "kv_transfer_nbytes", "kv_transfer_nbytes", ("prefill",)),  # others have the time too
}


@dataclass(frozen=True, slots=True)
class Handoffs:
    """Transfers of single ranks. What is not known for certain is `None`, and `unsure` says why."""

    source: str
    role: str
    transfers: float
    nbytes: float | None
    time_s: float | None  # of all transfers together
    unsure: Mapping[str, str]

    @property
    def gb_s(self) -> float | None:
        return effective_gb_s(self.nbytes, self.time_s) if self.nbytes is not None and self.time_s else None


def handoffs_of(cell: Measured, by: str | None = None) -> Handoffs | None:
    """Those of the cell's window, told by the pages of one role or of any; `None` where no page counted any."""
    window = cell.window
    for source, (time, nbytes, sign, roles) in SERIES.items():
        for role in (role for role in roles if by is None or role == by):
            if transfers := window.delta(role, sign, "count"):
                unsure = doubts(cell) if source == SGLANG else {}
                moved = None if BYTES in unsure else window.delta(role, nbytes, "sum")
                spent = None if TIME in unsure else window.delta(role, time, "sum")
                return Handoffs(source, role, transfers, moved, spent, unsure)
    return None


def doubts(cell: Measured) -> dict[str, str]:
    """Why SGLang's bytes, or the time beside them, need not be what they seem; what is certain is not in it."""
    deployment = from_document(cell.deployment)
    found = {BYTES: bytes_unsure(deployment), TIME: time_unsure(deployment)}
    return {figure: why for figure, why in found.items() if why is not None}
