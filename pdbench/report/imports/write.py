"""A run directory from what another tool measured. Its cells follow each other; those of one load are repeats."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pdbench import __version__
from pdbench.report.imports.record import Cell, Imported, Request
from pdbench.report.wording import clean
from pdbench.run import RequestRow, Run, request_record, storing

TARGET = "default"
SIMULATED_MODEL = "simulated-"  # how the practice testbed names what it serves
BETWEEN_S = 1.0
LATEST_UNIX_S = 4e9  # the year 2096
MAX_ID_BYTES = 63
MAX_ERROR_CHARS = 300
_SECRET = re.compile(r"(?i)\b(?:bearer|api[-_ ]?key|token|authorization)[\s\"':=]+\S+|\bsk-\S+")


@dataclass(frozen=True, slots=True)
class Placed:
    """A cell of the file with its place in the run."""

    cell: Cell
    number: int
    repeat: int


def write_run(imported: Imported, path: Path, files: Sequence[Path], command: str) -> Run:
    """Make the run directory. Raises UsageError when it exists, StorageError when it cannot be written."""
    placed = list(_placed(imported.cells))
    model = clean(imported.model or "", 120)
    created = imported.created_unix_s
    about = {
        "tool": imported.tool,
        "version": clean(imported.version, 40) if imported.version else None,
        "files": [file.name for file in files],
        "differs": list(imported.differs),
    }
    run = Run.create(
        path,
        {
            "pdbench": __version__,
            "created_unix_s": created if created is not None and 0 < created < LATEST_UNIX_S else None,
            "command": command,
            "simulated": imported.simulated or model.startswith(SIMULATED_MODEL),
            "clock": {"source": f"{imported.tool}'s own, set to 0 at each cell's start", "origin_monotonic_ns": 0},
            "plan": _plan(imported, placed),
            "deployments": [
                {"target": TARGET, "servers": [], "imported": about, **({"model": model} if model else {})}
            ],
            "imported": about,
        },
    )
    start_s = 0.0
    for each in placed:
        start_s = _record(run, each, start_s) + BETWEEN_S
    run.finish()
    run.save()
    return run


def _placed(cells: Sequence[Cell]) -> Iterator[Placed]:
    numbers: dict[tuple[Any, ...], int] = {}
    repeats: dict[int, int] = {}
    for cell in cells:
        number = numbers.setdefault((cell.rate, cell.streams, cell.prompt_len, cell.output_len), len(numbers))
        yield Placed(cell, number, repeats.get(number, 0))
        repeats[number] = repeats.get(number, 0) + 1


def _plan(imported: Imported, placed: Sequence[Placed]) -> dict[str, Any]:
    first = {each.number: each.cell for each in reversed(placed)}
    plan: dict[str, Any] = {
        "arrivals": imported.arrivals or "unknown",
        "repeats": len(placed) // len(first) if len(placed) % len(first) == 0 else 1,
        "cells": [_planned(number, cell) for number, cell in sorted(first.items())],
    }
    if imported.burstiness is not None:
        plan["burstiness"] = imported.burstiness
    if imported.goodput_ms:
        plan["goodput_ms"] = dict(imported.goodput_ms)
    return plan


def _planned(number: int, cell: Cell) -> dict[str, Any]:
    lens = {"prompt_len": cell.prompt_len, "output_len": cell.output_len}
    load = {"request_rate": cell.rate} if cell.rate is not None else {"max_concurrency": cell.streams}
    return {"cell": number, "target": TARGET, **load, **lens}


def _record(run: Run, placed: Placed, start_s: float) -> float:
    """Write one cell; returns when it ended."""
    cell = placed.cell
    entry: dict[str, Any] = {"cell": placed.number, "repeat": placed.repeat, "state": "done", "client": {}}
    entry |= {"foreign": dict(cell.foreign)} if cell.foreign else {}
    if cell.requests:
        origin = min(request.intended_s for request in cell.requests) - start_s
        rows = [_row(placed, place, request, origin) for place, request in enumerate(_in_order(cell.requests))]
        stamps = [stamp for row in rows for stamp in (row.sent_s, row.last_token_s, row.done_s) if stamp is not None]
        last_sent = max(row.intended_s for row in rows)
        # An open loop sends for as long as its schedule says: a gap is left behind the last send as well.
        sends = max(last_sent - start_s, len(rows) / cell.rate) if cell.rate else last_sent - start_s
        end_s = max(stamps, default=start_s)
        entry |= {"planned": len(rows), "sent": len(rows), "start_s": start_s}
        entry |= {"send_end_s": start_s + sends, "end_s": max(end_s, start_s + sends)}
        _append(run, placed, rows)
    else:
        entry |= {"figures": dict(cell.figures), "send_s": cell.send_s, "took_s": cell.took_s, "end_s": start_s}
    run.document["cell_runs"].append(entry)
    return float(entry["end_s"])


def _append(run: Run, placed: Placed, rows: Sequence[RequestRow]) -> None:
    offsets = [request.offsets_s for request in _in_order(placed.cell.requests)]
    pairs = zip(rows, offsets, strict=True)
    chunks = [{"request_id": row.request_id, "offset_s": list(each)} for row, each in pairs if each]
    for table, records in (("requests", [request_record(row) for row in rows]), ("chunks", chunks)):
        live = run.live_path(table, placed.number, placed.repeat)
        with storing(live):
            live.write_text("".join(json.dumps(record, allow_nan=False) + "\n" for record in records))
    run.seal(placed.number, placed.repeat)


def _in_order(requests: Sequence[Request]) -> list[Request]:
    return sorted(requests, key=lambda request: request.intended_s)


def _row(placed: Placed, index: int, request: Request, origin: float) -> RequestRow:
    def moved(stamp: float | None) -> float | None:
        return None if stamp is None or not math.isfinite(stamp) else stamp - origin

    named = clean(request.request_id or "", MAX_ID_BYTES)
    second = request.sent_s + request.offsets_s[1] if len(request.offsets_s) > 1 else None
    return RequestRow(
        cell=placed.number,
        repeat=placed.repeat,
        request_class="default",
        request_id=named or f"imported-{placed.number}-{placed.repeat}-{index}",
        target=TARGET,
        index=index,
        intended_s=request.intended_s - origin,
        sent_s=moved(request.sent_s),
        first_byte_s=moved(request.first_byte_s),
        first_token_s=moved(request.first_token_s),
        second_token_s=moved(second),
        last_token_s=moved(request.last_token_s),
        done_s=moved(request.done_s),
        prompt_tokens=request.prompt_tokens,
        output_tokens=request.output_tokens,
        cached_tokens=request.cached_tokens,
        chunks=request.chunks,
        status=request.status,
        error=None if request.error is None else clean(_SECRET.sub("***", request.error), MAX_ERROR_CHARS),
    )
