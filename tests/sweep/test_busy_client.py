"""A client that is held up, in earnest: its cell is void with the client as the cause, and its stamps stay right."""

from __future__ import annotations

import asyncio
import os
import subprocess
import time

import numpy as np
import pytest

from pdbench.report.summary import summarise
from tests.sweep.one_cell import measure, open_cell, plan_for
from tests.sweep.test_client import errors_ms

pytestmark = pytest.mark.alone


async def let_be(recorder, stop, rows):
    """The healthy twin."""


async def block_the_loop(recorder, stop, rows):
    for _ in range(2):
        await asyncio.sleep(0.1)
        time.sleep(0.4)


async def stop_the_process(recorder, stop, rows):
    """SIGSTOP for 0.6 s while it sends, by a process beside this one."""
    while not rows:
        await asyncio.sleep(0.01)
    pid = os.getpid()
    beside = subprocess.Popen(["sh", "-c", f"kill -STOP {pid}; sleep 0.6; kill -CONT {pid}"])
    await asyncio.to_thread(beside.wait)


@pytest.mark.parametrize("fault", [let_be, block_the_loop, stop_the_process])
def test_a_client_that_is_held_up_is_the_cause_and_its_stamps_are_right(ground_truth, tmp_path, fault):
    server = ground_truth("--ttft", "200", "--itl", "20")
    plan = plan_for(open_cell(rate=40, output_len=10), num_prompts=80, arrivals="constant")
    outcome = measure(tmp_path, server.deployment(), plan, meddle=fault)
    assert outcome.statuses == ["ok"] * 80
    outcome.run.document |= {"cell_runs": [outcome.entry], "deployments": []}
    (cell,) = summarise(outcome.run)["cells"]
    void = [flag for flag in cell["validity"] if (flag["code"], flag["severity"]) == ("client-saturated", "void")]
    causes = [cause["cause"] for cause in cell["diagnosis"]]
    client = outcome.entry["client"]
    if fault is let_be:
        assert not void and "client" not in causes
    else:
        assert "sends were" in void[0]["evidence"] and "client" in causes
        assert client["lateness_max_ms"] > 250 and client["loop_lag_max_ms"] > 250
    # Reads came late, stamps did not: half of the events are within a ms of the server's own log.
    errors = np.concatenate(list(errors_ms(outcome, server.log())))
    assert client["kernel_stamps_share"] == 1 and 0 < np.median(errors) < 1
