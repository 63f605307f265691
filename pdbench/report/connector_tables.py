"""The table of report.html that says what each server's KV connectors moved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pdbench.report.markup import Child, table, tag
from pdbench.report.wording import NOT_MEASURED, CellSummary, clean, number, percent, place, short

HEADS = ("operations", "GB", "busy s", "ms each", "GB/s", "found", "failed")
NOTE = (
    "Busy seconds and GB/s are those of the operations themselves, added up over the ranks that worked side by side. "
    "Only a handoff brings KV from prefill to decode: loads and saves of an offload or of a store are in no part of "
    "the TTFT split. Found: what the connector had of the tokens or chunks it was asked for."
)


def connector_tables(cells: Sequence[CellSummary], several: bool) -> list[Child]:
    """The table with its note; empty where no server's page shows what a connector moved."""
    rows: list[list[Child]] = [
        [
            place(cell, several),
            clean(entry["server"], 60),
            _way(entry),
            *(tag("td", x, class_="n") for x in _row(entry)),
        ]
        for cell in cells
        for entry in cell.get("connectors") or []
    ]
    if not rows:
        return []
    heads: list[Child] = ["where", "server", "what", *(tag("th", head, scope="col", class_="n") for head in HEADS)]
    return [table(heads, rows, caption="KV moved by connectors"), tag("p", NOTE, class_="note")]


def _way(entry: Mapping[str, Any]) -> str:
    return f"{clean(entry['connector'], 60)} {entry['direction']}"


def _row(entry: Mapping[str, Any]) -> list[str]:
    nbytes, found, failed = entry.get("nbytes"), entry.get("hit_share"), entry.get("failed")
    return [
        short(entry.get("operations")),
        number(None if nbytes is None else nbytes / 1e9),
        number(entry.get("time_s")),
        number(entry.get("mean_ms")),
        number(entry.get("gb_s")),
        NOT_MEASURED if found is None else f"{percent(found)} of {entry['hits_of']}",
        f"{short(failed)} {entry['failed_what']}" if failed else short(failed),
    ]
