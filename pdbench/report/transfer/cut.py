"""How far a run came that was stopped before its end: what was measured, and what that was asked for was not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pdbench.report.transfer.sound import named

NAMED = 4  # shapes; the others are counted


def cut_short(document: Mapping[str, Any], done: int, results: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """`{"done", "planned", "missing"}`: measurements, and the asked shapes that have none; `None` of a whole run.

    `done` are the measurements that the run directory holds, `results` its asked shapes.
    """
    planned = document.get("planned")
    if planned is None or done >= planned["measurements"]:
        return None
    missing = [named(asked) for asked in planned["asked"] if not any(_is(result, asked) for result in results)]
    return {"done": done, "planned": planned["measurements"], "missing": missing}


def _is(result: Mapping[str, Any], asked: Mapping[str, Any]) -> bool:
    return all(result[key] == value for key, value in asked.items())


def sentence(cut: Mapping[str, Any]) -> str:
    """`CUT SHORT after 7 of 80 measurements; not measured: READ scattered 64 descriptors of DRAM.`"""
    missing = cut["missing"]
    rest = f" and {len(missing) - NAMED} more" if len(missing) > NAMED else ""
    lacking = (
        f"not measured: {', '.join(missing[:NAMED])}{rest}" if missing else "every shape has fewer passes than asked"
    )
    return f"CUT SHORT after {cut['done']} of {cut['planned']} measurements; {lacking}."
