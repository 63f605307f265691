"""Run directories of kind transfer as a probe would have written them, with known times and carriers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pdbench.run import Run

BLOCK = 8192
SIZES = tuple((64 << 20) // divisor for divisor in (1, 4, 16, 64))

Carrier = tuple[str, str]  # how, config


def side(role: str, **more: Any) -> dict[str, Any]:
    return {
        "role": role,
        "host": "h",
        "boot_id": "one",
        "pid": 1 if role == "decode" else 2,
        "pid_namespace": "pid:[1]",
        "cpus": 8,
        "nixl": "nixl_cu12 1.5.1",
        "environment": {},
        "nic_gb_s": {},
        **more,
    }


def one_pass(
    cell: int,
    op: str,
    ids: str,
    nbytes: int,
    *,
    carrier: Carrier = ("zero-copy", "cma/memory"),
    memory: str = "DRAM",
    gb_s: float = 10.0,
    us_per_descriptor: float = 0.0,
    counted: Mapping[str, float] | None = None,
    burst: Mapping[str, float] | None = None,
    references: Mapping[str, float] | None = None,
    poll_added_s: float | None = None,
    verified: bool = True,
    others: float = 0.0,
    rounds: int = 120,
    repeat: int = 0,
    asked: bool = True,
    missing: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """A pass over one shape. `counted`: the share of the bytes that each interface counted; `burst`: once, of four
    times, since others used it too."""
    blocks = nbytes // BLOCK
    merged = blocks if ids == "scattered" else 1
    seconds = nbytes / gb_s / 1e9 + merged * us_per_descriptor * 1e-6
    wobble = np.random.default_rng(cell * 100 + repeat).normal(1, 0.005, rounds)
    split = [(0.1 * seconds * w, 0.6 * seconds * w, 0.3 * seconds * w) for w in wobble]
    kept = {"nixl": [[*times, times[1], times[1] + times[2]] for times in split]}
    for name, speed in (references or {}).items():
        kept[name] = [[nbytes / speed / 1e9 * w] for w in wobble]
    if poll_added_s is not None:
        kept["poll"] = [[m, p, v + poll_added_s, p, p + v + poll_added_s] for m, p, v in split]
    found = {
        "cell": cell,
        "repeat": repeat,
        "op": op,
        "ids": ids,
        "backend": "UCX",
        "memory": memory,
        "in_flight": 1,
        "asked": asked,
        "pattern": {"name": "raw", "segments": [[1, blocks, BLOCK]], "tokens": None, "block_tokens": None},
        "nbytes": nbytes,
        "descriptors": blocks,
        "prep_s": 1e-4,
        "rounds": kept,
        "missing": dict(missing or {}),
        "busy": [
            {"busy_s": 1.0 + others, "own_s": 0.5, "at_s": 1.0},
            {"busy_s": 1.0 + others, "own_s": 0.5, "at_s": 1.0},
        ],
        "ucx": ucx(op, carrier),
    }
    if repeat == 0:
        bursts = [{"lo": 0.0, **(counted or {})}] * 3 + [{"lo": 0.0, **(counted or {}), **(burst or {})}]
        moved = [
            {"nbytes": nbytes, "counted": {name: [int(share * nbytes)] * 2 for name, share in window.items()}}
            for window in bursts
        ]
        found |= {"verified": verified, "descriptors_merged": merged, "first_s": 0.2, "moved": moved}
    return found


def ucx(op: str, carrier: Carrier) -> dict[str, Any]:
    from pdbench.probe.transfer.ucx_report import Row

    how, config = carrier
    operation = {"READ": "remote memory read by ucp_get*(multi)", "WRITE": "remote memory write by ucp_put*(multi)"}[op]
    row = Row(0, None, how, config)
    return {"operation": operation, "place": "intra-node", "how": how, "config": config, "carriers": row.carriers}


def every_shape(ops: Sequence[str] = ("READ", "WRITE"), repeats: int = 1, **knobs: Any) -> list[dict[str, Any]]:
    """The largest size as asked, the smaller ones for the fit; knobs named after an operation are that one's alone."""
    found: list[dict[str, Any]] = []
    for repeat in range(repeats):
        cell = 0
        for op in ops:
            mine = {**{k: v for k, v in knobs.items() if k not in ("READ", "WRITE")}, **knobs.get(op, {})}
            for nbytes in SIZES:
                for ids in ("scattered", "contiguous"):
                    asked = nbytes == SIZES[0]
                    found.append(one_pass(cell, op, ids, nbytes, asked=asked, repeat=repeat, **mine))
                    cell += 1
    return found


def made_run(
    path: Path,
    passes: Sequence[Mapping[str, Any]],
    *,
    decode: Mapping[str, Any] | None = None,
    prefill: Mapping[str, Any] | None = None,
    **more: Any,
) -> Run:
    run = Run.create(
        path,
        {
            "kind": "transfer",
            "command": "pdbench probe-transfer",
            "created_unix_s": 1.8e9,
            "plan": {"poll_interval_s": 0.01, "prompts": []},
            "sides": {"decode": side("decode", **(decode or {})), "prefill": side("prefill", **(prefill or {}))},
            **more,
        },
    )
    (path / "transfers.jsonl").write_text("".join(json.dumps(each) + "\n" for each in passes))
    return run
