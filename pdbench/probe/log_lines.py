"""What an engine's log says of KV transfers, as the counters that its metrics page would show.

vLLM prints a `KV Transfer metrics:` line every ten seconds (VLLM_LOG_STATS_INTERVAL), for that interval alone: the
older form without failures, the newer one with them, MultiConnector's with a table for each child, Mooncake's without
a post time, each as plain text or inside JSON records. Some connectors have nothing else. Lines are added up here, so
that a reader takes differences as from any counter. Single messages that mean trouble are counted by their code.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from pdbench.probe.scrape import Row

MARK = "KV Transfer metrics:"
MIB = 2**20

# A field of the line -> (canonical counter, factor to its unit). Means are multiplied by the transfers of the line.
_COUNTS = {
    "num failed transfers": "nixl_failed_transfers",
    "num failed recvs": "nixl_failed_transfers",
    "num kv expired reqs": "nixl_kv_expired",
    "num notifs after expiry": "nixl_used_after_expiry",
}
_MEANS = {
    "avg xfer time (ms)": ("nixl_xfer_s", 1e-3),
    "avg post time (ms)": ("nixl_post_s", 1e-3),
    "avg mb per transfer": ("nixl_nbytes", MIB),
    "avg number of descriptors": ("nixl_descriptors", 1.0),
}
_NUMBER = r"[-+]?(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])(?:\.[0-9]+)?|[0-9.]+(?:[eE][-+]?[0-9]+)?)"  # also 1,234
_FIELD = re.compile(rf"""([A-Za-z][A-Za-z0-9 /()]*?)\s*=\s*({_NUMBER})(?=$|[,}}\s"'\\])""")
_QUOTED = re.compile(rf"""['"]([^'"]+)['"]\s*:\s*['"]?({_NUMBER})""")
_CHILD = re.compile(r"[=:]\s*\{([^{}]*)\}")  # a table within which there is no other: also of a connector of connectors
_NUMPY = re.compile(r"\bnp\.\w+\(([^()]*)\)")  # how numpy 2 prints a number inside a table
_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_TEXTS = ("message", "msg", "event", "log", "line")  # names that a JSON record's text goes by
_WRAPPED = 3  # records inside records: an engine's JSON in a container's in a collector's

# Messages of vLLM that mean trouble -> code (facts: vLLM 0.32's NIXL connector and scheduler).
MESSAGES = (
    ("handshake-refused", re.compile(r"NIXL compatibility hash mismatch")),
    ("kv-expired", re.compile(r"Releasing expired KV blocks for request")),
    ("used-after-expiry", re.compile(r"invalid KV blocks for unrecognized request|Unrecognized request .* notif")),
    ("transfer-failed", re.compile(r"NIXL transfer failure:")),
    ("load-failed", re.compile(r"Failing \d+ request\(s\) due to KV load failure")),
    ("never-written", re.compile(r"timed out after .* without a push completion")),
    ("slow-post", re.compile(r"slow NIXL submission")),
    ("read-back-declined", re.compile(r"Declining expired remote read")),
    ("no-connector", re.compile(r"Got kv_transfer_params, but no KVConnector found")),
)  # fmt: skip


@dataclass(slots=True)
class LogTotals:
    """Sums over the lines seen so far; nothing is here that no line told."""

    transfers: float = 0.0
    lines: int = 0
    sums: dict[str, float] = field(default_factory=dict)  # of histograms, in the canonical unit
    counts: dict[str, float] = field(default_factory=dict)  # counters
    messages: dict[str, int] = field(default_factory=dict)  # MESSAGES by code

    def take(self, line: str) -> bool:
        """Add a line; whether it said anything."""
        text = _COLOUR.sub("", _message(line, _WRAPPED))
        found = False
        if MARK in text:
            for values in _tables(text.partition(MARK)[2]):
                self._add(values)
                found = True
        for code, pattern in MESSAGES:
            if pattern.search(text):
                self.messages[code] = self.messages.get(code, 0) + 1
                found = True
        self.lines += found
        return found

    def _add(self, values: dict[str, float]) -> None:
        transfers = values.get("num successful transfers", 0.0)
        self.transfers += transfers
        for name, (canonical, factor) in _MEANS.items():
            if name in values:
                self.sums[canonical] = self.sums.get(canonical, 0.0) + values[name] * factor * transfers
        for name, canonical in _COUNTS.items():
            if name in values:
                self.counts[canonical] = self.counts.get(canonical, 0.0) + values[name]

    def rows(self) -> list[Row]:
        """As a metrics page would have them."""
        found: list[Row] = []
        for canonical, value in self.sums.items():
            found.append(("log", canonical, "sum", "", "{}", value))
            found.append(("log", canonical, "count", "", "{}", self.transfers))
        found += [("log", canonical, "counter", "", "{}", value) for canonical, value in self.counts.items()]
        found += [
            ("log", "log_messages", "counter", "", json.dumps({"code": code}), float(times))
            for code, times in self.messages.items()
        ]
        return found


def _message(line: str, wrapped: int) -> str:
    """The text of a log record: a JSON record's message, whatever stands before the record, or the line itself."""
    start = line.find("{")
    if wrapped == 0 or start < 0 or MARK in line[:start]:  # from the mark on, braces are a connector's table
        return line
    try:
        record = json.loads(line[start:])
    except (ValueError, RecursionError):
        return line
    while isinstance(record, dict) and isinstance(record.get("fields"), dict):
        record = record["fields"]
    for name in _TEXTS:
        if isinstance(record, dict) and isinstance(record.get(name), str):
            return _message(record[name], wrapped - 1)
    return line


def _tables(text: str) -> Iterator[dict[str, float]]:
    """The fields of a line: one table, or one for each child of a MultiConnector."""
    text = _NUMPY.sub(r"\1", text)
    for body in _CHILD.findall(text) or [text]:
        values = {name.strip().lower(): float(value) for name, value in _fields(body)}
        if values:
            yield values


def _fields(body: str) -> Iterator[tuple[str, str]]:
    """`Name=value` pairs, also as a Python or JSON table prints them ('Name': value)."""
    for name, told in _QUOTED.findall(body) or _FIELD.findall(body):
        value = told.replace(",", "")
        try:
            float(value)
        except ValueError:
            continue
        yield name, value
