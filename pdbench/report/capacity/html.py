"""The answers of a search in report.html: sentences, the curve of each SLO with its limit, and the probes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pdbench.report.capacity.slo import ATTAINED, Slo
from pdbench.report.capacity.text import answers, heads, name, result, rows, too_few
from pdbench.report.figures import Figure, document, log_axis, plain, scatter
from pdbench.report.markup import Child, table, tag
from pdbench.report.page import placed
from pdbench.report.wording import Summary, clean, counted

COLOURS = 7
ROOM = 1.4


def search_section(summary: Summary, drawn: list[Figure]) -> list[Child]:
    """Everything that the searches found, the answers first."""
    found = answers(summary)
    said = [answer["said"] for answer in found] + [text for text in [summary["capacity"].get("overrun")] if text]
    parts: list[Child] = [tag("ul", [tag("li", clean(each, 1000)) for each in said], class_="cells")]
    figures = [
        _curve([answer for answer in found if answer["prompt_len"] == prompt_len], summary, place)
        for prompt_len in dict.fromkeys(answer["prompt_len"] for answer in found)
        for place in range(max(len(answer["slos"]) for answer in found))
    ]
    known = [figure for figure in figures if figure is not None]
    parts.append(tag("div", [placed(figure, drawn) for figure in known], class_="panels") if known else None)
    for answer in found:
        cells = [row for _, row in rows(answer, summary)]
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
        if drawn := _traces(answer, summary, place, colour):
            traces += drawn
            shapes += _marks(answer, place, colour)
    if not traces:
        return None
    slo = found[0]["slos"][place]
    what = f"{slo['metric'].upper()} {slo['statistic']}".strip()
    known = [float(y) for trace in traces for y in trace["y"] if y is not None]
    values = known + [float(shape["y0"]) for shape in shapes if "limit" in shape["name"]]
    made = document(
        traces,
        height=340,
        showlegend=len({trace["name"] for trace in traces}) > 1,
        xaxis={"title": {"text": "requests/s asked"}, "rangemode": "tozero"},
        yaxis={
            **log_axis(min(values) / ROOM, max(values) * ROOM),
            "title": {"text": what if slo["metric"] == ATTAINED else f"{what}, ms"},
        },
        shapes=shapes,
    )
    title = f"{what}, {found[0]['prompt_len']:,}-token prompts"
    spoken = f"{title} against the rate asked, with its limit; {counted(len(known), 'probe')}."
    note = (
        "Small markers are short probes; hollow ones are overloaded or no evidence, and a triangle is a bound "
        "from below where too few requests carry the percentile: no line passes through either. "
        "The band is the answer's interval."
    )
    return Figure(title, spoken, made, note)


def _traces(answer: Mapping[str, Any], summary: Summary, place: int, colour: str) -> list[Any]:
    """The line through what carries its value, broken at every other probe; and those, apart."""
    given = answer["slos"][place]
    slo = Slo(str(given["metric"]), str(given["statistic"]), float(given["limit"]))
    line: dict[str, list[Any]] = {"x": [], "y": [], "size": [], "symbol": [], "text": []}
    apart: dict[str, list[Any]] = {name: [] for name in line}
    for probe in sorted(answer["probes"], key=lambda probe: float(probe["request_rate"])):
        few = too_few(slo, probe, summary)
        value = probe["values"][place] if few is None else few[0]
        sound = probe["result"] != "no evidence" and not probe["overloaded"]
        joined = value is not None and value > 0 and sound and few is None
        symbol = "circle" if joined else "circle-open" if few is None else "triangle-up-open"
        said = plain(result(probe)) if few is None else f"or more, {plain(result(probe))}; needs {few[1]:,}"
        point = (probe["request_rate"], value, 9 if probe["deciding"] else 6, symbol, said)
        if not joined:
            for name, each in zip(line, (probe["request_rate"], None, 6, symbol, ""), strict=True):
                line[name].append(each)
        if value is not None and value > 0:
            for name, each in zip(line, point, strict=True):
                (line if joined else apart)[name].append(each)
    if not apart["x"] and all(y is None for y in line["y"]):
        return []
    return [_scatter(answer, points, colour, mode) for points, mode in ((line, "lines+markers"), (apart, "markers"))]


def _scatter(answer: Mapping[str, Any], points: Mapping[str, list[Any]], colour: str, mode: str) -> dict[str, Any]:
    marker = {"size": points["size"], "symbol": points["symbol"], "color": colour}
    return scatter(
        x=points["x"],
        y=points["y"],
        name=plain(answer["target"]),
        legendgroup=plain(answer["target"]),
        showlegend=mode != "markers",
        mode=mode,
        line={"color": colour, "width": 1.5, "dash": "dot"},
        marker={**marker, "line": {"width": 2, "color": colour}},
        text=points["text"],
        hovertemplate="%{x} req/s \u2192 %{y:,.4~g} %{text}<extra>%{fullData.name}</extra>",
    )


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
