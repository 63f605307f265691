"""A comparison as JSON (docs/compare.md). Absent is not measured; there is no NaN and no Infinity."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from pdbench.report.compare import said
from pdbench.report.compare.comparison import CellChange, Comparison
from pdbench.report.compare.gate import Change
from pdbench.report.compare.pairs import SHAPE
from pdbench.report.compare.sides import Side

SCHEMA = 1


def document(comparisons: Sequence[Comparison]) -> dict[str, Any]:
    """All comparisons of one command line; `status` is the one that decides its exit code."""
    ranked = ("refused", "meaningless", "failed", "undecided", "passed")
    return {
        "schema": SCHEMA,
        "simulated": any(comparison.simulated for comparison in comparisons),
        "status": min((comparison.status for comparison in comparisons), key=ranked.index),
        "comparisons": [comparison_document(comparison) for comparison in comparisons],
    }


def comparison_document(comparison: Comparison) -> dict[str, Any]:
    rules = comparison.rules
    return {
        "base": _side(comparison.base),
        "new": _side(comparison.new),
        "status": comparison.status,
        "verdict": said.verdict(comparison),
        "next_step": said.next_step(comparison),
        "rules": {"gates": list(rules.gates), "min_effect": rules.effect, "alpha": rules.alpha},
        "refused": [asdict(refusal) for refusal in comparison.refused],
        "not_compared": list(comparison.not_compared),
        "differs": [asdict(fact) for fact in comparison.differs],
        "remarks": list(said.remarks(comparison)),
        "cells": [_cell(cell) for cell in comparison.cells],
    }


def _side(side: Side) -> dict[str, Any]:
    return _known(
        {
            "role": side.role,
            "path": str(side.path),
            "target": side.target,
            "simulated": side.simulated,
            "created_unix_s": side.summary.get("created_unix_s"),
        }
    )


def _cell(cell: CellChange) -> dict[str, Any]:
    paired = cell.cell
    place = ("target", "loop", "request_rate", "max_concurrency", *SHAPE)
    return {
        **_known({key: paired.base.get(key) for key in place}),
        "name": paired.name,
        "pairs": len(paired.pairs),
        "planned_pairs": paired.planned,
        "void_base": paired.void_base,
        "void_new": paired.void_new,
        "gates": [_change(change) for change in cell.gates],
        "watched": [_change(change) for change in cell.watched],
        "ttft_parts_ms": [
            _known(
                {
                    "part": p.name,
                    "base": p.base_ms,
                    "new": p.new_ms,
                    "change": p.change_ms,
                    "interval": _pair(p.low_ms, p.high_ms),
                }
            )
            for p in cell.parts
        ],
        "causes": list(cell.causes),
    }


def _change(change: Change) -> dict[str, Any]:
    return _known(
        {
            "metric": change.metric,
            "base": change.base,
            "new": change.new,
            "pairs": change.pairs,
            "change": change.change,
            "interval": _pair(change.low, change.high),
            "evidence": change.evidence,
            "gate": change.gate,
            "more_repeats": change.more_repeats,
            "note": change.note or None,
            "left_out": change.left_out or None,
        }
    )


def _pair(low: float | None, high: float | None) -> list[float] | None:
    return None if low is None or high is None else [low, high]


def _known(record: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in record.items() if value is not None}
