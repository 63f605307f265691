"""Runs of probe-transfer against each other: a cell a shape, a repeat a pass, gates on bandwidth and post time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cli.conftest import Ended
from tests.compare.made import cell, edited, exact, summary, written

Program = Callable[..., Ended]

LOADED = {"code": "machine-loaded", "severity": "warn", "evidence": "others kept the machine busy"}


def transfer(seed: int, post: float = 1.0, passes: int = 8) -> dict[str, Any]:
    """Two shapes of one prompt; `post` is what posting takes against a healthy run."""
    rng = np.random.default_rng(seed)
    results = []
    for ids, descriptors in (("contiguous", 64), ("scattered", 4096)):
        shape = {"op": "READ", "backend": "UCX", "memory": "DRAM", "ids": ids, "in_flight": 1, "name": "qwen2.5-7b"}
        size = {"tokens": 8192, "block_tokens": 16, "nbytes": 470_000_000, "descriptors": descriptors}
        repeats = []
        for number in range(passes):
            noise = np.exp(rng.normal(0, 0.01, 3))
            post_ms, move_ms = 0.002 * descriptors * post * noise[0], 40.0 * noise[1]
            times = {"make_ms": 0.1 * noise[2], "post_ms": post_ms, "move_ms": move_ms}
            times["total_ms"] = sum(times.values())
            spread = {name: {"p50": value, "p99": 1.2 * value} for name, value in times.items()}
            repeats.append({"repeat": number, "gb_s": 0.47 / times["total_ms"] * 1000, **spread})
        pooled = {"gb_s": repeats[0]["gb_s"], **{name: repeats[0][name] for name in spread}}
        results.append({**shape, **size, **pooled, "repeats": repeats})
    about = {"schema": 1, "kind": "transfer", "simulated": False, "created_unix_s": 1.79e9, "validity": []}
    return {**about, "results": results, "versions": {"decode": "1.5.1"}, "link": {"name": "400G", "gb_s": 50.0}}


@pytest.mark.parametrize(("post", "code", "said"), [(1.0, 0, "4 gates passed"), (1.3, 1, "NEW is worse than BASE")])
def test_the_gate_of_transfers(pdbench: Program, tmp_path: Path, post: float, code: int, said: str) -> None:
    words = [written(tmp_path, "base", transfer(1)), written(tmp_path, "new", transfer(2, post))]
    ended = pdbench("compare", *words, "--html", "x.html", "--markdown", "x.md", "--junit", "x.xml")
    assert ended.code == code
    assert said in " ".join(ended.out.split())
    assert all(len(line) <= 80 for line in ended.out.splitlines() if str(tmp_path) not in line)
    document = pdbench("compare", *words, "--json", "--gate", "post,total").summary
    gates = [gate for each in document["comparisons"][0]["cells"] for gate in each["gates"]]
    assert [gate["metric"] for gate in gates] == ["post_ms.p50", "total_ms.p50"] * 2
    if code:
        assert [gate["gate"] for gate in gates if gate["metric"] == "post_ms.p50"] == ["failed"] * 2
        assert "READ scattered 4,096 descriptors" in ended.out


@pytest.mark.parametrize(
    ("new", "code", "said"),
    [
        (transfer(2, passes=3), 0, "Too few repeats"),
        (edited(transfer(2), lambda d: d.update(validity=[LOADED])), 3, "machine-loaded"),
        (edited(transfer(2), lambda d: d["results"].__delitem__(slice(0, 2))), 2, "no transfer in common"),
        (summary([cell(exact(8))]), 2, "probe-transfer"),
    ],
)  # fmt: skip
def test_transfers_that_decide_nothing(
    pdbench: Program, tmp_path: Path, new: dict[str, Any], code: int, said: str
) -> None:
    ended = pdbench("compare", written(tmp_path, "base", transfer(1)), written(tmp_path, "new", new))
    assert ended.code == code
    assert said in " ".join((ended.out or ended.err).split())
