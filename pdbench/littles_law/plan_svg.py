"""A line chart as inline SVG: colours from the page, a dash pattern to each line, axes with round numbers."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

from pdbench.littles_law.plan_charts import Line, LineChart
from pdbench.report.markup import Markup, tag

WIDTH, HEIGHT = 760, 340
LEFT, RIGHT, TOP, BOTTOM = 66, 90, 14, 46
DASHES = ("none", "8 4", "3 3", "10 3 2 3", "14 5", "1 4")

Scale = Callable[[float], float]


def line_chart(chart: LineChart) -> Markup:
    xs = [x for line in chart.lines for x, _ in line.points]
    ys = [y for line in chart.lines for _, y in line.points] + [value for _, value in chart.marks]
    if not xs:
        return tag("p", "Nothing to draw: no point of these curves exists.")
    x_low, x_high = _span(xs, chart.log_x)
    y_low, y_high = _span(ys if chart.log_y else [0.0, *ys], chart.log_y)
    across = _scale(x_low, x_high, LEFT, WIDTH - RIGHT, chart.log_x)
    up = _scale(y_low, y_high, HEIGHT - BOTTOM, TOP, chart.log_y)
    parts = [
        _axis_x(chart, _ticks(x_low, x_high, chart.log_x), across),
        _axis_y(chart, _ticks(y_low, y_high, chart.log_y), up),
        [_drawn(line, index, across, up) for index, line in enumerate(chart.lines)],
        [_mark(name, up(value)) for name, value in chart.marks],
    ]
    svg = tag("svg", tag("title", chart.title), parts, viewBox=f"0 0 {WIDTH} {HEIGHT}", class_="chart", role="img")
    return tag("div", tag("ul", [_key(line, index) for index, line in enumerate(chart.lines)], class_="keys"), svg)


def _span(values: Sequence[float], log: bool) -> tuple[float, float]:
    low, high = min(values), max(values)
    if log:
        return (low, high) if high > low else (low / 2, high * 2)
    return (low, high) if high > low else (low, low + 1)


def _scale(low: float, high: float, start: float, end: float, log: bool) -> Scale:
    if log:
        return lambda value: start + (end - start) * math.log(value / low) / math.log(high / low)
    return lambda value: start + (end - start) * (value - low) / (high - low)


def _ticks(low: float, high: float, log: bool) -> list[float]:
    if log:
        steps = (1, 2, 5) if high / low < 300 else (1,)
        powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        return [step * 10.0**power for power in powers for step in steps if low <= step * 10.0**power <= high]
    rough = (high - low) / 6
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= rough)
    return [step * index for index in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _axis_x(chart: LineChart, ticks: Sequence[float], across: Scale) -> list[Markup]:
    floor = HEIGHT - BOTTOM
    parts = [tag("line", x1=LEFT, x2=WIDTH - RIGHT, y1=floor, y2=floor, class_="axis")]
    for tick in ticks:
        parts.append(tag("text", f"{tick:,g}", x=f"{across(tick):.1f}", y=floor + 17, text_anchor="middle"))
    parts.append(tag("text", chart.x_name, x=(LEFT + WIDTH - RIGHT) / 2, y=HEIGHT - 8, text_anchor="middle"))
    return parts


def _axis_y(chart: LineChart, ticks: Sequence[float], up: Scale) -> list[Markup]:
    parts = []
    for tick in ticks:
        y = f"{up(tick):.1f}"
        parts.append(tag("line", x1=LEFT, x2=WIDTH - RIGHT, y1=y, y2=y, class_="gridline"))
        parts.append(tag("text", f"{tick:,g}", x=LEFT - 7, y=y, text_anchor="end", dominant_baseline="middle"))
    middle = (TOP + HEIGHT - BOTTOM) / 2
    turned = f"translate(14 {middle:.0f}) rotate(-90)"
    return [*parts, tag("text", chart.y_name, transform=turned, text_anchor="middle")]


def _drawn(line: Line, index: int, across: Scale, up: Scale) -> Markup:
    places = [(across(x), up(y)) for x, y in line.points]
    if line.steps:
        places = [place for a, b in itertools.pairwise(places) for place in (a, (b[0], a[1]))] + places[-1:]
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    style = f"stroke:var(--line-{index % 6})"
    return tag("polyline", points=points, class_="line", style=style, stroke_dasharray=DASHES[index % len(DASHES)])


def _mark(name: str, y: float) -> list[Markup]:
    line = tag("line", x1=LEFT, x2=WIDTH - RIGHT, y1=f"{y:.1f}", y2=f"{y:.1f}", class_="mark")
    return [line, tag("text", name, x=WIDTH - RIGHT + 6, y=f"{y:.1f}", dominant_baseline="middle")]


def _key(line: Line, index: int) -> Markup:
    stroke = tag("line", x1=0, x2=26, y1=5, y2=5, class_="line", style=f"stroke:var(--line-{index % 6})",
                 stroke_dasharray=DASHES[index % len(DASHES)])  # fmt: skip
    return tag("li", tag("svg", stroke, viewBox="0 0 26 10"), f" {line.name}")
