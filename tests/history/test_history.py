"""`pdbench history`: the change between the right runs with what differs there, in every view, and its exit codes."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from pdbench.report.history.document import document
from pdbench.report.history.html import render_html
from pdbench.report.history.runs import read_runs
from pdbench.report.history.said import missing, verdict
from pdbench.report.history.story import History, tell
from pdbench.report.history.text import print_history
from tests.cli.conftest import Ended
from tests.compare.made import cell, repeat, summary, written

Program = Callable[..., Ended]
NIGHT = 86400.0
HOSTILE = "\x1b[31m<script>alert(1)</script>"


def nights(folder: Path, count: int, slower_from: int | None = None, **about: Any) -> Path:
    """A folder with a summary a night; from one night on a new engine answers 20 % later at 4 req/s."""
    folder.mkdir()
    rng = np.random.default_rng(count)
    names = rng.permutation(count)
    for night in range(count):
        late = slower_from is not None and night >= slower_from
        cells = []
        for rate in (2.0, 4.0):
            factor = 1.2 if late and rate == 4.0 else 1.0
            factors = {name: factor * float(np.exp(rng.normal(0, 0.01))) for name in ("mean_ttft_ms", "median_ttft_ms")}
            tpot = float(np.exp(rng.normal(0, 0.005))) * (1 + 0.01 * night)
            factors |= {"mean_tpot_ms": tpot, "request_throughput": float(np.exp(rng.normal(0, 0.002)))}
            slots = {"needed": rate * 0.64 * tpot, "available": 8}
            cells.append(cell([repeat(i, factors) for i in range(2)], request_rate=rate, slots=slots))
        known = {"revision": f"{night:02d}abcdef01", "driver": "570.1"}
        document = summary(cells, created_unix_s=1.79e9 + night * NIGHT, simulated=True, **{**known, **about})
        document["versions"] = {"default/decode-0": "vllm 0.33.0" if late else "vllm 0.32.0"}
        # Names in another order than time: what counts is when a run was measured.
        written(folder, f"{names[night]:02d}", document)
    return folder


def told(*places: Path | str, **rules: Any) -> History:
    return tell(*read_runs([str(place) for place in places]), **rules)


TTFT = ("mean_ttft_ms", "median_ttft_ms")


def test_a_change_is_laid_between_its_runs(pdbench: Program, tmp_path: Path) -> None:
    """The program as a whole: JSON, page and terminal tell one story; --strict makes it fail."""
    folder = nights(tmp_path / "runs", 16, slower_from=9)
    ended = pdbench("history", folder, "--json", "--html", "h.html")
    assert ended.code == 0
    told_json = ended.summary
    (event,) = [event for event in told_json["events"] if any("ttft" in shift["metric"] for shift in event["shifts"])]
    assert event["between"] == [8, 9]
    ttft = [shift for shift in event["shifts"] if "ttft" in shift["metric"]]
    assert {(shift["cell"], shift["metric"]) for shift in ttft} == {("4 req/s x 1,024 tokens", name) for name in TTFT}
    assert all(shift["worse"] and shift["change"] == pytest.approx(0.2, abs=0.03) for shift in ttft)
    assert {"name": "git", "base": "08abcdef01", "new": "09abcdef01"} in event["differs"]
    assert {"name": "default/decode-0", "base": "vllm 0.32.0", "new": "vllm 0.33.0"} in event["differs"]
    assert told_json["runs"][9]["revision"] == "09abcdef01"
    page = (tmp_path / "h.html").read_text()
    assert "SIMULATED" in page and len(page) < 1_500_000
    text = pdbench("history", folder, "--metric", "ttft", "--strict")
    assert (text.code, "2 of 4 series" in text.err) == (1, True)
    said = " ".join(text.out.split())
    assert re.search(r"4 req/s x 1,024 tokens: mean TTFT \S+ -> 1\d\d ms, \+(18|19|20|21|22)%", said)
    assert "vllm 0.32.0 -> vllm 0.33.0" in said and "SIMULATED" in said and "FAIL 4 req/s x" in said
    assert all(len(line) <= 80 for line in text.out.splitlines())


def test_the_healthy_twin_ends_no_worse(tmp_path: Path) -> None:
    worse, well = nights(tmp_path / "worse", 14, slower_from=8), nights(tmp_path / "well", 14)
    assert {shift.series.metric for shift in told(worse, metrics=TTFT).ended_worse} == set(TTFT)
    assert not told(well, metrics=TTFT).events
    assert not told(worse, metrics=TTFT, effect=0.3).events, "below the effect of interest"


def test_what_got_better_again_did_not_end_worse(tmp_path: Path) -> None:
    folder = nights(tmp_path / "runs", 18, slower_from=6)
    for file in folder.glob("*.json"):
        document = json.loads(file.read_text())
        if document["created_unix_s"] >= 1.79e9 + 12 * NIGHT:
            for each in document["cells"][1]["repeats"]:
                each.update({name: each[name] / 1.2 for name in TTFT})
            file.write_text(json.dumps(document))
    found = told(folder, metrics=TTFT)
    assert [event.at for event in found.events] == [6, 12] and not found.ended_worse


def test_capacity_drifts_with_tpot(tmp_path: Path) -> None:
    """TPOT grows by 1 % a night, so the slots are full at an ever lower rate."""
    (drift,) = told(nights(tmp_path / "runs", 20), metrics=TTFT).drifts
    assert drift.sure and drift.per_run == pytest.approx(-0.01, abs=0.003)
    assert drift.values[0] == pytest.approx(8 / 0.64, rel=0.03)
    assert drift.below_qps == pytest.approx(4), "half of the slots are free at 4 req/s"


def test_capacity_is_that_of_a_full_batch_where_an_overloaded_cell_shows_it(tmp_path: Path) -> None:
    """At 2 req/s a token takes 10 ms, at 16 with all 8 slots full 14: 8 / (64 x 14 ms) is what the slots carry."""
    for night in range(8):
        calm = cell([repeat(0, {})], request_rate=2.0, slots={"needed": 2 * 0.64, "available": 8})
        full = repeat(0, {"mean_tpot_ms": 1.4}, void="not-steady-state")
        busy = cell([full], request_rate=16.0, slots={"needed": 16 * 64 * 0.014, "available": 8})
        written(tmp_path, f"{night}", summary([calm, busy], created_unix_s=1.79e9 + night * NIGHT, simulated=True))
    (drift,) = told(tmp_path, metrics=TTFT).drifts
    assert drift.values[0] == pytest.approx(8 / (64 * 0.014)) and drift.below_qps is None


def test_few_runs_are_too_few(tmp_path: Path) -> None:
    found = told(nights(tmp_path / "runs", 6, slower_from=3))
    assert found.too_short and not found.events
    assert "takes 10 runs" in verdict(found)


def test_what_is_missing_and_what_is_left_out_is_said(tmp_path: Path) -> None:
    folder = nights(tmp_path / "runs", 12, revision=None)
    written(folder, "other", summary([cell([repeat(0, {})])], simulated=True, plan={"arrivals": "constant"}))
    (folder / "broken.json").write_text("{")
    found = told(folder)
    assert any("12 of 12 runs do not tell the git commit" in note for note in missing(found))
    assert len(found.left_out) == 2 and len(found.runs) == 12
    assert any("not asked the same" in why for why in found.left_out)


def test_searches_are_left_out_and_it_is_said(tmp_path: Path) -> None:
    folder = nights(tmp_path / "runs", 12)
    capacity = {"find": "capacity", "answers": []}
    for night in range(14):  # more of them than of the runs that make the history
        made = summary([cell([repeat(0, {})])], simulated=True, created_unix_s=1.79e9 + night * NIGHT)
        written(folder, f"search-{night}", {**made, "capacity": capacity})
    found = told(folder)
    assert len(found.runs) == 12 and len(found.left_out) == 14
    assert all("a search, whose rates are its own: pdbench compare" in why for why in found.left_out)


def test_another_kind_of_deployment_is_another_history(tmp_path: Path) -> None:
    def told_as(mode: str, *roles: str) -> list[dict[str, Any]]:
        return [{"target": "default", "mode": mode, "servers": [{"role": role} for role in roles]}]

    folder = nights(tmp_path / "runs", 12, deployments=told_as("pull", "proxy", "prefill", "decode"))
    others = {
        "push": told_as("push", "proxy", "prefill", "decode"),
        "single": told_as("colocated", "colocated"),
        "wider": told_as("pull", "proxy", "prefill", "decode", "decode"),
    }
    for place, (name, deployments) in enumerate(others.items()):
        about = {"simulated": True, "created_unix_s": 1.8e9 + place, "deployments": deployments}
        written(folder, name, summary([cell([repeat(0, {})])], **about))
    found = told(folder)
    assert [run.path.stem for run in found.runs][12:] == ["wider"]  # more of the same is a change to be explained
    assert len(found.left_out) == 2 and all("the 13 others pull (prefill, decode)" in why for why in found.left_out)
    file = io.StringIO()
    print_history(found, Console(file=file, width=80))
    assert "of the pull deployment" in " ".join(file.getvalue().split())


def test_globs_and_run_directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = nights(tmp_path / "runs", 12)
    for file in sorted(folder.glob("*.json")):
        (tmp_path / "dirs" / file.stem).mkdir(parents=True)
        file.rename(tmp_path / "dirs" / file.stem / "summary.json")
    monkeypatch.chdir(tmp_path)
    for place in ("dirs", "dirs/*", tmp_path / "dirs" / "*", "dirs/*/summary.json"):
        runs = told(place).runs
        assert len(runs) == 12, place
        assert [run.summary["revision"][:2] for run in runs] == [f"{night:02d}" for night in range(12)]


def test_exit_codes_without_anything_to_follow(pdbench: Program, tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    folder.mkdir()
    assert pdbench("history", folder).code == 2
    for night in range(11):
        void = cell([repeat(0, {}, void="stall")])
        written(folder, f"{night}", summary([void], created_unix_s=1.79e9 + night * NIGHT))
    assert pdbench("history", folder).code == 3


def test_foreign_text_stays_text(tmp_path: Path) -> None:
    found = told(nights(tmp_path / "runs", 12, slower_from=6, revision=HOSTILE, driver=HOSTILE))
    assert "<script>alert" not in render_html(found)
    console = Console(file=io.StringIO(), width=80)
    print_history(found, console)
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "\x1b[31m" not in shown
    assert "\nworse " in shown and "FAIL" not in shown, "without --strict nothing fails"
    json.dumps(document(found), allow_nan=False)
