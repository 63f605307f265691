"""Small drawings in SVG: an interval on a scale that all rows share, and two stacked bars above each other."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from pdbench.report.compare.gate import Change
from pdbench.report.markup import Child, Markup, tag

WIDTH, HEIGHT, MARGIN = 240, 18, 6
BAR, GAP = 16, 3
LEAST_REACH = 0.10  # the scale always shows this much, so that noise does not look like news
MOST_REACH = 4.0  # five times base; beyond, an arrow


class Scale:
    """Shares of base on a line: equal factors are equally long, no change in the middle."""

    def __init__(self, changes: Iterable[Change]) -> None:
        ends = [value for change in changes for value in (change.low, change.high, change.change) if value is not None]
        reach = max([math.log1p(LEAST_REACH), *(abs(math.log(max(1 + end, 1e-3))) for end in ends)])
        self.reach = min(reach, math.log1p(MOST_REACH)) * 1.04

    def x(self, share: float) -> float:
        """Place of a share, at an end where it lies beyond."""
        place = math.log(max(1 + share, 1e-3)) / self.reach
        return WIDTH / 2 + max(-1.0, min(1.0, place)) * (WIDTH / 2 - MARGIN)

    def shows(self, share: float) -> bool:
        return abs(math.log(max(1 + share, 1e-3))) <= self.reach

    def marks(self) -> list[float]:
        """Round shares that fit, symmetric in factors."""
        steps = (0.05, 0.1, 0.25, 0.5, 1.0, 3.0)
        fitting = [step for step in steps if math.log1p(step) <= self.reach * 0.95]
        return fitting[-1:]


def interval(change: Change, scale: Scale, effect: float, spoken: str) -> Markup:
    """The change as a dot on its interval; the shaded band is smaller than the effect of interest."""
    middle = HEIGHT / 2
    band = (scale.x(1 / (1 + effect) - 1), scale.x(effect))
    parts: list[Child] = [
        tag("rect", x=f"{band[0]:.1f}", y=0, width=f"{band[1] - band[0]:.1f}", height=HEIGHT, class_="band"),
        _line(scale.x(0), 0, scale.x(0), HEIGHT, "zero"),
    ]
    if change.low is not None and change.high is not None:
        parts.append(_line(scale.x(change.low), middle, scale.x(change.high), middle, "reach"))
        parts += [_end(share, scale, middle) for share in (change.low, change.high)]
    if change.change is not None:
        sure = "dot" if change.low is not None else "dot open"
        parts.append(tag("circle", cx=f"{scale.x(change.change):.1f}", cy=middle, r=4, class_=sure))
    return _svg(parts, HEIGHT, f"strip {evidence_class(change)}", spoken)


def axis(scale: Scale) -> Markup:
    """The scale in words above the strips."""
    texts: list[Child] = []
    for share in (0.0, *scale.marks()):
        for signed in dict.fromkeys((1 / (1 + share) - 1, share)):
            text = "0" if not share else f"{signed * 100:+.0f}%"
            texts.append(tag("text", text, x=f"{scale.x(signed):.1f}", y=12, class_="tick"))
    return _svg(texts, HEIGHT, "strip", "scale of the change")


def _end(share: float, scale: Scale, middle: float) -> Markup:
    x = scale.x(share)
    if scale.shows(share):
        return _line(x, middle - 4, x, middle + 4, "reach")
    back = 5 if x < WIDTH / 2 else -5
    return tag(
        "polyline", points=f"{x + back:.1f},{middle - 4} {x:.1f},{middle} {x + back:.1f},{middle + 4}", class_="beyond"
    )


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> Markup:
    return tag("line", x1=f"{x1:.1f}", y1=f"{y1:.1f}", x2=f"{x2:.1f}", y2=f"{y2:.1f}", class_=kind)


def evidence_class(change: Change) -> str:
    return {"worse": "worse", "improved": "improved"}.get(change.evidence, "unsure")


def stacks(sides: Sequence[Sequence[tuple[str, float]]], longest: float, spoken: str) -> Markup:
    """A bar a side from (colour, value); negative values go to the left of zero."""
    lowest = min((sum(min(value, 0.0) for _, value in side) for side in sides), default=0.0)
    scale = (2 * WIDTH) / max(longest - lowest, 1e-9)
    parts: list[Child] = []
    for row, side in enumerate(sides):
        up, down = -lowest * scale, -lowest * scale
        for colour, value in side:
            long = abs(value) * scale
            start = up if value >= 0 else down - long
            place = {"x": f"{start:.1f}", "y": row * (BAR + GAP), "width": f"{long:.1f}", "height": BAR}
            parts.append(tag("rect", **place, style=f"fill:{colour}"))
            up, down = (up + long, down) if value >= 0 else (up, down - long)
    height = len(sides) * (BAR + GAP)
    return tag("svg", parts, viewBox=f"0 0 {2 * WIDTH} {height}", class_="stacks", role="img", aria_label=spoken)


def _svg(parts: Sequence[Child], height: int, kind: str, spoken: str) -> Markup:
    return tag("svg", list(parts), viewBox=f"0 0 {WIDTH} {height}", class_=kind, role="img", aria_label=spoken)
