"""Several processes send one cell: the same requests at the same times as one, and what is left when one is lost."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import subprocess
import sys
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdbench.deployment import build
from pdbench.errors import StorageError
from pdbench.run import Run
from pdbench.sweep.cell import Job, share_of
from pdbench.sweep.measure import lost_workers
from pdbench.sweep.workers import joined
from tests.sweep.one_cell import closed_cell, measure, open_cell, plan_for

DEPLOYMENT = build("default", [("proxy", "http://127.0.0.1:1")], model="m")


def shares(cell, num_prompts, workers):
    plan = plan_for(cell, num_prompts=num_prompts)
    return [share_of(Job(DEPLOYMENT, plan, cell, 0, "tag", worker=w, workers=workers)) for w in range(workers)]


@settings(max_examples=30)
@given(arrivals=st.integers(1, 300), workers=st.integers(1, 40))
def test_the_shares_of_an_open_loop_are_the_whole_and_nearly_equal(arrivals, workers):
    (whole,) = shares(open_cell(), arrivals, 1)
    dealt = shares(open_cell(), arrivals, workers)
    times = {index: at for share in dealt for index, at in zip(share.indices, share.offsets, strict=True)}
    assert [times[index] for index in sorted(times)] == whole.offsets.tolist()
    sizes = [share.planned for share in dealt]
    assert sum(sizes) == arrivals == len(times) and max(sizes) - min(sizes) <= 1


@settings(max_examples=30)
@given(streams=st.integers(1, 60), requests=st.none() | st.integers(0, 300), workers=st.integers(1, 40))
def test_the_shares_of_a_closed_loop_are_the_whole_and_as_large_as_their_streams(streams, requests, workers):
    dealt = shares(closed_cell(streams), requests, min(workers, streams))
    assert sum(share.streams for share in dealt) == streams
    rounds = 3 if requests is None else -(-requests // streams)
    taken = [list(islice(share.indices, share.streams * rounds)) for share in dealt]
    whole = streams * 3 if requests is None else requests
    assert sorted(index for indices in taken for index in indices) == list(range(whole))
    for share, indices in zip(dealt, taken, strict=True):
        # Each stream has a request a round, but for the last round, which may be a part.
        assert share.streams * (rounds - 1) <= len(indices) <= share.streams * rounds
        assert share.planned == (None if requests is None else len(indices))


def planned_times(outcome):
    """Each request, without the run's own tag, and when the schedule wanted it."""
    return {row.request_id[8:]: row.intended_s - outcome.entry["start_s"] for row in outcome.rows}


def test_any_number_of_workers_sends_the_same_requests_at_the_same_times(ground_truth, tmp_path):
    server = ground_truth("--ttft", "5", "--itl", "2")
    plan = plan_for(open_cell(rate=80, output_len=4), num_prompts=60, seed=5)
    found = {n: measure(tmp_path / str(n), server.deployment(), plan, workers=n) for n in (None, 1, 3)}
    alone, three = planned_times(found[None]), found[3]
    assert len(alone) == 60
    for outcome in found.values():
        assert planned_times(outcome) == pytest.approx(alone, abs=1e-8)
    assert three.statuses == ["ok"] * 60 and three.entry["state"] == "done"
    assert (three.entry["planned"], three.entry["sent"]) == (60, 60)
    assert [sum(row.worker == worker for row in three.rows) for worker in range(3)] == [20, 20, 20]
    # The times are those of one clock: the server's log has every request where its row has it.
    truth = server.log()
    chunks = three.run.table("chunks").set_index("request_id")["offset_s"]
    for row in three.rows:
        written = np.array(truth[row.request_id]["sent_ns"]) / 1e9 - three.run.origin_ns / 1e9
        assert np.all(row.sent_s + np.array(chunks[row.request_id]) - written > -1e-4)
        assert row.prompt_tokens == truth[row.request_id]["prompt_tokens"] == 16


def test_the_health_of_each_is_kept_and_the_worst_is_what_counts(quick_server, tmp_path):
    outcome = measure(tmp_path, quick_server.deployment(), plan_for(open_cell(), num_prompts=20), workers=2)
    client = outcome.entry["client"]
    each = client["workers"]
    assert [(one["worker"], one["planned"], one["sent"], one["state"]) for one in each] == [
        (0, 10, 10, "done"),
        (1, 10, 10, "done"),
    ]
    for figure in ("lateness_p99_ms", "loop_lag_max_ms", "kernel_to_user_p99_ms", "cpu_share"):
        assert client[figure] == max(one[figure] for one in each) > 0
    assert client["stamps"]["kernel"] == sum(one["stamps"]["kernel"] for one in each) > 0
    assert 0 <= client["shared_reads_share"] < 1


def test_a_closed_loop_keeps_all_its_streams_busy(ground_truth, tmp_path):
    server = ground_truth("--ttft", "20", "--itl", "5")
    outcome = measure(tmp_path, server.deployment(), plan_for(closed_cell(5), num_prompts=40), workers=2)
    assert outcome.statuses == ["ok"] * 40 and sorted(row.index for row in outcome.rows) == list(range(40))
    moves = sorted([(row.sent_s, 1) for row in outcome.rows] + [(row.done_s, -1) for row in outcome.rows])
    assert max(np.cumsum([step for _, step in moves])) == 5
    assert outcome.entry["client"]["achieved_concurrency"] == pytest.approx(5, rel=0.3)
    alone = measure(tmp_path / "1", server.deployment(), plan_for(closed_cell(1), num_prompts=3), workers=4)
    assert alone.statuses == ["ok"] * 3 and len(alone.entry["client"]["workers"]) == 1


async def until_rows(rows, count):
    while len(rows) < count:
        await asyncio.sleep(0.01)


def test_a_killed_worker_costs_its_requests_and_no_others(ground_truth, tmp_path):
    server = ground_truth("--ttft", "20", "--itl", "5")

    async def meddle(crew, stop, rows):
        await until_rows(rows, 10)
        os.kill(crew.hands[1].link.pid, signal.SIGKILL)

    plan = plan_for(open_cell(rate=60, output_len=4), num_prompts=120)
    outcome = measure(tmp_path, server.deployment(), plan, workers=2, meddle=meddle)
    entry, table = outcome.entry, outcome.run.table("requests")
    assert outcome.error is None and entry["state"] == "interrupted"
    (lost,) = entry["lost"]
    assert lost["worker"] == 1 and "signal 9" in lost["why"]
    assert set(table["status"]) == {"ok"}, "what was not measured is no failure"
    of_worker = table.groupby("worker").size()
    assert of_worker[0] == 60, "the other one went on to the end"
    assert (lost["measured"], lost["not_measured"]) == (of_worker[1], 60 - of_worker[1])
    assert 0 < entry["not_measured"] == entry["planned"] - entry["sent"] == 120 - len(table)
    assert len(entry["client"]["workers"]) == 1


def test_a_killed_worker_of_a_closed_loop_takes_streams_with_it(quick_server, tmp_path):
    async def meddle(crew, stop, rows):
        while not any(row.worker == 1 for row in rows):
            await asyncio.sleep(0.01)
        os.kill(crew.hands[1].link.pid, signal.SIGKILL)

    plan = plan_for(closed_cell(5), num_prompts=None, duration_s=1.5)
    outcome = measure(tmp_path, quick_server.deployment(), plan, workers=2, meddle=meddle)
    (lost,) = outcome.entry["lost"]
    assert (lost["streams"], lost["not_measured"], outcome.entry["not_measured"]) == (2, None, None)
    assert outcome.entry["start_s"] < lost["last_heard_s"] < outcome.entry["end_s"]


@pytest.mark.parametrize(
    ("left", "said"), [(12, "12 of its requests"), (None, "nobody knows how many of its requests")]
)
def test_what_a_lost_worker_left_is_told(left, said):
    """A closed loop that lasts a time has no number of requests: unknown is not none."""
    (told,) = lost_workers({"lost": [{"worker": 1, "why": "signal 9", "measured": 6, "not_measured": left}]})
    assert told == f"load worker 1 was lost (signal 9); {said} were not measured."


def test_a_worker_that_says_nothing_any_more_is_lost_too(quick_server, tmp_path, monkeypatch):
    monkeypatch.setattr("pdbench.sweep.workers.PATIENCE_S", 1.0)

    async def meddle(crew, stop, rows):
        await until_rows(rows, 4)
        os.kill(crew.hands[0].link.pid, signal.SIGSTOP)

    outcome = measure(
        tmp_path, quick_server.deployment(), plan_for(open_cell(), num_prompts=60), workers=2, meddle=meddle
    )
    assert "said nothing" in outcome.entry["lost"][0]["why"] and outcome.entry["not_measured"] > 0


def test_the_next_cell_has_a_new_worker(quick_server, tmp_path):
    async def meddle(crew, stop, rows):
        os.kill(crew.hands[0].link.pid, signal.SIGKILL)

    first = measure(tmp_path, quick_server.deployment(), plan_for(open_cell()), workers=2, meddle=meddle)
    assert first.entry["lost"][0]["not_measured"] == 4

    async def again():
        from pdbench.sweep.cell import run_tag
        from pdbench.sweep.workers import Crew

        crew = await Crew.start(2)
        try:
            os.kill(crew.hands[0].link.pid, signal.SIGKILL)
            while not crew.hands[0].lost:
                await asyncio.sleep(0.01)
            plan = plan_for(replace(open_cell(), cell=1))
            job = Job(quick_server.deployment(), plan, plan.cells[0], 0, run_tag(first.run))
            return await crew.run_cell(job, first.run, asyncio.Event(), lambda row: None)
        finally:
            await crew.close()

    entry = asyncio.run(again())
    assert (entry["state"], entry["sent"], len(entry["client"]["workers"])) == ("done", 8, 2)


def test_stopping_keeps_every_row(ground_truth, tmp_path):
    server = ground_truth("--ttft", "20", "--itl", "20")

    async def meddle(crew, stop, rows):
        await until_rows(rows, 5)
        stop.set()

    plan = plan_for(open_cell(rate=40, output_len=20), num_prompts=400)
    outcome = measure(tmp_path, server.deployment(), plan, workers=2, meddle=meddle)
    assert outcome.entry["state"] == "interrupted" and outcome.error is None
    assert outcome.entry["planned"] == 400 and outcome.entry["sent"] == len(outcome.rows) < 150
    assert set(outcome.statuses) == {"ok", "cancelled"} and "lost" not in outcome.entry
    assert sorted(outcome.run.table("requests")["request_id"]) == sorted(row.request_id for row in outcome.rows)


def test_stopping_before_the_start_sends_nothing(quick_server, tmp_path):
    async def meddle(crew, stop, rows):
        stop.set()

    outcome = measure(tmp_path, quick_server.deployment(), plan_for(open_cell()), workers=2, meddle=meddle)
    assert outcome.entry["state"] == "interrupted" and outcome.entry["sent"] == 0 == len(outcome.rows)


def test_a_full_disk_ends_the_cell_for_all(ground_truth, tmp_path):
    server = ground_truth("--ttft", "5", "--itl", "1")

    async def meddle(crew, stop, rows):
        (recorder,) = psutil.Process(crew.hands[1].link.pid).children()
        resource.prlimit(recorder.pid, resource.RLIMIT_FSIZE, (4000, 4000))

    outcome = measure(
        tmp_path, server.deployment(), plan_for(open_cell(rate=40), num_prompts=400), workers=2, meddle=meddle
    )
    assert outcome.entry["state"] == "interrupted" and len(outcome.rows) < 400
    assert isinstance(outcome.error, StorageError) and outcome.error.exit_code == 74
    table = outcome.run.table("requests")
    assert len(table) >= 8 and set(table["worker"]) == {0, 1}


PARENT = """
import asyncio, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from tests.sweep.one_cell import GroundTruth, measure, open_cell, plan_for

async def tell(crew, stop, rows):
    while len(rows) < 5:
        await asyncio.sleep(0.01)
    print(*[hand.link.pid for hand in crew.hands], flush=True)
    await asyncio.sleep(60)

server = GroundTruth(int(sys.argv[2]), Path())
measure(Path(sys.argv[3]), server.deployment(), plan_for(open_cell(rate=40), num_prompts=4000), workers=2, meddle=tell)
"""


def test_nobody_sends_on_when_the_parent_is_killed_and_what_was_measured_is_on_disk(quick_server, tmp_path):
    place = str(Path(__file__).parents[2])
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, place, str(quick_server.port), str(tmp_path)], stdout=subprocess.PIPE
    )
    assert parent.stdout is not None
    with parent:
        workers = [psutil.Process(int(pid)) for pid in parent.stdout.readline().split()]
        recorders = [child for worker in workers for child in worker.children()]
        parent.kill()
    gone, alive = psutil.wait_procs(workers + recorders, timeout=10)
    assert len(gone) == 4 and not alive
    table = Run.open(tmp_path / "run").table("requests")
    assert len(table) >= 5 and set(table["status"]) <= {"ok", "cancelled"} and table["request_id"].is_unique


def test_a_share_of_unknown_size_leaves_an_unknown_number_unmeasured():
    loss = {"worker": 0, "why": "signal 9", "measured": 7, "not_measured": None}
    entry = joined([], [loss])
    assert entry["not_measured"] is None and (entry["planned"], entry["sent"]) == (7, 7)
    assert entry["state"] == "interrupted"
