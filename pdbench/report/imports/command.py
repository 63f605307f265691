"""`pdbench import`: old results of another tool become a run directory, judged as far as they can be."""

from __future__ import annotations

import shlex
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from pdbench.report.command import conclude, refuse_invalid, show


def import_results(
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILE...", help="Result files of one tool, or the folder it wrote.", show_default=False),
    ],
    format_name: Annotated[
        str | None,
        typer.Option("--format", help="vllm, sglang, guidellm, aiperf or inference-perf: by content."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Run directory: runs/imported-DATE-TIME.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print summary.json instead of the tables.")] = False,
) -> None:
    """Turn results of vllm bench serve, GuideLLM, AIPerf, inference-perf or sglang bench_serving into a run directory.

    Files of the same load become repeats of one cell. What the other tool defines differently is marked, or kept under
    its own name (docs/import.md). Exits as `report` does: 3 when no cell is valid.
    """
    from pdbench.report.imports.formats import read_all
    from pdbench.report.imports.write import write_run

    imported = read_all(files, format_name)
    path = out or Path("runs") / time.strftime("imported-%Y%m%d-%H%M%S")
    run = write_run(imported, path, files, shlex.join(["pdbench", "import", *(str(file) for file in files)]))
    requests = sum(len(cell.requests) for cell in imported.cells)
    print(f"{imported.tool}: {f'{requests:,} requests' if requests else 'figures only'}", file=sys.stderr)
    summary = conclude(run)
    show([(run, summary)], as_json=json)
    refuse_invalid(run, summary)
