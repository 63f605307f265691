"""Requests and their stages as a Chrome trace, which ui.perfetto.dev and chrome://tracing open.

Every cell and repeat is a process; its requests lie in as many lanes as it had in flight, each with its stages inside.
One more process holds the cells themselves and the servers' waiting and running as counters. Times are microseconds
from the run's origin.
"""

from __future__ import annotations

import heapq
import json
import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pdbench.report import series
from pdbench.report.window import Metrics
from pdbench.report.wording import CellSummary, clean, is_unsound, place, verdict_mark
from pdbench.run import Run, storing

if TYPE_CHECKING:
    import pandas

Event = dict[str, Any]
# What a request does until each stamp, in the order in which they come.
STAGES = {
    "sent_s": "wait in the client",
    "connected_s": "connect",
    "prefill_sent_s": "to hop 1",
    "prefill_done_s": "prefill leg",
    "decode_sent_s": "between the hops",
    "first_byte_s": "to the answer's head",
    "first_token_s": "to the first token",
    "second_token_s": "to the second token",
    "last_token_s": "other tokens",
    "done_s": "to the end",
}
FACTS = ("index", "status", "error_kind", "error", "prompt_tokens", "output_tokens", "chunks", "finish_reason")


def write_trace(results: Sequence[tuple[Run, Mapping[str, Any]]], path: Path) -> None:
    """Write the trace of all runs into one file."""
    with storing(path), path.open("w", encoding="utf-8") as file:
        file.write('{"displayTimeUnit":"ms","traceEvents":[\n')
        first, pid = True, 0
        for run, summary in results:
            for event in _events(run, summary, pid, several=len(results) > 1):
                pid = max(pid, event["pid"])
                file.write(("" if first else ",\n") + json.dumps(event, allow_nan=False, separators=(",", ":")))
                first = False
        file.write("\n]}\n")


def _events(run: Run, summary: Mapping[str, Any], pid: int, several: bool) -> Iterator[Event]:
    cells = {cell.get("cell"): cell for cell in summary.get("cells") or []}
    front = f"{run.path.name}: " if several else ""
    pid += 1
    yield _named(pid, f"{front}cells and servers")
    for window in series.windows(run):
        yield _slice(pid, 1, _cell_name(cells.get(window.cell, {}), window.cell), window.start_s, window.end_s)
    for line in series.gauge_lines(Metrics(run.columns("metrics")), limit=None):
        for t, value in zip(line.t_s.tolist(), line.value.tolist(), strict=True):
            name = clean(f"{line.target} {line.role} {line.gauge}", 120)
            yield {"ph": "C", "pid": pid, "name": name, "ts": _us(t), "args": {line.gauge: value}}
    requests = run.table("requests")
    for (cell, repeat), rows in requests.groupby(["cell", "repeat"], sort=True):
        pid += 1
        name = _cell_name(cells.get(cell, {}), cell) + (f" repeat {repeat}" if repeat else "")
        yield _named(pid, f"{front}{name}")
        yield from _lanes(rows, pid)


def _cell_name(cell: CellSummary, number: object) -> str:
    void = f" ({verdict_mark(cell)})" if cell and is_unsound(cell) else ""
    return clean(f"cell {number}: {place(cell, target=True)}{void}" if cell else f"cell {number}", 160)


def _lanes(rows: pandas.DataFrame, pid: int) -> Iterator[Event]:
    """The requests of a cell, each in the first lane that is free at its start."""
    free: list[int] = []
    busy: list[tuple[float, int]] = []
    lanes = 0
    for row in rows.sort_values(["intended_s", "index"], kind="stable").to_dict("records"):
        start, end, stages = _stages(row)
        while busy and busy[0][0] <= start:
            heapq.heappush(free, heapq.heappop(busy)[1])
        if not free:
            lanes += 1
            heapq.heappush(free, lanes)
        lane = heapq.heappop(free)
        heapq.heappush(busy, (end, lane))
        args = {name: value for name in FACTS if (value := _plain(row[name])) is not None}
        name = clean(row["request_id"], 80)
        yield {**_slice(pid, lane, name, start, end), "cat": str(row["status"]), "args": args}
        for name, since, until in stages:
            yield {**_slice(pid, lane, name, since, until), "cat": "stage"}


def _stages(row: Mapping[Hashable, Any]) -> tuple[float, float, list[tuple[str, float, float]]]:
    """When a request begins and ends, and its stages: they touch, and none ends before it begins."""
    before = start = float(row["intended_s"])
    found = []
    for stamp, name in STAGES.items():
        until = row[stamp]
        # A connection may be ready before its request is due: then it is no stage.
        if until is None or math.isnan(until) or until <= before:
            continue
        found.append((name, before, float(until)))
        before = float(until)
    return start, before, found


def _plain(value: Any) -> Any:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    return int(value) if isinstance(value, float) else clean(value, 200) if isinstance(value, str) else value


def _named(pid: int, name: str) -> Event:
    return {"ph": "M", "pid": pid, "tid": 0, "name": "process_name", "args": {"name": clean(name, 200)}}


def _slice(pid: int, tid: int, name: str, start_s: float, end_s: float) -> Event:
    ts = _us(start_s)
    return {"ph": "X", "pid": pid, "tid": tid, "name": name, "ts": ts, "dur": round(max(_us(end_s) - ts, 0.0), 3)}


def _us(seconds: float) -> float:
    return round(seconds * 1e6, 3)
