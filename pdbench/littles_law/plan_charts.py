"""Charts of a plan's page as data: lines over one axis, and a map of states over two."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Line:
    name: str
    points: tuple[tuple[float, float], ...]
    steps: bool = False


@dataclass(frozen=True, slots=True)
class LineChart:
    """Lines over a common axis. `marks` are named horizontal lines, such as a link that exists."""

    title: str
    x_name: str
    y_name: str
    lines: tuple[Line, ...]
    log_x: bool = False
    log_y: bool = False
    marks: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class StateMap:
    """States over two axes: `states[row][column]` is an index into `keys`, whose marks tell states without colour."""

    title: str
    x_name: str
    y_name: str
    x_labels: tuple[str, ...]
    y_labels: tuple[str, ...]
    states: tuple[tuple[str, ...], ...]
    words: tuple[tuple[str, ...], ...]


Chart = LineChart | StateMap
