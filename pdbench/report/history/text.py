"""A history on the terminal: the changes with what differs between their runs, the drift, and the verdict last."""

from __future__ import annotations

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from pdbench.report.history import said
from pdbench.report.history.story import History
from pdbench.report.text import hanging, printed

SHIFTS_SHOWN = 6
LEFT_OUT_SHOWN = 4
WIDTH = len("worse ")


def print_history(history: History, console: Console, *, strict: bool = False) -> None:
    printed(history_text(history, strict), console)


def history_text(history: History, strict: bool) -> RenderableType:
    """Everything that `history` says on a terminal. Only where it is a gate (`strict`) does a change fail it."""
    parts: list[RenderableType] = []
    if history.simulated:
        told = "SIMULATED: these numbers come from the practice testbed, not from an engine."
        parts.append(Text(told, style="bold magenta"))
    for event in history.events:
        parts.append(Text(f"B{said.event_sentence(history, event)[1:]}", style="bold"))
        for shift in event.shifts[:SHIFTS_SHOWN]:
            fails = strict and any(shift is last for last in history.ended_worse)
            mark = Text("FAIL" if fails else "worse", style="bold red") if shift.worse else Text("ok", style="green")
            parts.append(_line(mark, Text(said.shift_sentence(shift))))
        if len(event.shifts) > SHIFTS_SHOWN:
            parts.append(_line(Text(), Text(f"and {len(event.shifts) - SHIFTS_SHOWN} more series")))
        parts += [_line(Text(), Text(f"not the same: {said.differs(event)}", style="dim")), Text()]
    if history.drifts:
        parts.append(Text(said.capacity(history), style="italic"))
        for drift in history.drifts:
            down = drift.sure and drift.per_run is not None and drift.per_run < 0
            line = Text(said.drift_sentence(history, drift), style="bold red" if down else "")
            parts.append(_line(Text(), line))
        parts.append(Text())
    parts += [_line(Text("note"), Text(note)) for note in said.doubts(history)]
    parts += [_line(Text("note"), Text(f"left out: {why}")) for why in history.left_out[:LEFT_OUT_SHOWN]]
    if len(history.left_out) > LEFT_OUT_SHOWN:
        parts.append(_line(Text("note"), Text(f"and {len(history.left_out) - LEFT_OUT_SHOWN} more left out")))
    simulated = ("SIMULATED. ", "bold magenta") if history.simulated else ""
    return Group(*parts, Text.assemble(simulated, (said.verdict(history), "bold")))


def _line(mark: Text, line: Text) -> Table:
    return hanging(mark, line, WIDTH)
