"""What leaves the report for other programs: Markdown, CSV, Parquet, a trace, and the schema of summary.json."""

from __future__ import annotations

import json
import re
from importlib import resources
from itertools import pairwise
from pathlib import Path

import jsonschema
import numpy as np
import pandas as pd
import pytest
from markdown_it import MarkdownIt

from pdbench.cli import main
from pdbench.report.exports import cells_frame, requests_frame
from pdbench.report.html import render_html
from pdbench.report.markdown import COMMENT_LIMIT, plain, render_markdown
from pdbench.run import Run
from tests.report_views.made_run import grid_summary, run_of

HOSTILE = "<img src=x> [a](http://x) **b** `c` | @octocat #12 www.x.org https://y _d_ \x1b[31m"
OPTIONS = (("--csv", "x"), ("--parquet", "x"), ("--perfetto", "x/t.json"), ("--markdown", "x/m.md"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run, reported by the program with every export."""
    path = tmp_path_factory.mktemp("exports")
    run_of(path / "run", planned(grid_summary(rates=(2, 8), lens=(1024,))), requests_a_cell=30)
    options = [word for option, where in OPTIONS for word in (option, str(path / where))]
    assert main(["report", str(path / "run"), *options]) in (0, 3)
    return path


def planned(summary: dict) -> dict:
    names = ("cell", "target", "request_rate", "prompt_len", "output_len")
    summary["plan"] = {"cells": [{name: cell[name] for name in names} for cell in summary["cells"]], "repeats": 1}
    return summary


def test_cells_hold_the_scalars_of_the_summary_under_its_names(folder):
    summary = json.loads((folder / "run" / "summary.json").read_text())
    for frame in (pd.read_csv(folder / "x" / "cells.csv"), pd.read_parquet(folder / "x" / "cells.parquet")):
        assert len(frame) == len(summary["cells"])
        for row, cell in zip(frame.to_dict("records"), summary["cells"], strict=True):
            for name in ("request_rate", "mean_ttft_ms", "p90_tpot_ms", "completed"):
                assert row[name] == pytest.approx(cell[name])
            assert row["slots.needed"] == pytest.approx(cell["slots"]["needed"])
            low, high = cell["ttft_ms_interval"]["p50"]
            assert (row["ttft_ms_interval.p50.low"], row["ttft_ms_interval.p50.high"]) == pytest.approx((low, high))
            codes = [flag["code"] for flag in cell["validity"] if flag["severity"] == "void"]
            assert bool(row["valid"]) == (not codes)
            assert (row["void"] if isinstance(row["void"], str) else "") == "; ".join(dict.fromkeys(codes))


def test_requests_hold_the_table_and_its_latencies(folder):
    table = Run.open(folder / "run").table("requests")
    for frame in (pd.read_csv(folder / "x" / "requests.csv"), pd.read_parquet(folder / "x" / "requests.parquet")):
        assert frame["request_id"].tolist() == table["request_id"].tolist()
        assert np.allclose(frame["ttft_ms"], (table["first_token_s"] - table["intended_s"]) * 1000)
        tpot = (table["last_token_s"] - table["first_token_s"]) / (table["output_tokens"] - 1) * 1000
        assert np.allclose(frame["tpot_ms"], tpot)


def test_no_text_is_a_formula_in_a_spreadsheet(tmp_path):
    summary = grid_summary(rates=(1,), lens=(1024,), targets=("=cmd()",))
    run = run_of(tmp_path / "run", summary, requests_a_cell=2, metrics=False)
    run.write_json("summary.json", summary)
    frames = [cells_frame([(run, summary)]), requests_frame([(run, summary)])]
    assert [frame["target"][0] for frame in frames] == ["=cmd()"] * 2  # Parquet keeps what was said
    assert main(["report", str(run.path), "--csv", str(tmp_path / "x")]) in (0, 3)
    assert set(pd.read_csv(tmp_path / "x" / "requests.csv")["target"]) == {"'=cmd()"}


def test_the_trace_has_each_request_with_its_stages_inside(folder):
    trace = json.loads((folder / "x" / "t.json").read_text())
    events = trace["traceEvents"]
    assert {event["ph"] for event in events} == {"M", "X", "C"}
    for event in events:
        assert isinstance(event["name"], str) and isinstance(event["pid"], int)
        if event["ph"] == "X":
            assert event["dur"] >= 0 and event["ts"] >= 0 and isinstance(event["tid"], int)
    table = Run.open(folder / "run").table("requests").set_index("request_id")
    requests = {event["name"]: event for event in events if event.get("cat") == "ok"}
    assert set(requests) == set(table.index)
    for name, event in requests.items():
        row = table.loc[name]
        assert event["ts"] == pytest.approx(row["intended_s"] * 1e6, abs=0.01)
        assert event["dur"] == pytest.approx((row["done_s"] - row["intended_s"]) * 1e6, abs=0.01)
        stages = [e for e in events if e.get("cat") == "stage" and _within(e, event)]
        assert sum(e["dur"] for e in stages) == pytest.approx(event["dur"], abs=0.01)
        first = next(e for e in stages if e["name"] == "to the answer's head")
        assert first["ts"] + first["dur"] == pytest.approx(row["first_byte_s"] * 1e6, abs=0.01)


def _within(inner: dict, outer: dict) -> bool:
    same = (inner["pid"], inner["tid"]) == (outer["pid"], outer["tid"])
    return (
        same and outer["ts"] - 0.01 <= inner["ts"] and inner["ts"] + inner["dur"] <= outer["ts"] + outer["dur"] + 0.01
    )


def test_slices_of_a_lane_nest_and_never_overlap(folder):
    lanes: dict[tuple[int, int], list[dict]] = {}
    for event in json.loads((folder / "x" / "t.json").read_text())["traceEvents"]:
        if event["ph"] == "X" and event.get("cat") != "stage":
            lanes.setdefault((event["pid"], event["tid"]), []).append(event)
    assert len(lanes) > 2  # more than one request was in flight
    for slices in lanes.values():
        for before, after in pairwise(sorted(slices, key=lambda event: event["ts"])):
            assert before["ts"] + before["dur"] <= after["ts"] + 0.01


def test_counters_are_the_gauges_of_the_pages(folder):
    events = json.loads((folder / "x" / "t.json").read_text())["traceEvents"]
    counted = [
        (e["ts"], e["args"]["waiting"]) for e in events if e["ph"] == "C" and e["name"].endswith("decode waiting")
    ]
    page = (
        Run.open(folder / "run").table("metrics").query("canonical == 'waiting' and role == 'decode'").sort_values("t")
    )
    assert counted == [(round(t * 1e6, 3), value) for t, value in zip(page["t"], page["value"], strict=True)]


def test_markdown_says_the_verdict_the_cells_and_what_to_change(tmp_path):
    summary = grid_summary()
    text = render_markdown(summary, run_of(tmp_path / "run", summary, requests_a_cell=2))
    assert text.startswith("### SIMULATED: pdbench: 8 cells (1 void, ")
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    assert sum(line.startswith("| **void** ") for line in rows) == 1
    assert "**void** not-steady-state" in text and "**decode-slots**" in text and "Change first: " in text
    tables = [token for token in MarkdownIt("gfm-like", {"linkify": False}).parse(text) if token.type == "table_open"]
    assert len(tables) == 2  # the cells, and the split under its fold


def test_markdown_says_what_a_colocated_prefill_queue_holds_where_the_page_does(tmp_path):
    summary = grid_summary()
    legend = "prefill queue, co-located"
    run = run_of(tmp_path / "run", summary, requests_a_cell=2)
    assert legend not in render_markdown(summary, run)
    for cell in summary["cells"]:
        cell["slots"] = {**(cell.get("slots") or {}), "role": "colocated"}
    assert legend in render_markdown(summary, run) and legend in render_html(summary, run).lower()


def test_what_was_not_written_here_is_text_in_markdown(tmp_path):
    summary = grid_summary(targets=(HOSTILE, "b"))
    summary |= {"verdict": HOSTILE}
    for cell in summary["cells"]:
        cell["validity"] = [{"code": HOSTILE, "severity": "void", "evidence": HOSTILE}]
        cell["diagnosis"] = [{"cause": HOSTILE, "share": 0.5, "evidence": [HOSTILE], "advice": HOSTILE}]
    text = render_markdown(summary, run_of(tmp_path / "run", summary, requests_a_cell=2, command=HOSTILE))
    page = MarkdownIt("gfm-like", {"linkify": True, "html": True}).render(text)
    assert "<img" not in page and "<a " not in page and "<em>" not in page and "<code>" not in page
    assert not re.search(r"[@#]\w", re.sub(r"<[^>]*>|&#?\w+;", "", page))
    assert len(text) <= COMMENT_LIMIT + 100 and "\x1b" not in text


@pytest.mark.parametrize("text", ["a_b_c", "p99", "kv_fetch_stage", "8 req/s x 16,384 tokens", "TTFT <= 30 ms", "a|b"])
def test_plain_text_reads_as_it_was(text):
    inline = MarkdownIt("gfm-like", {"linkify": False}).parseInline(plain(text))[0]
    assert "".join(token.content for token in inline.children or []) == text


def test_standard_output_holds_one_thing(folder, capsys):
    run = str(folder / "run")
    assert main(["report", run, "--markdown", "-"]) in (0, 3)
    assert capsys.readouterr().out.startswith("### SIMULATED: pdbench: ")
    assert main(["report", run, "--markdown", "-", "--json"]) == 2
    assert "both want standard output" in capsys.readouterr().err


def test_a_folder_that_cannot_be_written_is_said(folder, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert main(["report", str(folder / "run"), "--csv", str(tmp_path / "file")]) == 74
    assert "cannot write" in capsys.readouterr().err


def schema() -> jsonschema.Draft202012Validator:
    text = resources.files("pdbench.report").joinpath("summary.schema.json").read_text()
    jsonschema.Draft202012Validator.check_schema(json.loads(text))
    return jsonschema.Draft202012Validator(json.loads(text))


def test_summaries_follow_the_published_schema(folder):
    schema().validate(json.loads((folder / "run" / "summary.json").read_text()))
    schema().validate(grid_summary())


@pytest.mark.parametrize(
    ("where", "value"),
    [
        ("schema", 2),
        ("cells.0.mean_ttft_ms", "12"),
        ("cells.0.ttft_split_ms", {"handoff": 1.0}),
        ("cells.0.validity", None),
        ("cells.0.ttft_ms_interval", {"p50": [1.0]}),
        ("cells.0.completed", -1),
    ],
)
def test_what_breaks_a_contract_breaks_the_schema(where, value):
    summary = json.loads(json.dumps(grid_summary()))
    place = summary
    *path, last = [int(word) if word.isdigit() else word for word in where.split(".")]
    for word in path:
        place = place[word]
    place[last] = value
    with pytest.raises(jsonschema.ValidationError):
        schema().validate(summary)
