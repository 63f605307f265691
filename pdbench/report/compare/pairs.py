"""Which cells and repeats stand against each other: cells of one place in the grid, repeats of one seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pdbench.report import wording
from pdbench.report.answers import QUANTILES
from pdbench.report.compare import transfers
from pdbench.report.compare.sides import Side
from pdbench.report.statistics import needed_for
from pdbench.report.wording import CellSummary

Repeat = Mapping[str, Any]
Place = tuple[Any, ...]

# What a cell asks for, beside its load: two cells that differ in one of these have no common measure.
SHAPE = ("prompt_len", "output_len", "output_law", "speed", "traffic", "drive")
PLAIN = {"drive": "proxy"}  # what a key that is absent means


@dataclass(frozen=True, slots=True)
class PairedCell:
    """One place of the grid on both sides. `pairs` are the repeats of one seed that are valid on both."""

    name: str
    base: CellSummary
    new: CellSummary
    pairs: tuple[tuple[Repeat, Repeat], ...]
    void_base: int  # of the `planned` pairs: void on this side
    void_new: int
    planned: int
    codes: tuple[tuple[str, ...], tuple[str, ...]]  # what voided repeats of base, of new
    roles: tuple[str, str]

    @property
    def in_grid(self) -> bool:
        """Whether load and prompt length say which cell it is; a transfer or a trace has a name instead."""
        return "what" not in self.base and not self.base.get("traffic")

    @property
    def why_not(self) -> str:
        """Why nothing can be compared here; empty where there is a pair."""
        if self.pairs:
            return ""
        if not self.planned:
            return "no repeat of one side has the seed of one of the other"
        void = [
            f"{role} void ({', '.join(codes) or 'no request was answered'})"
            for role, codes, count in zip(self.roles, self.codes, (self.void_base, self.void_new), strict=True)
            if count
        ]
        return " and ".join(void)


def place_of(cell: CellSummary, with_target: bool) -> Place:
    if "what" in cell:
        return tuple(cell.get(key) for key in transfers.SHAPE)
    shape = tuple(cell.get(key) or PLAIN.get(key) for key in SHAPE)
    return (str(cell.get("target", "")) if with_target else "", wording.loop(cell), wording.load(cell), *shape)


def paired_cells(base: Side, new: Side) -> tuple[list[PairedCell], list[str]]:
    """The cells that both sides have, and the names of those that only one has."""
    # With one target on each side its name does not matter: a/b of one run, or a renamed deployment.
    by_name = len(base.targets) > 1 or len(new.targets) > 1
    olds = {place_of(cell, by_name): cell for cell in base.cells}
    news = {place_of(cell, by_name): cell for cell in new.cells}
    roles = (base.role, new.role)
    common = [_paired(olds[place], news[place], by_name, roles) for place in olds if place in news]
    only = [f"{name_of(cell, by_name)}: only in {base.role}" for place, cell in olds.items() if place not in news]
    only += [f"{name_of(cell, by_name)}: only in {new.role}" for place, cell in news.items() if place not in olds]
    return common, only


def name_of(cell: CellSummary, with_target: bool = False) -> str:
    """`8 req/s x 16,384 tokens`, or the shape of a transfer."""
    return str(cell["what"]) if "what" in cell else wording.place(cell, with_target)


def _paired(base: CellSummary, new: CellSummary, by_name: bool, roles: tuple[str, str]) -> PairedCell:
    pairs = _same_seed(repeats_of(base), repeats_of(new))
    void = [(not is_valid(a), not is_valid(b)) for a, b in pairs]
    return PairedCell(
        name=name_of(base, by_name),
        base=base,
        new=new,
        pairs=tuple(pair for pair, (a, b) in zip(pairs, void, strict=True) if not a and not b),
        void_base=sum(a for a, _ in void),
        void_new=sum(b for _, b in void),
        planned=len(pairs),
        codes=(_codes([a for a, _ in pairs]), _codes([b for _, b in pairs])),
        roles=roles,
    )


def repeats_of(cell: CellSummary) -> Sequence[Repeat]:
    """The repeats; a cell without that list (an import) is one repeat of itself."""
    found: Sequence[Repeat] = cell.get("repeats") or [cell]
    return [repeat for repeat in found if repeat.get("state", "done") == "done"]


def is_valid(repeat: Repeat) -> bool:
    if "valid" in repeat:
        return bool(repeat["valid"])
    return not void_codes(repeat) and repeat.get("completed") != 0


def _codes(repeats: Sequence[Repeat]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(code for repeat in repeats if not is_valid(repeat) for code in void_codes(repeat)))


def void_codes(record: Mapping[str, Any]) -> list[str]:
    return list(dict.fromkeys(wording.clean(flag.get("code", "?"), 40) for flag in wording.flags(record, "void")))


def _same_seed(base: Sequence[Repeat], new: Sequence[Repeat]) -> list[tuple[Repeat, Repeat]]:
    """Repeats with the same seed; where neither side knows seeds, by their number."""
    if not any("seed" in repeat for repeat in (*base, *new)):
        return list(zip(base, new, strict=False))
    of = {repeat.get("seed"): repeat for repeat in new if repeat.get("seed") is not None}
    return [(repeat, of[repeat["seed"]]) for repeat in base if repeat.get("seed") in of]


def lacking(repeat: Repeat, metric: str) -> int | None:
    """How many requests a percentile takes, where a repeat has fewer. That they wait together and are worth fewer is no
    reason to leave it out: how much it varies is seen from repeat to repeat."""
    needed: int | None = (repeat.get("needs") or {}).get(metric)
    if needed is None or (q := QUANTILES.get(metric[:3])) is None:
        return needed
    least, answered = needed_for(q), (repeat.get("completed") or 0) + (repeat.get("timed_out") or 0)
    if "_itl_" not in metric:
        return least if answered < least else None
    # Those of few gaps held up would be the calm ones: to count only repeats that are sure of theirs would choose.
    gaps = (repeat.get("total_output_tokens") or 0) - answered
    return needed if gaps < least else None


def figure(repeat: Repeat, metric: str) -> float | None:
    """One figure of a repeat by its key, `ttft_split_ms.post` for one inside; None where too few requests carry it."""
    if lacking(repeat, metric) is not None:
        return None
    found: object = repeat
    for key in metric.split("."):
        found = found.get(key) if isinstance(found, Mapping) else None
    return float(found) if isinstance(found, int | float) and not isinstance(found, bool) else None
