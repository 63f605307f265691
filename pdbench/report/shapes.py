"""In what do a cell's requests differ? Its classes, the stages of its rate, the turns of its sessions."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pdbench.report.answers import Answers, Load
from pdbench.report.cell import Measured
from pdbench.report.statistics import Floats

RAMP_PARTS = 4  # stretches in which a ramp is shown; steps have their own
_GRID = 1000


@dataclass(frozen=True, slots=True)
class Stretch:
    """A part of the send window, in seconds from its start, in which the asked rate goes from `first` to `last`."""

    start_s: float
    end_s: float
    first: float
    last: float
    mean: float

    @property
    def steady(self) -> bool:
        return self.first == self.last


def class_rates(cell: Measured) -> dict[str, float]:
    """The asked rate of each class; empty for a cell without classes."""
    classes: Sequence[Mapping[str, Any]] = cell.plan.get("classes") or ()
    whole = sum(float(each["rate"]) for each in classes)
    return {str(each["name"]): (cell.rate or 0.0) * float(each["rate"]) / whole for each in classes}


def of_class(answers: Answers, name: str) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = answers.request_class == name
    return found


def turns(answers: Answers) -> list[int]:
    """The turns that were asked, from 1."""
    return [int(turn) for turn in np.unique(answers.turn[np.isfinite(answers.turn)])]


def turns_not_asked(cell: Measured) -> Iterator[str]:
    """Turns that a conversation still had when one of it failed: what follows would lack its history."""
    if not cell.plan.get("session_turns") or cell.plan.get("duration_s") is not None:  # there time ends it
        return
    ended = [part.entry for part in cell.parts if part.entry.get("state") == "done"]
    planned, sent = (sum(int(entry.get(name) or 0) for entry in ended) for name in ("planned", "sent"))
    if planned > sent:
        never = f"{planned - sent:,} of {planned:,} turns were never asked"
        yield f"{never}: one before them in their session had no whole answer."


def loads(cell: Measured, which: Callable[[Answers], NDArray[np.bool_]]) -> list[Load]:
    """Each repeat's load with some of its requests: `which` maps answers to a mask."""
    return [replace(part.load, answers=part.load.answers.chosen(which(part.load.answers))) for part in cell.parts]


def stretches(cell: Measured) -> list[Stretch]:
    """The steps of a cell's rate, or its ramp in equal stretches of time; empty for a steady rate."""
    found: list[Stretch] = []
    start = 0.0
    for stage in cell.stages:
        rate = _Rate(stage)
        parts = 1 if rate.first == rate.last else RAMP_PARTS
        edges = np.linspace(0.0, rate.long_s, parts + 1)
        for a, b in itertools.pairwise(edges.tolist()):
            due_a, due_b = rate.expected(np.array([a, b]))
            found.append(Stretch(start + a, start + b, rate.at(a), rate.at(b), float((due_b - due_a) / (b - a))))
        start += rate.long_s
    return found


def in_stretch(stretch: Stretch, load: Load) -> Load:
    """The requests that were due in the stretch, with it as their send window."""
    start, end = load.start + stretch.start_s, load.start + stretch.end_s
    due = (load.answers.intended >= start) & (load.answers.intended < end)
    return replace(load, answers=load.answers.chosen(due), start=start, send_end=max(start, min(end, load.send_end)))


def requests_due(stages: Sequence[Mapping[str, Any]], t: Floats) -> Floats:
    """How many requests the plan expects by each time (s from the start): the clock on which its arrivals are even."""
    found = np.zeros(len(t))
    start = 0.0
    for number, stage in enumerate(stages):
        rate = _Rate(stage)
        last = number == len(stages) - 1
        inside = np.clip(t - start, 0.0, None) if last else np.clip(t - start, 0.0, rate.long_s)
        found += rate.expected(inside)
        start += rate.long_s
    return found


class _Rate:
    """The rate of one stage of the plan, integrated step by step: no closed form that the sender would share."""

    def __init__(self, stage: Mapping[str, Any]) -> None:
        self.long_s = float(stage["duration_s"])
        self.first, self.last = float(stage["start"]), float(stage["end"])
        self.exponential = bool(stage.get("exponential"))
        self._t = np.linspace(0.0, self.long_s, _GRID + 1)
        rates = np.array([self.at(float(t)) for t in self._t])
        steps = np.diff(self._t) * (rates[1:] + rates[:-1]) / 2
        self._sum = np.concatenate(([0.0], np.cumsum(steps)))

    def at(self, t: float) -> float:
        share = t / self.long_s
        if self.exponential:
            return float(self.first * (self.last / self.first) ** share)
        return self.first + (self.last - self.first) * share

    def expected(self, t: Floats) -> Floats:
        """Requests due within `t`; what is late beyond the stage counts at its last rate."""
        due: Floats = np.interp(t, self._t, self._sum) + np.maximum(0.0, t - self.long_s) * self.last
        return due
