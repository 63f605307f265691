"""What is killed and what is interrupted: each time the rows stay, are counted right, and the grid can be finished."""

from __future__ import annotations

import time

import pandas as pd
import psutil
import pytest

from pdbench.run import Run
from tests.survival.conftest import PROMPTS, VALID_OR_NOT, Server, Sweep, until


def unchanged(before: pd.DataFrame, after: pd.DataFrame, cell: int = 0) -> None:
    """A cell that was whole is not measured again."""
    of = [rows[rows["cell"] == cell].sort_values("request_id").reset_index(drop=True) for rows in (before, after)]
    columns = ["request_id", "status", "sent_s", "first_token_s", "done_s"]
    assert len(of[0]) and of[0][columns].equals(of[1][columns])


def runs(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_kill_9_of_the_sweep(sweep: Sweep, server: Server) -> None:
    sweep.start().in_cell(1, 20)
    helpers = [sweep.helper("recorder_process"), sweep.helper("sampling")]
    sweep.kill()
    killed_ns = time.monotonic_ns()
    until(
        lambda: not any(helper.is_running() and helper.status() != "zombie" for helper in helpers), "its helpers' end"
    )
    before = sweep.readable(server)
    assert (before["cell"] == 0).sum() == PROMPTS and sweep.states() == {0: "done", 1: "running"}
    # Whatever the server had ended well before is there; what was in flight is not, and is no failure.
    written = set(before["request_id"])
    early = killed_ns - 200_000_000
    known = {name for name, record in server.log().items() if "-1-0-" in name and record["done_ns"] < early}
    assert len(known) >= 4 and known <= written and set(before["status"]) == {"ok"}
    assert sweep.resume() in VALID_OR_NOT
    unchanged(before, sweep.finished(server))


def test_kill_9_of_the_sampler_and_of_the_recorder(sweep: Sweep, server: Server) -> None:
    """Without the sampler the load goes on, and the next cell has another one. Without the recorder it stops, and the
    sweep itself writes what the recorder had not."""
    sweep.start().in_cell(0, 5)
    sampler = sweep.helper("sampling")
    sampler.kill()
    sweep.in_cell(1, 5)
    assert sweep.helper("sampling").pid != sampler.pid
    sweep.helper("recorder_process").kill()
    assert sweep.end() == 70 and "the recorder died" in sweep.told and "--resume" in sweep.told
    rows = sweep.readable(server)
    counts = rows.groupby("cell").size()
    assert counts[0] == PROMPTS and 5 <= counts[1] < PROMPTS and sweep.states() == {0: "done", 1: "interrupted"}
    assert set(rows[rows["cell"] == 1]["status"]) <= {"ok", "cancelled"}
    run = Run.open(sweep.path)
    assert any("sampler ended by itself" in note for note in run.document["notes"])
    metrics = run.table("metrics")
    second = next(entry for entry in run.document["cell_runs"] if entry["cell"] == 1)
    assert (metrics["t"] > second["start_s"] - 1).any()
    assert sweep.resume() in VALID_OR_NOT
    unchanged(rows, sweep.finished(server))


@pytest.mark.parametrize("where", ["while it saves", "while it reports"])
def test_ctrl_c_twice(sweep: Sweep, server: Server, where: str) -> None:
    sweep.start().in_cell(1, 5)
    sweep.interrupt()
    if where == "while it reports":
        until(lambda: not (sweep.path / "live").exists(), "the tables")
    else:
        sweep.says("stopping")
    sweep.interrupt()
    assert sweep.end() == 130
    before = sweep.readable(server)
    assert (before["cell"] == 0).sum() == PROMPTS and set(before["status"]) <= {"ok", "cancelled"}
    assert sweep.states()[0] == "done" and sweep.states()[1] != "done"
    if where == "while it saves":
        assert sweep.resume() in VALID_OR_NOT
        unchanged(before, sweep.finished(server))


def test_a_server_that_is_killed_and_comes_back(sweep: Sweep, server: Server) -> None:
    """In the first cell it is back at once; before the last one it stays away, and the sweep ends; then it is back."""
    sweep.rates = "40,41,42"
    sweep.start().in_cell(0, 5)
    server.kill()
    time.sleep(0.2)
    server.start()
    sweep.in_cell(1, 20)
    server.kill()
    assert sweep.end() == 4 and "stopped answering" in sweep.told and "--resume" in sweep.told
    before = sweep.readable(server)
    assert before.groupby("cell").size().to_dict() == {0: PROMPTS, 1: PROMPTS, 2: PROMPTS}
    kinds = before.groupby("cell")["status"].agg(set).to_dict()
    assert {"ok", "truncated", "failed"} >= kinds[0] > {"ok"} and kinds[1] > {"ok"} and kinds[2] == {"failed"}
    # The streams that its death broke off are told from those that it refused; what they had received is kept.
    broken = before[before["status"] == "truncated"]
    assert len(broken) >= 1 and broken["first_token_s"].notna().any()
    assert sweep.states() == {0: "done", 1: "done", 2: "interrupted"}
    summary = sweep.summary()
    for cell in (0, 1):
        codes = {flag["code"]: flag["severity"] for flag in summary["cells"][cell]["validity"]}
        assert codes["failed-requests"] == "void"
    server.start()
    assert sweep.resume() in VALID_OR_NOT
    after = sweep.readable(server)
    assert set(sweep.states().values()) == {"done"} and set(after[after["cell"] == 2]["status"]) == {"ok"}
    unchanged(before, after, 0)
    unchanged(before, after, 1)


def test_kill_9_of_a_load_worker(sweep: Sweep, server: Server) -> None:
    """Its requests are counted as not measured, all others are there, and the next cell has a new worker."""
    sweep.more = ("--workers", "2")
    sweep.start().in_cell(0, 4)
    sweep.helper("worker_process").kill()
    assert sweep.end() in VALID_OR_NOT
    rows = sweep.readable(server)
    lost, whole = Run.open(sweep.path).document["cell_runs"]
    assert (rows["cell"] == 1).sum() == PROMPTS and (lost["state"], whole["state"]) == ("interrupted", "done")
    assert (rows["cell"] == 0).sum() + lost["not_measured"] == PROMPTS and lost["not_measured"] > 0
    assert sweep.resume() in VALID_OR_NOT
    unchanged(rows, sweep.finished(server), 1)
