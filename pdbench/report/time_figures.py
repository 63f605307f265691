"""Figures made from the run's tables: gauges over time, and how long the gaps between tokens are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pdbench.report.figures import Figure, count_axis, document, group_name, groups, load_name, log_axis, plain, scatter
from pdbench.report.series import ONE_READ_MS, GapCurve, Line, Window
from pdbench.report.wording import CellSummary, clean, counted, is_unsound, verdict_mark

ROLE_ORDER = ("prefill", "decode", "colocated", "proxy")
CURVES_A_FIGURE = 8
NAMED_BANDS = 24


def time_figures(
    lines: Sequence[Line], marked: Sequence[Window], cells: Mapping[int, CellSummary], slots: Mapping[str, float | None]
) -> list[Figure]:
    """Waiting and running of each role over the whole run, one panel a role, with the cells as bands."""
    figures = []
    targets = list(dict.fromkeys(line.target for line in lines))
    for target in targets:
        of_target = [line for line in lines if line.target == target]
        bands = [window for window in marked if str(cells.get(window.cell, {}).get("target", target)) == target]
        title = clean(target, 60) if len(targets) > 1 else ""
        figures.append(_over_time(title, of_target, bands, cells, slots.get(target)))
    return figures


def _over_time(
    title: str, lines: Sequence[Line], marked: Sequence[Window], cells: Mapping[int, CellSummary], slots: float | None
) -> Figure:
    found = dict.fromkeys(line.role for line in lines)
    roles = sorted(found, key=lambda role: ROLE_ORDER.index(role) if role in ROLE_ORDER else len(ROLE_ORDER))
    layout: dict[str, Any] = {"height": 100 + 200 * len(roles), "shapes": [], "annotations": []}
    traces = []
    for row, role in enumerate(roles):
        suffix = "" if row == 0 else str(row + 1)
        limit = slots if role in ("decode", "colocated") else None
        of_role = [line for line in lines if line.role == role]
        highest = max([1.0, limit or 0.0, *(float(line.value.max()) for line in of_role if len(line.value))])
        top = 1 - row / len(roles)
        domain = [max(top - 0.86 / len(roles), 0), top]
        title_text = {"text": f"{plain(role)}: requests"}
        layout[f"yaxis{suffix}"] = {**count_axis(highest), "domain": domain, "title": title_text}
        layout[f"xaxis{suffix}"] = {"anchor": f"y{suffix}", "matches": None if row == 0 else "x", "showgrid": False}
        traces += [_gauge(line, suffix, legend=row == 0) for line in of_role]
        layout["shapes"] += [_band(window, cells, suffix) for window in marked]
        if limit is not None:
            layout["shapes"].append(_limit(limit, suffix))
    last = "" if len(roles) == 1 else str(len(roles))
    layout[f"xaxis{last}"]["title"] = {"text": "seconds from the run's origin"}
    if len(marked) <= NAMED_BANDS:
        layout["annotations"] = [_band_name(window, cells) for window in marked]
        layout["legend"] = {"y": 1.0 + 26 / (layout["height"] - 60)}
    servers = ", ".join(f"{max(line.servers for line in lines if line.role == role)} {role}" for role in roles)
    spoken = (
        f"Requests waiting and running over time for {', '.join(roles)}, with {counted(len(marked), 'cell')} marked."
    )
    note = f"Summed over the servers of a role ({servers}). Bands are the cells, orange ones void or cut short."
    return Figure(title, spoken, document(traces, **layout), note)


def _gauge(line: Line, suffix: str, *, legend: bool) -> Any:
    waiting = line.gauge == "waiting"
    colour = "var(--waiting)" if waiting else "var(--running)"
    return scatter(
        x=line.t_s,
        y=line.value,
        name=line.gauge,
        mode="lines",
        line={"color": colour, "width": 2 if waiting else 1.5, "shape": "hv"},
        xaxis=f"x{suffix}",
        yaxis=f"y{suffix}",
        legendgroup=line.gauge,
        showlegend=legend,
        hovertemplate="%{x:.1f} s: %{y:,.0f} %{fullData.name}<extra></extra>",
    )


def _is_void(window: Window, cells: Mapping[int, CellSummary]) -> bool:
    return is_unsound(cells.get(window.cell, {}))


def _band(window: Window, cells: Mapping[int, CellSummary], suffix: str) -> dict[str, Any]:
    return {
        "type": "rect",
        "xref": f"x{suffix}",
        "yref": f"y{suffix} domain",
        "x0": window.start_s,
        "x1": window.end_s,
        "y0": 0,
        "y1": 1,
        "fillcolor": "var(--band-void)" if _is_void(window, cells) else "var(--band)",
        "line": {"width": 0},
        "layer": "below",
    }


def _band_name(window: Window, cells: Mapping[int, CellSummary]) -> dict[str, Any]:
    void = _is_void(window, cells)
    mark = f" {verdict_mark(cells.get(window.cell, {}))}" if void else ""
    return {
        "x": (window.start_s + window.end_s) / 2,
        "xref": "x",
        "y": 1,
        "yref": "y domain",
        "yanchor": "bottom",
        "showarrow": False,
        "text": f"#{window.cell}{mark}",
        "font": {"size": 11, "color": "var(--void)" if void else "var(--muted)"},
    }


def _limit(slots: float, suffix: str) -> dict[str, Any]:
    label = {"text": f"{slots:g} slots", "textposition": "start", "yanchor": "bottom"}
    return {
        "type": "line",
        "xref": f"x{suffix} domain",
        "yref": f"y{suffix}",
        "x0": 0,
        "x1": 1,
        "y0": slots,
        "y1": slots,
        "line": {"color": "var(--ink)", "width": 1, "dash": "dot"},
        "label": {**label, "font": {"color": "var(--ink)", "size": 11}},
    }


def gap_figures(curves: Mapping[int, GapCurve], cells: Sequence[CellSummary]) -> list[Figure]:
    """For each prompt length the share of gaps longer than a time; logarithmic, since the tail is what users feel."""
    found = groups(cell for cell in cells if cell.get("cell") in curves)
    return [_gaps(f"ITL, prompts of {group_name(group, found)}", some, curves) for group, some in found.items()]


def _gaps(title: str, group: Sequence[CellSummary], curves: Mapping[int, GapCurve]) -> Figure:
    step = -(-len(group) // CURVES_A_FIGURE)
    shown = group[::-1][::step][::-1]  # the highest load stays
    drawn = [curves[cell["cell"]] for cell in shown]
    traces = []
    for index, (cell, curve) in enumerate(zip(shown, drawn, strict=True)):
        void = is_unsound(cell)
        shade = 7 - round((len(shown) - 1 - index) * 7 / max(1, len(shown) - 1))
        traces.append(
            scatter(
                x=curve.ms,
                y=curve.longer,
                mode="lines",
                name=load_name(cell) + (f" {verdict_mark(cell)}" if void else ""),
                line={"color": f"var(--shade-{shade})", "width": 2, "dash": "dot" if void else "solid"},
                hovertemplate="%{y:.3~%} of gaps are longer than %{x:,.3~g} ms<extra>%{fullData.name}</extra>",
            )
        )
    # The fastest twentieth of the gaps is of no interest and would take most of a logarithmic axis; so would events
    # that came in one read, whose gaps are the client's own.
    low = max(min(float(curve.ms[np.searchsorted(-curve.longer, -0.95)]) for curve in drawn), ONE_READ_MS / 0.8)
    high = max(float(curve.ms[-1]) for curve in drawn)
    rarest = min(float(curve.longer[-1]) for curve in drawn)
    marks = [10.0**-k for k in range(9)]
    axis: dict[str, Any] = {"type": "log", "tickvals": marks, "ticktext": [f"{mark * 100:.10g}%" for mark in marks]}
    axis |= {"range": [float(np.log10(rarest)) - 0.15, 0.08], "title": {"text": "share of gaps that are longer"}}
    p99 = {
        "text": "p99",
        "textposition": "start",
        "yanchor": "top",
        "font": {"size": 11, "color": "var(--muted)"},
    }
    rule: dict[str, Any] = {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": 0.01, "y1": 0.01, "label": p99}
    made = document(
        traces,
        height=330,
        showlegend=True,
        xaxis={**log_axis(low * 0.8, high * 1.1), "title": {"text": "gap between tokens, ms"}},
        yaxis=axis,
        shapes=[{**rule, "line": {"color": "var(--muted)", "width": 1, "dash": "dot"}}],
    )
    notes = [f"{len(shown)} of {counted(len(group), 'load')} are drawn."] if len(shown) < len(group) else []
    counts = sorted({curve.gaps for curve in drawn})
    notes.append(" to ".join(f"{count:,}" for count in dict.fromkeys((counts[0], counts[-1]))) + " gaps a curve.")
    if (most := max(curve.in_one_read for curve in drawn)) > 0:
        least = min(curve.in_one_read for curve in drawn)
        share = f"{least:.1%} to {most:.1%}" if f"{least:.1%}" != f"{most:.1%}" else f"{most:.1%}"
        notes.append(f"{share} of them are below {ONE_READ_MS:g} ms (events that came in one read): left of the axis.")
    spoken = f"{title}: share of gaps longer than a time, for {counted(len(shown), 'load')}."
    return Figure(title, spoken, made, " ".join(notes))
