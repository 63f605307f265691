"""How much of the transfer hides behind the prefill? From two prompt lengths at a load without queues.

With a longer prompt the transfer grows by what its bytes take, and TTFT by the prefill and by what of the transfer is
exposed. All that does not grow (proxy, first step, posting's fixed part) drops out of the difference:

    h = 1 - (growth of TTFT - growth of prefill - growth of the waits) / growth of the transfer
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pdbench.report.cell import COLOCATED, PUSH, Measured
from pdbench.report.split import split_of

LONGER = 1.5  # times the shorter prompt
CALM_WAIT = 0.10  # of TTFT that waits may take in a cell that is used
NOT_OVERLAPPED = 0.1
SEEN_MS = 5.0  # growth of the transfer below which nothing can be said


@dataclass(frozen=True, slots=True)
class Hidden:
    """`hidden` is 0 where the transfer begins after the prefill, 1 where all of it hides behind it."""

    target: str
    short_len: int
    long_len: int
    transfer_growth_ms: float
    exposed_growth_ms: float

    @property
    def hidden(self) -> float:
        return min(1.0, max(0.0, 1 - self.exposed_growth_ms / self.transfer_growth_ms))

    def document(self) -> dict[str, Any]:
        return {**asdict(self), "hidden": self.hidden}

    def text(self) -> str:
        what = "the transfer is not overlapped with the prefill" if self.hidden < NOT_OVERLAPPED else "of it is hidden"
        share = "" if self.hidden < NOT_OVERLAPPED else f"{self.hidden:.0%} "
        return (
            f"From {self.short_len:,} to {self.long_len:,} prompt tokens the transfer grows by"
            f" {self.transfer_growth_ms:,.0f} ms and what a request waits for it by {self.exposed_growth_ms:,.0f} ms:"
            f" {share}{what}."
        )


def hidden(cells: Sequence[Measured]) -> list[Hidden]:
    """For each target, from its calmest cells of the shortest and the longest prompts."""
    found = []
    for target in dict.fromkeys(cell.cell.get("target") for cell in cells):
        calm = _calmest([cell for cell in cells if cell.cell.get("target") == target])
        if len(calm) < 2:
            continue
        short, long = calm[0], calm[-1]
        lens = int(short.cell["prompt_len"]), int(long.cell["prompt_len"])
        known = [_exposed(cell) for cell in (short, long)]
        if lens[1] < LONGER * lens[0] or known[0] is None or known[1] is None:
            continue
        moved, exposed = known[1][0] - known[0][0], known[1][1] - known[0][1]
        if moved >= SEEN_MS:
            found.append(Hidden(str(target), *lens, moved, exposed))
    return found


def _calmest(cells: Sequence[Measured]) -> list[Measured]:
    """One cell a prompt length, at its lowest load, by rising length; those that wait are left out."""
    best: dict[int, Measured] = {}
    for cell in sorted(cells, key=lambda cell: cell.offered or 0.0):
        best.setdefault(int(cell.cell.get("prompt_len") or 0), cell)
    return [best[length] for length in sorted(best) if _is_calm(best[length])]


def _is_calm(cell: Measured) -> bool:
    split, mean = split_of(cell), cell.answers.mean(cell.answers.ttft_ms)
    if cell.mode == COLOCATED or split is None or mean is None:
        return False
    return split.get("prefill_queue") + split.get("slot_wait") <= CALM_WAIT * mean


def _exposed(cell: Measured) -> tuple[float, float] | None:
    """A request's transfer (post and move), and what of TTFT is neither prefill nor wait."""
    role = "prefill" if cell.mode == PUSH else "decode"
    xfer, split = cell.window.mean_ms(role, "nixl_xfer_s"), split_of(cell)
    mean = cell.answers.mean(cell.answers.ttft_ms)
    if xfer is None or split is None or mean is None or "prefill" not in split.parts:
        return None
    return xfer, mean - split.get("prefill") - split.get("prefill_queue") - split.get("slot_wait")
