"""A running search: from what the run directory holds to the next probe."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pdbench.report.capacity.answer import upcoming
from pdbench.report.capacity.measured_probes import Key
from pdbench.report.capacity.search import Step
from pdbench.report.summary import measured_cells
from pdbench.run import Run


def next_probe(run: Run) -> tuple[Key, Step] | None:
    """The next probe of the run's searches, judged from its rows; None when it has none or all are at their end."""
    plan: Mapping[str, Any] = run.document["plan"]
    return upcoming(plan, list(measured_cells(run))) if plan.get("search") else None
