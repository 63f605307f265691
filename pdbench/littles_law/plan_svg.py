"""A line chart as inline SVG: colours from the page, a dash pattern to each line, axes with round numbers.

It is drawn twice, and the page shows the one that has the width: scaled down to a telephone its text could not be read.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pdbench.littles_law.plan_charts import Line, LineChart
from pdbench.report.markup import Markup, tag

HEIGHT, TOP, BOTTOM = 340, 14, 46
FINE = (1, 2, 5)  # marks of a decade
DASHES = ("none", "8 4", "3 3", "10 3 2 3", "14 5", "1 4")

Scale = Callable[[float], float]


@dataclass(frozen=True, slots=True)
class Canvas:
    """One size of the drawing. `right` is the room that names of marks have beside the lines; without, they stand on
    their own line."""

    shown: str  # the class that shows it
    width: int
    left: int
    right: int
    ticks: int

    @property
    def end(self) -> int:
        return self.width - self.right


CANVASES = (Canvas("wide", 760, 66, 90, 6), Canvas("narrow", 340, 64, 12, 4))


def line_chart(chart: LineChart) -> Markup:
    if not any(line.points for line in chart.lines):
        return tag("p", "Nothing to draw: no point of these curves exists.")
    keys = tag("ul", [_key(line, index) for index, line in enumerate(chart.lines)], class_="keys")
    return tag("div", keys, [_svg(chart, canvas) for canvas in CANVASES])


def _svg(chart: LineChart, on: Canvas) -> Markup:
    xs = [x for line in chart.lines for x, _ in line.points]
    ys = [y for line in chart.lines for _, y in line.points] + [value for _, value in chart.marks]
    x_low, x_high = _span(xs, chart.log_x)
    y_low, y_high = _span(ys if chart.log_y else [0.0, *ys], chart.log_y)
    across = _scale(x_low, x_high, on.left, on.end, chart.log_x)
    up = _scale(y_low, y_high, HEIGHT - BOTTOM, TOP, chart.log_y)
    parts = [
        _axis_x(chart, on, _ticks(x_low, x_high, chart.log_x, on.ticks), across),
        _axis_y(chart, on, _ticks(y_low, y_high, chart.log_y, 6), up),
        [_drawn(line, index, across, up) for index, line in enumerate(chart.lines)],
        [_mark(name, on, up(value)) for name, value in chart.marks],
    ]
    box = f"0 0 {on.width} {HEIGHT}"
    return tag("svg", tag("title", chart.title), parts, viewBox=box, class_=f"chart {on.shown}", role="img")


def _span(values: Sequence[float], log: bool) -> tuple[float, float]:
    low, high = min(values), max(values)
    if log:
        return (low, high) if high > low else (low / 2, high * 2)
    return (low, high) if high > low else (low, low + 1)


def _scale(low: float, high: float, start: float, end: float, log: bool) -> Scale:
    if log:
        return lambda value: start + (end - start) * math.log(value / low) / math.log(high / low)
    return lambda value: start + (end - start) * (value - low) / (high - low)


def _ticks(low: float, high: float, log: bool, about: int) -> list[float]:
    if log:
        powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        fine, whole = ([f * 10.0**p for p in powers for f in of if low <= f * 10.0**p <= high] for of in (FINE, (1,)))
        return fine if len(fine) <= 1.2 * about else whole
    rough = (high - low) / about
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= rough)
    return [step * index for index in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _axis_x(chart: LineChart, on: Canvas, ticks: Sequence[float], across: Scale) -> list[Markup]:
    floor = HEIGHT - BOTTOM
    parts = [tag("line", x1=on.left, x2=on.end, y1=floor, y2=floor, class_="axis")]
    for tick in ticks:
        parts.append(tag("text", f"{tick:,g}", x=f"{across(tick):.1f}", y=floor + 17, text_anchor="middle"))
    return [*parts, tag("text", chart.x_name, x=(on.left + on.end) / 2, y=HEIGHT - 8, text_anchor="middle")]


def _axis_y(chart: LineChart, on: Canvas, ticks: Sequence[float], up: Scale) -> list[Markup]:
    parts = []
    for tick in ticks:
        y = f"{up(tick):.1f}"
        parts.append(tag("line", x1=on.left, x2=on.end, y1=y, y2=y, class_="gridline"))
        parts.append(tag("text", f"{tick:,g}", x=on.left - 7, y=y, text_anchor="end", dominant_baseline="middle"))
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


def _mark(name: str, on: Canvas, y: float) -> list[Markup]:
    line = tag("line", x1=on.left, x2=on.end, y1=f"{y:.1f}", y2=f"{y:.1f}", class_="mark")
    if on.shown == "wide":
        return [line, tag("text", name, x=on.end + 6, y=f"{y:.1f}", dominant_baseline="middle")]
    return [line, tag("text", name, x=on.left + 4, y=f"{y - 5:.1f}")]


def _key(line: Line, index: int) -> Markup:
    stroke = tag("line", x1=0, x2=26, y1=5, y2=5, class_="line", style=f"stroke:var(--line-{index % 6})",
                 stroke_dasharray=DASHES[index % len(DASHES)])  # fmt: skip
    return tag("li", tag("svg", stroke, viewBox="0 0 26 10"), f" {line.name}")
