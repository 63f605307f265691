"""Request traces: Azure's LLM inference CSV and Mooncake's JSONL, as offsets and token counts."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from pdbench.errors import UsageError

AZURE_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


@dataclass(frozen=True, slots=True)
class TracedRequest:
    """One request of a trace; `at_s` counts from its first one."""

    at_s: float
    prompt_tokens: int
    output_tokens: int


def read_trace(path: Path, option: str = "--trace") -> list[TracedRequest]:
    """The requests of a trace in order of arrival. UsageError says which line is not what it should be."""
    wanted = f"Azure's CSV ({','.join(AZURE_COLUMNS)}) and Mooncake's JSONL (timestamp, input_length, ...) are read."
    try:
        with path.open(encoding="utf-8", newline="") as lines:
            start = lines.read(1)
            lines.seek(0)
            found = list(_mooncake(lines) if start == "{" else _azure(lines))
    except OSError as error:
        raise UsageError(f"{option} {path}: {error.strerror}.", wanted) from None
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{option} {path}: cannot be read: {error}.", wanted) from None
    found = [request for request in found if request.prompt_tokens > 0 and request.output_tokens > 0]
    if len(found) < 2:
        raise UsageError(f"{option} {path}: {len(found)} requests with tokens; a rate needs two.", wanted)
    found.sort(key=lambda request: request.at_s)
    first_s = found[0].at_s
    return [TracedRequest(each.at_s - first_s, each.prompt_tokens, each.output_tokens) for each in found]


def _mooncake(lines: Iterable[str]) -> Iterator[TracedRequest]:
    for line in lines:
        if line.strip():
            row = json.loads(line)
            yield TracedRequest(float(row["timestamp"]) / 1000, int(row["input_length"]), int(row["output_length"]))


def _azure(lines: Iterable[str]) -> Iterator[TracedRequest]:
    rows = csv.DictReader(lines)
    if not set(AZURE_COLUMNS) <= set(rows.fieldnames or ()):
        raise ValueError(f"its first line has no columns {', '.join(AZURE_COLUMNS)}")
    for row in rows:
        # Seven digits of a second, one more than Python reads.
        stamp = datetime.fromisoformat(row["TIMESTAMP"].strip()[:26])
        yield TracedRequest(stamp.timestamp(), int(row["ContextTokens"]), int(row["GeneratedTokens"]))
