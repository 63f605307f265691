"""`pdbench report`: judge a run directory, alone, on any machine, weeks later."""

from __future__ import annotations

import json as jsonlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pdbench.errors import GateFailed, InvalidRun, UsageError
from pdbench.run import Run, storing

if TYPE_CHECKING:
    from rich.console import Console

STDOUT = Path("-")
Results = list[tuple[Run, dict[str, Any]]]


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run directories.", show_default=False)],
    json: Annotated[bool, typer.Option("--json", help="Print summary.json instead of the tables.")] = False,
    markdown: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write it as Markdown; - prints that instead of the tables.")
    ] = None,
    csv: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Write cells.csv and requests.csv there.")] = None,
    parquet: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Write cells.parquet and requests.parquet there.")
    ] = None,
    perfetto: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write requests and stages as a trace for ui.perfetto.dev.")
    ] = None,
) -> None:
    """Judge run directories again: verdict and tables on the terminal, summary.json and report.html in each.

    Exits 0 when every run has a valid cell, else 3.
    """
    if json and markdown == STDOUT:
        raise UsageError("--json and --markdown - both want standard output.", "Give --markdown a file.")
    results = [(run, conclude(run)) for run in [Run.open(path) for path in runs]]
    for kind, folder in (("csv", csv), ("parquet", parquet)):
        if folder is not None:
            _exported(results, kind, folder)
    if perfetto is not None:
        _traced(results, perfetto)
    if markdown is not None:
        _written_down(results, markdown)
    if markdown != STDOUT:
        show(results, as_json=json)
    for run, summary in results:
        refuse_invalid(run, summary)


def _exported(results: Results, kind: str, folder: Path) -> None:
    from pdbench.report.exports import export

    print(f"wrote {' and '.join(str(path) for path in export(results, kind, folder))}", file=sys.stderr)


def _traced(results: Results, path: Path) -> None:
    from pdbench.report.perfetto import write_trace

    write_trace(results, path)
    print(f"wrote {path}: open it in ui.perfetto.dev", file=sys.stderr)


def _written_down(results: Results, path: Path) -> None:
    from pdbench.report.markdown import render_markdown

    text = "\n".join(render_markdown(summary, run) for run, summary in results)
    if path == STDOUT:
        sys.stdout.write(text)
        return
    with storing(path):
        path.write_text(text, encoding="utf-8")
    print(f"wrote {path}", file=sys.stderr)


def conclude(run: Run) -> dict[str, Any]:
    """Judge what was measured and write summary.json and report.html. Returns the summary."""
    if run.document.get("kind") == "transfer":
        from pdbench.report.transfer import shown

        return shown.conclude(run)

    from pdbench.report.compare.between import between_targets, leading
    from pdbench.report.html import render_html
    from pdbench.report.material import material
    from pdbench.report.summary import summarise

    read = material(run)
    summary = summarise(run, read)
    if (difference := between_targets(summary, run.path)) is not None:
        summary = leading(summary, difference)
    run.write_json("summary.json", summary)
    run.write_text("report.html", render_html(summary, run, read))
    return summary


def show(results: Results, *, as_json: bool) -> None:
    """Results to stdout: JSON (a list when there are several runs), or verdict, tables and the report's path."""
    if as_json:
        documents = [summary for _, summary in results]
        jsonlib.dump(documents[0] if len(documents) == 1 else documents, sys.stdout, indent=1, allow_nan=False)
        sys.stdout.write("\n")
        return
    from pdbench.report.text import print_summary

    console = terminal()
    for run, summary in results:
        if summary.get("kind") == "transfer":
            from pdbench.report.transfer.shown import print_transfer

            print_transfer(summary)
        else:
            print_summary(summary, console)
        console.print(f"report  {(run.path / 'report.html').resolve()}", markup=False, soft_wrap=True)


def terminal() -> Console:
    """Standard output; rich takes 80 columns where neither a terminal nor COLUMNS says otherwise."""
    from rich.console import Console

    return Console(highlight=False)


def refuse_invalid(run: Run, summary: dict[str, Any]) -> None:
    """Raise InvalidRun (code 3) when no cell of the run means anything, GateFailed (1) when no rate holds an SLO."""
    if summary.get("kind") == "transfer":
        from pdbench.report.transfer.shown import refuse_meaningless

        return refuse_meaningless(summary)
    from pdbench.report.summary import exit_code_of

    code = exit_code_of(summary)
    if code == GateFailed.exit_code:
        raise GateFailed(
            "an SLO fails at every rate.", "Ease the --slo, or find what it goes to: the split of TTFT above."
        )
    if code:
        some = any(
            repeat.get("valid") and repeat.get("state", "done") == "done"
            for cell in summary["cells"]
            for repeat in cell.get("repeats") or []
        )
        raise InvalidRun(
            f"no cell of {run.path} is valid as a whole: its void repeats are in its figures, and in no comparison."
            if some
            else f"no cell of {run.path} is valid; the numbers are kept, but they mean nothing as they stand.",
            f"The flags and the verdict say why, and what to do first; so does {run.path / 'report.html'}"
            + (f". Go on: pdbench sweep --resume {run.path}" if summary.get("interrupted") else ""),
        )
