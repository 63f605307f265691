"""What does a cell lack because a process that sent a share of it was lost?"""

from __future__ import annotations

from typing import Any

from pdbench.report.cell import Measured, Part
from pdbench.report.wording import streams_gone


def not_measured(cell: Measured) -> dict[str, Any]:
    """`not_measured`: requests that were lost with the load worker that sent them, where it is known how many; how they
    ended nobody knows: they did not fail. `lost_workers`: what is known of the workers themselves."""
    gone = [int(part.entry["not_measured"]) for part in cell.parts if part.entry.get("not_measured") is not None]
    lost = next((found for part in cell.parts if (found := _lost(cell, part)) is not None), None)
    return ({"not_measured": sum(gone)} if gone else {}) | ({"lost_workers": lost} if lost is not None else {})


def _lost(cell: Measured, part: Part) -> dict[str, Any] | None:
    """How many of how many workers were lost in a repeat, since when, and of a closed loop with how many streams."""
    losses = part.entry.get("lost") or []
    if not losses:
        return None
    streams = [loss.get("streams") for loss in losses]
    since = [loss["last_heard_s"] - part.load.start for loss in losses if loss.get("last_heard_s") is not None]
    return {
        "workers": len(losses),
        "of_workers": len(losses) + len(part.client.get("workers") or ()),
        "streams": sum(streams) if cell.streams is not None and None not in streams else None,
        "of_streams": cell.streams,
        "from_s": max(0.0, min(since)) if since else None,
        "of_s": part.load.duration_s,
    }


def lost_text(cell: Measured) -> str | None:
    """The evidence that a repeat is not what was asked for."""
    part = cell.parts[0]
    lost, gone = _lost(cell, part), part.entry.get("not_measured")
    if lost is None:
        return None
    why = part.entry["lost"][0].get("why")
    how_many = "nobody knows how many" if gone is None else f"{gone:,} of {part.entry.get('planned'):,}"
    were = "was" if lost["workers"] == 1 else "were"
    silent = f" {streams_gone(lost)}, and" if lost["streams"] else ""
    return (
        f"{lost['workers']} of {lost['of_workers']} load workers {were} lost ({why}):{silent} {how_many} requests were"
        " not measured, and what was sent is not what was asked for"
    )
