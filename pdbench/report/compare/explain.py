"""What explains a change: the parts of TTFT that moved, causes named on one side only, and what is not the same."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from pdbench.report import facts, wording
from pdbench.report.compare.evidence import PAIRS_FOR_T, by_student
from pdbench.report.compare.pairs import PairedCell, figure
from pdbench.report.compare.sides import Side
from pdbench.report.wording import clean

SESSION_S = 3600.0  # runs that began further apart than this plus what the older one took are two sessions
NOT_KNOWN = "not known"


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the mean TTFT in ms. The interval is this part's own at 95 %; None below five pairs."""

    name: str
    base_ms: float
    new_ms: float
    low_ms: float | None = None
    high_ms: float | None = None

    @property
    def change_ms(self) -> float:
        return self.new_ms - self.base_ms

    @property
    def sure(self) -> bool:
        return self.low_ms is not None and self.high_ms is not None and not self.low_ms <= 0 <= self.high_ms


@dataclass(frozen=True, slots=True)
class Told:
    """A fact that is not the same on both sides."""

    name: str
    base: str
    new: str


def parts_of_change(cell: PairedCell) -> Iterator[Part]:
    """The parts of TTFT that every pair has on both sides; since means add, their changes sum to TTFT's."""
    splits = [(wording.split(a), wording.split(b)) for a, b in cell.pairs]
    if not splits or not all(a and b for a, b in splits):
        return
    for name in dict.fromkeys(name for pair in splits for side in pair for name in side):
        pairs = [(figure(a, f"ttft_split_ms.{name}"), figure(b, f"ttft_split_ms.{name}")) for a, b in cell.pairs]
        # A part that a side's engine does not tell lies in its `unexplained`: 0 keeps the sums right.
        values = np.array([[a or 0.0, b or 0.0] for a, b in pairs])
        old, new = (float(value) for value in values.mean(axis=0))
        if len(values) < PAIRS_FOR_T:
            yield Part(name, old, new)
        else:
            ((low, high),) = by_student((values[:, 1] - values[:, 0])[:, None])
            yield Part(name, old, new, low, high)


def leading_parts(parts: tuple[Part, ...]) -> list[Part]:
    """The parts that carry the change of TTFT: the largest first, until four fifths of it are told."""
    total = sum(part.change_ms for part in parts)
    told = 0.0
    chosen: list[Part] = []
    for part in sorted(parts, key=lambda part: -abs(part.change_ms)):
        if part.change_ms * total <= 0 or (chosen and abs(told) >= 0.8 * abs(total)):
            continue
        chosen.append(part)
        told += part.change_ms
    return chosen


def causes(cell: PairedCell, base: Side, new: Side) -> Iterator[str]:
    """Causes that the diagnosis names on one side only."""
    named = [
        [clean(cause.get("cause", "?"), 40) for cause in side.get("diagnosis") or []] for side in (cell.base, cell.new)
    ]
    for side, own, other in ((base, named[0], named[1]), (new, named[1], named[0])):
        yield from (f"{cause} in {side.role} only" for cause in dict.fromkeys(own) if cause not in other)


def differing_facts(base: Side, new: Side) -> Iterator[Told]:
    olds, news = facts.flat(base.summary, base.target), facts.flat(new.summary, new.target)
    for name in dict.fromkeys((*olds, *news)):
        old, value = olds.get(name, NOT_KNOWN), news.get(name, NOT_KNOWN)
        # A fact that one side does not tell is no difference, unless it is what one would look up first.
        if old != value and (NOT_KNOWN not in (old, value) or name in ("git", "driver")):
            yield Told(clean(name, 60), clean(old, 80), clean(value, 80))


def measured_apart(base: Side, new: Side) -> str:
    """How long the two lie apart, where they are two sessions; empty where they are not, or nobody knows."""
    began = [float(side.summary.get("created_unix_s") or 0.0) for side in (base, new)]
    if base.path == new.path or not all(began):
        return ""
    apart = abs(began[1] - began[0])
    if apart <= SESSION_S:
        return ""
    return f"{apart / 86400:.0f} days" if apart >= 2 * 86400 else f"{apart / 3600:.0f} hours"


def measured_on(side: Side) -> str:
    began = side.summary.get("created_unix_s")
    return time.strftime("%Y-%m-%d %H:%M", time.gmtime(began)) if isinstance(began, int | float) and began else ""
