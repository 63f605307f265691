"""The truth logs: one JSON line for each request and server, and for each event worth knowing.

All instants are CLOCK_MONOTONIC seconds (`time.monotonic()`), the same clock in all processes of a host.
"""

import json
from pathlib import Path
from typing import Any


class TruthLog:
    """Appends rows to one file; every row is on disk when `write` returns."""

    def __init__(self, directory: str, server: str, role: str) -> None:
        self._file = (Path(directory) / f"{server}.jsonl").open("a", buffering=1)
        self._who = {"server": server, "role": role}

    def write(self, row: dict[str, Any]) -> None:
        """Add one row, marked with the server it comes from."""
        self._file.write(json.dumps({**self._who, **row}) + "\n")


def read(directory: str | Path) -> dict[str, Any]:
    """`{"requests": {X-Request-Id: {role: row}}, "events": [row, ...]}` of all logs in a directory.

    Roles are proxy, prefill, decode and colocated.  Stamps of the engines are the simulated schedule; the ones that end
    in `_written`, `received`, and all of the proxy's, are when it really happened.  Rows with an `event` (overrun,
    stall, expired, read, written, released) belong to no single request row and come sorted by file.
    """
    requests: dict[str, dict[str, Any]] = {}
    events: list[dict[str, Any]] = []
    for path in sorted(Path(directory).glob("*.jsonl")):
        for line in path.read_text().splitlines():
            try:
                row = json.loads(line)
            except ValueError:
                continue  # a server was killed while it wrote its last line
            if "event" in row:
                events.append(row)
            else:
                requests.setdefault(row["request_id"], {})[row["role"]] = row
    return {"requests": requests, "events": events}
