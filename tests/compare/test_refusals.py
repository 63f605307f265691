"""Comparisons that mean nothing are refused, each with its cause and a next step; their healthy twins are not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pdbench.errors import UsageError
from pdbench.report.compare.comparison import REFUSED, compare
from pdbench.report.compare.gate import Rules
from pdbench.report.compare.sides import BASE, Side, read_side, two_targets
from tests.compare.made import cell, edited, exact, repeat, summary, written

PAIR = summary([cell(exact(8), request_rate=rate) for rate in (2.0, 4.0)])


def against(new: dict[str, Any], base: dict[str, Any] = PAIR, rules: Rules | None = None) -> Any:
    sides = [Side(role, Path(role), document, {}) for role, document in (("BASE", base), ("NEW", new))]
    return compare(*sides, rules or Rules())


def plan(**changes: Any) -> Callable[[dict[str, Any]], None]:
    return lambda document: document["plan"].update(changes)


def cells(**changes: Any) -> Callable[[dict[str, Any]], None]:
    return lambda document: [each.update(changes) for each in document["cells"]] and None


def seeds(document: dict[str, Any]) -> None:
    for each in document["cells"]:
        for one in each["repeats"]:
            one["seed"] += 100


def closed(document: dict[str, Any]) -> None:
    for each, streams in zip(document["cells"], (4, 8), strict=True):
        each.update(loop="closed", request_rate=None, max_concurrency=streams)


REFUSED_PAIRS = {
    "simulated": (lambda d: d.update(simulated=True), ["SIMULATED"], "simulated"),
    "arrivals": (plan(arrivals="constant"), ["arrivals poisson in BASE, constant in NEW"], "--arrivals poisson"),
    "length": (plan(num_prompts=100), ["num_prompts 200 in BASE, 100 in NEW", "shorter"], "--num-prompts 200"),
    "endpoint": (plan(endpoint="chat"), ["endpoint"], "--endpoint completions"),
    "real ends": (plan(ignore_eos=False), ["ignore_eos"], "Measure NEW"),
    "seed of the plan": (plan(seed=7), ["seed 0 in BASE, 7 in NEW"], "sweep"),
    "seeds of the repeats": (seeds, ["no seed in common"], "sweep"),
    "closed loop": (closed, ["open loop in BASE, closed loop in NEW"], "--rates"),
    "prompt lengths": (cells(prompt_len=2048), ["prompt tokens 1,024 in BASE, 2,048 in NEW"], "--prompt-lens 1024"),
    "output lengths": (cells(output_len=128), ["output tokens 64 in BASE, 128 in NEW"], "--output-len 64"),
    "another tool": (lambda d: d.update(imported_from="guidellm"), ["guidellm"], "one tool"),
}


@pytest.mark.parametrize(("edit", "why", "next_step"), REFUSED_PAIRS.values(), ids=REFUSED_PAIRS.keys())
def test_what_means_nothing_is_refused(edit: Any, why: list[str], next_step: str) -> None:
    found = against(edited(PAIR, edit))
    assert found.status == REFUSED and not found.gates
    (refusal,) = found.refused
    assert all(word in refusal.why for word in why), refusal
    assert next_step in refusal.next_step


@pytest.mark.parametrize(
    "edit",
    [
        plan(prompt_seed=99, sample_interval_s=1.0, repeats=10, timeout_s=60.0),
        plan(something_new=None),
        lambda d: d["plan"].pop("endpoint"),
        cells(target="renamed"),
        lambda d: d.update(targets=["renamed"]),
    ],
)
def test_what_changes_no_load_is_compared(edit: Any) -> None:
    assert against(edited(PAIR, edit)).status == "passed"


def test_all_that_differs_is_named_at_once() -> None:
    """Rates and durations: one run of NEW puts both right."""
    other = edited(edited(PAIR, cells(request_rate=9.0)), plan(num_prompts=100))
    (refusal,) = against(other).refused
    assert "requests/s asked 2, 4 in BASE, 9 in NEW" in refusal.why and "num_prompts 200 in BASE" in refusal.why
    assert refusal.next_step == "Measure NEW as BASE was: --rates 2,4 --num-prompts 200."


def test_rates_without_a_common_one_are_refused_and_one_common_one_is_enough() -> None:
    far = summary([cell(exact(8), request_rate=8.0)])
    assert "requests/s asked 2, 4 in BASE, 8 in NEW" in against(far).refused[0].why
    near = summary([cell(exact(8), request_rate=rate) for rate in (4.0, 8.0)])
    found = against(near)
    assert [each.cell.name for each in found.cells] == ["4 req/s x 1,024 tokens"]
    assert found.not_compared == ("2 req/s x 1,024 tokens: only in BASE", "8 req/s x 1,024 tokens: only in NEW")


def test_metrics_that_neither_side_holds_gate_nothing() -> None:
    found = against(PAIR, rules=Rules(gates=("p99_ttft_ms",)))
    assert found.status == REFUSED and "p99_ttft_ms" in found.refused[0].why


def test_nothing_valid_means_nothing() -> None:
    void = summary([cell([repeat(i, {}, void="stall") for i in range(8)], request_rate=rate) for rate in (2.0, 4.0)])
    assert against(void).status == "meaningless"
    assert against(PAIR, base=void).status == "meaningless"


def test_two_targets_of_one_run() -> None:
    run = Side(BASE, Path("run"), summary([cell(exact(8), target=name) for name in ("a", "b", "c")]), {})
    first, second = two_targets(run, ["c", "a"])
    assert [first.role, second.role, len(first.cells)] == ["c", "a", 1]
    for between, word in ((["a", "x"], "no target x"), ([], "--between"), (["a", "a"], "two targets")):
        with pytest.raises(UsageError) as refused:
            two_targets(run, between)
        assert word in f"{refused.value} {refused.value.hint}"
    with pytest.raises(UsageError, match="one target"):
        two_targets(Side(BASE, Path("run"), PAIR, {}), [])


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "not JSON"),
        ("[]", "0 summaries"),
        ("3", "no list of cells"),
        ('{"schema": 1}', "no list of cells"),
        ('{"cells": []}', "schema"),
        ('{"schema": 99, "cells": []}', "schema 99"),
    ],
)
def test_files_that_are_no_summary(tmp_path: Path, content: str, said: str) -> None:
    file = tmp_path / "x.json"
    file.write_text(content)
    with pytest.raises(UsageError) as refused:
        read_side(file, BASE)
    assert said in str(refused.value)
    with pytest.raises(UsageError, match="cannot be read"):
        read_side(tmp_path / "nothing.json", BASE)


def test_a_summary_without_repeats_is_one_repeat(tmp_path: Path) -> None:
    """What another tool measured, or a run from before there were repeats."""
    bare = edited(PAIR, lambda d: [each.pop("repeats") for each in d["cells"]] and None)
    side = read_side(written(tmp_path, "bare", bare), BASE)
    found = compare(side, Side("NEW", Path("new"), bare, {}), Rules())
    assert found.status == "undecided"
    assert {change.evidence for _, change in found.gates} == {"too few"}
