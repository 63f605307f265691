"""What a run's other cells say about one: the same shape at low load, other rates and prompt lengths, other targets."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pdbench.report.cell import PUSH, Measured
from pdbench.report.clustered import student_975
from pdbench.report.demand import slots_of
from pdbench.report.turns import Estimate

LOW_LOAD_UTILISATION = 0.35  # slots in use at which a cell's TPOT serves as the one without load
SPREAD = 2.0  # descriptors of the cells must differ by this factor to tell their cost from what each post costs


@dataclass(frozen=True, slots=True)
class Peers:
    """One cell among those of its run."""

    cell: Measured
    run: Sequence[Measured]

    def rates(self) -> list[Measured]:
        """Cells of the same target and shape, by rising load, this one among them."""
        same = [c for c in self.run if _place(c, "target", "prompt_len", "output_len") == self._shape()]
        return sorted(same, key=lambda c: c.offered or math.inf)

    def target(self) -> list[Measured]:
        return [c for c in self.run if c.cell.get("target") == self.cell.cell.get("target")]

    def twins(self) -> list[Measured]:
        """The same load on other targets."""
        names = ("prompt_len", "output_len", "request_rate", "max_concurrency")
        same = [c for c in self.run if _place(c, *names) == _place(self.cell, *names)]
        return [c for c in same if c.cell.get("target") != self.cell.cell.get("target")]

    def calm(self) -> Measured | None:
        """The same shape at the lowest load of the run, if that load was low and it is another cell."""
        lowest = self.rates()[0]
        use = slots_of(lowest).utilisation
        return lowest if lowest is not self.cell and use is not None and use <= LOW_LOAD_UTILISATION else None

    def descriptor_cost_us(self) -> float | None:
        """Time to post one descriptor, from cells whose transfers have different numbers of them; `None` without."""
        cost = self._post_s_for_each("nixl_descriptors")
        return None if cost is None else cost * 1e6

    def post_of_bytes_ms(self) -> float | None:
        """What of this cell's post time grows with the bytes, from cells whose transfers have different sizes."""
        cost = self._post_s_for_each("nixl_nbytes")
        role = "prefill" if self.cell.mode == PUSH else "decode"
        nbytes = self.cell.window.mean_s(role, "nixl_nbytes")
        return None if cost is None or nbytes is None else 1000 * cost * nbytes

    def turn_growth_ms(self) -> float | None:
        """By how much a quiet turn of decode's loop grows with each further stream, from cells whose batches differ by
        `SPREAD`: a cell whose slots are always full shows one batch only."""
        seen = [(turns.streams, turns.quiet_ms) for cell in self.target() if (turns := cell.turns) is not None]
        streams, quiet_ms = (np.array([pair[i] for pair in seen]) for i in (0, 1))
        if len(seen) < 2 or streams.max() < SPREAD * streams.min():
            return None
        return max(0.0, float(np.polyfit(streams, quiet_ms, 1)[0]))

    def _post_s_for_each(self, what: str) -> float | None:
        """The slope of post time against a size of the transfers, where this run's differ by `SPREAD`."""
        known = []
        for cell in self.target():
            role = "prefill" if cell.mode == PUSH else "decode"
            size, post = cell.window.mean_s(role, what), cell.window.mean_s(role, "nixl_post_s")
            if size is not None and post is not None:
                known.append((size, post))
        sizes, posts = (np.array([pair[i] for pair in known]) for i in (0, 1))
        if len(known) < 2 or sizes.min() <= 0 or sizes.max() < SPREAD * sizes.min():
            return None
        return max(0.0, float(np.polyfit(sizes, posts, 1)[0]))

    def _shape(self) -> tuple[Any, ...]:
        return _place(self.cell, "target", "prompt_len", "output_len")


def shapes(cells: Sequence[Measured]) -> list[list[Measured]]:
    """The cells of a run by target, prompt and output length."""
    found: dict[tuple[Any, ...], list[Measured]] = {}
    for cell in cells:
        found.setdefault(_place(cell, "target", "prompt_len", "output_len"), []).append(cell)
    return list(found.values())


def _place(cell: Measured, *names: str) -> tuple[Any, ...]:
    return tuple(cell.cell.get(name) for name in names)


def through_origin(x: Sequence[float], y: Sequence[float]) -> Estimate | None:
    """The factor between two quantities over several cells, with its 95 % interval; `None` with fewer than two."""
    if len(x) < 2 or not any(x):
        return None
    a, b = np.array(x), np.array(y)
    factor = float(a @ b / (a @ a))
    error = math.sqrt(float(((b - factor * a) ** 2).sum()) / (len(a) - 1) / float(a @ a))
    reach = student_975(len(a) - 1) * error
    return Estimate(factor, factor - reach, factor + reach)
