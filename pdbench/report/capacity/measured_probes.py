"""From the cells of a run to the probes of its searches: what each held, and which are no evidence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pdbench.report.answers import Answers
from pdbench.report.capacity.fit import Batches
from pdbench.report.capacity.probe import Probe
from pdbench.report.capacity.slo import Slo, batched, slo_of, standing, statistic
from pdbench.report.cell import Measured
from pdbench.report.tiers import tiers
from pdbench.report.validity import VOID, findings

KNEE_TIMES = 3.0  # p99 ITL over the median of a stream at low load: from there on streams stutter
REJECTED_SHARE = 0.01
# What a deployment that is asked too much does; everything else that voids a cell says nothing of what it holds.
OF_OVERLOAD = {"not-steady-state", "kv-expired", "stall", "failed-requests"}
SETTLE_S = 1.0  # between cells, about

Key = tuple[str, int, int, str, str]


@dataclass(frozen=True, slots=True)
class Searched:
    """One search: a target and a shape, what is asked of it, and its probes in the order in which they were made."""

    target: str
    prompt_len: int
    output_len: int
    output_law: str
    drive: str
    slos: tuple[Slo, ...]
    probes: tuple[Probe, ...]

    @property
    def key(self) -> Key:
        return (self.target, self.prompt_len, self.output_len, self.output_law, self.drive)

    @property
    def spent_s(self) -> float:
        return sum(probe.spent_s for probe in self.probes)


def key_of(cell: Any) -> Key:
    return (
        str(cell["target"]),
        int(cell["prompt_len"]),
        int(cell["output_len"]),
        str(cell.get("output_law") or ""),
        str(cell.get("drive") or "proxy"),
    )


def searches(plan: Any, cells: Sequence[Measured]) -> list[Searched]:
    """The searches of a plan with what was measured for each."""
    found: list[Searched] = []
    for key in dict.fromkeys(key_of(cell) for cell in plan["cells"]):
        mine = [cell for cell in cells if key_of(cell.cell) == key and _done(cell)]
        slos = _slos(plan, mine)
        found.append(Searched(*key, slos, tuple(probe_of(cell, slos) for cell in mine)))
    return found


def _done(cell: Measured) -> bool:
    return all(part.entry.get("state") == "done" for part in cell.parts)


def _slos(plan: Any, cells: Sequence[Measured]) -> tuple[Slo, ...]:
    """As asked; of a knee, p99 ITL against the median at the lowest rate."""
    search = plan["search"]
    if search["find"] != "knee":
        return tuple(slo_of(each, plan.get("goodput_ms") or {}) for each in search["slos"])
    calm = min((cell for cell in cells if cell.answers.ok.any()), key=lambda cell: cell.rate or 0.0, default=None)
    median = None if calm is None else statistic(calm.answers, Slo("itl", "p50", 0.0))
    return () if not median else (Slo("itl", "p99", round(KNEE_TIMES * median, 3)),)


def probe_of(cell: Measured, slos: Sequence[Slo]) -> Probe:
    """One cell as a probe."""
    answers, rate = cell.answers, cell.rate or 0.0
    voids = [finding.code for finding in findings(cell) if finding.severity == VOID]
    carried = [q for tier in tiers([cell]) for q in (tier.prefill_qps, tier.decode_qps, tier.link_qps) if q is not None]
    took_s = answers.mean(answers.e2el_ms)
    values = tuple(statistic(answers, slo) for slo in slos)
    lacking = [f"{slo.metric.upper()} not measured" for slo, value in zip(slos, values, strict=True) if value is None]
    return Probe(
        cell=int(cell.cell["cell"]),
        rate=rate,
        requests=len(answers),
        spent_s=sum(part.entry["end_s"] - part.entry["start_s"] for part in cell.parts) + SETTLE_S,
        batches=tuple(_batches(rate, answers, slo) for slo in slos),
        values=values,
        steady="not-steady-state" not in voids,
        achieved=cell.achieved,
        request_s=None if took_s is None else took_s / 1000,
        carries=min(carried, default=None),
        doubt=_doubt(answers, voids) or ", ".join(lacking),
    )


def _batches(rate: float, answers: Answers, slo: Slo) -> Batches:
    over, of = batched(standing(answers, slo))
    return Batches(rate, over, of, slo.most)


def _doubt(answers: Answers, voids: Sequence[str]) -> str:
    """Why the cell says nothing of what the deployment holds."""
    rejected = answers.count("rejected") / max(1, len(answers))
    if rejected > REJECTED_SHARE:
        return f"{rejected:.0%} rejected"
    overloaded = "not-steady-state" in voids
    if own := [code for code in voids if not (overloaded and code in OF_OVERLOAD)]:
        return ", ".join(own)
    return "" if answers.ok.any() else "no request was answered"
