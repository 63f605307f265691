"""A cell as a whole: loops, seeds, interruption, and what is left when the recorder or the disk fails."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
import subprocess
import sys
from itertools import islice, pairwise
from pathlib import Path

import numpy as np
import psutil
import pytest

from pdbench.deployment import build
from pdbench.errors import PdbenchError, StorageError
from pdbench.run import Run
from pdbench.sweep.cell import Job, cell_requests
from pdbench.sweep.drive import MakeRequest
from pdbench.sweep.plan import Cell, Plan, grid
from pdbench.sweep.rows import read_row
from pdbench.sweep.schedule import cell_schedule
from tests.sweep.one_cell import closed_cell, measure, open_cell, plan_for

DEPLOYMENT = build("default", [("proxy", "http://127.0.0.1:1")], model="m")


def requests(plan: Plan, cell: Cell, repeat: int = 0) -> MakeRequest:
    return cell_requests(Job(DEPLOYMENT, plan, cell, repeat, "0123abcd"), cell_schedule(plan, cell, repeat))


def bodies(plan: Plan, place: int, repeat: int, count: int = 5) -> list[bytes]:
    make = requests(plan, plan.cells[place], repeat)
    return [make(index).body for index in range(count)]


def test_prompts_are_fresh_in_every_cell_and_repeat_and_the_same_again():
    plan = Plan(grid(["default"], [1.0, 2.0], [], [64], [8]), repeats=2, seed=3)
    cells = [bodies(plan, place, repeat) for place in (0, 1) for repeat in (0, 1)]
    assert len({body for cell in cells for body in cell}) == 20
    assert bodies(plan, 0, 0) == cells[0]
    assert bodies(Plan(plan.cells, seed=4), 0, 0) != cells[0]


def test_a_request_is_what_servers_understand():
    cell = open_cell(5.0, 3, 9)
    request = requests(Plan((cell,)), cell)(12)
    body = json.loads(request.body)
    assert len(body.pop("prompt")) == 3
    assert body == {
        "model": "m",
        "max_tokens": 9,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        "ignore_eos": True,
    }
    assert request.url == "http://127.0.0.1:1/v1/completions"
    assert request.headers["X-Request-Id"] == request.request_id == "0123abcd-0-0-12"


def test_real_ends_on_request():
    cell = open_cell()
    assert "ignore_eos" not in json.loads(requests(Plan((cell,), ignore_eos=False), cell)(0).body)


def test_closed_loop_keeps_its_streams_busy(ground_truth, tmp_path):
    server = ground_truth("--ttft", "20", "--itl", "5")
    outcome = measure(tmp_path, server.deployment(), plan_for(closed_cell(3), num_prompts=12))
    assert outcome.statuses == ["ok"] * 12 and outcome.entry["planned"] == 12
    moves = sorted([(row.sent_s, 1) for row in outcome.rows] + [(row.done_s, -1) for row in outcome.rows])
    assert max(np.cumsum([step for _, step in moves])) == 3
    assert outcome.entry["client"]["achieved_concurrency"] == pytest.approx(3, rel=0.3)
    assert sorted(row.index for row in outcome.rows) == list(range(12))


def test_closed_loops_first_connections_stand_before_it_starts(ground_truth, tmp_path):
    server = ground_truth("--ttft", "20", "--itl", "5")
    outcome = measure(tmp_path, server.deployment(), plan_for(closed_cell(6), num_prompts=12))
    start_s = outcome.entry["start_s"]
    first, later = (sorted(outcome.rows, key=lambda row: row.sent_s)[half] for half in (slice(0, 6), slice(6, 12)))
    assert all(row.connected_s is not None and row.connected_s < start_s <= row.sent_s for row in first)
    assert all(row.opened_s is not None and row.opened_s > start_s for row in later)


def test_closed_loop_ends_after_its_duration(ground_truth, tmp_path):
    server = ground_truth("--ttft", "20", "--itl", "5")
    outcome = measure(tmp_path, server.deployment(), plan_for(closed_cell(2), num_prompts=None, duration_s=0.5))
    entry = outcome.entry
    assert entry["send_end_s"] - entry["start_s"] == pytest.approx(0.5, abs=0.1)
    assert entry["state"] == "done" and entry["planned"] == entry["sent"] == len(outcome.rows) >= 8
    assert set(outcome.statuses) == {"ok"}  # the last answers are waited for


def test_closed_loop_does_not_spin_on_refusals(tmp_path):
    outcome = measure(tmp_path, DEPLOYMENT, plan_for(closed_cell(1), num_prompts=None, duration_s=0.5))
    assert set(outcome.statuses) == {"failed"} and 3 <= len(outcome.rows) <= 8


def test_stopping_keeps_every_row(ground_truth, tmp_path):
    server = ground_truth("--ttft", "20", "--itl", "20")

    async def meddle(recorder, stop, rows):
        while len(rows) < 5:
            await asyncio.sleep(0.01)
        stop.set()

    outcome = measure(
        tmp_path, server.deployment(), plan_for(open_cell(rate=40, output_len=20), num_prompts=400), meddle=meddle
    )
    assert outcome.entry["state"] == "interrupted" and outcome.error is None
    assert outcome.entry["planned"] == 400 and outcome.entry["sent"] == len(outcome.rows) < 100
    assert set(outcome.statuses) == {"ok", "cancelled"}
    table = outcome.run.table("requests")
    assert sorted(table["request_id"]) == sorted(row.request_id for row in outcome.rows)
    cut_short = table[(table["status"] == "cancelled") & table["first_token_s"].notna()]
    assert len(cut_short) > 0  # what they had received is kept


def test_a_lost_recorder_is_noticed_and_its_rows_are_saved(ground_truth, tmp_path):
    server = ground_truth("--ttft", "20", "--itl", "5")

    async def meddle(recorder, stop, rows):
        while len(rows) < 5:
            await asyncio.sleep(0.01)
        os.kill(recorder.pid, signal.SIGKILL)

    outcome = measure(tmp_path, server.deployment(), plan_for(open_cell(rate=40), num_prompts=400), meddle=meddle)
    assert outcome.entry["state"] == "interrupted"
    assert isinstance(outcome.error, PdbenchError) and "recorder died" in str(outcome.error)
    table = outcome.run.table("requests")
    assert len(table) == outcome.entry["sent"] == len(outcome.rows) < 400
    assert table["request_id"].is_unique


def test_a_recorder_that_dies_between_a_rows_two_files_leaves_each_of_its_chunks_once(ground_truth, tmp_path):
    """An answer's chunks are written before its row: that much is done here in the place of a stopped recorder, for
    some answers in whole and for one cut short."""
    server = ground_truth("--ttft", "20", "--itl", "5")

    async def meddle(recorder, stop, rows):
        while len(rows) < 5:
            await asyncio.sleep(0.01)
        os.kill(recorder.pid, signal.SIGSTOP)
        while recorder.backlog < 3:
            await asyncio.sleep(0.01)
        context, _, chunks = recorder._cell
        *whole, cut = (
            json.dumps({"request_id": row.request_id, "offset_s": offsets})
            for row, offsets in (read_row(raw, context) for raw in islice(recorder.unconfirmed(), 3))
        )
        with chunks.open("a") as file:
            file.write("".join(f"{line}\n" for line in whole) + cut[: len(cut) // 2])
        os.kill(recorder.pid, signal.SIGKILL)

    outcome = measure(tmp_path, server.deployment(), plan_for(open_cell(rate=40), num_prompts=400), meddle=meddle)
    rows = outcome.run.table("requests")
    assert len(rows) == len(outcome.rows) >= 8 and rows["request_id"].is_unique
    kept = [(line.request_id, len(line.offset_s)) for line in outcome.run.table("chunks").itertuples()]
    assert sorted(kept) == sorted((row.request_id, row.chunks) for row in rows[rows["chunks"] > 0].itertuples())


def test_ctrl_c_is_not_for_the_recorder(quick_server, tmp_path):
    async def meddle(recorder, stop, rows):
        while not rows:
            await asyncio.sleep(0.01)
        os.kill(recorder.pid, signal.SIGINT)

    outcome = measure(tmp_path, quick_server.deployment(), plan_for(open_cell()), meddle=meddle)
    assert outcome.entry["state"] == "done" and outcome.statuses == ["ok"] * 8


def test_a_full_disk_keeps_what_fits(ground_truth, tmp_path):
    server = ground_truth("--ttft", "5", "--itl", "1")

    async def meddle(recorder, stop, rows):
        resource.prlimit(recorder.pid, resource.RLIMIT_FSIZE, (4000, 4000))

    outcome = measure(tmp_path, server.deployment(), plan_for(open_cell(rate=40), num_prompts=400), meddle=meddle)
    assert outcome.entry["state"] == "interrupted" and len(outcome.rows) < 400
    assert isinstance(outcome.error, StorageError) and outcome.error.exit_code == 74
    live = outcome.run.live_path("requests", 0, 0).read_bytes()
    assert live.endswith(b"\n") and len(outcome.run.table("requests")) == live.count(b"\n") >= 4


def test_files_that_cannot_be_written_are_refused_at_once(ground_truth, tmp_path):
    server = ground_truth()
    with pytest.raises(StorageError, match="cannot write"):
        measure(
            tmp_path,
            server.deployment(),
            plan_for(open_cell()),
            before=lambda run: run.live_path("chunks", 0, 0).mkdir(),
        )


def test_a_recorder_that_writes_nothing_any_more_is_not_waited_for(quick_server, tmp_path, monkeypatch):
    monkeypatch.setattr("pdbench.sweep.recorder._PATIENCE_S", 0.5)
    monkeypatch.setattr("pdbench.sweep.recorder._EXIT_S", 0.2)

    async def meddle(recorder, stop, rows):
        while not rows:
            await asyncio.sleep(0.01)
        os.kill(recorder.pid, signal.SIGSTOP)

    outcome = measure(tmp_path, quick_server.deployment(), plan_for(open_cell(), num_prompts=60), meddle=meddle)
    assert isinstance(outcome.error, StorageError) and "written nothing" in str(outcome.error)


def test_gaps_are_those_of_the_named_process(ground_truth, tmp_path):
    server = ground_truth("--ttft", "1", "--itl", "1")
    plan = plan_for(open_cell(rate=100, output_len=1), num_prompts=200, arrivals="gamma", burstiness=4.0)
    outcome = measure(tmp_path, server.deployment(), plan)
    sent = sorted(row.sent_s for row in outcome.rows)
    gaps = np.array([b - a for a, b in pairwise(sent)])
    assert gaps.std() / gaps.mean() == pytest.approx(0.5, abs=0.15)


PARENT = """
import asyncio, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from tests.sweep.one_cell import GroundTruth, measure, open_cell, plan_for

async def tell(recorder, stop, rows):
    while len(rows) < 5:
        await asyncio.sleep(0.01)
    print(recorder.pid, flush=True)
    await asyncio.sleep(60)

server = GroundTruth(int(sys.argv[2]), Path())
measure(Path(sys.argv[3]), server.deployment(), plan_for(open_cell(rate=40), num_prompts=4000), meddle=tell)
"""


def test_the_recorder_ends_when_its_parent_is_killed_and_what_it_was_given_is_on_disk(quick_server, tmp_path):
    place = str(Path(__file__).parents[2])
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, place, str(quick_server.port), str(tmp_path)], stdout=subprocess.PIPE
    )
    assert parent.stdout is not None
    with parent:
        recorder = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
    recorder.wait(timeout=10)
    table = Run.open(tmp_path / "run").table("requests")
    assert len(table) >= 5 and set(table["status"]) == {"ok"}


def test_the_recorder_starts_light():
    program = "import sys, pdbench.sweep.recorder_process; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert not {"numpy", "pandas", "pyarrow", "aiohttp", "typer", "rich"} & set(loaded)
