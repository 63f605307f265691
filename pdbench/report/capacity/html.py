"""The answers of a search in report.html: sentences, the curve of each SLO with its limit, and the probes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from pdbench.report.capacity.slo import ATTAINED
from pdbench.report.capacity.text import answers, heads, name, rows
from pdbench.report.figures import Figure, document, log_axis, plain
from pdbench.report.markup import Child, table, tag
from pdbench.report.page import placed
from pdbench.report.wording import Summary, clean, counted

COLOURS = 7
ROOM = 1.4


def search_section(summary: Summary, drawn: list[Figure]) -> list[Child]:
    """Everything that the searches found, the answers first."""
    found = answers(summary)
    parts: list[Child] = [tag("ul", [tag("li", clean(answer["said"], 1000)) for answer in found], class_="cells")]
    figures = [
        _curve([answer for answer in found if answer["prompt_len"] == prompt_len], summary, place)
        for prompt_len in dict.fromkeys(answer["prompt_len"] for answer in found)
        for place in range(max(len(answer["slos"]) for answer in found))
    ]
    known = [figure for figure in figures if figure is not None]
    parts.append(tag("div", [placed(figure, drawn) for figure in known], class_="panels") if known else None)
    for answer in found:
        cells = [row for _, row in rows(answer)]
        parts.append(table(heads(answer), cells, caption=f"Probes, {name(answer, summary)}"))
    note = "A short probe only says where to look: a queue needs time to build, so short runs overstate what it holds. "
    note += "No evidence: the client, the server's refusals or a void cell, which say nothing of what it holds."
    return [*parts, tag("p", note, class_="note")]


def _curve(found: Sequence[Mapping[str, Any]], summary: Summary, place: int) -> Figure | None:
    """One SLO against the rate, a line for each target, with each one's own limit and answer."""
    found = [answer for answer in found if place < len(answer["slos"])]
    traces: list[Any] = []
    shapes: list[dict[str, Any]] = []
    for number, answer in enumerate(found):
        colour = f"var(--line-{number % COLOURS})"
        probes = [p for p in answer["probes"] if p["values"][place] is not None]
        probes = sorted((p for p in probes if p["values"][place] > 0), key=lambda p: float(p["request_rate"]))
        if not probes:
            continue
        sound = [probe["result"] != "no evidence" and not probe["overloaded"] for probe in probes]
        traces.append(
            go.Scatter(
                x=[probe["request_rate"] for probe in probes],
                y=[probe["values"][place] for probe in probes],
                name=plain(answer["target"]),
                mode="lines+markers",
                line={"color": colour, "width": 1.5, "dash": "dot"},
                marker={
                    "size": [9 if probe["deciding"] else 6 for probe in probes],
                    "symbol": ["circle" if each else "circle-open" for each in sound],
                    "color": colour,
                    "line": {"width": 2, "color": colour},
                },
                text=[plain(probe["result"]) for probe in probes],
                hovertemplate="%{x} req/s \u2192 %{y:,.4~g} %{text}<extra>%{fullData.name}</extra>",
            )
        )
        shapes += _marks(answer, place, colour)
    if not traces:
        return None
    slo = found[0]["slos"][place]
    what = f"{slo['metric'].upper()} {slo['statistic']}".strip()
    values = [float(y) for trace in traces for y in trace.y] + [
        float(shape["y0"]) for shape in shapes if "limit" in shape["name"]
    ]
    made = document(
        traces,
        height=340,
        showlegend=len(traces) > 1,
        xaxis={"title": {"text": "requests/s asked"}, "rangemode": "tozero"},
        yaxis={
            **log_axis(min(values) / ROOM, max(values) * ROOM),
            "title": {"text": what if slo["metric"] == ATTAINED else f"{what}, ms"},
        },
        shapes=shapes,
    )
    title = f"{what}, {found[0]['prompt_len']:,}-token prompts"
    spoken = f"{title} against the rate asked, with its limit; {counted(sum(len(t.x) for t in traces), 'probe')}."
    note = (
        "Small markers are short probes; hollow ones are overloaded or no evidence. The band is the answer's interval."
    )
    return Figure(title, spoken, made, note)


def _marks(answer: Mapping[str, Any], place: int, colour: str) -> list[dict[str, Any]]:
    """The limit across the figure, and the capacity with its interval as a band."""
    limit = answer["slos"][place]
    line = {"color": colour, "width": 1.5, "dash": "dashdot"}
    label = {
        "text": plain(limit["text"]),
        "textposition": "start",
        "yanchor": "bottom",
        "font": {"size": 11, "color": colour},
    }
    across = {"type": "line", "xref": "x domain", "x0": 0, "x1": 1, "y0": limit["limit"], "y1": limit["limit"]}
    marks: list[dict[str, Any]] = [{**across, "name": "limit", "line": line, "label": label}]
    if answer.get("interval"):
        low, high = answer["interval"]
        band = {"type": "rect", "yref": "y domain", "y0": 0, "y1": 1, "x0": low, "x1": high, "name": "answer"}
        marks.append({**band, "fillcolor": colour, "opacity": 0.15, "line": {"width": 0}})
    return marks
