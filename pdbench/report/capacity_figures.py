"""Figures of capacity: the slots that a load needs, by Little's law and as measured, and the answers it got."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pdbench.report import wording
from pdbench.report.figures import Figure, Group, document, group_name, groups, load_axis, scatter
from pdbench.report.wording import CellSummary, counted, is_unsound, load, short, verdict_mark

MAX_GROUPS = 6


def capacity_figures(cells: Sequence[CellSummary], slos: str) -> tuple[list[Figure], int]:
    """For each prompt length the slots and the rates against the load, and how many prompt lengths are left out."""
    found = {group: some for group, some in groups(cells).items() if any(load(cell) is not None for cell in some)}
    shown = list(found)[:MAX_GROUPS]
    figures: list[Figure | None] = []
    for group in shown:
        some = sorted(found[group], key=lambda cell: load(cell) or 0)
        figures += [_slots(group, some, list(found)), _rates(group, some, list(found), slos)]
    return [figure for figure in figures if figure is not None], len(found) - len(shown)


def _slots(group: Group, cells: Sequence[CellSummary], among: Sequence[Group]) -> Figure | None:
    """Slots needed and held; Little's line is rate x output tokens x the TPOT of the lowest load that is sound."""
    if not any(_slot(cell, "needed") or _slot(cell, "held") for cell in cells):
        return None
    available = next((n for cell in cells if (n := _slot(cell, "available")) is not None), None)
    line = _littles_line(cells)
    traces = [line] if line is not None else []
    traces += _points(cells, "needed", "needed", "var(--line-1)", "circle")
    traces += _points(cells, "held", "held", "var(--line-0)", "square")
    highest = max([available or 0.0, *(float(y) for trace in traces for y in trace["y"])])
    layout: dict[str, Any] = {
        "xaxis": load_axis(cells),
        "yaxis": {"title": {"text": "decode slots"}, "rangemode": "tozero", "range": [0, highest * 1.15 or 1.0]},
    }
    if available is not None:
        text = {"text": f"{short(available)} slots available", "textposition": "start", "yanchor": "bottom"}
        font = {"color": "var(--ink)", "size": 11}
        rule = {"type": "line", "xref": "x domain", "x0": 0, "x1": 1, "y0": available, "y1": available}
        layout["shapes"] = [
            {**rule, "line": {"color": "var(--ink)", "width": 1, "dash": "dot"}, "label": {**text, "font": font}}
        ]
    made = document(traces, height=320, showlegend=True, **layout)
    title = f"Slots, prompts of {group_name(group, among)}"
    spoken = f"{title}: decode slots needed and held against the load, for {counted(len(cells), 'cell')}."
    note = "Little's line: rate \u00d7 output tokens \u00d7 TPOT, with the TPOT of the lowest valid load. "
    note += "What lies above is TPOT that grew with the load; beyond the slots that are there, requests wait."
    return Figure(title, spoken, made, note if line is not None else "")


def _littles_line(cells: Sequence[CellSummary]) -> Any | None:
    sound = [cell for cell in cells if not is_unsound(cell) and _slot(cell, "needed") and load(cell)]
    if not sound or wording.loop(cells[0]) == "closed":
        return None
    slope = _slot(sound[0], "needed") / load(sound[0])  # type: ignore[operator]
    furthest = max(load(cell) or 0.0 for cell in cells)
    return scatter(
        x=[0.0, furthest],
        y=[0.0, furthest * slope],
        name="Little's line",
        mode="lines",
        line={"color": "var(--muted)", "width": 1.5, "dash": "dash"},
        hoverinfo="skip",
    )


def _points(cells: Sequence[CellSummary], key: str, name: str, colour: str, symbol: str) -> list[Any]:
    """What the cells have as slots[key] or under `key`, one trace; hollow where a cell is void or cut short."""
    known = [(cell, _slot(cell, key)) for cell in cells if _slot(cell, key) is not None and load(cell) is not None]
    if not known:
        return []
    symbols = [symbol + "-open" * is_unsound(cell) for cell, _ in known]
    said = [f" ({verdict_mark(cell)})" if is_unsound(cell) else "" for cell, _ in known]
    return [
        scatter(
            x=[load(cell) for cell, _ in known],
            y=[value for _, value in known],
            name=name,
            mode="lines+markers",
            line={"color": colour, "width": 2},
            marker={"size": 9, "symbol": symbols, "color": colour, "line": {"width": 2, "color": colour}},
            text=said,
            hovertemplate="%{x} \u2192 %{y:,.3~g} %{fullData.name}%{text}<extra></extra>",
        )
    ]


def _rates(group: Group, cells: Sequence[CellSummary], among: Sequence[Group], slos: str) -> Figure | None:
    """Answers a second against the load, and those of them that meet every SLO."""
    got = _points(cells, "request_throughput", "answered", "var(--line-0)", "square")
    if not got:
        return None
    good = _points(cells, "request_goodput", "good", "var(--line-2)", "diamond")
    traces = [*got, *good]
    furthest = max(load(cell) or 0.0 for cell in cells)
    highest = max(float(y) for trace in traces for y in trace["y"])
    if wording.loop(cells[0]) == "open":
        line = {"color": "var(--muted)", "width": 1.5, "dash": "dash"}
        traces.insert(
            0, scatter(x=[0, furthest], y=[0, furthest], name="asked", mode="lines", line=line, hoverinfo="skip")
        )
        highest = max(highest, furthest)
    yaxis = {"title": {"text": "requests/s"}, "rangemode": "tozero", "range": [0, highest * 1.15 or 1.0]}
    made = document(traces, height=320, showlegend=True, xaxis=load_axis(cells), yaxis=yaxis)
    title = f"Rate, prompts of {group_name(group, among)}"
    spoken = f"{title}: answers a second against the load, for {counted(len(cells), 'cell')}."
    note = f"good: {slos}. " if good else ""
    return Figure(title, spoken, made, note + "Hollow markers are void cells and cut ones.")


def _slot(cell: CellSummary, key: str) -> float | None:
    value = (cell.get("slots") or {}).get(key, cell.get(key))
    return None if value is None else float(value)
