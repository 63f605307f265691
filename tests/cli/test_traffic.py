"""Other shapes of traffic, end to end: what the servers wrote down against what was asked of them."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from pdbench.testbed.launch import Running
from pdbench.testbed.truth import read as read_truth
from tests.cli.conftest import Ended, command, environment, roles

Run = Callable[..., Ended]
Bed = Callable[..., Running]


def rows_of(run: Path) -> pd.DataFrame:
    return pd.read_parquet(run / "requests.parquet").sort_values("intended_s").reset_index(drop=True)


def logged(bed: Running, rows: pd.DataFrame, role: str, name: str) -> np.ndarray:
    truth = read_truth(bed.log_dir)["requests"]
    return np.array([truth[request_id][role][name] for request_id in rows["request_id"]])


def voids(cell: dict[str, Any]) -> set[str]:
    return {flag["code"] for flag in cell["validity"] if flag["severity"] == "void"}


def test_classes_with_shared_prefixes(pdbench: Run, testbed: Bed, tmp_path: Path) -> None:
    bed = testbed(mode="pull")
    words = ["--class", "chat:256/16@10", "agent:512/lognormal:40:0.5@3", "--prefix-len", "128", "--num-prefixes", "2"]
    words += ["--duration", "6s", "--goodput", "ttft:1000", "--json", "--out", "run"]
    ended = pdbench("sweep", *roles(bed), *words)
    assert ended.code in (0, 3), ended.err  # 3 on a busy host, whose voids are looked at below
    (cell,) = ended.summary["cells"]
    rows = rows_of(tmp_path / "run")
    assert logged(bed, rows, "prefill", "prompt_tokens").tolist() == rows["prompt_len"].tolist()
    assert logged(bed, rows, "decode", "output_tokens").tolist() == rows["output_len"].tolist()
    lengths = rows.groupby("class")["prompt_len"].unique().map(list).to_dict()
    assert lengths == {"agent": [512], "chat": [256]} and rows["output_len"].nunique() > 5
    # A prompt whose beginning is under way just then is computed twice; nothing else but the beginnings is cached.
    cached = logged(bed, rows, "prefill", "cached_tokens")
    assert (cached <= rows["shared_len"]).all() and set(cached) == {0, 128}
    assert cached.sum() > 0.8 * rows["shared_len"].sum()
    assert "prefix-cache-hits" not in [flag["code"] for flag in cell["validity"]]
    expected = rows["shared_len"].sum() / rows["prompt_len"].sum()
    assert cell["prefix_cache"]["expected_share"] == pytest.approx(expected)
    assert 0.8 * expected < cell["prefix_cache"]["prefill_share"] <= expected
    parts = cell["classes"]
    assert cell["slots"]["needed"] == pytest.approx(
        parts["chat"]["slots"]["needed"] + parts["agent"]["slots"]["needed"]
    )
    assert (parts["chat"]["request_rate"], parts["agent"]["request_rate"]) == (10, 3)
    assert {name: part["completed"] for name, part in parts.items()} == rows["class"].value_counts().to_dict()
    assert voids(cell) <= {"client-saturated"}


TRACE = [
    {"timestamp": 0, "input_length": 1100, "output_length": 5, "hash_ids": [0, 1, 2]},
    {"timestamp": 2500, "input_length": 1536, "output_length": 40, "hash_ids": [0, 1, 3]},
    {"timestamp": 4000, "input_length": 700, "output_length": 9, "hash_ids": [0, 4]},
    {"timestamp": 4000, "input_length": 90, "output_length": 9, "hash_ids": [9]},
    {"timestamp": 9000, "input_length": 1100, "output_length": 5, "hash_ids": [0, 1, 2]},
]


def test_a_trace_is_what_the_servers_get(pdbench: Run, testbed: Bed, tmp_path: Path) -> None:
    bed = testbed(mode="pull", max_model_len=1560)
    (tmp_path / "trace.jsonl").write_text("".join(json.dumps(row) + "\n" for row in TRACE))
    words = ["--trace", "trace.jsonl", "--speed", "5,2.5", "--workers", "2", "--json", "--out", "run"]
    ended = pdbench("sweep", *roles(bed), *words)
    assert "1 answers of 5 requests were cut to fit into max_model_len 1,560" in ended.err
    assert [cell["traffic"][:24] for cell in ended.summary["cells"]] == [
        "trace.jsonl at speed 5, ",
        "trace.jsonl at speed 2.5",
    ]
    rows = rows_of(tmp_path / "run")
    for cell, speed in ((0, 5.0), (1, 2.5)):
        of = rows[rows["cell"] == cell]
        received = logged(bed, of, "proxy", "received")
        assert received - received[0] == pytest.approx(np.array([0, 2.5, 4, 4, 9]) / speed, abs=0.05)
        assert logged(bed, of, "prefill", "prompt_tokens").tolist() == [1100, 1536, 700, 90, 1100]
        assert logged(bed, of, "decode", "output_tokens").tolist() == [5, 24, 9, 9, 5]
        # Whole blocks of 16 tokens, and never the last token: 1,100 tokens share 1,088. Cells share nothing.
        assert logged(bed, of, "prefill", "cached_tokens").tolist() == [0, 1024, 512, 0, 1088]
        assert of["shared_len"].tolist() == [0, 1024, 512, 0, 1100]
    for cell in ended.summary["cells"]:
        assert not {"arrivals-off", "prefix-cache-hits", "token-mismatch"} & {f["code"] for f in cell["validity"]}
        assert any("cut to fit" in note for note in cell["notes"])


def test_an_interrupted_trace_goes_on(pdbench: Run, testbed: Bed, tmp_path: Path) -> None:
    bed = testbed(mode="colocated")
    (tmp_path / "trace.jsonl").write_text("".join(json.dumps(row) + "\n" for row in TRACE))
    words = ["sweep", *roles(bed), "--trace", "trace.jsonl", "--speed", "9,3", "--out", "run"]
    started = subprocess.Popen(command(*words), cwd=tmp_path, env=environment(), stderr=subprocess.PIPE, text=True)
    live, deadline = tmp_path / "run" / "live", time.monotonic() + 60
    while started.poll() is None and not any(p.stat().st_size > 500 for p in live.glob("requests-c0001*")):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    started.send_signal(signal.SIGINT)
    started.communicate(timeout=30)
    assert started.returncode == 130
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    ended = pdbench("sweep", "--resume", tmp_path / "run", "--json", cwd=elsewhere)
    rows = rows_of(tmp_path / "run")
    assert [len(rows[rows["cell"] == cell]) for cell in (0, 1)] == [5, 5] and (rows["status"] == "ok").all()
    assert [cell["state"] for cell in ended.summary["cells"]] == ["done", "done"]
    (tmp_path / "trace.jsonl").write_text(json.dumps(TRACE[0]) + "\n" + json.dumps(TRACE[1]) + "\n")
    run = json.loads((tmp_path / "run" / "run.json").read_text())
    run["cell_runs"][1]["state"] = "interrupted"
    (tmp_path / "run" / "run.json").write_text(json.dumps(run))
    refused = pdbench("sweep", "--resume", tmp_path / "run")
    assert refused.code == 2 and "is not the trace that the run began with" in refused.err


def test_steps_are_shown_step_by_step(pdbench: Run, testbed: Bed, tmp_path: Path) -> None:
    bed = testbed(mode="push")
    words = ["--steps", "4,12", "--prompt-lens", "256", "--output-len", "16", "--duration", "8s", "--out", "run"]
    ended = pdbench("sweep", *roles(bed), *words)
    assert "4 to 12 req/s x 256 tokens" in ended.out and "By stage of the rate" in ended.out
    assert all(len(line) <= 80 for line in ended.out.splitlines()[:-1])
    (cell,) = pdbench("report", "run", "--json").summary["cells"]
    rows = rows_of(tmp_path / "run")
    at = rows["intended_s"] - json.loads((tmp_path / "run" / "run.json").read_text())["cell_runs"][0]["start_s"]
    assert [stage["sent"] for stage in cell["stages"]] == [(at < 4).sum(), (at >= 4).sum()]
    assert not {"not-steady-state", "arrivals-off"} & voids(cell)


SESSIONS = ["--sessions", "4", "--turns", "4", "--think-time", "50ms", "--prompt-lens", "200", "--output-len", "24"]


@pytest.mark.parametrize(
    ("settings", "lost", "warned", "workers"),
    [
        ({}, 0, False, 1),
        ({"thinking_tokens": 16}, 16, True, 3),
        ({"thinking_tokens": 16, "keep_thinking": True}, 0, False, 1),
    ],
)
def test_sessions_carry_their_history(
    pdbench: Run, testbed: Bed, tmp_path: Path, settings: dict[str, Any], lost: int, warned: bool, workers: int
) -> None:
    """Each prompt is the conversation so far: what was asked, and what this server answered, as it counts them."""
    bed = testbed(mode="pull", **settings)
    words = [*SESSIONS, "--num-prompts", "46", "--workers", str(workers), "--json", "--out", "run"]
    ended = pdbench("sweep", *roles(bed), *words)
    assert ended.code in (0, 3), ended.err
    (cell,) = ended.summary["cells"]
    rows = rows_of(tmp_path / "run")
    assert len(rows) == 46 and (rows["status"] == "ok").all() and rows["request_id"].is_unique
    assert [part["completed"] for part in cell["turns"]] == [12, 12, 11, 11]
    counted = {turn: 200 * turn + (24 - lost) * (turn - 1) for turn in (1, 2, 3, 4)}
    assert logged(bed, rows, "prefill", "prompt_tokens").tolist() == [counted[turn] for turn in rows["turn"]]
    sessions = logged(bed, rows, "decode", "conversation_id")
    assert len(set(sessions)) == 12
    assert [name.rpartition("-s")[2] for name in sessions] == [str(int(session)) for session in rows["session"]]
    # Prefill has the prompt of the turn before in its cache, in whole blocks of 16, and never the answer.
    before = np.array([counted.get(turn - 1, 0) // 16 * 16 for turn in rows["turn"]])
    cached = logged(bed, rows, "prefill", "cached_tokens")
    assert cached.tolist() == before.tolist() and (cached <= rows["shared_len"]).all()
    for _, session in rows.groupby("session"):
        assert session["turn"].tolist() == list(range(1, len(session) + 1))
        assert (session["sent_s"].to_numpy()[1:] > session["done_s"].to_numpy()[:-1]).all()
    found = {flag["code"]: flag["evidence"] for flag in cell["validity"]}
    assert ("thinking-dropped" in found) == warned
    if warned:
        assert "think for 16 tokens" in found["thinking-dropped"] and "lacks 16 of them" in found["thinking-dropped"]
    assert not {"prefix-cache-hits", "token-mismatch", "not-steady-state"} & set(found), found


def test_sessions_end_in_time_and_say_ttft_by_turn(pdbench: Run, testbed: Bed, tmp_path: Path) -> None:
    bed = testbed(mode="colocated", prefill_ms_per_token=0.2, decode_prefix_caching=False)
    words = ["--sessions", "1", "--turns", "3", "--think-time", "50ms", "--prompt-lens", "300", "--output-len", "8"]
    ended = pdbench("sweep", *roles(bed), *words, "--duration", "5s", "--out", "run")
    assert "1 session of 3 turns x 300 tokens" in ended.out and "By turn" in ended.out
    assert all(len(line) <= 80 for line in ended.out.splitlines()[:-1])
    (cell,) = pdbench("report", "run", "--json").summary["cells"]
    assert (cell["loop"], cell["max_concurrency"]) == ("closed", 1)
    ttft = [part["median_ttft_ms"] for part in cell["turns"]]
    assert ttft == pytest.approx([60, 122, 183], rel=0.4), "0.2 ms a token of the history, without a cache"
    run = json.loads((tmp_path / "run" / "run.json").read_text())["cell_runs"][0]
    assert run["send_end_s"] - run["start_s"] == pytest.approx(5, abs=0.3)


def test_interrupted_sessions_go_on(pdbench: Run, testbed: Bed, tmp_path: Path) -> None:
    bed = testbed(mode="colocated")
    words = ["sweep", *roles(bed), *SESSIONS, "--think-time", "3s", "--num-prompts", "10", "--out", "run"]
    started = subprocess.Popen(command(*words), cwd=tmp_path, env=environment(), stderr=subprocess.PIPE, text=True)
    live, deadline = tmp_path / "run" / "live", time.monotonic() + 60
    while started.poll() is None and not any(p.stat().st_size > 500 for p in live.glob("requests-c0000*")):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    started.send_signal(signal.SIGINT)
    started.communicate(timeout=30)
    assert started.returncode == 130
    (entry,) = json.loads((tmp_path / "run" / "run.json").read_text())["cell_runs"]
    assert entry["end_s"] - entry["send_end_s"] < 1, "clients that think are not waited for"
    ended = pdbench("sweep", "--resume", "run", "--json")
    assert ended.summary["cells"][0]["state"] == "done", ended.err
    rows = rows_of(tmp_path / "run")
    assert (
        sorted(zip(rows["session"], rows["turn"], strict=True))
        == [(s, t) for s in (0, 1, 2) for t in (1, 2, 3, 4)][:10]
    )
