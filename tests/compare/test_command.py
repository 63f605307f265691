"""`pdbench compare` as CI runs it: exit codes, files, and what stands on the terminal."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as Xml

import numpy as np
import pytest
from markdown_it import MarkdownIt

from tests.cli.conftest import Ended
from tests.compare.made import cell, edited, exact, noisy, repeat, summary, written

Program = Callable[..., Ended]

BASE = summary([cell(exact(8), request_rate=rate) for rate in (2.0, 4.0)], simulated=True)
WORSE = summary([cell(exact(8, 0.2 * (rate == 4.0)), request_rate=rate) for rate in (2.0, 4.0)], simulated=True)
VOID = summary([cell([repeat(i, {}, void="stall") for i in range(8)], request_rate=2.0)], simulated=True)
OTHER = edited(BASE, lambda d: d["plan"].update(seed=3))
FEW = edited(BASE, lambda d: [each.update(repeats=each["repeats"][:2]) for each in d["cells"]] and None)
HOSTILE = "x\x1b[31m|`<b>@team ![](http://e.vil)\u202e]]>"


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    made = {"base": BASE, "same": BASE, "worse": WORSE, "void": VOID, "other": OTHER, "few": FEW}
    return {name: written(tmp_path, name, document) for name, document in made.items()}


@pytest.mark.parametrize(
    ("words", "code", "out", "err"),
    [
        (["base", "same"], 0, "8 gates passed", ""),
        (["base", "worse"], 1, "NEW is worse than BASE: 4 req/s x 1,024 tokens", "2 of 8 gates failed"),
        (["base", "few"], 0, "Too few repeats to decide: 2 pairs", ""),
        (["base", "few", "--strict"], 1, "--repeats 8", "--strict"),
        (["base", "other"], 2, "", "arrivals differ"),
        (["base", "base"], 2, "", "is given twice"),
        (["base", "void"], 3, "Nothing to compare", "no cell is valid"),
        (["base", "worse", "--min-effect", "30%"], 0, "8 gates passed", ""),
        (["base", "worse", "--gate", "tpot,throughput"], 0, "4 gates passed", ""),
        (["base", "same", "worse"], 1, "NEW2 is worse", "2 of 8 gates failed"),
    ],
)  # fmt: skip
def test_exit_codes(
    pdbench: Program,
    files: dict[str, Path],
    words: list[str],
    code: int,
    out: str,
    err: str,
) -> None:
    ended = pdbench("compare", *(files.get(word, word) for word in words), env={"COLUMNS": "100"})
    assert ended.code == code, ended.err
    flat = " ".join(ended.out.split())
    assert out in flat and err in ended.err
    # What is refused is an error, said once; what is judged is a result.
    assert ("SIMULATED" in ended.out) == (code != 2) == bool(ended.out)
    assert ended.err.count(err or "\n") <= 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["base"], "one target"),
        (["base", "nowhere.json"], "cannot be read"),
        (["base", "same", "--between", "a,b"], "--between"),
        (["base", "same", "--gate", "speed"], "speed"),
        (["base", "same", "--min-effect", "5"], "--min-effect"),
        (["base", "same", "--step-summary"], "GITHUB_STEP_SUMMARY"),
        (["base", "same", "--html", "/nowhere/x.html"], "cannot write"),
        (["base", "same", "--markdown", "-", "--json"], "--markdown and --json want standard output"),
    ],
)
def test_mistakes_are_told_in_a_sentence(
    pdbench: Program,
    files: dict[str, Path],
    words: list[str],
    said: str,
) -> None:
    ended = pdbench("compare", *(files.get(word, word) for word in words), env={"GITHUB_STEP_SUMMARY": ""})
    assert ended.code == (74 if "write" in said else 2)
    assert said in ended.err


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("mean_ttft_ms", float("nan"), "NaN is no number"),
        ("mean_ttft_ms", 0, "mean_ttft_ms"),
        ("mean_tpot_ms", "6.1", "mean_tpot_ms"),
        ("ttft_split_ms", [1, 2], "ttft_split_ms"),
        ("repeats", ["first"], "repeats"),
        ("validity", "none", "validity"),
    ],
)
def test_a_damaged_summary_is_refused(pdbench: Program, tmp_path: Path, name: str, value: object, said: str) -> None:
    """Neither a traceback nor a gate that passes since a mean of 0 is an improvement."""
    run = summary([cell(exact(8))])
    good = written(tmp_path, "good", run)
    damaged = written(tmp_path, "bad", edited(run, lambda document: document["cells"][0].update({name: value})))
    ended = pdbench("compare", good, damaged)
    assert ended.code == 2 and said in ended.err and "Traceback" not in ended.err


def test_every_file_says_the_same(pdbench: Program, files: dict[str, Path], tmp_path: Path) -> None:
    shown = tmp_path / "step.md"
    shown.write_text("before\n")
    words = ["--html", "c.html", "--junit", "c.xml", "--markdown", "c.md", "--step-summary", "--json"]
    ended = pdbench("compare", files["base"], files["worse"], *words, env={"GITHUB_STEP_SUMMARY": str(shown)})
    assert ended.code == 1
    document = ended.summary
    (found,) = document["comparisons"]
    assert (document["schema"], document["simulated"], document["status"]) == (1, True, "failed")
    failed = [
        (each["name"], gate["metric"]) for each in found["cells"] for gate in each["gates"] if gate["gate"] == "failed"
    ]
    assert failed == [("4 req/s x 1,024 tokens", metric) for metric in ("mean_ttft_ms", "median_ttft_ms")]
    for gate in (gate for each in found["cells"] for gate in each["gates"]):
        low, high = gate["interval"]
        assert low <= gate["change"] <= high and gate["pairs"] == 8
    suite = Xml.parse(tmp_path / "c.xml").getroot()
    assert [suite.get(count) for count in ("tests", "failures", "errors", "skipped")] == ["8", "2", "0", "0"]
    assert {case.get("name") for case in suite.iter("testcase") if case.find("failure") is not None} == {
        f"4 req/s x 1,024 tokens: {name} TTFT" for name in ("mean", "median")
    }
    comment = (tmp_path / "c.md").read_text()
    assert shown.read_text() == f"before\n{comment}"
    assert comment.count("**FAIL**") == 2 and comment.startswith("### SIMULATED: pdbench: gate failed")
    page = (tmp_path / "c.html").read_text()
    assert "SIMULATED" in page and len(page) < 1_500_000


@pytest.mark.parametrize(("flag", "starts"), [("--markdown", "### "), ("--html", "<!doctype"), ("--junit", "<?xml")])
def test_a_dash_prints_it_alone(
    pdbench: Program, files: dict[str, Path], tmp_path: Path, flag: str, starts: str
) -> None:
    words = ["compare", files["base"], files["worse"], flag]
    assert pdbench(*words, "file").code == pdbench(*words, "-").code == 1
    assert (shown := pdbench(*words, "-").out).startswith(starts)
    assert shown == (tmp_path / "file").read_text() and not (tmp_path / "-").exists()


def test_undecided_gates_are_skipped_tests_and_a_refusal_is_an_error(
    pdbench: Program,
    files: dict[str, Path],
    tmp_path: Path,
) -> None:
    for new, counts in (("few", ["8", "0", "0", "8"]), ("other", ["1", "0", "1", "0"]), ("void", ["4", "0", "1", "3"])):
        pdbench("compare", files["base"], files[new], "--junit", "x.xml", "--markdown", "x.md", "--html", "x.html")
        suite = Xml.parse(tmp_path / "x.xml").getroot()
        assert [suite.get(count) for count in ("tests", "failures", "errors", "skipped")] == counts


def test_what_cannot_be_compared_is_void_and_failed_nowhere(
    pdbench: Program, files: dict[str, Path], tmp_path: Path
) -> None:
    """Code 3 goes before 1, so no view may say that a gate failed."""
    ended = pdbench("compare", files["base"], files["void"], "--markdown", "x.md", "--html", "x.html")
    assert ended.code == 3 and "VOID" in ended.out and "FAIL" not in ended.out
    assert "VOID" in (written := (tmp_path / "x.md").read_text()) and "FAIL" not in written
    assert "Gates: 1 void." in (tmp_path / "x.html").read_text()
    gates = [
        gate["gate"]
        for each in pdbench("compare", files["base"], files["void"], "--json").summary["comparisons"]
        for cell in each["cells"]
        for gate in cell["gates"]
    ]
    assert gates == ["void"]


@pytest.mark.parametrize(
    ("new", "doubt"),
    [
        (0.2, "and as many improve. Confirm it"),
        (-0.2, "and as many improve. Confirm it"),
        (-0.03, "a small change may be no more than that"),
        (0.0, ""),
    ],
)
def test_a_change_between_two_runs_says_what_no_interval_knows(
    pdbench: Program, files: dict[str, Path], tmp_path: Path, new: float, doubt: str
) -> None:
    changed = summary([cell(exact(8, new), request_rate=rate) for rate in (2.0, 4.0)], simulated=True)
    said = " ".join(pdbench("compare", files["base"], written(tmp_path, "new", changed)).out.split())
    assert ("two runs are two sessions" in said) == bool(doubt) and doubt in said
    assert (" improved " in said) == (new == -0.2)


def test_undecided_that_does_not_fail_says_so_last(pdbench: Program, files: dict[str, Path], tmp_path: Path) -> None:
    said = "ndecided does not fail; --strict makes it fail"
    words = ["compare", files["base"], files["few"], "--junit", tmp_path / "j.xml", "--markdown", tmp_path / "c.md"]
    ended = pdbench(*words)
    assert ended.code == 0 and ended.out.splitlines()[-1] == f"exit 0: u{said}"
    assert said in (tmp_path / "j.xml").read_text() and said in (tmp_path / "c.md").read_text().replace("\\", "")
    assert said not in pdbench(*words, "--strict").out
    assert said not in pdbench("compare", files["base"], files["same"]).out


@pytest.mark.parametrize("columns", [80, 160])
def test_lines_fit_the_terminal(pdbench: Program, tmp_path: Path, columns: int) -> None:
    rng = np.random.default_rng(1)
    places = [{"request_rate": rate, "prompt_len": length} for rate in (1.0, 2.5, 4.0, 8.0) for length in (512, 16384)]
    base = summary([cell(noisy(rng, 8), **place) for place in places])
    new = summary([cell(noisy(rng, 8, {"mean_ttft_ms": 0.3}), **place) for place in places])
    words = [written(tmp_path, name, document) for name, document in (("a", base), ("b", new))]
    ended = pdbench("compare", *words, env={"COLUMNS": str(columns)})
    assert ended.code == 1
    long = [line for line in ended.out.splitlines() if len(line) > columns and str(tmp_path) not in line]
    assert not long


def test_a_large_grid_shows_what_tells(pdbench: Program, tmp_path: Path) -> None:
    rates = [float(i + 1) for i in range(40)]
    base = summary([cell(exact(8), request_rate=rate) for rate in rates])
    new = summary([cell(exact(8, 0.2 * (rate == 7)), request_rate=rate) for rate in rates])
    words = [written(tmp_path, name, document) for name, document in (("a", base), ("b", new))]
    ended = pdbench("compare", *words)
    assert ended.code == 1
    assert len(ended.out.splitlines()) < 40
    assert "158 gates without evidence" in ended.out


def test_what_a_server_says_stays_text(pdbench: Program, tmp_path: Path) -> None:
    def edit(document: dict[str, Any]) -> None:
        document["targets"] = [HOSTILE, "b"]
        document["deployments"] = [{"target": name, "model": name, "servers": []} for name in (HOSTILE, "b")]
        for each in document["cells"][:1]:
            each["target"] = HOSTILE
            each["diagnosis"] = [{"cause": HOSTILE, "share": 0.5, "evidence": HOSTILE, "advice": HOSTILE}]

    run = summary([cell(exact(8)), cell(exact(8, 0.2), target="b")])
    file = written(tmp_path, "run", edited(run, edit))
    ended = pdbench("compare", file, "--html", "x.html", "--junit", "x.xml", "--markdown", "x.md")
    assert ended.code == 1
    assert "\x1b[31m" not in ended.out and "\u202e" not in ended.out
    Xml.parse(tmp_path / "x.xml")
    comment = (tmp_path / "x.md").read_text()
    shown = MarkdownIt("gfm-like").render(comment)
    assert "&lt;b&gt;" in shown and "@team" not in shown
    assert not any(f"<{tag}" in shown for tag in ("b>", "img", "a ", "code"))
    assert "<b>@" not in (tmp_path / "x.html").read_text()


def test_json_is_strict(pdbench: Program, files: dict[str, Path]) -> None:
    for new in ("same", "few", "other", "void"):
        ended = pdbench("compare", files["base"], files[new], "--json")
        json.loads(ended.out, parse_constant=lambda word: pytest.fail(word))
