"""The probes of a search in the terminal: a table each. The answers themselves are the run's verdict."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from pdbench.report.capacity.slo import ATTAINED, Slo
from pdbench.report.clustered import Z_975
from pdbench.report.statistics import needed_for
from pdbench.report.wording import CellSummary, Summary, clean, interval, needed_requests

RESULT_STYLE = {"holds": "green", "fails": "red", "no evidence": "yellow"}


def probe_tables(summary: Summary) -> Iterator[RenderableType]:
    """One table for each target and prompt length, by rising rate."""
    for answer in answers(summary):
        yield Text()
        yield Text(f"Probes, {name(answer, summary)}", style="italic")
        table = Table.grid(padding=(0, 2, 0, 0))
        for head in heads(answer):
            table.add_column(justify="left" if head == "result" else "right")
        table.add_row(*(Text(head, style="bold") for head in heads(answer)))
        for _, row in rows(answer, summary):
            style = next((style for word, style in RESULT_STYLE.items() if row[-1].startswith(word)), "")
            table.add_row(*row[:-1], Text(row[-1], style=style))
        yield table


def answers(summary: Summary) -> Sequence[Mapping[str, Any]]:
    found: Sequence[Mapping[str, Any]] = (summary.get("capacity") or {}).get("answers") or []
    return found


def name(answer: Mapping[str, Any], summary: Summary) -> str:
    """Which search it is."""
    several = len({each["target"] for each in answers(summary)}) > 1
    target = f"{clean(answer['target'], 60)}, " if several else ""
    return f"{target}{answer['prompt_len']:,}-token prompts"


def heads(answer: Mapping[str, Any]) -> list[str]:
    statistics = [" ".join(filter(None, [slo["metric"].upper(), slo["statistic"]])) for slo in answer["slos"]]
    return ["asked req/s", "requests", *statistics, "result"]


def rows(answer: Mapping[str, Any], summary: Summary) -> Iterator[tuple[Mapping[str, Any], list[str]]]:
    """The probes by rising rate, each with what a table says of it."""
    slos = [Slo(str(slo["metric"]), str(slo["statistic"]), float(slo["limit"])) for slo in answer["slos"]]
    for probe in sorted(answer["probes"], key=lambda probe: probe["request_rate"]):
        values = [
            _said(slo, value, too_few(slo, probe, summary)) for slo, value in zip(slos, probe["values"], strict=True)
        ]
        yield probe, [_rate(probe, summary), f"{probe['requests']:,}", *values, result(probe)]


def _rate(probe: Mapping[str, Any], summary: Summary) -> str:
    got = sent_rate(probe, summary)
    return f"{probe['request_rate']:.3g}{'' if got is None else f' (got {got:.3g})'}"


def sent_rate(probe: Mapping[str, Any], summary: Summary) -> float | None:
    """Requests/s that a probe was sent, where that is further from its rate than random arrivals are in 95 % of probes;
    else None. So many that are due on average vary by the root of their number, times the CV of the gaps."""
    plan = summary.get("plan") or {}
    cv = {"poisson": 1.0, "gamma": float(plan.get("burstiness") or 1.0) ** -0.5}.get(str(plan.get("arrivals")))
    cell = _cell(probe, summary)
    sent, duration_s = cell.get("sent"), cell.get("duration_s")
    if cv is None or not sent or not duration_s:
        return None
    due = float(probe["request_rate"]) * float(duration_s)
    return sent / float(duration_s) if abs(sent - due) > Z_975 * cv * math.sqrt(due) else None


def _cell(probe: Mapping[str, Any], summary: Summary) -> CellSummary:
    cells: Sequence[CellSummary] = summary.get("cells") or []
    return next((cell for cell in cells if cell.get("cell") == probe["cell"]), {})


def too_few(slo: Slo, probe: Mapping[str, Any], summary: Summary) -> tuple[float | None, int] | None:
    """Of a percentile that the probe has too few requests for: where its interval begins, and how many it takes."""
    if slo.metric == ATTAINED or slo.statistic == "mean":
        return None
    cell = _cell(probe, summary)
    if slo.metric == "itl":
        needed = needed_requests(cell, slo.statistic, slo.metric)
    else:  # the search itself weighs that requests wait together
        needed = least if probe["requests"] < (least := needed_for(slo.quantile)) else None
    return None if needed is None else (interval(cell, slo.statistic, slo.metric)[0], needed)


def _said(slo: Slo, value: float | None, few: tuple[float | None, int] | None) -> str:
    """As in the table of cells: a percentile of too few requests is no number, at most a bound from below."""
    if value is None or few is None:
        return slo.said(value)
    low, needed = few
    return f"{'' if low is None else f'>{slo.said(low)} '}needs {needed:,}"


def result(probe: Mapping[str, Any]) -> str:
    """`fails (overloaded)`, `met, too short`: a short probe only says where to look, and holds nothing."""
    if probe["doubt"]:
        return f"no evidence: {clean(probe['doubt'], 80)}"
    if probe["overloaded"]:
        return "fails (overloaded)"
    if probe["deciding"]:
        return str(probe["result"])
    return "met, too short" if probe["result"] == "holds" else f"{probe['result']}, short"
