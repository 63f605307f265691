"""How the ratio moves with a trace, and what a controller makes of a load that turns: tables, maps and lines."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pdbench.littles_law.controller import Contest, Outcome
from pdbench.littles_law.day import Window
from pdbench.littles_law.plan_charts import Line, LineChart, StateMap
from pdbench.littles_law.plan_text import Table, ms, number, percent
from pdbench.littles_law.pools import Pools, Served
from pdbench.littles_law.ratio import Slo

SHOWN_WINDOWS = 30


@dataclass(frozen=True, slots=True)
class DayWindow:
    """One window of a trace, and the share of its requests within both SLOs on every fixed ratio."""

    window: Window
    places: tuple[str, ...]
    shares: tuple[float, ...]
    states: tuple[str, ...]
    best: int

    def document(self) -> dict[str, Any]:
        workload = self.window.workload
        return {
            "start_s": self.window.start_s,
            "requests": self.window.requests,
            "qps": workload.qps,
            "dispersion": self.window.dispersion,
            "mean_prompt_tokens": sum(workload.prompt_lens) / len(workload.prompt_lens),
            "mean_output_tokens": workload.out_tokens,
            "best": self.places[self.best],
            "shares": dict(zip(self.places, self.shares, strict=True)),
        }


def day_windows(cut: Sequence[Window], fixed: Sequence[Pools], window_s: float) -> list[DayWindow]:
    """What the simulated runs of every fixed ratio gave the requests that arrived in each window."""
    instances = len(fixed) + 1
    places = tuple(f"{n}:{instances - n}" for n in range(1, instances))
    by_window = [_by_window(pools, window_s) for pools in fixed]
    days = []
    for window in cut:
        index = round(window.start_s / window_s)
        groups = [each.get(index, []) for each in by_window]
        slo = fixed[0].slo
        shares = tuple(sum(done.meets(slo) for done in group) / max(1, len(group)) for group in groups)
        # Of ratios that serve a window equally well, the one with the least TTFT.
        means = [math.fsum(done.ttft_s for done in group) / max(1, len(group)) for group in groups]
        best = max(range(len(groups)), key=lambda at: (shares[at], -means[at]))
        days.append(DayWindow(window, places, shares, tuple(_state(group, slo) for group in groups), best))
    return days


def _by_window(pools: Pools, window_s: float) -> dict[int, list[Served]]:
    found: dict[int, list[Served]] = {}
    for done in pools.served:
        found.setdefault(int(done.arrived_s / window_s), []).append(done)
    return found


def _state(group: Sequence[Served], slo: Slo) -> str:
    if sum(done.meets(slo) for done in group) >= slo.share * len(group):
        return "both"
    late = sum(done.ttft_s * 1000 > slo.ttft_ms for done in group) > (1 - slo.share) * len(group)
    slow = sum(done.tpot_ms > slo.step_ms for done in group) > (1 - slo.share) * len(group)
    return "neither" if late and slow else "tpot" if slow else "ttft"


def day_table(days: Sequence[DayWindow], fixed: Sequence[Pools]) -> tuple[str, Table]:
    """A sentence on what serves the trace and how that moves, and the windows."""
    slo, instances = fixed[0].slo, len(fixed) + 1
    shares = [sum(done.meets(slo) for done in pools.served) / len(pools.served) for pools in fixed]
    means = [math.fsum(done.ttft_s for done in pools.served) / len(pools.served) for pools in fixed]
    best = max(range(len(shares)), key=lambda at: (shares[at], -means[at]))  # of equals the one with the least TTFT
    said = (
        f"Played against {instances} instances, {best + 1}:{instances - best - 1} (prefill:decode) keeps most of the "
    )
    said += f"trace's requests within TTFT {ms(slo.ttft_ms)} and TPOT {ms(slo.tpot_ms)}: {percent(shares[best])}"
    said += "." if shares[best] >= slo.share else f", not the {percent(slo.share)} asked for."
    used = sorted({day.best for day in days})
    changes = sum(a.best != b.best for a, b in itertools.pairwise(days))
    if changes:
        said += f" Window by window the best ratio moves between {days[0].places[used[0]]} and "
        said += f"{days[0].places[used[-1]]}, {changes} time{'s' if changes > 1 else ''}."
    rows = []
    for day in days[:SHOWN_WINDOWS]:
        workload = day.window.workload
        holding = [name for name, state in zip(day.places, day.states, strict=True) if state == "both"]
        prompt = sum(workload.prompt_lens) / len(workload.prompt_lens)
        rows.append(
            (_clock(day.window.start_s), number(workload.qps), number(day.window.dispersion), f"{prompt:,.0f}",
             f"{workload.out_tokens:,.0f}", day.places[day.best], percent(day.shares[day.best]), _span(holding))
        )  # fmt: skip
    title = "Over the trace, simulated" + (f" (its first {SHOWN_WINDOWS} windows)" if len(days) > SHOWN_WINDOWS else "")
    heads = ("from", "req/s", "burst", "prompt", "output", "best", "within", "SLOs hold on")
    return said, Table(title, heads, tuple(rows))


def _span(holding: Sequence[str]) -> str:
    return "none" if not holding else holding[0] if len(holding) == 1 else f"{holding[0]} to {holding[-1]}"


def day_map(days: Sequence[DayWindow]) -> StateMap:
    labels = tuple(_clock(day.window.start_s) for day in days)
    states = tuple(tuple(day.states[row] for day in days) for row in range(len(days[0].places)))
    words = tuple(
        tuple(f"{day.shares[row]:.0%}{' best' if day.best == row else ''}" for day in days)
        for row in range(len(days[0].places))
    )
    return StateMap("How it moves over the trace (simulated)", "from", "P:D", labels, days[0].places, states, words)


def _clock(at_s: float) -> str:
    return f"{int(at_s // 3600)}:{int(at_s % 3600 // 60):02d}:{int(at_s % 60):02d}"


def contest_table(steered: Contest) -> tuple[str, Table]:
    """A sentence on what the controller gains, and the policies beside each other."""
    controller, fixed, oracle = steered.controller, steered.best_fixed, steered.oracle
    said = f"A controller keeps {percent(controller.share)} of the requests within both SLOs, "
    said += f"the best fixed ratio ({fixed.name.split()[0]}) {percent(fixed.share)}, an oracle {percent(oracle.share)}."
    rows = tuple(_outcome_row(each) for each in (*steered.fixed, controller, oracle))
    heads = ("policy", "within SLOs", "worst minute", "mean TTFT", "moves")
    return said, Table(f"Simulated: {controller.requests:,} requests", heads, rows)


def _outcome_row(outcome: Outcome) -> tuple[str, ...]:
    return (
        outcome.name,
        f"{outcome.share:.1%}",
        percent(outcome.worst_share),
        ms(outcome.mean_ttft_ms),
        f"{len(outcome.moves)}",
    )


def contest_chart(steered: Contest) -> LineChart:
    end_s = max(each.prefills[-1][0] for each in (steered.controller, steered.oracle, steered.best_fixed))
    end_s = max(end_s, steered.ended_s)
    lines = [
        Line(each.name, (*each.prefills, (end_s, each.prefills[-1][1])), steps=True)
        for each in (steered.controller, steered.oracle, steered.best_fixed)
    ]
    return LineChart("Prefill instances over time", "seconds", "prefill instances", tuple(lines))


def contest_document(steered: Contest) -> dict[str, Any]:
    return {
        "controller": _outcome_document(steered.controller),
        "best_fixed": _outcome_document(steered.best_fixed),
        "oracle": _outcome_document(steered.oracle),
        "fixed": [_outcome_document(each) for each in steered.fixed],
        "drain_s": steered.drain_s,
    }


def _outcome_document(outcome: Outcome) -> dict[str, Any]:
    return {
        "name": outcome.name,
        "requests": outcome.requests,
        "met": outcome.met,
        "share": outcome.share,
        "worst_minute_share": outcome.worst_share,
        "mean_ttft_ms": outcome.mean_ttft_ms,
        "moves_s": list(outcome.moves),
        "prefills": [list(point) for point in outcome.prefills],
    }
