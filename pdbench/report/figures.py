"""The Plotly figures of report.html, as plain documents. Colours are names of the page's CSS variables.

Plotly writes a small HTML of its own in texts and hovers, so every foreign string passes `plain` first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go

from pdbench.report import wording
from pdbench.report.series import GapCurve, Line, Window
from pdbench.report.wording import (
    CellSummary,
    clean,
    interval,
    load,
    number_of_tokens,
    short,
    statistic,
    verdict_mark,
)

PART_COLOURS = {part: f"var(--part-{i})" for i, part in enumerate(wording.SPLIT_PARTS)}
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "x", "star", "triangle-down", "pentagon")
DASHES = ("solid", "dash", "dot", "dashdot")
LINE_COLOURS = 7
CURVES_A_FIGURE = 8


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure document, what it shows in words (for those who don't see it), and what is not in it."""

    title: str
    spoken: str
    document: dict[str, Any]
    note: str = ""


def plain(text: object) -> str:
    """Foreign text that Plotly shows letter by letter."""
    return clean(text, 60).replace("&", "&amp;").replace("<", "\u2039").replace(">", "\u203a").replace("%{", "% {")


def _figure(traces: Sequence[Any], **layout: Any) -> dict[str, Any]:
    axis = {
        "gridcolor": "var(--grid)", "linecolor": "var(--rule)", "zerolinecolor": "var(--rule)", "automargin": True,
        "ticks": "outside", "tickcolor": "var(--rule)", "ticklen": 4, "title": {"font": {"size": 12}},
    }  # fmt: skip
    base: dict[str, Any] = {
        "template": go.layout.Template(), "paper_bgcolor": "rgba(0,0,0,0)", "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"color": "var(--muted)", "size": 12, "family": "system-ui, sans-serif"},
        "margin": {"l": 8, "r": 12, "t": 8, "b": 8}, "hovermode": "closest", "colorway": ["var(--line-0)"],
        "hoverlabel": {"bgcolor": "var(--panel)", "bordercolor": "var(--rule)", "font": {"color": "var(--ink)"}},
        "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "bgcolor": "rgba(0,0,0,0)"},
    }  # fmt: skip
    figure = go.Figure(traces, go.Layout(base))
    figure.update_layout(**layout)
    figure.update_xaxes(axis)
    figure.update_yaxes(axis)
    document: dict[str, Any] = figure.to_plotly_json()
    return _plain_lists(document)  # type: ignore[no-any-return]


def _plain_lists(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain_lists(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain_lists(item) for item in value]
    if hasattr(value, "tolist"):
        return _plain_lists(value.tolist())
    return float(f"{value:.5g}") if isinstance(value, float) else value


def tick(cell: CellSummary, several_targets: bool) -> str:
    """The short name of a cell on an axis: `#3 · 8/s · 16,384`."""
    unit = " streams" if wording.loop(cell) == "closed" else "/s"
    name = f"#{cell.get('cell', '?')} \u00b7 {short(load(cell))}{unit} \u00b7 {number_of_tokens(cell.get('prompt_len'))} tok"
    name += f" \u00b7 {plain(cell.get('target', ''))}" if several_targets else ""
    return name + {"void": " \u00b7 VOID", "none": " \u00b7 no answer"}.get(verdict_mark(cell), "")


def split_figure(cells: Sequence[CellSummary], several_targets: bool) -> Figure | None:
    """One bar a cell, stacked from the parts of its mean TTFT; void cells are hatched, the unexplained part is outlined."""
    known = [cell for cell in cells if wording.split(cell)]
    if not known:
        return None
    parts = dict.fromkeys(part for cell in known for part in wording.split(cell))
    names = [tick(cell, several_targets) for cell in known]
    traces = []
    for part in sorted(parts, key=lambda part: part == "unexplained"):
        hatch = "x" if part == "unexplained" else "/"
        void = [hatch if verdict_mark(cell) == "void" or part == "unexplained" else "" for cell in known]
        colour = PART_COLOURS.get(part, "var(--muted)")
        marker = {"color": colour, "line": {"color": "var(--panel)", "width": 1}}
        marker["pattern"] = {
            "shape": void,
            "fillmode": "overlay",
            "fgcolor": "var(--panel)",
            "size": 6,
            "solidity": 0.3,
        }
        values = [wording.split(cell).get(part) for cell in known]
        hover = "%{y}<br>%{fullData.name} %{x:,.1f} ms<extra></extra>"
        traces.append(
            go.Bar(
                y=names,
                x=values,
                name=plain(wording.part_name(part)),
                orientation="h",
                marker=marker,
                hovertemplate=hover,
            )
        )
    height = 90 + 24 * len(known) + 18 * (len(parts) // 4)
    document = _figure(
        traces, barmode="relative", height=height, bargap=0.25,
        xaxis={"title": {"text": "mean TTFT, ms"}}, yaxis={"autorange": "reversed"}, legend={"traceorder": "normal"},
    )  # fmt: skip
    spoken = f"Stacked bars of the parts of mean TTFT for {len(known)} cells; the numbers are in the table below."
    missing = len(cells) - len(known)
    return Figure(
        "Where the mean TTFT went",
        spoken,
        document,
        f"Not measured in {missing} of {len(cells)} cells." if missing else "",
    )


def latency_figures(cells: Sequence[CellSummary]) -> list[Figure]:
    """TTFT (median, p99) and TPOT against the load, one line a prompt length; void cells hollow and off the line."""
    panels = (("p50", "ttft", "TTFT median"), ("p99", "ttft", "TTFT p99"), ("p50", "tpot", "TPOT median"))
    return [figure for panel in panels if (figure := _latency(cells, *panel)) is not None]


def _latency(cells: Sequence[CellSummary], quantile: str, metric: str, title: str) -> Figure | None:
    groups: dict[tuple[str, Any, Any], list[CellSummary]] = {}
    for cell in cells:
        groups.setdefault((str(cell.get("target", "")), cell.get("prompt_len"), cell.get("output_len")), []).append(
            cell
        )
    targets, outputs = {key[0] for key in groups}, {key[2] for key in groups}
    traces: list[Any] = []
    for index, ((target, prompt, output), group) in enumerate(groups.items()):
        name = f"{number_of_tokens(prompt)} tok"
        name += f" \u2192 {output}" if len(outputs) > 1 else ""
        name += f" \u00b7 {plain(target)}" if len(targets) > 1 else ""
        traces += _latency_line(group, quantile, metric, name, index)
    drawn = sum(len(trace.x) for trace in traces)
    if not drawn:
        return None
    closed = any(wording.loop(cell) == "closed" for cell in cells)
    missing = len(cells) - drawn
    few = [cell for cell in cells if wording.needed_requests(cell, quantile, metric) is not None]
    note = f"Too few requests for this percentile in {len(few)} of {len(cells)} cells." if few else ""
    note = note or (f"Not measured in {missing} of {len(cells)} cells." if missing else "")
    ticks = sorted({value for cell in cells if (value := load(cell)) is not None})
    axis: dict[str, Any] = {
        "title": {"text": "streams (closed loop)" if closed else "requests/s asked"},
        "rangemode": "tozero",
    }
    if len(ticks) <= 8:
        axis |= {"tickvals": ticks, "ticktext": [short(value) for value in ticks]}
    values = [value for trace in traces for value in trace.y]
    log = min(values) > 0 and max(values) > 20 * min(values)
    document = _figure(
        traces, height=330, showlegend=len(groups) > 1, xaxis=axis,
        yaxis={"title": {"text": f"{title}, ms"}, "type": "log" if log else "linear", "rangemode": "tozero", "dtick": 1 if log else None},
    )  # fmt: skip
    return Figure(
        title, f"{title} in ms against the load for {len(groups)} prompt lengths; {drawn} cells.", document, note
    )


def _latency_line(group: Sequence[CellSummary], quantile: str, metric: str, name: str, index: int) -> list[Any]:
    known = [
        (x, y, cell)
        for cell in group
        if (y := statistic(cell, quantile, metric)) is not None and (x := load(cell)) is not None
    ]
    known.sort(key=lambda point: point[0])
    colour, symbol = f"var(--line-{index % LINE_COLOURS})", SYMBOLS[index % len(SYMBOLS)]
    traces = []
    for void in (False, True):
        points = [point for point in known if (verdict_mark(point[2]) == "void") == void]
        bounds = [interval(cell, quantile, metric) for _, _, cell in points]
        up = [0 if high is None else max(high - y, 0) for (_, y, _), (_, high) in zip(points, bounds, strict=True)]
        down = [0 if low is None else max(y - low, 0) for (_, y, _), (low, _) in zip(points, bounds, strict=True)]
        open_above = [low is not None and high is None for low, high in bounds]
        doubt = [_said_interval(*pair) for pair in bounds]
        traces.append(
            go.Scatter(
                x=[x for x, _, _ in points], y=[y for _, y, _ in points], name=name, legendgroup=str(index),
                mode="markers" if void else "lines+markers", showlegend=not void or all(verdict_mark(c) == "void" for c in group),
                line={"color": colour, "width": 2, "dash": DASHES[index // LINE_COLOURS % len(DASHES)]},
                marker={"size": 9, "symbol": f"{symbol}-open" if void else symbol, "color": colour, "line": {"width": 2, "color": colour}},
                error_y={"array": up, "arrayminus": down, "symmetric": False, "color": colour, "thickness": 1, "width": 4},
                text=[f"{'VOID ' if void else ''}{d}{' (no upper bound)' if o else ''}" for d, o in zip(doubt, open_above, strict=True)],
                hovertemplate="%{x} \u2192 %{y:,.1f} ms %{text}<extra>%{fullData.name}</extra>",
            )
        )  # fmt: skip
    return traces


def _said_interval(low: float | None, high: float | None) -> str:
    if low is None and high is None:
        return ""
    return f"[{wording.number(low)} to {'?' if high is None else wording.number(high)}]"


def time_figures(
    lines: Sequence[Line], marked: Sequence[Window], cells: Mapping[int, CellSummary], slots: Mapping[str, int | None]
) -> list[Figure]:
    """Waiting and running of each role over the whole run, one panel a role, with the cells as bands."""
    figures = []
    targets = list(dict.fromkeys(line.target for line in lines))
    for target in targets:
        of_target = [line for line in lines if line.target == target]
        title = "Waiting and running" + (f" \u00b7 {clean(target, 60)}" if len(targets) > 1 else "")
        bands = [window for window in marked if str(cells.get(window.cell, {}).get("target", target)) == target]
        figures.append(_time_figure(title, of_target, bands, cells, slots.get(target)))
    return figures


def _time_figure(
    title: str, lines: Sequence[Line], marked: Sequence[Window], cells: Mapping[int, CellSummary], slots: int | None
) -> Figure:
    order = ("prefill", "decode", "colocated", "proxy")
    roles = sorted(
        dict.fromkeys(line.role for line in lines), key=lambda role: order.index(role) if role in order else 9
    )
    height, gap = 1 / len(roles), 0.14 / len(roles)
    layout: dict[str, Any] = {"height": 120 + 190 * len(roles), "shapes": [], "annotations": []}
    traces = []
    for row, role in enumerate(roles):
        suffix = "" if row == 0 else str(row + 1)
        top = 1 - row * height
        axis_title = {"text": f"{plain(role)}: requests"}
        layout[f"yaxis{suffix}"] = {
            "domain": [max(top - height + gap, 0), top],
            "title": axis_title,
            "rangemode": "tozero",
        }
        layout[f"xaxis{suffix}"] = {"anchor": f"y{suffix}", "matches": None if row == 0 else "x"}
        traces += [_gauge(line, suffix, row == 0) for line in lines if line.role == role]
        layout["shapes"] += [_band(window, cells, f"y{suffix} domain", f"x{suffix}") for window in marked]
        if slots is not None and role in ("decode", "colocated"):
            layout["shapes"].append(
                {"type": "line", "xref": f"x{suffix} domain", "yref": f"y{suffix}", "x0": 0, "x1": 1, "y0": slots, "y1": slots,
                 "line": {"color": "var(--ink)", "width": 1, "dash": "dot"},
                 "label": {"text": f"{slots} slots", "textposition": "end", "yanchor": "bottom", "font": {"color": "var(--ink)", "size": 11}}}
            )  # fmt: skip
    layout[f"xaxis{'' if len(roles) == 1 else len(roles)}"]["title"] = {"text": "seconds from the run's origin"}
    if len(marked) <= 24:
        layout["annotations"] = [
            {"x": (w.start_s + w.end_s) / 2, "y": 1, "xref": "x", "yref": "y domain", "yanchor": "top", "showarrow": False,
             "text": f"#{w.cell}" + ("<br>VOID" if verdict_mark(cells.get(w.cell, {})) == "void" else ""),
             "font": {"size": 10, "color": "var(--muted)"}}
            for w in marked
        ]  # fmt: skip
    servers = ", ".join(f"{role}: {max(line.servers for line in lines if line.role == role)}" for role in roles)
    spoken = f"Requests waiting and running over time for {', '.join(roles)}, with {len(marked)} cells marked."
    return Figure(
        title, spoken, _figure(traces, **layout), f"Summed over the servers of a role ({servers}). Bands are cells."
    )


def _gauge(line: Line, suffix: str, legend: bool) -> Any:
    waiting = line.gauge == "waiting"
    style = {"color": "var(--waiting)" if waiting else "var(--running)", "width": 2 if waiting else 1.5, "shape": "hv"}
    return go.Scatter(
        x=line.t_s, y=line.value, name=line.gauge, mode="lines", line=style, xaxis=f"x{suffix}", yaxis=f"y{suffix}",
        legendgroup=line.gauge, showlegend=legend, hovertemplate="%{x:.1f} s: %{y:,.0f} %{fullData.name}<extra></extra>",
    )  # fmt: skip


def _band(window: Window, cells: Mapping[int, CellSummary], yref: str, xref: str) -> dict[str, Any]:
    void = verdict_mark(cells.get(window.cell, {})) == "void"
    return {
        "type": "rect", "xref": xref, "yref": yref, "x0": window.start_s, "x1": window.end_s, "y0": 0, "y1": 1,
        "fillcolor": "var(--band-void)" if void else "var(--band)", "line": {"width": 0}, "layer": "below",
    }  # fmt: skip


def gap_figures(curves: Mapping[int, GapCurve], cells: Sequence[CellSummary], several_targets: bool) -> list[Figure]:
    """For each prompt length the share of gaps longer than a time, both axes logarithmic: the tail is what users feel."""
    groups: dict[tuple[str, Any, Any], list[CellSummary]] = {}
    for cell in cells:
        if cell.get("cell") in curves:
            groups.setdefault((str(cell.get("target", "")), cell.get("prompt_len"), cell.get("output_len")), []).append(
                cell
            )
    outputs = {key[2] for key in groups}
    figures = []
    for (target, prompt, output), group in groups.items():
        title = f"ITL at {number_of_tokens(prompt)} prompt tokens"
        title += f", {output} output tokens" if len(outputs) > 1 else ""
        title += f" \u00b7 {clean(target, 60)}" if several_targets else ""
        figures.append(_gap_figure(title, group, curves))
    return figures


def _gap_figure(title: str, group: Sequence[CellSummary], curves: Mapping[int, GapCurve]) -> Figure:
    step = max(1, -(-len(group) // CURVES_A_FIGURE))
    shown = group[::-1][::step][::-1]  # the highest load stays
    traces = []
    for index, cell in enumerate(shown):
        curve, void = curves[cell["cell"]], verdict_mark(cell) == "void"
        shade = round(index * 7 / max(1, len(shown) - 1)) if len(shown) > 1 else 7
        unit = "streams" if wording.loop(cell) == "closed" else "/s"
        traces.append(
            go.Scatter(
                x=curve.ms, y=curve.longer, mode="lines", name=f"{short(load(cell))} {unit}" + (" VOID" if void else ""),
                line={"color": f"var(--shade-{shade})", "width": 2, "dash": "dot" if void else "solid"},
                hovertemplate="%{y:.3%} of gaps are longer than %{x:,.1f} ms<extra>%{fullData.name}</extra>",
            )
        )  # fmt: skip
    document = _figure(
        traces, height=330, showlegend=True,
        xaxis={"title": {"text": "gap between tokens, ms"}, "type": "log", "dtick": "D2"},
        yaxis={"title": {"text": "share of gaps longer"}, "type": "log", "tickformat": "~%", "dtick": 1, "range": [-4.2, 0.05]},
        shapes=[{"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": 0.01, "y1": 0.01,
                 "line": {"color": "var(--muted)", "width": 1, "dash": "dot"},
                 "label": {"text": "p99", "textposition": "end", "font": {"size": 11, "color": "var(--muted)"}}}],
    )  # fmt: skip
    note = f"{len(shown)} of {len(group)} loads are drawn." if len(shown) < len(group) else ""
    return Figure(title, f"{title}: share of gaps longer than a time, for {len(shown)} loads.", document, note)
