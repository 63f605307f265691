"""Two searches of one kind: capacity against capacity by their intervals, and a gate on it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as Xml

import numpy as np
import pytest

from pdbench.report.compare.capacities import Known, ratio
from pdbench.report.compare.comparison import compare
from pdbench.report.compare.gate import Rules
from pdbench.report.compare.html import render_html
from pdbench.report.compare.sides import Side
from tests.cli.conftest import Ended
from tests.compare.made import cell, edited, exact, summary, written

SEARCH = {"find": "capacity", "slos": [{"metric": "ttft", "statistic": "p99", "limit": 500.0}], "max_duration_s": 3600}


def answer(rate: float | None, low: float | None = None, high: float | None = None, **more: Any) -> dict[str, Any]:
    """What a search of 1,024-token prompts found."""
    known = {"target": "default", "prompt_len": 1024, "output_len": 64, "output_law": "", "drive": "proxy"}
    about = {"slos": [], "state": "settled", "settled": True, "holds": rate, "fails": rate and rate * 1.1, "said": ""}
    probes = [{"cell": 0, "request_rate": 4.0, "result": "fails", "doubt": ""}]
    return {**known, **about, "rate": rate, "interval": low and [low, high], "probes": probes, **more}


def found(*answers: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A search's summary; its cells are probes, void ones among them, at rates of its own."""
    rate = 3.0 + len(answers) + (answers[0]["rate"] or 0.0)
    capacity = {"find": "capacity", "max_duration_s": 3600, "spent_s": 900.0, "answers": list(answers)}
    plan = {"search": SEARCH, "num_prompts": 40, **more.pop("plan", {})}
    cells = [cell(exact(1), request_rate=rate)]
    return summary(cells, simulated=True, plan=plan, capacity=capacity, **more)


BASE = found(answer(8.0, 7.8, 8.2))


def against(new: dict[str, Any], base: dict[str, Any] = BASE, effect: float = 0.05) -> Any:
    sides = [Side(role, Path(role), document, {}) for role, document in (("BASE", base), ("NEW", new))]
    return compare(*sides, Rules(effect=effect))


@pytest.mark.parametrize(
    ("new", "evidence", "gate"),
    [
        (answer(8.0, 7.8, 8.2), "none", "passed"),
        (answer(7.0, 6.8, 7.2), "worse", "failed"),
        (answer(7.7, 7.6, 7.75), "small", "undecided"),  # worse for sure, by less than 5 %, or by a little more
        (answer(9.0, 8.8, 9.2), "improved", "passed"),
        (answer(8.0, 7.2, 8.9), "none", "undecided"),
        (answer(7.9, interval=None, state="budget"), "not measured", "undecided"),
        (answer(8.0, fails=None, interval=None), "not measured", "undecided"),
        (answer(None, state="lowest", fails=0.1), "worse", "failed"),
        (answer(None, state="budget", fails=0.5), "not measured", "undecided"),
    ],
)
def test_evidence_and_gate(new: dict[str, Any], evidence: str, gate: str) -> None:
    comparison = against(found(new))
    ((_, change),) = comparison.gates
    assert (change.metric, change.evidence, change.gate) == ("capacity", evidence, gate)
    assert comparison.status == gate


def test_the_interval_of_a_ratio_covers_it() -> None:
    """Estimates scattered by 3 %, each with the interval that its scatter has: 95 % of the ratios are inside."""
    rng = np.random.default_rng(3)
    reach = math.exp(1.96 * 0.03)
    inside = 0
    for _ in range(2000):
        old, new = (rate * math.exp(rng.normal(0, 0.03)) for rate in (8.0, 7.0))
        _, low, high = ratio(Known(old, old / reach, old * reach), Known(new, new / reach, new * reach), 0.05)
        inside += low <= 7 / 8 - 1 <= high
    assert inside / 2000 == pytest.approx(0.95, abs=0.015)


def test_several_lengths_share_the_chance_of_a_false_alarm() -> None:
    one = against(BASE)
    two = [answer(8.0, 7.8, 8.2), answer(2.0, 1.9, 2.1, prompt_len=16_384)]
    both = against(found(*two), found(*two))
    assert both.gates[0][1].high > one.gates[0][1].high
    only = against(found(two[0]), found(*two))
    assert only.not_compared == ("16,384-token prompts: only in BASE",)


def _slo(document: dict[str, Any]) -> None:
    document["plan"]["search"] = {**SEARCH, "slos": [{"metric": "ttft", "statistic": "p99", "limit": 200.0}]}


@pytest.mark.parametrize(
    ("new", "why"),
    [
        (edited(BASE, _slo), "--slo ttft:p99:500 in BASE, --find-capacity --slo ttft:p99:200 in NEW"),
        (found(answer(8.0, 7.8, 8.2, prompt_len=2048)), "no search in common: prompt tokens 1,024 in BASE, 2,048"),
        (summary([cell(exact(8))], simulated=True), "BASE searched for a rate, NEW was asked given ones"),
        (edited(BASE, lambda d: d.update(simulated=False)), "SIMULATED"),
    ],
)
def test_searches_for_something_else_are_refused(new: dict[str, Any], why: str) -> None:
    comparison = against(new)
    assert comparison.status == "refused"
    assert why in comparison.refused[0].why


def test_other_arrivals_and_more_time_are_compared() -> None:
    longer = {"seed": 9, "search": {**SEARCH, "max_duration_s": 60}}
    assert against(found(answer(8.0, 7.8, 8.2), plan=longer)).status == "passed"


@pytest.mark.parametrize(
    ("new", "words", "code", "said"),
    [
        (
            answer(7.0, 6.8, 7.2),
            [],
            1,
            "NEW is worse than BASE: 1,024-token prompts: capacity 8.00 -> 7.00 req/s, -12%",
        ),
        (answer(8.0, 7.8, 8.2), [], 0, "1 gate passed"),
        (answer(8.0, 7.2, 8.9), [], 0, "--resume RUN --max-duration"),
        (answer(8.0, 7.2, 8.9), ["--strict"], 1, "it passes from --min-effect 11% on"),
        (answer(8.0, 7.2, 8.9), ["--min-effect", "12%"], 0, "1 gate passed"),
        (answer(7.0, 6.8, 7.2), ["--gate", "ttft"], 2, ""),
    ],
)
def test_as_ci_runs_it(
    pdbench: Callable[..., Ended], tmp_path: Path, new: dict[str, Any], words: list[str], code: int, said: str
) -> None:
    base, other = written(tmp_path, "base", BASE), written(tmp_path, "new", found(new))
    files = ["--junit", tmp_path / "junit.xml", "--markdown", tmp_path / "comment.md", "--html", tmp_path / "page.html"]
    ended = pdbench("compare", base, other, *words, *files, env={"COLUMNS": "100"})
    assert ended.code == code, ended.err
    assert said in " ".join(ended.out.split())
    assert all(len(line) <= 100 for line in ended.out.splitlines())
    if code != 2:
        (case,) = Xml.parse(tmp_path / "junit.xml").getroot().iter("testcase")
        assert case.get("name") == "1,024-token prompts: capacity"
        assert (case.find("failure") is not None) == (code == 1 and "--strict" not in words)
        assert "capacity" in (tmp_path / "comment.md").read_text()
        shown = json.loads(pdbench("compare", base, other, *words, "--json").out)["comparisons"][0]["cells"][0]
        assert shown["prompt_len"] == 1024 and shown["gates"][0]["base"] == 8.0


def test_the_page_draws_it() -> None:
    page = render_html([against(found(answer(7.0, 6.8, 7.2)))])
    assert "1,024-token prompts" in page and "capacity" in page and "failed" in page
