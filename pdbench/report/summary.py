"""From a run directory to `summary.json`: what `compare` needs and what a reader acts on.

The keys are contracts (docs/run-directory.md): absent means not measured, nothing is 0 for want of data. Repeats of a
cell are pooled; a cell with a void repeat is void.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from pdbench.report.advice import HeldLoop
from pdbench.report.answers import (
    Load,
    answers_of,
    counts,
    rates,
    several_tokens_per_event,
)
from pdbench.report.arrivals_check import arrival_figures
from pdbench.report.breakdown import breakdown
from pdbench.report.capacity.answer import capacity_document, capacity_said, is_unfinished
from pdbench.report.capacity.answer import exit_code_of as capacity_exit_code
from pdbench.report.causes.case import case_of
from pdbench.report.causes.down import gone, listed_names
from pdbench.report.causes.loop import held_loop
from pdbench.report.causes.unread import held_unseen
from pdbench.report.cell import Measured, Part, measured
from pdbench.report.client_health import stamps_note
from pdbench.report.connectors import connectors
from pdbench.report.counsel import counsel
from pdbench.report.crosschecks import cross_checks
from pdbench.report.demand import Slots, slots_of
from pdbench.report.diagnosis import diagnose
from pdbench.report.facts import facts
from pdbench.report.grid import Peers
from pdbench.report.handoffs import handoffs_of
from pdbench.report.hidden import hidden
from pdbench.report.imports.told import told_cells
from pdbench.report.legs import add_proxy_costs, legs_ms, traffic_of
from pdbench.report.link_load import link_load
from pdbench.report.link_use import link_use
from pdbench.report.longest_gap import longest_gap
from pdbench.report.lost_workers import not_measured
from pdbench.report.material import Material, material
from pdbench.report.prefix import fewer_hits, prefix_cache
from pdbench.report.shapes import turns_not_asked
from pdbench.report.short_cell import short_document, whole_cell
from pdbench.report.split import Split, split_of
from pdbench.report.thinking import behind_the_thinking, content_latency
from pdbench.report.tiers import tiers
from pdbench.report.validity import Finding, findings, is_void, merged
from pdbench.report.verdict import cell_verdict, run_verdict
from pdbench.report.verdict import is_void as cell_is_void
from pdbench.report.whole_pages import doubts_of
from pdbench.run import Run

SCHEMA = 1
SEVERAL_TOKENS = 1.05  # per event: from here on an ITL is not the gap between tokens

SERVER_MEANS = (
    "queue_s",
    "prefill_s",
    "decode_s",
    "inference_s",
    "e2e_s",
    "ttft_s",
    "itl_s",
    "tpot_s",
    "prefill_leg_s",
)
BETTER_ABOVE = {"achieved_concurrency", "kernel_stamps_share", "connections_reused"}  # figures of the client
NIXL_COUNTERS = ("nixl_failed_transfers", "nixl_failed_notifications", "nixl_kv_expired", "nixl_used_after_expiry")


def summarise(run: Run, read: Material | None = None) -> dict[str, Any]:
    """The summary document of a run directory, from what the directory holds and nothing else."""
    document = run.document
    simulated = bool(document.get("simulated")) or any(d.get("simulated") for d in document.get("deployments", []))
    whole = list(measured_cells(run, read))
    cells = [cell_summary(cell, Peers(cell, whole)) for cell in whole]
    if told := told_cells(document):
        cells = sorted([*cells, *told], key=lambda cell: cell["cell"])
    add_proxy_costs(cells, whole)
    capacity = capacity_document(document.get("plan", {}), whole)
    entries = document.get("cell_runs", [])
    interrupted = len(entries) < _planned(document) or any(entry.get("state") != "done" for entry in entries)
    interrupted = interrupted or is_unfinished(capacity)
    summary = {
        "schema": SCHEMA,
        "simulated": simulated,
        "created_unix_s": document.get("created_unix_s"),
        "pdbench": document.get("pdbench"),
        "targets": [d.get("target") for d in document.get("deployments", [])],
        "plan": document.get("plan", {}),
        "imported_from": (document.get("imported") or {}).get("tool"),
        "tiers": [found.document() for found in tiers(whole)],
        "hidden_transfer": [found.document() for found in hidden(whole)],
        "versions": _versions(document),
        **facts(document),
        "interrupted": interrupted,
        "capacity": capacity,
        "verdict": run_verdict(cells, simulated, document.get("plan"), interrupted, capacity_said(capacity)),
        "cells": cells,
    }
    cleaned: dict[str, Any] = _clean(summary)
    return cleaned


def exit_code_of(summary: Mapping[str, Any]) -> int:
    """0 when at least one cell is valid, else 3. A search has an answer of its own."""
    if summary.get("capacity"):
        return capacity_exit_code(summary["capacity"])
    return 0 if any(not cell_is_void(cell) and cell["state"] == "done" for cell in summary["cells"]) else 3


def _planned(document: Mapping[str, Any]) -> int:
    plan = document.get("plan", {})
    return len(plan.get("cells", [])) * int(plan.get("repeats") or 1)


def cell_summary(cell: Measured, peers: Peers | None = None) -> dict[str, Any]:
    """One entry of `cells`: all repeats pooled, then each alone."""
    alone = [(part, cell.only(part)) for part in cell.parts]
    found = [(part.repeat, findings(single)) for part, single in alone]
    validity = merged(cell, found)
    whole = figures(cell)
    split, slots = split_of(cell), slots_of(cell)
    case = case_of(cell, split, validity, peers or Peers(cell, [cell]))
    causes = diagnose(cell, case, validity)
    loop = None if case is None else held_loop(case)
    brief, validity = whole_cell(cell, None if loop is None else loop.tpot, validity)
    stopped = gone(cell)  # then gauges and counters are of different times, and no counsel rests on them
    checks = [] if stopped else cross_checks(cell)
    advised = [] if stopped or cell.cut else counsel(cell, split, causes)
    entry: dict[str, Any] = {
        "cell": cell.cell.get("cell"),
        "target": cell.cell.get("target"),
        "state": "interrupted" if cell.cut else "done",
        "loop": "open" if cell.rate is not None else "closed",
        "request_rate": cell.rate,
        "max_concurrency": cell.streams,
        "prompt_len": cell.cell.get("prompt_len"),
        "output_len": cell.cell.get("output_len"),
        "traffic": traffic_of(cell),
        **{name: cell.cell.get(name) or None for name in ("output_law", "speed")},
        "drive": cell.cell.get("drive", "proxy"),
        **whole,
        **_split_keys(split),
        "legs_ms": legs_ms(cell.answers),
        "slots": _slot_keys(slots),
        **_loop_keys(loop),
        "short_run": short_document(brief, link_load(cell)),
        "link": None if (link := link_use(cell)) is None else link.document(),
        **breakdown(cell),
        "prefix_cache": prefix_cache(cell),
        "arrivals": arrival_figures(cell),
        **_growth(cell),
        **servers(cell),
        "client": _client_keys(cell),
        "foreign": cell.parts[0].entry.get("foreign") if len(cell.parts) == 1 else None,
        "notes": [
            *longest_gap(cell, validity),
            *_notes(cell, split),
            *held_unseen(case, causes),
            *(check.note() for check in checks if not check.agrees),
            *(one.text for one in advised),
        ],
        "cross_checks": [check.document() for check in checks],
        "counsel": [one.document() for one in advised],
        "validity": [finding.document() for finding in validity],
        "diagnosis": [cause.document() for cause in causes],
        "repeats": [
            _repeat(part, single, own, whole if len(alone) == 1 else figures(single))
            for (part, single), (_, own) in zip(alone, found, strict=True)
        ],
    }
    entry["verdict"] = cell_verdict(_clean(entry))
    return entry


def _repeat(part: Part, single: Measured, found: Sequence[Finding], own: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "repeat": part.repeat,
        "seed": part.entry.get("seed"),
        "state": part.entry.get("state"),
        **own,
        **_split_keys(split_of(single)),
        "slots": _slot_keys(slots_of(single)),
        **breakdown(single),
        **_growth(single),
        **_waiting(single),
        "validity": [finding.document() for finding in found],
        "valid": not is_void(found) and single.answers.count("ok") > 0,
    }


def figures(cell: Measured) -> dict[str, Any]:
    """Client figures of a cell or of one repeat."""
    goodput = {str(k): float(v) for k, v in (cell.plan.get("goodput_ms") or {}).items()}
    return {
        "duration_s": cell.send_s,
        "offered_rate": cell.rate,
        **counts(cell.answers),
        **not_measured(cell),
        **rates([part.load for part in cell.parts], goodput),
        **cell.latencies,
        **content_latency(cell.answers),
    }


def _split_keys(split: Split | None) -> dict[str, Any]:
    if split is None:
        return {}
    return {"ttft_split_ms": split.parts}


def _notes(cell: Measured, split: Split | None) -> list[str]:
    """What to keep in mind when reading the numbers, and what could not be told apart: remarks, no flags."""
    if stopped := gone(cell):
        names = listed_names([each.name for each in stopped])
        mixed = f"its figures mix the time before {names} stopped with the time after, and no advice rests on them"
        return [*(cell.plan.get("notes") or ()), f"{mixed}: measure the cell again with {names} up."]
    notes = [*(cell.plan.get("notes") or ()), *(split.notes if split is not None else ())]
    if (several := several_tokens_per_event(cell.answers)) is not None and several > SEVERAL_TOKENS:
        notes.insert(0, f"events carry {several:.2g} tokens: ITL is per event, not per token.")
    notes += [*behind_the_thinking(cell.answers), *turns_not_asked(cell)]
    notes += [f"{role}'s log says {code} {times:.0f} times." for role, code, times in _log_messages(cell)]
    return [*_slots_doubted(cell), *notes, *fewer_hits(cell), *stamps_note(cell)]


def _slots_doubted(cell: Measured) -> list[str]:
    """Servers that say other slots than were given, which are those that everything here counts with."""
    return [
        f"{server['name']}: {note}."
        for server in cell.deployment.get("servers", [])
        for note in (server.get("facts") or {}).get("notes") or []
        if note.startswith("max_num_seqs")
    ]


def _log_messages(cell: Measured) -> Iterator[tuple[str, str, float]]:
    """What logs said that means trouble (`pdbench.probe.log_lines.MESSAGES`): role, code, how often."""
    for role in cell.window.roles():
        keys = [key for _, page in cell.window.pages(role) for key in page.deltas if key.canonical == "log_messages"]
        for code in sorted({dict(key.labels).get("code", "") for key in keys}):
            if times := cell.window.delta(role, "log_messages", code=code):
                yield role, code, times


def _slot_keys(slots: Slots) -> dict[str, Any]:
    names = ("needed", "held", "available", "utilisation", "source", "prefill_held", "role")
    return {name: getattr(slots, name) for name in names}


def _loop_keys(loop: HeldLoop | None) -> dict[str, Any]:
    """What handoffs do to decode's loop, where they hold it: `tpot_ms` of a batch of b streams is alone + b x slope."""
    if loop is None:
        return {}
    line = {"tpot_alone_ms": loop.tpot.alone_ms, "tpot_slope_ms": loop.tpot.slope_ms}
    return {"decode_loop": {"stall_ms": loop.stall_ms, "share": loop.share, **line}}


def _growth(cell: Measured) -> dict[str, float]:
    """Growth of TTFT with the request index where a repeat was called growing: the steepest of them."""
    seen = () if cell.stages else cell.steadiness
    growth = [judged.growth_ms for judged in seen if judged.growth_ms is not None]
    return {"ttft_growth_ms_per_request": max(growth)} if growth else {}


def _waiting(cell: Measured) -> dict[str, float | None]:
    return {
        "waiting_mean": cell.window.send_mean(cell.decoder, "waiting"),
        "waiting_max": cell.window.send_max(cell.decoder, "waiting"),
    }


def servers(cell: Measured) -> dict[str, Any]:
    """What the pages said: gauges over the send window by role, means of the servers' own times, NIXL."""
    by_role: dict[str, Any] = {}
    means: dict[str, Any] = {}
    for role in cell.window.roles():
        gauges: dict[str, float | None] = {}
        for name in ("running", "waiting"):
            gauges[f"{name}_mean"] = cell.window.send_mean(role, name)
            gauges[f"{name}_max"] = cell.window.send_max(role, name)
        gauges["kv_cache_usage_mean"] = cell.window.send_mean(role, "kv_cache_usage", average=True)
        gauges["kv_cache_usage_max"] = cell.window.send_max(role, "kv_cache_usage", average=True)
        for stage in ("waiting_to_start", "in_progress", "completed_waiting"):
            gauges[f"{stage}_mean"] = cell.window.send_mean(role, "kv_fetch_stage", stage=stage)
        gauges["preemptions"] = cell.window.delta(role, "preemptions")
        by_role[role] = gauges
        means[role] = {name.removesuffix("_s"): cell.window.mean_ms(role, name) for name in SERVER_MEANS}
    return {
        **_waiting(cell),
        "servers": by_role,
        "server_means_ms": means,
        "nixl": _nixl(cell),
        "handoffs": _handoffs(cell),
        "connectors": connectors(cell) or None,
    }


def _nixl(cell: Measured) -> dict[str, Any]:
    """Transfer figures of whichever role reports them."""
    window = cell.window
    role = next((r for r in ("decode", "prefill") if window.delta(r, "nixl_xfer_s", "count")), None)
    found: dict[str, Any] = {name.removeprefix("nixl_"): window.delta(None, name) for name in NIXL_COUNTERS}
    if role is None:
        return found
    nbytes, requests = window.delta(role, "nixl_nbytes", "sum"), cell.answers.count("ok")
    time = window.delta(role, "nixl_xfer_s", "sum")
    found |= {
        "role": role,
        "transfers": window.delta(role, "nixl_xfer_s", "count"),
        "mean_xfer_ms": window.mean_ms(role, "nixl_xfer_s"),
        "mean_post_ms": window.mean_ms(role, "nixl_post_s"),
        "mean_descriptors": window.mean_s(role, "nixl_descriptors"),
        "mb_per_request": nbytes / requests / 1e6 if nbytes is not None and requests else None,
        "gb_s": nbytes / time / 1e9 if nbytes is not None and time else None,
    }
    return found


def _handoffs(cell: Measured) -> dict[str, Any] | None:
    """The same figures for every engine that counts its handoffs."""
    found, requests = handoffs_of(cell), cell.answers.count("ok")
    if found is None:
        return None
    return {
        "source": found.source,
        "role": found.role,
        "transfers": found.transfers,
        "mb_per_request": found.nbytes / requests / 1e6 if found.nbytes is not None and requests else None,
        "gb_s": found.gb_s,
        "unsure": dict(found.unsure) or None,
    }


def _client_keys(cell: Measured) -> dict[str, Any]:
    """The worst of the repeats' client health."""
    found: dict[str, Any] = {}
    for part in cell.parts:
        for name, value in part.client.items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                worst = min if name in BETTER_ABOVE else max
                found[name] = worst(value, found.get(name, value))
    return found


def measured_cells(run: Run, read: Material | None = None) -> Iterator[Measured]:
    """The measured cells of a run, in the plan's order."""
    document, read = run.document, read or material(run)
    plan = document.get("plan", {})
    deployments = {d.get("target"): d for d in document.get("deployments", [])}
    for cell in plan.get("cells", []):
        deployment = deployments.get(cell["target"], {})
        parts = [_part(entry, read, cell, deployment) for entry in read.entries if entry["cell"] == cell["cell"]]
        if parts:
            yield measured(plan, cell, deployment, parts)


def _part(entry: Mapping[str, Any], read: Material, cell: Mapping[str, Any], of: Mapping[str, Any]) -> Part:
    closed = cell.get("max_concurrency") is not None
    answers = answers_of(read.requests, read.events, read.places[entry["cell"], entry["repeat"]], closed)
    start, send_end, end = entry["start_s"], entry["send_end_s"], entry["end_s"]
    segment = read.metrics.segment(cell["target"], start, send_end, end)
    load = Load(answers, start, send_end, closed)
    return Part(int(entry["repeat"]), entry, load, segment, doubts_of(answers, segment, of))


def _versions(document: Mapping[str, Any]) -> dict[str, Any]:
    """Engine and version of every server that told them."""
    found = {}
    for deployment in document.get("deployments", []):
        for server in deployment.get("servers", []):
            facts = server.get("facts") or {}
            if facts.get("version"):
                name = f"{deployment.get('target')}/{server.get('name')}"
                found[name] = f"{facts.get('engine') or deployment.get('engine') or 'unknown'} {facts['version']}"
    return found


def _clean(value: Any) -> Any:
    """The document without what is not known: no None (but in intervals and shares), no NaN, no empty records."""
    if isinstance(value, Mapping):
        kept = {str(k): _clean(v) for k, v in value.items()}
        return {k: v for k, v in kept.items() if (v is not None or k == "share") and v != {}}
    if isinstance(value, list | tuple):
        return [_clean(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
