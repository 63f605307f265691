"""What all Plotly figures of report.html share: how they look, their axes, and foreign text made harmless.

Colours are names of the page's CSS variables, which page.js looks up. Plotly reads a small HTML in texts and
hovers, so every foreign string passes `plain` first.
"""

from __future__ import annotations

import base64
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pdbench.report import wording
from pdbench.report.wording import CellSummary, clean, load, number_of_tokens, short

Group = tuple[str, Any, Any]


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure document, what it shows in words (for those who don't see it), and what is not in it.

    `other` is a second way to look at it: what a button is called, and the layout that it puts in place. `choices` are
    what can be picked, each with its name, its data and the layout that it lays over that of `document`, which shows
    the one that is `chosen`; `choice_of` says what is picked. `keys` are the colours of a legend that the page writes
    itself. `role` is `application` where a figure takes keys.
    """

    title: str
    spoken: str
    document: dict[str, Any]
    note: str = ""
    other: tuple[str, dict[str, Any]] | None = None
    keys: tuple[tuple[str, str], ...] = ()
    choices: tuple[tuple[str, dict[str, Any]], ...] = ()
    choice_of: str = ""
    chosen: int = 0
    role: str = "img"


def plain(text: object) -> str:
    """Foreign text that Plotly shows letter by letter."""
    return clean(text, 60).replace("&", "&amp;").replace("<", "\u2039").replace(">", "\u203a").replace("%{", "% {")


def groups(cells: Iterable[CellSummary]) -> dict[Group, list[CellSummary]]:
    """The cells by target, prompt length and output length, in their order."""
    found: dict[Group, list[CellSummary]] = {}
    for cell in cells:
        key = (str(cell.get("target", "")), cell.get("prompt_len"), cell.get("output_len"))
        found.setdefault(key, []).append(cell)
    return found


def group_name(group: Group, among: Iterable[Group]) -> str:
    """`1,024 tokens`: the prompt length, and whatever else tells this group from the others."""
    keys = list(among)
    name = f"{number_of_tokens(group[1])} tokens"
    name += f", {number_of_tokens(group[2])} output" if len({key[2] for key in keys}) > 1 else ""
    return name + (f" \u00b7 {clean(group[0], 60)}" if len({key[0] for key in keys}) > 1 else "")


def load_name(cell: CellSummary) -> str:
    return f"{short(load(cell))} {'streams' if wording.loop(cell) == 'closed' else 'req/s'}"


def document(traces: Sequence[Any], **layout: Any) -> dict[str, Any]:
    """A figure as plain lists and numbers of five digits, in the colours of the page."""
    axis = {
        "gridcolor": "var(--grid)",
        "linecolor": "var(--rule)",
        "zerolinecolor": "var(--rule)",
        "automargin": True,
        "ticks": "outside",
        "tickcolor": "var(--rule)",
        "ticklen": 4,
    }
    title = {"font": {"size": 12}, "standoff": 8}
    base: dict[str, Any] = {
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"color": "var(--muted)", "size": 12, "family": "system-ui, Liberation Sans, sans-serif"},
        "margin": {"l": 8, "r": 12, "t": 8, "b": 8},
        "hovermode": "closest",
        "hoverlabel": {
            "bgcolor": "var(--panel)",
            "bordercolor": "var(--rule)",
            "font": {"color": "var(--ink)"},
            "namelength": -1,
        },
        "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "bgcolor": "rgba(0,0,0,0)"},
        "separators": ".,",
    }
    axes = {name: {} for name in ("xaxis", "yaxis")} | {k: v for k, v in layout.items() if k[1:5] == "axis"}
    styled = {name: {**axis, **given, "title": {**title, **given.get("title", {})}} for name, given in axes.items()}
    layout["legend"] = {**base.pop("legend"), **layout.get("legend", {})}
    made: dict[str, Any] = small({"data": list(traces), "layout": {**base, **layout, **styled}})
    return made


def scatter(**about: Any) -> dict[str, Any]:
    """Points or a line, under plotly.js' names."""
    return {"type": "scatter", **about}


def bar(**about: Any) -> dict[str, Any]:
    return {"type": "bar", **about}


def small(value: Any) -> Any:
    """Plain lists with numbers of five digits, arrays in base64 as plotly.js reads them; without what is None."""
    if isinstance(value, Mapping):
        return {key: small(item) for key, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [small(item) for item in value]
    if isinstance(value, np.ndarray):
        return {"dtype": "f8", "bdata": base64.b64encode(value.astype("<f8").tobytes()).decode()}
    if isinstance(value, np.generic):
        value = value.item()
    return float(f"{value:.5g}") if isinstance(value, float) else value


def log_axis(low: float, high: float) -> dict[str, Any]:
    """A logarithmic axis from `low` to `high` with 1-2-5 marks, or only powers of ten where those would crowd."""
    low, high = max(low, 1e-4), max(high, 2e-4)
    steps = (1, 2, 5) if high / low < 1000 else (1,)
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    marks = [step * 10.0**decade for decade in decades for step in steps]
    ends = [math.log10(low), math.log10(high)]
    return {"type": "log", "tickvals": marks, "ticktext": [f"{mark:,.10g}" for mark in marks], "range": ends}


def load_axis(cells: Sequence[CellSummary]) -> dict[str, Any]:
    closed = any(wording.loop(cell) == "closed" for cell in cells)
    values = sorted({value for cell in cells if (value := load(cell)) is not None})
    axis: dict[str, Any] = {"title": {"text": "streams (closed loop)" if closed else "requests/s asked"}}
    axis["rangemode"] = "tozero"
    # A mark at each load that was measured, unless they stand so close that their names would touch.
    apart = min((b - a for a, b in itertools.pairwise(values)), default=1) / max(values, default=1)
    if apart > 0.06:
        axis |= {"tickvals": values, "ticktext": [short(value) for value in values]}
    return axis


def count_axis(highest: float) -> dict[str, Any]:
    """An axis of whole numbers from zero, with a little room above."""
    step = next(step * 10**k for k in range(9) for step in (1, 2, 5) if highest <= 5 * step * 10**k)
    return {"range": [0, max(highest, 1) * 1.12], "dtick": step, "tickformat": ",d"}


def slo_line(limit_ms: float, metric: str) -> dict[str, Any]:
    """A line across a figure at what a request must meet."""
    label = {"text": f"SLO {metric} {short(limit_ms)} ms", "textposition": "end", "yanchor": "top"}
    return {
        "type": "line",
        "xref": "x domain",
        "x0": 0,
        "x1": 1,
        "y0": limit_ms,
        "y1": limit_ms,
        "line": {"color": "var(--ok)", "width": 1.5, "dash": "dashdot"},
        "label": {**label, "font": {"color": "var(--ok)", "size": 11}},
    }
