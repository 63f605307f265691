"""Figures of what the load did: latency against load, with the SLO where there is one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pdbench.report import wording
from pdbench.report.figures import (
    Figure,
    Group,
    document,
    group_name,
    groups,
    load_axis,
    log_axis,
    plain,
    scatter,
    slo_line,
)
from pdbench.report.wording import (
    CellSummary,
    counted,
    interval,
    is_unsound,
    load,
    short,
    statistic,
    verdict_mark,
)

SYMBOLS = ("circle", "square", "diamond", "triangle-up", "x", "star", "triangle-down")
DASHES = ("solid", "dash", "dot", "dashdot")
LINE_COLOURS = 7
SLO_IN_SIGHT = 3  # times the highest value: a line further up would press the values flat


def latency_figures(cells: Sequence[CellSummary], slos_ms: Mapping[str, float]) -> list[Figure]:
    """TTFT and TPOT against the load, one line a prompt length; void cells hollow and off the line."""
    top = wording.highest_percentile(cells, "ttft")
    panels = dict.fromkeys((("p50", "ttft"), (top, "ttft"), ("p50", "tpot")))
    return [figure for quantile, metric in panels if (figure := _latency(cells, quantile, metric, slos_ms)) is not None]


def _latency(cells: Sequence[CellSummary], quantile: str, metric: str, slos_ms: Mapping[str, float]) -> Figure | None:
    title = f"{metric.upper()} {'median' if quantile == 'p50' else quantile}"
    found = groups(cells)
    traces = [t for i, group in enumerate(found) for t in _lines(found[group], group, list(found), quantile, metric, i)]
    values = [value for trace in traces for value in trace["y"]]
    if not values:
        return None
    why = wording.why_not_p99(cells, metric) if quantile == wording.highest_percentile(cells, metric) else ""
    few = sum(wording.needed_requests(cell, quantile, metric) is not None for cell in cells)
    missing = len(cells) - len(values) - few
    notes = [f"{why}, more than any valid cell has."] if why else []
    notes += [f"Too few requests for this percentile in {few} of {counted(len(cells), 'cell')}."] if few else []
    notes += [f"Not measured in {missing} of {counted(len(cells), 'cell')}."] if missing > 0 else []
    axis: dict[str, Any] = {"rangemode": "tozero", "tickformat": ",~f"}
    if min(values) > 0 and max(values) > 20 * min(values):
        highs = [high for cell in cells if (high := interval(cell, quantile, metric)[1]) is not None]
        axis = log_axis(min(values) * 0.7, max([*values, *highs]) * 1.4)
    axis["title"] = {"text": f"{title}, ms"}
    height = 300 + 29 * -(-len(found) // 2)  # two names of the legend stand side by side
    limit = slos_ms.get(metric)
    near = limit is not None and limit <= SLO_IN_SIGHT * max(values)
    notes += [f"The SLO, {short(limit)} ms, lies far above."] if limit is not None and not near else []
    shapes = [slo_line(limit, metric.upper())] if limit is not None and near else []
    made = document(traces, height=height, showlegend=len(found) > 1, xaxis=load_axis(cells), yaxis=axis, shapes=shapes)
    drawn = f"{counted(len(found), 'line')} by prompt length, {counted(len(values), 'cell')}"
    spoken = f"{title} in ms against the load; {drawn}."
    return Figure(title, spoken, made, " ".join(notes))


def _lines(
    cells: Sequence[CellSummary], group: Group, among: Sequence[Group], quantile: str, metric: str, index: int
) -> list[Any]:
    """Two traces of one group: the cells that hold, joined by a line, and the void ones, hollow and by themselves."""
    known = [cell for cell in cells if statistic(cell, quantile, metric) is not None and load(cell) is not None]
    known.sort(key=lambda cell: load(cell) or 0)
    void = [cell for cell in known if is_unsound(cell)]
    sound = [cell for cell in known if not is_unsound(cell)]
    colour, symbol = f"var(--line-{index % LINE_COLOURS})", SYMBOLS[index % len(SYMBOLS)]
    traces = []
    for some, hollow in ((sound, False), (void, True)):
        values = [statistic(cell, quantile, metric) or 0.0 for cell in some]
        bounds = [interval(cell, quantile, metric) for cell in some]
        up = [0 if high is None else max(high - y, 0) for y, (_, high) in zip(values, bounds, strict=True)]
        down = [0 if low is None else max(y - low, 0) for y, (low, _) in zip(values, bounds, strict=True)]
        traces.append(
            scatter(
                x=[load(cell) for cell in some],
                y=values,
                name=plain(group_name(group, among)),
                legendgroup=str(index),
                mode="markers" if hollow else "lines+markers",
                showlegend=bool(some) and (not hollow or not sound),
                line={"color": colour, "width": 2, "dash": DASHES[index // LINE_COLOURS % len(DASHES)]},
                marker={
                    "size": 9,
                    "symbol": symbol + "-open" * hollow,
                    "color": colour,
                    "line": {"width": 2, "color": colour},
                },
                error_y={
                    "array": up,
                    "arrayminus": down,
                    "symmetric": False,
                    "color": colour,
                    "thickness": 1,
                    "width": 4,
                },
                text=[_doubt(cell, *pair) for cell, pair in zip(some, bounds, strict=True)],
                hovertemplate="%{x} \u2192 %{y:,.1f} ms %{text}<extra>%{fullData.name}</extra>",
            )
        )
    return traces


def _doubt(cell: CellSummary, low: float | None, high: float | None) -> str:
    words = [f"{verdict_mark(cell).upper()} ({plain(wording.why_unsound(cell))})"] if is_unsound(cell) else []
    if low is not None or high is not None:
        words.append(f"[{wording.number(low)} to {'?' if high is None else wording.number(high)}]")
    return " ".join(words)
