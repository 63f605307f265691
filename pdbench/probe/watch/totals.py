"""Scrapes as running totals: what of a server's page only ever grows, and the areas under its gauges.

A window is then one subtraction, however long it is and however many servers there are. Counters that went back (a
restart) go on from where they were.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from pdbench.probe.scrape import Row

CUMULATIVE = ("counter", "sum", "count")
RESET_SHARE = 1e-6  # of its value that a counter must lose to have gone back
MOST = 1e30  # of anything that is counted, measured or added up here; a page may say more, or less than nothing
STAGES = ("waiting_to_start", "in_progress", "completed_waiting")
SOURCES = ("local_compute", "external_kv_transfer", "local_cache_hit")

Totals = dict[str, float]


@dataclass(slots=True)
class Watched:
    """One server: its newest figures and its totals. `slots` are all of its ranks' together, None when not known."""

    name: str
    role: str
    slots: int | None = None
    up: bool = False
    trouble: str = "not asked yet"
    t_s: float = 0.0
    now: dict[str, float] = field(default_factory=dict)  # gauges, summed over ranks (KV use: the highest)
    totals: Totals = field(default_factory=dict)
    restarts: int = 0
    restarted_s: float | None = None  # when the last one was seen
    looked: bool = False  # whether a scrape ever came
    _raw: dict[tuple[str, str, str, str], float] = field(default_factory=dict)

    def lost(self, t_s: float, trouble: str) -> None:
        """A scrape that failed: the gauges are not known any more, the totals stay."""
        self.up, self.trouble, self.t_s, self.now = False, trouble, t_s, {}

    def take(self, t_s: float, rows: Iterable[Row]) -> None:
        """One scrape. Areas are trapezoids between two scrapes of which both had the gauge."""
        before, since_s = (self.now, t_s - self.t_s) if self.up else ({}, 0.0)
        gauges: dict[str, float] = {}
        back = False
        for _, canonical, kind, engine, labels, value in rows:
            if not 0 <= value < MOST:
                continue
            if kind == "gauge":
                name = _named(canonical, labels)
                old = gauges.get(name, 0.0)
                gauges[name] = max(old, value) if canonical == "kv_cache_usage" else old + value
            elif kind in CUMULATIVE:
                key = (canonical, kind, engine, labels)
                first = self._raw.get(key)
                self._raw[key] = value
                if first is None:  # what it counted before our first look is not ours; later it was born at 0
                    first = 0.0 if self.looked else value
                gone_back = value < (1 - RESET_SHARE) * first
                back = back or (gone_back and kind != "sum")
                name = f"{_named(canonical, labels)}:{kind}"
                self.totals[name] = self.totals.get(name, 0.0) + (value if gone_back else value - first)
        if back:
            self.restarts, self.restarted_s = self.restarts + 1, t_s
        if "running" in gauges:
            gauges["slot_wait"] = _waits_for_slot(gauges, self.slots)
        if "running" in gauges and "stage.in_progress" in gauges:
            gauges["fetching"] = _fetching_beside_free(gauges, self.slots)
        for name, value in gauges.items():
            if name in before:
                area = (value + before[name]) / 2 * since_s
                self.totals[f"{name}:area"] = self.totals.get(f"{name}:area", 0.0) + area
        self.up, self.trouble, self.t_s, self.now, self.looked = True, "", t_s, gauges, True


def _named(canonical: str, labels: str) -> str:
    """Stages, sources and operations as names of their own; every other label is summed over."""
    if canonical in ("kv_fetch_stage", "prefill_stage"):
        return f"stage.{json.loads(labels).get('stage', '')}"
    if canonical == "stage_s":
        return f"stage_s.{json.loads(labels).get('stage', '')}"
    if canonical in ("store_operation_s", "store_nbytes"):
        return f"{canonical}.{json.loads(labels).get('operation', '')}"
    if canonical == "prompt_tokens_by_source":
        return f"source.{json.loads(labels).get('source', '')}"
    return canonical if canonical != "waiting_by_reason" else f"reason.{json.loads(labels).get('reason', '')}"


def _waits_for_slot(gauges: Mapping[str, float], slots: int | None) -> float:
    """Requests that wait for a slot: not started, and loaded ones beyond the free slots."""
    loaded = gauges.get("stage.completed_waiting", 0.0)
    free = loaded if slots is None else max(0.0, slots - gauges["running"])
    return gauges.get("stage.waiting_to_start", 0.0) + max(0.0, loaded - free)


def _fetching_beside_free(gauges: Mapping[str, float], slots: int | None) -> float:
    """Requests that load, or have loaded and are not admitted, and for which there is a slot: what keeps them is the
    transfer or a late look, and no slot. Where slots are not known, none is free while requests wait to start."""
    fetching = gauges.get("stage.in_progress", 0.0) + gauges.get("stage.completed_waiting", 0.0)
    if slots is None:
        return 0.0 if gauges.get("stage.waiting_to_start") else fetching
    return min(fetching, max(0.0, slots - gauges["running"]))


def by_role(servers: Iterable[Watched]) -> dict[str, Totals]:
    """The totals of all servers of each role."""
    found: dict[str, Totals] = {}
    for server in servers:
        role = found.setdefault(server.role, {})
        for name, value in server.totals.items():
            role[name] = role.get(name, 0.0) + value
    return found
