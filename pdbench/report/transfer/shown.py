"""A transfer run concluded and shown: what `probe-transfer` does at its end, and `report` again later."""

from __future__ import annotations

from typing import Any

from pdbench.errors import InvalidRun
from pdbench.littles_law.plan_html import page
from pdbench.littles_law.plan_text import print_plan
from pdbench.report.transfer.summary import exit_code_of, summarise
from pdbench.report.transfer.view import view
from pdbench.run import Run


def conclude(run: Run) -> dict[str, Any]:
    """Judge the run; summary.json and report.html are written."""
    summary = summarise(run)
    run.write_json("summary.json", summary)
    run.write_text("report.html", page(view(summary), "probe-transfer", f"Measured by {run.document['command']}."))
    return summary


def print_transfer(summary: dict[str, Any]) -> None:
    print_plan(view(summary), None)


def refuse_meaningless(summary: dict[str, Any]) -> None:
    """Raise InvalidRun (exit code 3) when the figures mean nothing."""
    if exit_code_of(summary):
        why = next(
            (each["evidence"] for each in summary["validity"] if each["severity"] == "void"), "nothing was measured"
        )
        raise InvalidRun("the figures of this run mean nothing as they stand; they are kept.", why)
