"""UCX's own account of what carries the data (UCX_PROTO_INFO=y): boxes of text in its log, read into records.

A box names an agent and an endpoint configuration, an operation with the memory at both ends, and a protocol for each
range of message sizes. UCX until 1.22 puts both names into one line, UCX 1.23 into two; both are read. A box is printed
when a protocol is first chosen, so the last one of an operation is the one that holds.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

OPERATIONS = {"READ": "remote memory read by ucp_get", "WRITE": "remote memory write by ucp_put"}

_PREFIX = re.compile(r"^\[[\d.]+\]\s*\[(?P<thread>[^\]]*)\]\s*(?P<rest>.*)$")
_CONFIG = re.compile(r"^(?P<agent>.*?)\s*(?P<place>self|intra-node|inter-node)?\s*cfg#(?P<number>\d+)$")
_RANGE = re.compile(r"^(?P<low>\d+[KMG]?)(?:\.\.(?P<high>\d+[KMG]?|inf))?$")
_CARRIER = re.compile(r"\b(?P<transport>[a-z][a-z0-9_]*)/(?P<device>[A-Za-z][\w.\-]*(?::\d+)?)")
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


@dataclass(frozen=True, slots=True)
class Row:
    """Messages of `low` to `high` bytes (None: without end) go as `how` (zero-copy, ...) over `config`."""

    low: int
    high: int | None
    how: str
    config: str

    @property
    def carriers(self) -> list[tuple[str, str]]:
        """Transports and their devices: [("rc_mlx5", "mlx5_0:1")]."""
        found = [(match["transport"], match["device"]) for match in _CARRIER.finditer(self.config)]
        return list(dict.fromkeys(found))


@dataclass(frozen=True, slots=True)
class Box:
    """What UCX chose for one operation on one endpoint configuration. `place`: self, intra-node, inter-node."""

    agent: str
    place: str
    operation: str
    rows: tuple[Row, ...]

    def row(self, nbytes: float) -> Row | None:
        return next((row for row in self.rows if row.low <= nbytes and (row.high is None or nbytes <= row.high)), None)


def boxes(log: str) -> list[Box]:
    """Every complete box, in the order in which it was begun. Threads that write at once do not mix."""
    open_: dict[str, list[list[str]]] = {}
    found: list[tuple[int, Box]] = []
    began: dict[str, int] = {}
    for number, line in enumerate(log.splitlines()):
        prefixed = _PREFIX.match(line)
        thread, rest = (prefixed["thread"], prefixed["rest"].strip()) if prefixed else ("", line.strip())
        if rest.startswith("|"):
            began.setdefault(thread, number)
            open_.setdefault(thread, []).append([cell.strip() for cell in rest.strip("|").split("|")])
        elif rest.startswith("+"):
            _close_at(open_, thread, found, began)
    for thread in list(open_):
        _close_at(open_, thread, found, began, ended=True)
    return [box for _, box in sorted(found, key=lambda pair: pair[0])]


def _close_at(
    open_: dict[str, list[list[str]]],
    thread: str,
    found: list[tuple[int, Box]],
    began: dict[str, int],
    *,
    ended: bool = False,
) -> None:
    """At a rule of a box: what stands above it is a head, or rows, and rows end the box."""
    lines = open_.get(thread, [])
    if not ended and not any(_RANGE.match(cells[0]) for cells in lines):
        return
    box = _box(lines)
    if box is not None:
        found.append((began[thread], box))
    open_.pop(thread, None)
    began.pop(thread, None)


def _box(lines: Iterable[list[str]]) -> Box | None:
    agent, place, operation, rows = "", "", "", []
    for cells in lines:
        for cell in cells:
            config = _CONFIG.match(cell)
            if config:
                agent, place = config["agent"], config["place"] or ""
            elif " by ucp_" in cell or "rendezvous" in cell:
                operation = operation or cell
        interval = _RANGE.match(cells[0])
        if interval and len(cells) >= 3:
            high = interval["high"]
            top = _size(interval["low"]) if high is None else None if high == "inf" else _size(high)
            rows.append(Row(_size(interval["low"]), top, cells[1], cells[2]))
    return Box(agent, place, operation, tuple(rows)) if operation and rows else None


def _size(text: str) -> int:
    return int(text[:-1]) * _UNITS[text[-1]] if text[-1] in _UNITS else int(text)


def chosen(found: Iterable[Box], op: str, agent: str = "") -> Box | None:
    """The box that tells how `op` (READ, WRITE) goes to the peer: the last one, and the one for many at once if any."""
    wanted = [
        box
        for box in found
        if box.operation.startswith(OPERATIONS[op]) and box.place != "self" and (not agent or box.agent == agent)
    ]
    several = [box for box in wanted if "(multi)" in box.operation]
    return (several or wanted or [None])[-1]  # type: ignore[list-item]
