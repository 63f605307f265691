"""Was what was sent the named arrival process? Tests with the right null distribution at this number of requests.

The gaps are compared with the named law at the asked rate (Kolmogorov-Smirnov), and the counts in equal stretches of
time with its index of dispersion, which sees ramps, pauses and too even a spacing. Each test has a false-alarm rate of
`ALPHA`; timer jitter up to `JITTER_S` is forgiven.

A schedule is drawn from a seed, and the same one each time: where the sends are where the schedule has them, what is
rare is the draw, and void only where no chance explains it (`NO_CHANCE`).
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from pdbench.report.cell import Measured
from pdbench.report.shapes import class_rates, of_class, requests_due
from pdbench.report.statistics import Floats, chi_square_tails, gamma_cdf, kolmogorov_p, ks_distance

ALPHA = 5e-4
NO_CHANCE = 1e-7  # p below which no draw of the named process is believed, wherever the sends were to be
JITTER_S = 0.003
IN_PLACE_SHARE = 0.99  # of the sends, at least, within `JITTER_S` of the schedule
MIN_REQUESTS = 10
COUNTS_PER_STRETCH = 8
MIN_STRETCHES = 5
CONSTANT_SPREAD = 0.1  # standard deviation of gaps over their mean, beyond jitter, that still counts as constant
OUT_OF_PLACE_S = 0.05  # a send further than this from its time in the trace is not where the trace has it
OUT_OF_PLACE_SHARE = 0.05  # of the sends, at most


class Departure(NamedTuple):
    """How sends differ from the named process, and how often a draw of it differs as much (0: none does)."""

    text: str
    p: float = 0.0


def arrivals_off(cell: Measured) -> Departure | None:
    """How what was sent departs from what the plan names: the whole, each class, or the trace itself."""
    if cell.rate is None or cell.plan.get("arrivals") == "unknown":  # imported: the file names no process
        return None
    answers, start = cell.answers, cell.parts[0].load.start
    kind = str(cell.plan.get("arrivals", "poisson"))
    if kind == "trace":
        return _off_the_trace(answers.sent, answers.intended)
    burstiness = float(cell.plan.get("burstiness") or 1.0)
    rates = class_rates(cell)
    # Classes together are the named process only where it is Poisson: sums of others are something else.
    checked = [("", answers.sent, cell.rate)] if kind == "poisson" or len(rates) < 2 else []
    if len(rates) > 1:
        checked += [(f"class {name}: ", answers.sent[of_class(answers, name)], rate) for name, rate in rates.items()]
    for name, sent, rate in checked:
        if (found := _departure(cell, sent, start, kind, rate, burstiness)) is not None:
            return found._replace(text=name + found.text)
    return None


def in_place(cell: Measured) -> bool:
    """Whether the sends left where the schedule has them, so that only its draw can be what is unusual."""
    known = np.isfinite(cell.answers.sent)
    away = np.abs(cell.answers.sent[known] - cell.answers.intended[known])
    return len(away) > 0 and float(np.mean(away <= JITTER_S)) >= IN_PLACE_SHARE


def arrival_figures(cell: Measured) -> dict[str, Any]:
    """What was sent, in the figures by which a process is known: CV of the gaps, dispersion of counts, distance of the
    gaps' distribution from the named one with its p-value. Of the first repeat; of a trace only the first two."""
    load, kind = cell.parts[0].load, str(cell.plan.get("arrivals", "poisson"))
    stamps = np.sort(load.answers.sent[np.isfinite(load.answers.sent)]) - load.start
    if cell.rate is None or len(stamps) < MIN_REQUESTS:
        return {}
    moving = bool(cell.stages)
    clock = requests_due(cell.stages, stamps) if moving else stamps
    gaps = np.diff(clock)
    found: dict[str, Any] = {
        "process": kind,
        "sent_rate": len(stamps) / load.duration_s if load.duration_s > 0 else None,
        "gap_cv": float(gaps.std(ddof=1) / gaps.mean()) if gaps.mean() > 0 else None,
        "dispersion": _dispersion(clock, COUNTS_PER_STRETCH),
    }
    mixed = len(cell.plan.get("classes") or ()) > 1 and kind != "poisson"
    if kind in ("poisson", "gamma") and not mixed:
        shape = float(cell.plan.get("burstiness") or 1.0) if kind == "gamma" else 1.0
        rate, slack = (1.0, JITTER_S * len(stamps) / load.duration_s) if moving else (cell.rate, JITTER_S)
        law = gamma_cdf(shape)
        distance = ks_distance(gaps, lambda x: law(np.asarray(x) * rate * shape), slack)
        found |= {"ks_distance": distance, "p_value": kolmogorov_p(distance, len(gaps))}
    return found


def _dispersion(stamps: Floats, per_stretch: float) -> float | None:
    """Variance over mean of the counts in equal stretches: 1 for Poisson, 0 for even spacing."""
    stretches = int(len(stamps) / per_stretch)
    if stretches < MIN_STRETCHES:
        return None
    counts, _ = np.histogram(stamps, bins=stretches, range=(stamps[0], stamps[-1]))
    return float(((counts - counts.mean()) ** 2).sum() / (stretches - 1) / counts.mean())


def _departure(
    cell: Measured, sent: Floats, start: float, kind: str, rate: float, burstiness: float
) -> Departure | None:
    stages = cell.stages
    if not stages:
        return departure(sent, start, kind, rate, burstiness)
    share = rate / (cell.rate or rate)
    fastest = max(max(float(stage["start"]), float(stage["end"])) for stage in stages)
    due = requests_due(stages, sent[np.isfinite(sent)] - start)
    return departure(due * share, 0.0, kind, 1.0, burstiness, jitter=JITTER_S * fastest * share, moving=True)


def _off_the_trace(sent: Floats, intended: Floats) -> Departure | None:
    """A trace has its own arrivals: each request is compared with its time there."""
    known = np.isfinite(sent)
    if known.sum() < MIN_REQUESTS:
        return None
    away = np.abs(sent[known] - intended[known])
    share = float(np.mean(away > OUT_OF_PLACE_S))
    if share <= OUT_OF_PLACE_SHARE:
        return None
    return Departure(
        f"{share:.0%} of {len(away)} sends were over {OUT_OF_PLACE_S * 1000:.0f} ms away from their time in the trace"
        f" (up to {away.max() * 1000:,.0f} ms; limit {OUT_OF_PLACE_SHARE:.0%})"
    )


def departure(
    sent: Floats,
    start: float,
    kind: str,
    rate: float,
    burstiness: float = 1.0,
    *,
    jitter: float = JITTER_S,
    moving: bool = False,
) -> Departure | None:
    """How the sends depart from the named process; `None` when they do not, or are too few to tell.

    Of a `moving` rate the times are in requests due, so that the rate is 1.
    """
    stamps = np.sort(sent[np.isfinite(sent)])
    if len(stamps) < MIN_REQUESTS or rate <= 0:
        return None
    gaps = np.diff(stamps, prepend=start)
    cv = float(gaps[1:].std(ddof=1) / gaps[1:].mean()) if gaps[1:].mean() > 0 else 0.0
    at = "on the moving rate" if moving else f"at {rate:g} req/s"
    seen = f"{len(stamps)} sends {at} with a gap CV of {cv:.2f}"
    if kind == "constant":
        spread = float(gaps[1:].std())
        if spread > max(jitter, CONSTANT_SPREAD / rate) or abs(float(gaps[1:].mean()) * rate - 1) > CONSTANT_SPREAD:
            mean = f"{gaps[1:].mean():.2f} of the asked one" if moving else f"{gaps[1:].mean() * 1000:.1f} ms"
            return Departure(f"{seen}, mean gap {mean}, are not constant arrivals")
        return None
    shape = burstiness if kind == "gamma" else 1.0
    name = f"gamma arrivals of burstiness {shape:g}" if kind == "gamma" else "Poisson arrivals"
    law = gamma_cdf(shape)
    # The first gap also holds what passes between the cell's start and its schedule.
    distance = ks_distance(gaps[1:], lambda x: law(np.asarray(x) * rate * shape), jitter)
    if (p := kolmogorov_p(distance, len(gaps) - 1)) < ALPHA:
        away = f"the gaps' distribution is {distance:.2f} away"
        return Departure(f"{seen} are not {name}: {away} (p {p:.1g}, limit {ALPHA:g})", p)
    return _uneven(stamps, rate, shape, seen, name)


def _uneven(stamps: Floats, rate: float, shape: float, seen: str, name: str) -> Departure | None:
    """Counts in equal stretches of time against the process's index of dispersion (1/shape)."""
    stretches = int(len(stamps) / (COUNTS_PER_STRETCH * max(1.0, 1 / shape)))
    if stretches < MIN_STRETCHES:
        return None
    counts, _ = np.histogram(stamps, bins=stretches, range=(stamps[0], stamps[-1]))
    value = float(((counts - counts.mean()) ** 2).sum() / counts.mean())
    below, above = chi_square_tails(value * shape, stretches - 1)
    p = 2 * min(below, above)
    if p < ALPHA and abs(math.log(max(value * shape / (stretches - 1), 1e-9))) > math.log(1.5):
        dispersion = value / (stretches - 1)
        counted = f"counts have a dispersion of {dispersion:.2f}, not {1 / shape:.2f}"
        return Departure(f"{seen} are not {name}: {counted} (p {p:.1g}, limit {ALPHA:g})", p)
    return None
