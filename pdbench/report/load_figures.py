"""Figures of what the load did: the TTFT split of each cell, and latency against load."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go

from pdbench.report import wording
from pdbench.report.figures import Figure, Group, document, group_name, groups, load_axis, load_name, log_axis, plain
from pdbench.report.wording import (
    CellSummary,
    counted,
    interval,
    is_unsound,
    load,
    number_of_tokens,
    statistic,
    verdict_mark,
)

PART_COLOURS = {part: f"var(--part-{i})" for i, part in enumerate(wording.SPLIT_PARTS)}
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "x", "star", "triangle-down")
DASHES = ("solid", "dash", "dot", "dashdot")
LINE_COLOURS = 7


def tick(cell: CellSummary, several_targets: bool) -> str:
    """The short name of a cell on an axis: `#3 . 8 req/s . 16,384`."""
    parts = [f"#{cell.get('cell', '?')}", load_name(cell), number_of_tokens(cell.get("prompt_len"))]
    parts += [plain(cell.get("target", ""))] if several_targets else []
    parts += {"void": ["VOID"], "cut": ["cut"], "none": ["no answer"]}.get(verdict_mark(cell), [])
    return " \u00b7 ".join(parts)


def split_figure(cells: Sequence[CellSummary], several_targets: bool) -> Figure | None:
    """One bar a cell, stacked from the parts of its mean TTFT; void cells are hatched, the unexplained crossed."""
    known = [cell for cell in cells if wording.split(cell)]
    if not known:
        return None
    parts = dict.fromkeys(part for cell in known for part in wording.split(cell))
    names = [tick(cell, several_targets) for cell in known]
    void = [is_unsound(cell) for cell in known]
    traces = []
    ordered = sorted(parts, key=lambda part: part == "unexplained")
    for part in ordered:
        shapes = ["x" if part == "unexplained" else "/" if is_void else "" for is_void in void]
        pattern = {"shape": shapes, "fillmode": "overlay", "fgcolor": "var(--panel)", "size": 6, "solidity": 0.3}
        colour = PART_COLOURS.get(part, "var(--muted)")
        values = [wording.split(cell).get(part) for cell in known]
        said = [f"{wording.tenths(value)} ms" for value in values]
        traces.append(
            go.Bar(
                y=names,
                x=values,
                name=plain(wording.part_name(part)),
                orientation="h",
                marker={"color": colour, "line": {"color": "var(--panel)", "width": 1}, "pattern": pattern},
                customdata=said,
                hovertemplate="%{y}<br>%{fullData.name}: %{customdata}<extra></extra>",
            )
        )
    made = document(
        traces,
        barmode="relative",
        height=84 + 26 * len(known),
        bargap=0.25,
        showlegend=False,
        xaxis={"title": {"text": "mean TTFT, ms"}, "tickformat": ",~f"},
        yaxis={"autorange": "reversed", "showgrid": False},
    )
    shares = {"barnorm": "percent", "xaxis": {"title": {"text": "share of mean TTFT"}, "ticksuffix": "%"}}
    spoken = (
        f"Stacked bars of the parts of mean TTFT for {counted(len(known), 'cell')}; the numbers are in the table below."
    )
    missing = len(cells) - len(known)
    note = f"Not measured in {missing} of {counted(len(cells), 'cell')}." if missing else ""
    keys = tuple((trace.marker.color, wording.part_name(part)) for trace, part in zip(traces, ordered, strict=True))
    return Figure("", spoken, made, note, ("as shares of TTFT", shares) if len(known) > 1 else None, keys)


def latency_figures(cells: Sequence[CellSummary]) -> list[Figure]:
    """TTFT and TPOT against the load, one line a prompt length; void cells hollow and off the line."""
    top = wording.highest_percentile(cells, "ttft")
    panels = dict.fromkeys((("p50", "ttft"), (top, "ttft"), ("p50", "tpot")))
    return [figure for quantile, metric in panels if (figure := _latency(cells, quantile, metric)) is not None]


def _latency(cells: Sequence[CellSummary], quantile: str, metric: str) -> Figure | None:
    title = f"{metric.upper()} {'median' if quantile == 'p50' else quantile}"
    found = groups(cells)
    traces = [t for i, group in enumerate(found) for t in _lines(found[group], group, list(found), quantile, metric, i)]
    values = [value for trace in traces for value in trace.y]
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
    made = document(traces, height=height, showlegend=len(found) > 1, xaxis=load_axis(cells), yaxis=axis)
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
            go.Scatter(
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
