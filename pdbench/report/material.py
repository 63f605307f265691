"""What a run directory holds for the report, read once: its requests, their events, and the pages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pdbench.report import answers, explorer
from pdbench.report.events import Events, Ints, of_run
from pdbench.report.window import Metrics
from pdbench.tables import Columns

if TYPE_CHECKING:
    import pyarrow

    from pdbench.run import Run

COLUMNS = tuple(dict.fromkeys((*answers.COLUMNS, *explorer.COLUMNS)))  # of requests.parquet


@dataclass(frozen=True, slots=True, eq=False)
class Material:
    """`requests`, `ids` and `events` are in one order. `places`: the requests of each cell and repeat. `entries`: of
    run.json's cell_runs, those that have requests, with their times."""

    requests: Columns
    ids: pyarrow.ChunkedArray
    events: Events
    places: Mapping[tuple[int, int], Ints]
    entries: list[dict[str, Any]]
    metrics: Metrics


def material(run: Run) -> Material:
    requests, ids = run.columns("requests", COLUMNS), run.ids()
    places = _places(requests)
    entries = [
        _bounded(entry, requests, mine)
        for entry in run.document.get("cell_runs", [])
        if (mine := places.get((entry["cell"], entry["repeat"]))) is not None
    ]
    metrics = Metrics(run.columns("metrics"), [(entry["start_s"], entry["end_s"]) for entry in entries])
    return Material(requests, ids, of_run(run, ids), places, entries, metrics)


def _places(requests: Columns) -> dict[tuple[int, int], Ints]:
    cell, repeat = requests["cell"], requests["repeat"]
    order = np.lexsort((repeat, cell))  # stable: those of one repeat stay as they are in the table
    order = order[np.isfinite(cell[order] + repeat[order])]
    new = (np.diff(cell[order]) != 0) | (np.diff(repeat[order]) != 0)
    parts = np.split(order, np.flatnonzero(new) + 1) if len(order) else []
    return {(int(cell[part[0]]), int(repeat[part[0]])): part for part in parts}


def _bounded(entry: Mapping[str, Any], requests: Columns, mine: Ints) -> dict[str, Any]:
    """The cell_runs entry with its times; what a crash left out is taken from the requests."""
    sent = requests["sent_s"][mine]
    stamps = np.concatenate((sent, requests["done_s"][mine]))
    start = entry.get("start_s")
    start = float(np.fmin.reduce(requests["intended_s"][mine])) if start is None else start
    latest = float(np.nanmax(stamps)) if np.isfinite(stamps).any() else start
    last_sent = float(np.nanmax(sent)) if np.isfinite(sent).any() else start
    send_end = entry.get("send_end_s")
    end = entry.get("end_s")
    return {
        **entry,
        "start_s": start,
        "send_end_s": last_sent if send_end is None else send_end,
        "end_s": latest if end is None else end,
    }
