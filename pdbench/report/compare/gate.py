"""Improved, worse or no evidence; and the gate: passed, failed or undecided.

A gate fails when the interval of its change excludes zero on the bad side and the change is as large as the effect of
interest. It passes when the interval excludes a change for the worse as large as that. Everything else is undecided,
which is said together with the number of repeats that would decide it: no evidence is never a verdict.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from pdbench.errors import UsageError
from pdbench.report import wording
from pdbench.report.compare.evidence import (
    ALPHA,
    PAIRS_FOR_PERMUTATION,
    PAIRS_FOR_T,
    Floats,
    intervals,
    mean_changes,
    pairs_needed,
)
from pdbench.report.compare.pairs import PairedCell, figure, lacking

GATED = ("mean_ttft_ms", "median_ttft_ms", "mean_tpot_ms", "request_throughput")
WATCHED = (
    "p90_ttft_ms",
    "p99_ttft_ms",
    "median_tpot_ms",
    "p99_tpot_ms",
    "mean_itl_ms",
    "p99_itl_ms",
    "mean_e2el_ms",
    "p99_e2el_ms",
    "output_throughput",
    "request_goodput",
    "waiting_mean",
)
SHORT = {
    "ttft": ("mean_ttft_ms", "median_ttft_ms"),
    "tpot": ("mean_tpot_ms",),
    "itl": ("mean_itl_ms",),
    "e2el": ("mean_e2el_ms",),
    "throughput": ("request_throughput",),
    "goodput": ("request_goodput",),
}
TRANSFER_SHORT = {"bandwidth": "gb_s", **{name: f"{name}_ms.p50" for name in ("prep", "make", "post", "move", "total")}}
_KEY = re.compile(
    r"(classes\.[^.]+\.)?((mean|median|p50|p90|p99)_(ttft|tpot|itl|e2el)_ms|(request|output|total_token)_throughput"
    r"|request_goodput)|waiting_mean|ttft_split_ms\.\w+|gb_s|(prep|make|post|move|total)_ms\.(p50|p99)"
)
HIGHER_IS_BETTER = ("throughput", "goodput", "gb_s", "capacity", "knee")
EFFECT = 0.05
PAIRS_WORTH_PLANNING = 100  # beyond, what is asked for is another experiment
VALIDITY, UNANSWERED = "validity", "unanswered"
SHARES = (VALIDITY, UNANSWERED)  # of repeats, of requests
# Void because of what the servers did. The other codes doubt the measurement, and say nothing of the servers.
SERVERS_FAULT = {
    "not-steady-state",
    "kv-expired",
    "decode-recomputed",
    "stall",
    "server-restarted",
    "failed-requests",
}


@dataclass(frozen=True, slots=True)
class Rules:
    """What the gate is about: its metrics, the smallest change that matters, the chance of a false alarm."""

    gates: tuple[str, ...] = GATED
    effect: float = EFFECT
    alpha: float = ALPHA


@dataclass(frozen=True, slots=True)
class Change:
    """One metric of one cell. `change`, `low` and `high` are shares of base: 0.05 is 5 % more."""

    metric: str
    base: float | None = None
    new: float | None = None
    pairs: int = 0
    change: float | None = None
    low: float | None = None
    high: float | None = None
    evidence: str = (
        "too few"  # improved, worse, small (sure, and below the effect), none, too few (repeats), not measured
    )
    gate: str | None = None  # passed, failed, undecided, void (nothing is compared); None is not gated
    more_repeats: int | None = None  # that would decide an undecided gate; None where no sensible number would
    note: str = ""
    left_out: str = ""  # which pairs of repeats have no such figure, and why


def gates_named(names: Sequence[str], transfer: bool = False) -> tuple[str, ...]:
    """Keys of summary.json for what a command line calls them. Raises UsageError for what a repeat never holds."""
    found: dict[str, None] = {}
    for name in names:
        if transfer and name in TRANSFER_SHORT:
            found[TRANSFER_SHORT[name]] = None
        elif name in SHORT:
            found |= dict.fromkeys(SHORT[name])
        elif name in wording.SPLIT_PARTS:
            found[f"ttft_split_ms.{name}"] = None
        elif _KEY.fullmatch(name):
            found[name] = None
        else:
            known = ", ".join((*SHORT, *wording.SPLIT_PARTS))
            raise UsageError(f"--gate {name!r} is no metric of a cell.", f"Known: {known}, p99_itl_ms and the like.")
    return tuple(found)


def higher_is_better(metric: str) -> bool:
    return any(word in metric for word in HIGHER_IS_BETTER)


def changes(cells: Sequence[PairedCell], metrics: Sequence[str], rules: Rules, gated: bool) -> list[list[Change]]:
    """For each cell its changes. The intervals of one call are one family: they hold together."""
    rows = sorted({_row(pair) for cell in cells for pair in cell.pairs})
    places = [(at, metric) for at in range(len(cells)) for metric in metrics]
    columns = {place: _column(cells[place[0]], place[1], rows) for place in places}
    known = {place: column for place, column in columns.items() if column is not None}
    judged = {place: column for place, column in known.items() if column.pairs >= PAIRS_FOR_T}
    family = np.array([column.differences for column in judged.values()]).T.reshape(len(rows), len(judged))
    reaches = dict(zip(judged, intervals(family, rules.alpha), strict=True))
    found: list[list[Change]] = [[] for _ in cells]
    for place in places:
        column = columns[place]
        if column is None:
            if gated and cells[place[0]].pairs:
                found[place[0]].append(_not_measured(cells[place[0]], place[1]))
        elif place not in reaches:
            found[place[0]].append(_too_few(place[1], column, gated))
        else:
            found[place[0]].append(_judged(place[1], column, reaches[place], len(judged), rules, gated))
        if column is not None and column.pairs < len(cells[place[0]].pairs):
            found[place[0]][-1] = replace(found[place[0]][-1], left_out=_left_out(cells[place[0]], place[1]))
    return found


def _row(pair: tuple[object, object]) -> int:
    repeat = pair[0]
    return int(repeat.get("repeat", 0)) if isinstance(repeat, dict) else 0


@dataclass(frozen=True, slots=True)
class _Column:
    """The differences of one metric in one cell by repeat (NaN: no such pair)."""

    differences: Floats
    base: float
    new: float
    pairs: int
    relative: bool  # differences of logarithms; else differences over the mean of base

    def share(self, difference: float) -> float:
        return math.expm1(difference) if self.relative else difference


def _column(cell: PairedCell, metric: str, rows: Sequence[int]) -> _Column | None:
    """None where no pair has the metric on both sides, or nothing relates to a base of zero."""
    of: dict[int, tuple[float, float]] = {}
    for pair in cell.pairs:
        old, new = figure(pair[0], metric), figure(pair[1], metric)
        if old is not None and new is not None:
            of[_row(pair)] = (old, new)
    values = np.array([of.get(row, (math.nan, math.nan)) for row in rows]).reshape(len(rows), 2)
    if not of:
        return None
    seen = np.array(list(of.values()))
    if (seen > 0).all():
        logs = np.log(values)
        old, new = np.exp(np.log(seen).mean(axis=0))
        return _Column(logs[:, 1] - logs[:, 0], float(old), float(new), len(of), True)
    old, new = seen.mean(axis=0)
    if old <= 0:
        return None
    return _Column((values[:, 1] - values[:, 0]) / old, float(old), float(new), len(of), False)


def _not_measured(cell: PairedCell, metric: str) -> Change:
    needs = [n for pair in cell.pairs for repeat in pair if (n := lacking(repeat, metric)) is not None]
    note = f"takes {max(needs):,} requests a repeat" if needs else "not measured on both sides"
    return Change(metric, pairs=len(cell.pairs), evidence="not measured", gate="undecided", note=note)


def _left_out(cell: PairedCell, metric: str) -> str:
    """`4 of 5 pairs: repeat 2 has none in new (takes 310 requests)`."""
    said = []
    for pair in cell.pairs:
        for role, repeat in zip(cell.roles, pair, strict=True):
            if figure(repeat, metric) is None:
                needs = lacking(repeat, metric)
                why = (
                    "not measured"
                    if needs is None
                    else f"takes {needs:,} requests, {repeat.get('completed') or 0:,} answered"
                )
                said.append(f"repeat {repeat.get('repeat', '?')} has none in {role} ({why})")
    used = sum(all(figure(repeat, metric) is not None for repeat in pair) for pair in cell.pairs)
    return f"{used} of {len(cell.pairs)} pairs: {', '.join(said)}"


def _too_few(metric: str, column: _Column, gated: bool) -> Change:
    change = column.share(float(mean_changes(column.differences[:, None])[0]))
    return Change(
        metric,
        column.base,
        column.new,
        column.pairs,
        change,
        gate="undecided" if gated else None,
        more_repeats=PAIRS_FOR_T - column.pairs if gated else None,
    )


def _judged(
    metric: str, column: _Column, interval: tuple[float, float], family: int, rules: Rules, gated: bool
) -> Change:
    middle = float(mean_changes(column.differences[:, None])[0])
    low, change, high = (column.share(value) for value in (interval[0], middle, interval[1]))
    up = higher_is_better(metric)
    evidence = evidence_of(change if up else -change, low, high, rules.effect)
    found = Change(metric, column.base, column.new, column.pairs, change, low, high, evidence)
    if not gated:
        return found
    loss, most = (-change, -low) if up else (change, high)  # for the worse; what the interval does not exclude
    verdict = verdict_of(evidence, loss, most, rules.effect)
    more = None
    if verdict == "undecided":
        more = _more_repeats(loss, most - loss, column.pairs, family, rules.effect)
    return replace(found, gate=verdict, more_repeats=more)


def evidence_of(gain: float, low: float, high: float, effect: float) -> str:
    """`gain`: the change for the better; `low` and `high`: the interval of the change, whichever way is better."""
    if low <= 0 <= high:
        return "none"
    return "small" if abs(gain) < effect else "improved" if gain > 0 else "worse"


def verdict_of(evidence: str, loss: float, most: float, effect: float) -> str:
    """`loss`: the change for the worse; `most`: the largest that its interval does not exclude."""
    return "failed" if evidence == "worse" and loss >= effect else "passed" if most < effect else "undecided"


def _more_repeats(loss: float, reach: float, pairs: int, family: int, effect: float) -> int | None:
    """How many more repeats decide. To fail, the interval must leave zero; to pass, it must leave the effect.

    A wide interval's middle is noise itself, so half the effect is near enough to aim at. None where a change lies so
    close to the effect that no sensible number would tell on which side.
    """
    gap = loss if loss >= effect else effect - loss
    wanted = max(gap, effect / 2) if reach > effect / 2 else gap
    needed = pairs_needed(reach, pairs, wanted, family, PAIRS_WORTH_PLANNING)
    return None if needed is None else needed - pairs


def validity_change(cell: PairedCell, cells: int, rules: Rules) -> Change | None:
    """Whether one side is void in more repeats than the other by what its servers did; None where nothing tells.

    Fisher's exact test of the two counts, its chance of a false alarm shared by the cells.
    """
    worse = cell.void_new > cell.void_base
    codes = [code for code in cell.codes[worse] if code in SERVERS_FAULT]
    if cell.void_new == cell.void_base or not codes:
        return None
    n = cell.planned
    few, many = sorted((cell.void_base, cell.void_new))
    sure = n >= PAIRS_FOR_T and fisher(few, many, n) <= rules.alpha / 2 / cells
    if not worse and not sure:
        return None
    note = f"{cell.roles[1]} {cell.void_new} of {n} repeats void, {cell.roles[0]} {cell.void_base}: {', '.join(codes)}"
    evidence = ("worse" if worse else "improved") if sure else "none" if n >= PAIRS_FOR_T else "too few"
    gate = "undecided" if not sure else "failed" if worse else "passed"
    more = PAIRS_FOR_PERMUTATION - n if gate == "undecided" and n < PAIRS_FOR_PERMUTATION else None
    share = (cell.void_base / n, cell.void_new / n)
    return Change(VALIDITY, *share, pairs=n, evidence=evidence, gate=gate, more_repeats=more, note=note)


def fisher(base: int, new: int, each: int) -> float:
    """P(at least `new` of the void repeats fall on the new side), given how many there are: hypergeometric."""
    void, all_ways = base + new, math.comb(2 * each, each)
    ways = sum(math.comb(void, k) * math.comb(2 * each - void, each - k) for k in range(new, min(void, each) + 1))
    return ways / all_ways
