"""Runs of `pdbench probe-transfer` as something to compare: a cell for each shape, a repeat for each pass over it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pdbench.report.transfer.sound import forbids_verdict, named
from pdbench.report.wording import Summary, clean

KIND = "transfer"
SHAPE = ("op", "backend", "memory", "ids", "in_flight", "name", "tokens", "block_tokens", "nbytes", "descriptors")
GATED = ("gb_s", "post_ms.p50")
WATCHED = ("total_ms.p50", "make_ms.p50", "move_ms.p50", "prep_ms.p50")


def is_transfer(summary: Summary) -> bool:
    return summary.get("kind") == KIND


def cells_of(summary: Summary) -> list[Mapping[str, Any]]:
    """The shapes as cells; passes are void where the run itself allows no verdict."""
    flags: Sequence[Mapping[str, Any]] = summary.get("validity") or []
    void = [{**flag, "severity": "void"} for flag in flags if forbids_verdict([flag])]
    return [_cell(result, void) for result in summary.get("results") or []]


def _cell(result: Mapping[str, Any], void: list[dict[str, Any]]) -> Mapping[str, Any]:
    about = {key: result.get(key) for key in SHAPE}
    repeats = [{**each, "validity": void, "valid": not void} for each in result.get("repeats") or []]
    return {**about, "what": clean(named(result), 80), "repeats": repeats, "validity": void}
