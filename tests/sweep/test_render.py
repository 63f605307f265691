"""`--drive render` and `--drive render-only` against the practice deployment, whose log knows what each server did."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pdbench.cli import main
from pdbench.deployment import Deployment, build
from pdbench.errors import UsageError
from pdbench.sweep.plan import Cell, Plan
from pdbench.sweep.prompts import ChatCalibration
from pdbench.testbed import truth
from pdbench.testbed.launch import Running, running
from pdbench.testbed.settings import Settings
from tests.sweep.one_cell import measure

PROMPT, OUTPUT, REQUESTS = 2048, 8, 8
RENDER_MS = 0.01 * PROMPT
SLOW = Settings(render_ms_per_token=0.01)


def deployment(testbed: Running, *roles: str) -> Deployment:
    """The decode server renders too: every server of the testbed has the front end's routes."""
    places = {"prefill": testbed.prefill_urls, "decode": testbed.decode_urls}
    urls = [(role, url) for role in roles for url in places.get(role, [])]
    if "render" in roles:  # the same server by another name of the host
        urls.append(("render", testbed.decode_urls[0].replace("127.0.0.1", "localhost")))
    return build("default", urls, mode="pull", model="simulated-qwen3-32b")


def plan(drive: str, rate: float = 4.0, **settings: Any) -> Plan:
    cell = Cell(0, "default", rate, None, PROMPT, OUTPUT, drive=drive)
    return Plan(**{"cells": (cell,), "duration_s": None, "num_prompts": REQUESTS, "timeout_s": 20.0, **settings})


def rendered(directory: Path, what: str) -> dict[str, dict[str, Any]]:
    return {row["request_id"]: row for row in truth.read(directory)["events"] if row["event"] == what}


@pytest.mark.parametrize("endpoint", ["completions", "chat"])
def test_four_hops_on_one_clock(endpoint: str, tmp_path: Path) -> None:
    chat = ChatCalibration(0.0, 1.0) if endpoint == "chat" else None
    with running(SLOW.on_free_ports()) as testbed:
        where = deployment(testbed, "render", "prefill", "decode")
        outcome = measure(tmp_path, where, plan("render", endpoint=endpoint), chat=chat)
        log = truth.read(testbed.log_dir)["requests"]
        renders, derenders = (rendered(testbed.log_dir, what) for what in ("rendered", "derendered"))
    assert outcome.statuses == ["ok"] * REQUESTS
    origin_s = outcome.run.origin_ns / 1e9
    for row in outcome.rows:
        assert row.sent_s is not None and row.render_done_s is not None and row.prefill_sent_s is not None
        assert row.prefill_done_s is not None and row.decode_sent_s is not None and row.first_token_s is not None
        assert row.last_token_s is not None and row.derender_sent_s is not None and row.derender_done_s is not None
        assert row.sent_s <= renders[row.request_id]["received"] - origin_s
        assert renders[row.request_id]["ended"] - origin_s <= row.render_done_s <= row.prefill_sent_s
        assert row.prefill_done_s <= row.decode_sent_s < row.first_token_s <= row.last_token_s <= row.derender_sent_s
        assert derenders[row.request_id]["tokens"] == OUTPUT
        assert log[row.request_id]["decode"]["external_tokens"] > 0, "the KV came from prefill"
        assert (row.output_tokens, row.chunks) == (OUTPUT, OUTPUT)


def test_the_render_tier_alone(tmp_path: Path) -> None:
    with running(SLOW.on_free_ports()) as testbed:
        outcome = measure(tmp_path, deployment(testbed, "render"), plan("render-only", 5.0, num_prompts=40))
        renders = rendered(testbed.log_dir, "rendered")
    assert outcome.statuses == ["ok"] * 40
    for row in outcome.rows:
        server, origin_s = renders[row.request_id], outcome.run.origin_ns / 1e9
        assert row.intended_s <= server["received"] - origin_s
        assert row.first_token_s is not None and row.first_token_s >= server["ended"] - origin_s
    ttft_ms = [((row.first_token_s or 0) - row.intended_s) * 1000 for row in outcome.rows]
    assert 0.9 * RENDER_MS < float(np.min(ttft_ms)) < 3 * RENDER_MS
    assert {row.prompt_tokens for row in outcome.rows} == {PROMPT}


@pytest.mark.alone
def test_a_rate_that_the_render_tier_sustains_is_valid(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A rendered prompt is a whole answer, although 128 tokens are asked for; beside the other drives too."""
    out = tmp_path / "run"
    with running(SLOW.on_free_ports()) as testbed:
        words = ["--prefill", testbed.prefill_urls[0], "--decode", testbed.decode_urls[0], "--mode", "pull"]
        words += ["--render", testbed.decode_urls[0].replace("127.0.0.1", "localhost"), "--drive", "render-only,render"]
        words += ["--rates", "4", "--prompt-lens", str(PROMPT), "--num-prompts", "24", "--arrivals", "constant"]
        code = main(["sweep", *words, "--out", str(out)])
    assert code == 0, capsys.readouterr().err
    cells = json.loads((out / "summary.json").read_text())["cells"]
    assert [cell["drive"] for cell in cells] == ["render-only", "render"]
    assert not [flag for cell in cells for flag in cell["validity"] if flag["code"] == "token-mismatch"]
    assert RENDER_MS <= cells[0]["mean_ttft_ms"] < 3 * RENDER_MS


@pytest.mark.alone
def test_what_the_render_tier_sustains(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One core of 20 ms a request makes at most 49 a second, however many are asked for, and the cell is void."""
    out = tmp_path / "run"
    with running(SLOW.on_free_ports()) as testbed:
        words = ["--render", testbed.decode_urls[0], "--drive", "render-only", "--rates", "120"]
        code = main(["sweep", *words, "--prompt-lens", str(PROMPT), "--num-prompts", "400", "--out", str(out)])
        ended = sorted(row["ended"] for row in rendered(testbed.log_dir, "rendered").values())[-400:]
    assert code == 3, capsys.readouterr().err
    cell = json.loads((out / "summary.json").read_text())["cells"][0]
    assert not cell["notes"] and "metrics-missing" not in [flag["code"] for flag in cell["validity"]]
    assert cell["request_throughput"] == pytest.approx(399 / (ended[-1] - ended[0]), rel=0.1)
    assert cell["request_throughput"] < 1000 / RENDER_MS
    assert "not-steady-state" in [flag["code"] for flag in cell["validity"]]


def test_a_server_that_renders_nothing(tmp_path: Path) -> None:
    """Its 404 is the request's."""
    with running(Settings().on_free_ports()) as testbed:
        proxy = build("default", [("render", str(testbed.proxy_url))], model="simulated-qwen3-32b")
        outcome = measure(tmp_path, proxy, plan("render-only", num_prompts=2))
    assert {row.status for row in outcome.rows} == {"failed"}
    assert {row.http_status for row in outcome.rows} == {404}


def test_the_render_servers_are_needed(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="render"):
        measure(tmp_path, build("default", [("decode", "http://127.0.0.1:1")], model="m"), plan("render-only"))
