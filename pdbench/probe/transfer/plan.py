"""What is measured: patterns x ids x operations x backends x memories, and the smaller shapes that the fit needs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from pdbench.probe.transfer.pattern import Pattern, pattern_from, smaller

OPS = {"READ": "pull: decode reads out of prefill", "WRITE": "push: prefill writes into decode"}
# Shapes of a quarter, a sixteenth and a sixty-fourth of what was asked: without them no bandwidth can be fitted.
DIVISORS = (4, 16, 64)
STUCK_S = 60.0  # a transfer that has not ended by then is called stuck


@dataclass(frozen=True, slots=True)
class Plan:
    """What both sides are told. `gpu`: of prefill and of decode; `poll_interval_s` None: only polled tightly."""

    patterns: tuple[Pattern, ...]
    ids: tuple[str, ...]
    ops: tuple[str, ...]
    backends: tuple[str, ...]
    memories: tuple[str, ...]  # DRAM, VRAM, or auto
    in_flight: tuple[int, ...] = (1,)
    poll_interval_s: float | None = None
    nixl_threads: int = 4
    duration_s: float = 1.0
    repeats: int = 3
    gpu: tuple[int, int] = (0, 0)
    seed: int = 0

    def document(self) -> dict[str, Any]:
        return {**asdict(self), "patterns": [pattern.document() for pattern in self.patterns]}


@dataclass(frozen=True, slots=True)
class Cell:
    """One thing to measure. `asked`: named on the command line; the others only serve the fit."""

    cell: int
    pattern: Pattern
    ids: str
    op: str
    backend: str
    memory: str
    in_flight: int
    asked: bool

    @property
    def descriptors_in_words(self) -> str:
        return f"{self.pattern.descriptors:,} descriptors of {self.memory}"

    @property
    def identity(self) -> dict[str, Any]:
        """What tells it from other cells: the same keys as in its result."""
        names = ("op", "backend", "memory", "ids", "in_flight")
        told = {name: getattr(self, name) for name in names}
        return {**told, "nbytes": self.pattern.nbytes, "descriptors": self.pattern.descriptors}

    def document(self) -> dict[str, Any]:
        plain = {field.name: getattr(self, field.name) for field in fields(self)}
        nbytes, descriptors = self.pattern.nbytes, self.pattern.descriptors
        return {**plain, "pattern": self.pattern.document(), "nbytes": nbytes, "descriptors": descriptors}


def plan_of(document: Mapping[str, Any]) -> Plan:
    kept = {field.name: document[field.name] for field in fields(Plan)}
    lists = {name: tuple(value) for name, value in kept.items() if isinstance(value, list)}
    return Plan(**{**kept, **lists, "patterns": tuple(pattern_from(each) for each in document["patterns"])})


def cell_of(document: Mapping[str, Any]) -> Cell:
    kept = {field.name: document[field.name] for field in fields(Cell)}
    return Cell(**{**kept, "pattern": pattern_from(document["pattern"])})


def cells(plan: Plan, memories: Sequence[str]) -> list[Cell]:
    """Every cell once, backend by backend and memory by memory, since those want an agent of their own."""
    found: list[Cell] = []
    for backend in plan.backends:
        for memory in memories:
            for pattern, in_flight, asked in _shapes(plan):
                for ids in plan.ids if pattern.descriptors > pattern.regions else ("contiguous",):
                    for op in plan.ops:
                        found.append(Cell(len(found), pattern, ids, op, backend, memory, in_flight, asked))
    return found


def _shapes(plan: Plan) -> Iterator[tuple[Pattern, int, bool]]:
    seen = set()
    for pattern in plan.patterns:
        for in_flight in plan.in_flight:
            seen.add((pattern.segments, in_flight))
            yield pattern, in_flight, True
    for pattern in plan.patterns:
        for divisor in DIVISORS:
            less = smaller(pattern, divisor)
            if (less.segments, 1) not in seen:
                seen.add((less.segments, 1))
                yield less, 1, False


def pool_bytes(plan: Plan) -> int:
    """Memory that is registered on each side: enough for the largest shape with the most in flight."""
    return max(pattern.pool_bytes(in_flight) for pattern, in_flight, _ in _shapes(plan))
