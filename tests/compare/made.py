"""Summaries made up from numbers a repeat, so that what a comparison must say is known beforehand."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

METRICS = ("mean_ttft_ms", "median_ttft_ms", "mean_tpot_ms", "request_throughput")
PLAN = {
    "arrivals": "poisson",
    "burstiness": 1.0,
    "num_prompts": 200,
    "duration_s": None,
    "seed": 0,
    "endpoint": "completions",
    "ignore_eos": True,
    "prompt_seed": 5,
}
SPLIT = {"prefill": 0.3, "slot_wait": 0.4, "post": 0.2, "unexplained": 0.1}


def repeat(number: int, factors: dict[str, float], void: str = "", **more: Any) -> dict[str, Any]:
    """A repeat of 100 ms TTFT, 10 ms TPOT and 4 req/s, each times its factor."""
    ttft = 100.0 * factors.get("mean_ttft_ms", 1.0)
    return {
        "repeat": number,
        "seed": 1000 + number,
        "state": "done",
        "completed": 200,
        "mean_ttft_ms": ttft,
        "median_ttft_ms": 80.0 * factors.get("median_ttft_ms", 1.0),
        "mean_tpot_ms": 10.0 * factors.get("mean_tpot_ms", 1.0),
        "request_throughput": 4.0 * factors.get("request_throughput", 1.0),
        "p99_ttft_ms": 300.0,
        "needs": {"p99_ttft_ms": 299},
        "ttft_split_ms": {part: share * ttft for part, share in SPLIT.items()},
        "validity": [{"code": void, "severity": "void", "evidence": "planted"}] if void else [],
        "valid": not void,
        **more,
    }


def cell(repeats: Sequence[dict[str, Any]], **place: Any) -> dict[str, Any]:
    """A cell whose pooled figures are the mean of its repeats'."""
    known = {"target": "default", "loop": "open", "request_rate": 4.0, "prompt_len": 1024, "output_len": 64}
    flags = [flag for each in repeats for flag in each["validity"]]
    pooled = {name: float(np.mean([each[name] for each in repeats])) for name in METRICS}
    about = {"state": "done", "completed": 200 * len(repeats), "verdict": "", "diagnosis": []}
    return {**known, **about, **pooled, "validity": flags[:1], "repeats": list(repeats), **place}


def summary(cells: Sequence[dict[str, Any]], simulated: bool = False, **more: Any) -> dict[str, Any]:
    targets = list(dict.fromkeys(each["target"] for each in cells))
    plan = {**PLAN, **more.pop("plan", {})}
    about = {"schema": 1, "simulated": simulated, "pdbench": "0.1.0", "created_unix_s": 1.79e9, "targets": targets}
    return {**about, "plan": plan, "verdict": "", "cells": list(cells), **more}


def noisy(
    rng: np.random.Generator, repeats: int, change: dict[str, float] | None = None, noise: float = 0.01
) -> list[dict[str, Any]]:
    """Repeats with independent noise of this SD on every metric, and a planted change of some."""
    made = []
    for number in range(repeats):
        factors = {name: float(np.exp(rng.normal(0, noise))) * (1 + (change or {}).get(name, 0.0)) for name in METRICS}
        made.append(repeat(number, factors))
    return made


def exact(repeats: int, change: float = 0.0, wobble: float = 0.002) -> list[dict[str, Any]]:
    """Repeats that differ from a base of `exact(repeats)` by `change` in TTFT, with a wobble that is symmetric."""
    factors = [(1 + change) * (1 + (wobble if number % 2 else -wobble) * (change != 0)) for number in range(repeats)]
    return [repeat(number, dict.fromkeys(METRICS[:2], factor)) for number, factor in enumerate(factors)]


def written(folder: Path, name: str, document: Any) -> Path:
    file = folder / f"{name}.json"
    file.write_text(json.dumps(document))
    return file


Edit = Callable[[dict[str, Any]], None]


def edited(document: dict[str, Any], edit: Edit) -> dict[str, Any]:
    """A deep copy with something changed."""
    copy: dict[str, Any] = json.loads(json.dumps(document))
    edit(copy)
    return copy
