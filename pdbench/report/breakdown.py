"""The figures of each class, stage and turn of a cell: what a mean over different requests hides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from pdbench.littles_law.slots import slots_held
from pdbench.report import steady_state
from pdbench.report.answers import Answers, Load, counts, latencies, pooled, rates
from pdbench.report.cell import Measured
from pdbench.report.shapes import Stretch, class_rates, in_stretch, loads, of_class, stretches, turns


def breakdown(cell: Measured) -> dict[str, Any]:
    """`classes`, `stages` and `turns` of summary.json, as far as the cell has them."""
    found: dict[str, Any] = {}
    if classes := by_class(cell):
        found["classes"] = classes
    if cell.stages:
        found["stages"] = [_stage(cell, each) for each in kept_up(cell)]
    if asked := turns(cell.answers):
        found["turns"] = [_turn(cell, turn) for turn in asked]
    return found


def by_class(cell: Measured) -> dict[str, Any]:
    """Figures of each class under its name, with the slots that it needs and holds."""
    return {name: {"request_rate": rate, **_class(cell, name, rate)} for name, rate in class_rates(cell).items()}


def _class(cell: Measured, name: str, rate: float) -> dict[str, Any]:
    own = loads(cell, partial(of_class, name=name))
    answers = pooled([load.answers for load in own])
    return {
        "prompt_len": _mean(answers, "prompt_len"),
        "output_len": _mean(answers, "output_len"),
        **_figures(cell, own, answers, cell.settles),
        "slots": _class_slots(own, answers, rate),
    }


def slots_by_class(cell: Measured) -> list[dict[str, float | None]]:
    """What each class needs and holds."""
    found = []
    for name, rate in class_rates(cell).items():
        own = loads(cell, partial(of_class, name=name))
        found.append(_class_slots(own, pooled([load.answers for load in own]), rate))
    return found


def _class_slots(own: Sequence[Load], answers: Answers, rate: float) -> dict[str, float | None]:
    achieved = rates(own, {}).get("request_throughput")
    return {"needed": needed_by(answers, rate), "held": None if achieved is None else needed_by(answers, achieved)}


def needed_by(answers: Answers, rate: float) -> float | None:
    """Slots that requests like these take at a rate: Little's law. An answer of one token takes next to none."""
    tokens, tpot = answers.mean(answers.output_tokens), answers.mean(answers.tpot_ms)
    if tokens is None or (tpot is None and tokens > 1):
        return None
    return 0.0 if tpot is None else slots_held(rate, tokens, tpot)


def _figures(cell: Measured, own: Sequence[Load], answers: Answers, settles: bool) -> dict[str, Any]:
    goodput = {str(k): float(v) for k, v in (cell.plan.get("goodput_ms") or {}).items()}
    return {**counts(answers), **rates(own, goodput), **latencies(answers, settles)}


def _mean(answers: Answers, name: str) -> float | None:
    values = getattr(answers, name)
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else None


@dataclass(frozen=True, slots=True)
class Passed:
    """A stretch of a moving rate, and whether the servers kept up with it: `None` where that cannot be told."""

    stretch: Stretch
    loads: Sequence[Load]
    steady: bool | None
    why: str = ""


def kept_up(cell: Measured) -> list[Passed]:
    """The stretches of the cell's rate that it came to; where the rate stands still, judged as a cell of its own."""
    found = []
    for stretch in stretches(cell):
        own = [in_stretch(stretch, part.load) for part in cell.parts]
        if not any(len(load.answers) for load in own):
            continue
        steady, why = _judged(stretch, own)
        found.append(Passed(stretch, own, steady, why))
    return found


def _judged(stretch: Stretch, own: Sequence[Load]) -> tuple[bool | None, str]:
    enough = [load for load in own if load.answers.count("ok") >= steady_state.MIN_REQUESTS]
    if not stretch.steady or not enough:
        return None, ""
    for load in enough:
        seen = steady_state.judge(load.answers, load.start, load.send_end, stretch.mean)
        if (growth := seen.growth_ms) is not None:
            return False, f"TTFT grew {growth:,.3g} ms per request"
        if seen.flight is not None and seen.flight_grows:
            return False, f"requests in flight grew from {seen.flight.first:.0f} to {seen.flight.last:.0f}"
    return True, ""


def _stage(cell: Measured, passed: Passed) -> dict[str, Any]:
    stretch, answers = passed.stretch, pooled([load.answers for load in passed.loads])
    return {
        "start_s": stretch.start_s,
        "end_s": stretch.end_s,
        "rate_start": stretch.first,
        "rate_end": stretch.last,
        "request_rate": stretch.mean,
        **_figures(cell, passed.loads, answers, bool(passed.steady)),
        "slots": {"needed": needed_by(answers, stretch.mean)},
        "steady": passed.steady,
    }


def _turn(cell: Measured, turn: int) -> dict[str, Any]:
    answers = cell.answers.chosen(cell.answers.turn == turn)
    known = answers.ok & np.isfinite(answers.cached_tokens) & (answers.prompt_tokens > 0)
    cached = float(answers.cached_tokens[known].sum() / answers.prompt_tokens[known].sum()) if known.any() else None
    return {
        "turn": turn,
        **counts(answers),
        "prompt_tokens": answers.mean(answers.prompt_tokens),
        "output_tokens": answers.mean(answers.output_tokens),
        "cached_share": cached,
        **latencies(answers, cell.settles),
    }
