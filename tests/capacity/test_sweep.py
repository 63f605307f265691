"""Whole searches on the practice deployment in virtual time: ordinary cells of an ordinary run, and an answer."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from pdbench.cli import main
from pdbench.errors import GateFailed
from pdbench.report.capacity.answer import Outcome, capacity_document, said
from pdbench.report.capacity.fit import Batches
from pdbench.report.capacity.growth import next_probe
from pdbench.report.capacity.html import search_section
from pdbench.report.capacity.measured_probes import Searched
from pdbench.report.capacity.probe import Probe
from pdbench.report.capacity.search import Found
from pdbench.report.capacity.slo import Slo
from pdbench.report.capacity.text import rows
from pdbench.report.command import conclude, refuse_invalid
from pdbench.report.summary import summarise
from pdbench.report.text import print_summary
from pdbench.run import Run
from pdbench.sweep.start import given_more_time
from pdbench.testbed.settings import Settings
from tests.planted.virtual import sweep

BED = Settings(mode="push", max_num_seqs=6)
TPOT_MS = 6.1


def capacity(*slos: tuple[str, str, float], max_s: float = 3600.0) -> dict[str, Any]:
    listed = [{"metric": metric, "statistic": statistic, "limit": limit} for metric, statistic, limit in slos]
    return {"find": "capacity", "slos": listed, "max_duration_s": max_s}


def searched(path: Path, targets: Mapping[str, Settings], search: dict[str, Any], **load: Any) -> tuple[Run, Any]:
    run = sweep(path, targets, search=search, duration_s=None, **{"output_len": 8, "prompt_lens": [256], **load}).run
    return run, conclude(run)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Any]:
    return searched(tmp_path_factory.mktemp("found") / "run", {"default": BED}, capacity(("tpot", "mean", TPOT_MS)))


@pytest.mark.parametrize(
    ("arrivals", "burstiness", "sent", "told"),
    [
        ("poisson", None, 81, "8"),  # 80 are due, 1.96 x 8.9 more or less by chance
        ("poisson", None, 60, "8 (got 6)"),
        ("poisson", None, 99, "8 (got 9.9)"),
        ("gamma", 0.25, 60, "8"),  # gaps of CV 2 vary twice as much
        ("gamma", 0.25, 40, "8 (got 4)"),
        ("constant", None, 60, "8"),  # void as arrivals-off, not by chance
    ],
)
def test_a_probe_says_its_own_rate_where_chance_took_it_far_away(
    arrivals: str, burstiness: float | None, sent: int, told: str
) -> None:
    probe = {"cell": 3, "request_rate": 8.0, "requests": sent, "values": [1.0], "result": "holds", "doubt": "",
             "overloaded": False, "deciding": True}  # fmt: skip
    answer = {"probes": [probe], "slos": [{"metric": "tpot", "statistic": "mean", "limit": 10.0}]}
    cells = [{"cell": 3, "sent": sent, "duration_s": 10.0}]
    summary = {"plan": {"arrivals": arrivals, "burstiness": burstiness}, "cells": cells}
    ((_, row),) = rows(answer, summary)
    assert row[0] == told


def test_the_rate_that_is_found_holds_and_a_little_more_does_not(found: tuple[Run, Any], tmp_path: Path) -> None:
    """Ordinary cells with other arrivals. TPOT hardly moves with the rate: what is less than 10 % is in its noise."""
    (answer,) = found[1]["capacity"]["answers"]
    assert answer["settled"], answer["said"]
    rates = [0.9 * answer["rate"], 1.1 * answer["rate"]]
    summary = summarise(
        sweep(tmp_path / "run", {"default": BED}, rates=rates, prompt_lens=[256], output_len=8, num_prompts=1000).run
    )
    tpot = [cell["mean_tpot_ms"] for cell in summary["cells"]]
    assert tpot[0] < TPOT_MS < tpot[1]


def test_the_answer_comes_first_and_is_derived_from_the_rows(found: tuple[Run, Any]) -> None:
    run, summary = found
    (answer,) = summary["capacity"]["answers"]
    assert summary["verdict"] == f"SIMULATED. {answer['said']}"
    assert answer["said"].startswith("256-token prompts: ") and f"holds TPOT mean <= {TPOT_MS} ms" in answer["said"]
    assert answer["interval"][0] <= answer["rate"] <= answer["interval"][1]
    again = summarise(Run.open(run.path))
    assert again["capacity"] == summary["capacity"] == json.loads((run.path / "summary.json").read_text())["capacity"]
    assert next_probe(Run.open(run.path)) is None
    page = (run.path / "report.html").read_text()
    assert page.index("Which rate holds") < page.index("The grid")


def test_probes_are_ordinary_cells(found: tuple[Run, Any]) -> None:
    _, summary = found
    (answer,) = summary["capacity"]["answers"]
    by_cell = {cell["cell"]: cell for cell in summary["cells"]}
    assert len(by_cell) == len(answer["probes"]) == len({cell["request_rate"] for cell in by_cell.values()})
    for probe in answer["probes"]:
        cell = by_cell[probe["cell"]]
        assert probe["request_rate"] == cell["request_rate"] and probe["requests"] == cell["sent"]
        assert probe["values"] == [pytest.approx(cell["mean_tpot_ms"])]
    assert not summary["interrupted"]


def test_an_interrupted_search_goes_on_where_it_was(found: tuple[Run, Any], tmp_path: Path) -> None:
    """Cut back to its first cells, the run asks for the very probe that it asked for then."""
    run, summary = found
    document = json.loads(json.dumps(run.document))
    fourth = document["plan"]["cells"][3]
    document["plan"]["cells"] = document["plan"]["cells"][:3]
    document["cell_runs"] = document["cell_runs"][:3]
    cut = Run(run.path, document)
    following = next_probe(cut)
    assert following is not None
    assert (following[1].rate, following[1].requests) == (fourth["request_rate"], fourth["requests"])
    told = summarise(cut)
    assert told["interrupted"] and "--resume goes on" in told["verdict"]
    assert "Not settled: the search was interrupted" in told["verdict"] and "too high a rate" in told["verdict"]
    assert "holds" not in told["verdict"].replace("a queue holds", "")  # its first probes are short
    shown = io.StringIO()
    print_summary(told, Console(file=shown, width=160))
    assert "met, too short" in shown.getvalue() and "holds, short" not in shown.getvalue()
    assert len(summary["cells"]) > 3


def test_a_search_that_its_time_ended_names_the_time_that_its_next_probe_takes(found: tuple[Run, Any]) -> None:
    run, _ = found
    document = json.loads(json.dumps(run.document))
    document["plan"]["cells"], document["cell_runs"] = document["plan"]["cells"][:3], document["cell_runs"][:3]
    document["plan"]["search"]["max_duration_s"] = 1.0
    verdict = summarise(Run(run.path, document))["verdict"]
    assert "Not settled: --max-duration ended the search" in verdict and next_probe(Run(run.path, document)) is None
    (named,) = re.findall(r"pdbench sweep --resume RUN --max-duration (\d+)s", verdict)
    document["plan"]["search"]["max_duration_s"] = float(named)
    assert next_probe(Run(run.path, document)) is not None


def test_an_slo_that_no_rate_holds_is_one_sentence_and_exit_code_1(tmp_path: Path) -> None:
    run, summary = searched(tmp_path / "run", {"default": BED}, capacity(("tpot", "mean", 2.0)))
    (answer,) = summary["capacity"]["answers"]
    assert answer["state"] == "lowest" and "holds" not in answer
    assert "TPOT mean <= 2 ms fails even when requests come nearly alone" in summary["verdict"]
    with pytest.raises(GateFailed):
        refuse_invalid(run, summary)


def test_a_lower_rate_whose_probe_was_discarded_is_named() -> None:
    """The client was late at 0.25 req/s: that 1 req/s fails is no word on what lies below."""
    whole = Batches(1.0, np.full(10, 20.0), np.full(10, 4.0))
    failed = Probe(0, 1.0, 40, 41.0, (whole,), (900.0,), True, 1.0, 1.0, None)
    late = replace(failed, cell=1, rate=0.25, doubt="client-saturated")
    slos = (Slo("ttft", "mean", 180.0),)

    def text(*probes: Probe) -> str:
        return said(
            Outcome(Searched("d", 256, 8, "", "proxy", slos, probes), Found(fails=1.0), "budget"), "capacity", False
        )

    assert "fails at the lowest rate that was asked, at 1 req/s: TTFT mean is 900 ms." in text(failed)
    told = text(failed, late)
    assert "fails at the lowest rate whose probe is evidence, at 1 req/s" in told
    assert "below, from 0.25 on, a probe says nothing of the deployment (client-saturated)" in told


def test_a_time_that_was_not_kept_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, summary = searched(tmp_path / "run", {"default": BED}, capacity(("tpot", "mean", TPOT_MS), max_s=20.0))
    assert summary["capacity"]["spent_s"] > 20
    assert "s, more than the 20 s of --max-duration: a probe is measured to its end." in summary["verdict"]
    words = re.sub(r"<[^>]+>", "", (run.path / "report.html").read_text())
    assert "more than the 20 s of --max-duration" in words
    assert next_probe(run) is None
    assert main(["sweep", "--resume", str(run.path), "--max-duration", "20s"]) == 2
    assert "20 s already: --max-duration can only give it more" in capsys.readouterr().err
    given_more_time(run, 600.0)
    assert next_probe(run) is not None
    enough = capacity_document(run.document["plan"] | {"search": capacity(max_s=600.0)}, [])
    assert enough is not None and enough["overrun"] is None


def test_what_is_turned_away_is_no_evidence(tmp_path: Path) -> None:
    """A decode that answers 503 beyond two waiting never misses the SLO: it is said, and counts as neither."""
    bed = replace(BED, max_num_queued_reqs=2)
    _, summary = searched(tmp_path / "run", {"default": bed}, capacity(("ttft", "p99", 5000.0)))
    (answer,) = summary["capacity"]["answers"]
    doubted = [probe for probe in answer["probes"] if probe["result"] == "no evidence"]
    assert doubted and all("rejected" in probe["doubt"] for probe in doubted)
    assert "fails" not in answer and answer["state"] == "limit"
    assert "no higher rate that was asked failed" in answer["said"] and "rejected" in answer["said"]


def test_a_percentile_of_few_requests_is_no_point_and_no_line_passes_through_what_is_overloaded() -> None:
    requests, values = (600, 40, 600, 600), (20.0, 45.3, 900.0, 30.0)  # the third is overloaded
    interval = {"ttft_ms_interval": {"p99": [40.0, None]}, "needs": {"p99_ttft_ms": 299}}
    probes = [
        {"cell": n, "request_rate": n + 1.0, "requests": of, "values": [value], "result": "holds", "deciding": of > 299}
        | {"overloaded": n == 2, "doubt": ""}
        for n, (of, value) in enumerate(zip(requests, values, strict=True))
    ]
    slo = {"metric": "ttft", "statistic": "p99", "limit": 500.0, "text": "TTFT p99 <= 500 ms"}
    answer = {"target": "default", "prompt_len": 256, "slos": [slo], "probes": probes, "said": ""}
    cells = [{"cell": n, "target": "default", **(interval if of < 299 else {})} for n, of in enumerate(requests)]
    summary = {"cells": cells, "capacity": {"answers": [answer]}}
    shown = [row[2] for _, row in rows(answer, summary)]
    assert shown == ["20 ms", ">40 ms needs 299", "900 ms", "30 ms"]
    drawn: list[Any] = []
    search_section(summary, drawn)
    line, apart = drawn[0].document["data"]
    assert list(line["y"]) == [20.0, None, None, 30.0] and list(apart["y"]) == [40.0, 900.0]
    assert apart["mode"] == "markers" and list(apart["marker"]["symbol"]) == ["triangle-up-open", "circle-open"]


def test_two_targets_are_searched_in_turns_and_stand_side_by_side(tmp_path: Path) -> None:
    slow = replace(BED, step_per_seq_ms=0.35)
    run, summary = searched(
        tmp_path / "run", {"fast": BED, "slow": slow}, capacity(("tpot", "mean", TPOT_MS), max_s=95.0)
    )
    fast, second = summary["capacity"]["answers"]
    assert (fast["target"], second["target"]) == ("fast", "slow")
    assert fast["holds"] > second["holds"]
    assert "fast, 256-token prompts: " in summary["verdict"] and "slow, 256-token prompts: " in summary["verdict"]
    assert "comparison" not in summary
    order = [run.document["plan"]["cells"][entry["cell"]]["target"] for entry in run.document["cell_runs"]]
    assert order[:2] == ["fast", "slow"] and order.count("fast") > 1 < order.count("slow")
