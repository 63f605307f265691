"""`pdbench report`: judge a run directory, alone, on any machine, weeks later."""

from __future__ import annotations

import json as jsonlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pdbench.errors import InvalidRun
from pdbench.run import Run

if TYPE_CHECKING:
    from rich.console import Console


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run directories.", show_default=False)],
    json: Annotated[bool, typer.Option("--json", help="Print summary.json instead of the tables.")] = False,
) -> None:
    """Judge run directories again: verdict and tables on the terminal, summary.json and report.html in each.

    Exits 0 when every run has a valid cell, else 3.
    """
    opened = [Run.open(path) for path in runs]
    summaries = [conclude(run) for run in opened]
    show([(run, summary) for run, summary in zip(opened, summaries, strict=True)], as_json=json)
    for run, summary in zip(opened, summaries, strict=True):
        refuse_invalid(run, summary)


def conclude(run: Run) -> dict[str, Any]:
    """Judge what was measured and write summary.json and report.html. Returns the summary."""
    from pdbench.report.html import render_html
    from pdbench.report.summary import summarise

    summary = summarise(run)
    run.write_json("summary.json", summary)
    run.write_text("report.html", render_html(summary, run))
    return summary


def show(results: list[tuple[Run, dict[str, Any]]], *, as_json: bool) -> None:
    """Results to stdout: JSON (a list when there are several runs), or verdict, tables and the report's path."""
    if as_json:
        documents = [summary for _, summary in results]
        jsonlib.dump(documents[0] if len(documents) == 1 else documents, sys.stdout, indent=1, allow_nan=False)
        sys.stdout.write("\n")
        return
    from pdbench.report.text import print_summary

    console = terminal()
    for run, summary in results:
        print_summary(summary, console)
        console.print(f"report  {(run.path / 'report.html').resolve()}", markup=False, soft_wrap=True)


def terminal() -> Console:
    """Standard output; rich takes 80 columns where neither a terminal nor COLUMNS says otherwise."""
    from rich.console import Console

    return Console(highlight=False)


def refuse_invalid(run: Run, summary: dict[str, Any]) -> None:
    """Raise InvalidRun (exit code 3) when no cell of the run means anything."""
    from pdbench.report.summary import exit_code_of

    if exit_code_of(summary):
        raise InvalidRun(
            f"no cell of {run.path} is valid; the numbers are kept, but they mean nothing as they stand.",
            "The validity flags above say why, and what to type next.",
        )
