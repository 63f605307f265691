"""`pdbench history`: when did it change, and between which runs?"""

from __future__ import annotations

import json as jsonlib
import sys
from pathlib import Path
from typing import Annotated

import typer

from pdbench.errors import GateFailed, InvalidRun
from pdbench.quantities import several
from pdbench.run import storing

Texts = list[str] | None


def history(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="DIR|GLOB...", help="Folders of runs or of summary.json files, or globs.", show_default=False
        ),
    ],
    metric: Annotated[Texts, typer.Option(help="What to follow: ttft, tpot, throughput, p99_itl_ms, post, ...")] = None,
    min_effect: Annotated[str, typer.Option(help="The smallest change that matters.")] = "5%",
    strict: Annotated[bool, typer.Option("--strict", help="Fail when a series ends worse than it was.")] = False,
    html: Annotated[Path | None, typer.Option(help="Write a page: every series with its levels.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of the text.")] = False,
) -> None:
    """Follow many runs in time order: change points, what differs between their runs, drift of capacity.

    Exits 0, or 1 with --strict when the newest change of a series is for the worse; 2 without runs; 3 when no run has a
    valid cell.
    """
    from pdbench.report.compare.command import share
    from pdbench.report.compare.gate import GATED, gates_named
    from pdbench.report.history.runs import read_runs
    from pdbench.report.history.story import tell

    metrics = gates_named(several(metric or [], "--metric", str)) or GATED
    effect = share(min_effect)
    told = tell(*read_runs(runs), metrics, effect)
    if html is not None:
        from pdbench.report.history.html import render_html

        with storing(html):
            html.write_text(render_html(told), encoding="utf-8")
    if json:
        from pdbench.report.history.document import document

        jsonlib.dump(document(told), sys.stdout, indent=1, allow_nan=False)
        sys.stdout.write("\n")
    else:
        from pdbench.report.command import terminal
        from pdbench.report.history.text import print_history

        print_history(told, terminal(), strict=strict)
    if not told.series:
        raise InvalidRun(f"none of {len(told.runs)} runs has a valid cell with {', '.join(metrics)}.")
    if strict and (worse := told.ended_worse):
        raise GateFailed(f"{len(worse)} of {len(told.series)} series ended worse than they were.")
