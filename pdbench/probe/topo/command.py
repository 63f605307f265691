"""`pdbench topo`: what this machine's wiring allows, before anything is loaded."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from pdbench.errors import GateFailed, StorageError
from pdbench.probe.topo.answer import Answer, answer
from pdbench.probe.topo.machine import look
from pdbench.probe.topo.plan import roles_of


def topo(
    role: Annotated[
        list[str] | None,
        typer.Option(help="Judge a plan: prefill=0-3 and decode=4-7; repeat a role for one more instance."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON (docs/topo.md lists the keys).")] = False,
    html: Annotated[Path | None, typer.Option(help="Write a drawing of the topology to this file.")] = None,
) -> None:
    """GPU pairs, NICs and host: by which path KV moves between prefill and decode, and how fast at best."""
    roles = roles_of(role) if role else None
    found = answer(look(), roles)
    if html is not None:
        _write(html, found)
    if as_json:
        from pdbench.probe.topo.document import document

        json.dump(document(found), sys.stdout, indent=1, allow_nan=False)
        sys.stdout.write("\n")
    else:
        from pdbench.probe.topo.text import show

        show(found, html)
    if found.plan is not None and not found.plan.works:
        said = "the plan of --role cannot work, as said above."
        step = "Change --role, or repair what it names; pdbench topo shows all pairs."
        if found.machine.nvml.trouble is not None:
            said = "the plan of --role was not judged, as said above."
            step = "Judge the plan on the host that has its GPUs, or repair the driver of this one."
        raise GateFailed(found.plan.verdict if as_json else said, step)


def _write(path: Path, found: Answer) -> None:
    from pdbench.probe.topo.page import page

    try:
        path.write_text(page(found), encoding="utf-8")
    except OSError as error:
        raise StorageError(
            f"--html {path}: {error.strerror or error}.", "Name a file in a directory that exists."
        ) from None
