"""The main job on servers that are not ours: Dynamo's real frontend and router, and one whose truth is known."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.cli.conftest import Ended
from tests.sweep.conftest import started

pytestmark = pytest.mark.alone

Run = Callable[..., Ended]
RECIPES = Path(__file__).parents[2] / "recipes"
DYNAMO = Path(os.environ.get("PDBENCH_WORK", RECIPES.parent / ".work")) / "dynamo"


def test_reported_times_are_those_of_the_servers_own_log(pdbench: Run, tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        flags = ("--ttft", "50", "--itl", "10", "--slots", "4")
        server = started(stack, tmp_path / "truth.jsonl", flags)
        words = ["--server", server.url, "--rates", "5,20", "--prompt-lens", "64", "--output-len", "32"]
        ended = pdbench("sweep", *words, "--num-prompts", "60", "--out", "run", "--json")
        log = server.log()
    rows = pd.read_parquet(tmp_path / "run" / "requests.parquet")
    chunks = pd.read_parquet(tmp_path / "run" / "chunks.parquet").set_index("request_id")["offset_s"]
    origin_ns = json.loads((tmp_path / "run" / "run.json").read_text())["clock"]["origin_monotonic_ns"]
    assert (rows["status"] == "ok").all()
    first_ms, gap_ms = [], []
    for row in rows.itertuples():
        sent_ns = np.array(log[row.request_id]["sent_ns"], dtype=np.int64)[:32]
        seen_ns = row.sent_s * 1e9 + np.array(chunks[row.request_id]) * 1e9 + origin_ns
        first_ms.append((seen_ns[0] - sent_ns[0]) / 1e6)
        gap_ms.extend(np.abs(np.diff(seen_ns) - np.diff(sent_ns)) / 1e6)
    # Never before it was written, and after that only what a busy two-core machine adds.
    assert min(first_ms) > 0
    assert np.median(first_ms) < 2
    assert np.median(gap_ms) < 2
    calm, full = ended.summary["cells"]
    held_ms = 50 + 31 * 10
    assert calm["mean_tpot_ms"] == pytest.approx(10, rel=0.05)
    assert calm["median_ttft_ms"] == pytest.approx(50, abs=10)
    # 20 requests/s that each hold one of 4 slots for 360 ms need 7.2 slots: no steady state.
    assert full["slots"]["held"] <= 4.2
    assert 20 * held_ms / 1000 > 4
    assert "not-steady-state" in [flag["code"] for flag in full["validity"]]
    assert "decode-slots" in [cause["cause"] for cause in full["diagnosis"]]


@contextlib.contextmanager
def dynamo(run: Path) -> Iterator[Path]:
    """One prefill and one decode engine of two slots behind Dynamo's frontend; the recipe of what runs. The engines'
    step trace is whole afterwards."""
    if not (DYNAMO / "installed").exists():
        pytest.skip("Dynamo is not installed: run recipes/dynamo-mocker/install.sh")
    # Dynamo takes ports below 32768 only, so the recipe's own are used.
    where = {"DIR": str(DYNAMO), "RUN": str(run), "D_SEQS": "2", "KV_GB_S": "8", "TRACE": "1"}
    environment = {**os.environ, **where}
    up = subprocess.run(
        [RECIPES / "dynamo-mocker" / "up.sh"], env=environment, capture_output=True, text=True, timeout=120
    )
    try:
        assert up.returncode == 0, up.stdout + up.stderr
        yield run / "recipe.toml"
    finally:
        subprocess.run([RECIPES / "dynamo-mocker" / "down.sh"], env=environment, check=True, timeout=60)


def slot_waits_ms(trace: Path, run: dict[str, Any]) -> list[float]:
    """The mean wait for a decode slot in each cell, by Little's law over what the engine had queued at its steps. It
    queues a request whose KV comes from elsewhere as one to be prefilled."""
    [file] = trace.glob("steps-decode0.*")
    with gzip.open(file, "rt") as lines:
        steps = [json.loads(line)["event"] for line in lines]
    t = np.array([step["observed_at_unix_ms"] / 1000 for step in steps]) - run["clock"]["origin_unix_s"]
    queued = np.array([step["fpm"]["queued_requests"]["num_prefill_requests"] for step in steps])
    waits = []
    for cell in run["cell_runs"]:
        every_ms = np.arange(cell["start_s"], cell["end_s"], 0.001)
        waits.append(float(queued[np.searchsorted(t, every_ms, side="right") - 1].sum()) / cell["sent"])
    return waits


@pytest.mark.dynamo
def test_a_real_dynamo_deployment_short_of_decode_slots(pdbench: Run, tmp_path: Path) -> None:
    words = ["--rates", "1,9", "--prompt-lens", "256,2048", "--output-len", "64", "--duration", "7s", "--out", "run"]
    with dynamo(tmp_path / "dynamo") as recipe:
        ended = pdbench("sweep", "--recipe", recipe, *words, "--json", timeout=240)
    assert ended.code == 0, ended.err
    summary = ended.summary
    assert summary["simulated"] is False
    assert len(summary["cells"]) == 4
    traced_ms = slot_waits_ms(tmp_path / "dynamo" / "trace", json.loads((tmp_path / "run" / "run.json").read_text()))
    for calm, full in (summary["cells"][:2], summary["cells"][2:]):
        assert calm["failed"] == full["failed"] == 0
        # Nobody waits at the calm rate. Moving a long prompt's KV is named all the same: a third of TTFT, at any load.
        moved_ms = calm["prompt_len"] * 131072 / 8e6
        named = {cause["cause"]: cause["share"] for cause in calm["diagnosis"]}
        long = {"transfer-bandwidth": pytest.approx(moved_ms / calm["mean_ttft_ms"], abs=0.15)}
        assert named == (long if calm["prompt_len"] > 1000 else {})
        assert not [flag for flag in calm["validity"] if flag["severity"] == "void"]
        # A slot is held for 64 steps of 5.75 ms: two of them let 5.4 requests/s through.
        assert full["slots"]["available"] == 2
        assert full["slots"]["needed"] == pytest.approx(9 * 64 * 0.00575, rel=0.15)
        assert full["request_throughput"] < 6.2
        assert "not-steady-state" in [flag["code"] for flag in full["validity"]]
        assert full["diagnosis"][0]["cause"] == "decode-slots"
        # What a full decode adds to TTFT is the wait for a slot; prefill and transfer are as they were.
        added_ms = full["mean_ttft_ms"] - calm["mean_ttft_ms"]
        assert full["ttft_split_ms"]["slot_wait"] == pytest.approx(added_ms, rel=0.2)
        # So says the engine's step trace, to which Dynamo's own split (no wait, a slow transfer) does not hold.
        assert full["ttft_split_ms"]["slot_wait"] == pytest.approx(traced_ms[full["cell"]], rel=0.03)
        assert calm["ttft_split_ms"]["slot_wait"] == pytest.approx(traced_ms[calm["cell"]], abs=8)
        # Dynamo's own estimate is the transfer while slots are free: 128 KiB a token at 8 GB/s. It is none when not.
        if "transfer" in calm["ttft_split_ms"] or calm["prompt_len"] > 1000:
            assert moved_ms - 1 < calm["ttft_split_ms"]["transfer"] < moved_ms + 15
        assert "transfer" not in full["ttft_split_ms"]
