"""Two searches against each other: for each prompt length the highest rate that holds, each with its own interval.

Both rates are uncertain, so the interval of their ratio is made from the two (Zou and Donner, Statistics in Medicine
27, 2008: MOVER, here of logarithms): no repeat is needed, since a search's interval holds what its runs scatter.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any

from pdbench.report.compare.evidence import ALPHA
from pdbench.report.compare.gate import Change, Rules, evidence_of, verdict_of
from pdbench.report.compare.pairs import PairedCell
from pdbench.report.compare.sides import Side
from pdbench.report.wording import Summary, clean

PLACE = ("prompt_len", "output_len", "output_law", "drive")
Answer = Mapping[str, Any]


def is_search(summary: Summary) -> bool:
    return bool(summary.get("capacity"))


def metric_of(side: Side) -> str:
    """What was searched for: `capacity` or `knee`."""
    return str(side.summary["capacity"].get("find", "capacity"))


def paired_answers(base: Side, new: Side) -> tuple[list[PairedCell], list[str]]:
    """The searches that both sides made, and the names of those that only one did."""
    by_name = len(base.targets) > 1 or len(new.targets) > 1
    olds, news = ({_place(answer, by_name): answer for answer in _answers(side)} for side in (base, new))
    common = [_paired(_name(olds[at], by_name), olds[at], news[at], (base.role, new.role)) for at in olds if at in news]
    only = [f"{_name(answer, by_name)}: only in {base.role}" for at, answer in olds.items() if at not in news]
    only += [f"{_name(answer, by_name)}: only in {new.role}" for at, answer in news.items() if at not in olds]
    return common, only


def changes(cells: Sequence[PairedCell], metric: str, rules: Rules) -> Iterator[Change]:
    """Of each search its change and gate; together they share the chance of a false alarm."""
    for cell in cells:
        yield _change(cell, metric, rules, len(cells))


def _answers(side: Side) -> list[Answer]:
    found: Sequence[Answer] = side.summary["capacity"].get("answers") or []
    return [answer for answer in found if side.target is None or answer.get("target") == side.target]


def _place(answer: Answer, by_name: bool) -> tuple[Any, ...]:
    return (str(answer.get("target", "")) if by_name else "", *(answer.get(key) for key in PLACE))


def _name(answer: Answer, by_name: bool) -> str:
    target = f"{clean(answer.get('target', ''), 40)}, " if by_name else ""
    return f"{target}{answer.get('prompt_len', 0):,}-token prompts"


def _paired(name: str, base: Answer, new: Answer, roles: tuple[str, str]) -> PairedCell:
    """Answers stand for cells of one repeat: void probes are a search's own affair."""
    old, found = ({**answer, "what": name} for answer in (base, new))
    return PairedCell(name, old, found, ((base, new),), 0, 0, 1, ((), ()), roles)


@dataclass(frozen=True, slots=True)
class Known:
    """A rate with its interval in requests/s; `why_not` says why there is none."""

    rate: float | None
    low: float
    high: float
    why_not: str = ""


def known(answer: Answer, role: str) -> Known:
    """Zero where not even requests alone hold it: that is known, without an interval."""
    rate, interval = answer.get("rate"), answer.get("interval")
    if rate is not None and interval is not None and interval[0] is not None and interval[1] is not None:
        return Known(float(rate), float(interval[0]), float(interval[1]))
    if answer.get("holds") is None and answer.get("state") == "lowest":
        return Known(0.0, 0.0, 0.0)
    if answer.get("holds") is None and answer.get("fails") is not None:
        return Known(None, 0.0, math.inf, f"{role} held no rate that was asked, {answer['fails']:.3g} req/s at least")
    if answer.get("holds") is not None and answer.get("fails") is None:
        return Known(None, 0.0, math.inf, f"{role} held all that was asked, {answer['holds']:.3g} req/s at most")
    return Known(None, 0.0, math.inf, f"{role} has no interval yet: its search needs more time")


def _change(cell: PairedCell, metric: str, rules: Rules, family: int) -> Change:
    old, new = (known(answer, role) for answer, role in zip((cell.base, cell.new), cell.roles, strict=True))
    found = Change(metric, old.rate, new.rate, pairs=1, evidence="not measured", gate="undecided")
    if why := old.why_not or new.why_not:
        return replace(found, note=why)
    assert old.rate is not None and new.rate is not None
    if old.rate == 0 or new.rate == 0:
        return _from_or_to_nothing(found, cell, old.rate, new.rate)
    change, low, high = ratio(old, new, rules.alpha / family)
    evidence = evidence_of(change, low, high, rules.effect)
    gate = verdict_of(evidence, -change, -low, rules.effect)
    passes = f"it passes from --min-effect {math.ceil(-low * 100 + 1e-9)}% on"
    note = f"{passes}, or with longer searches" if gate == "undecided" else ""
    return replace(found, change=change, low=low, high=high, evidence=evidence, gate=gate, note=note)


def _from_or_to_nothing(found: Change, cell: PairedCell, old: float, new: float) -> Change:
    if old == new:
        return replace(found, evidence="none", gate="passed", note="neither side holds it at any rate")
    worse = old > 0
    return replace(
        found,
        change=-1.0 if worse else None,
        evidence="worse" if worse else "improved",
        gate="failed" if worse else "passed",
        note=f"{cell.roles[worse]} holds it at no rate",
    )


def ratio(old: Known, new: Known, alpha: float) -> tuple[float, float, float]:
    """The change as a share of `old`, and its interval at 1 - `alpha`."""
    assert old.rate is not None and new.rate is not None
    wider = NormalDist().inv_cdf(1 - alpha / 2) / NormalDist().inv_cdf(1 - ALPHA / 2)

    def reach(side: Known, up: bool) -> float:
        assert side.rate is not None
        return wider * abs(math.log((side.high if up else side.low) / side.rate))

    middle = math.log(new.rate / old.rate)
    low = middle - math.hypot(reach(new, up=False), reach(old, up=True))
    high = middle + math.hypot(reach(new, up=True), reach(old, up=False))
    return math.expm1(middle), math.expm1(low), math.expm1(high)
