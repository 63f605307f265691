"""The two targets of one run against each other: what its report leads with."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pdbench.report import wording
from pdbench.report.compare import said
from pdbench.report.compare.comparison import Comparison, compare
from pdbench.report.compare.document import comparison_document
from pdbench.report.compare.gate import Rules
from pdbench.report.compare.sides import BASE, Side, two_targets
from pdbench.report.wording import Summary


def between_targets(summary: Summary, path: Path = Path()) -> Comparison | None:
    """The comparison, the first target as base; None for a run that has not just two targets with cells."""
    if summary.get("capacity"):
        return None  # each target was asked other rates: their answers stand side by side instead
    measured = {str(cell.get("target", "")) for cell in summary.get("cells") or []}
    if len(wording.targets(summary)) != 2 or len(measured) != 2:
        return None
    return compare(*two_targets(Side(BASE, path, summary, {}), ()), Rules())


def leading(summary: Mapping[str, Any], comparison: Comparison) -> dict[str, Any]:
    """The summary of a run with two targets: the difference comes first, then what the cells are worth."""
    simulated = "SIMULATED. " if comparison.simulated else ""
    rest = str(summary.get("verdict") or "").removeprefix("SIMULATED. ")
    verdict = " ".join(filter(None, [f"{simulated}{said.verdict(comparison)}", said.rests_on(comparison), rest]))
    kept = {key: value for key, value in summary.items() if key not in ("verdict", "cells")}
    told = comparison_document(comparison)
    return {**kept, "verdict": verdict, "comparison": told, "cells": summary["cells"]}
