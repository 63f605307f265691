"""A client that is held up, in earnest: its cell is void with the client as the cause, and its stamps stay right."""

from __future__ import annotations

import asyncio
import os
import subprocess
import threading
import time

import numpy as np
import pytest

from pdbench.report.summary import summarise
from pdbench.sweep.socket_client import open_sockets
from tests.sweep.one_cell import measure, open_cell, plan_for
from tests.sweep.scripted import CHUNKED, DONE, FINISH, TOKEN, chunk, request_of, request_to, scripted
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


# What a server may say before the first token.
ROLE = b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n'
ALIVE = b": keep-alive\n\n"


@pytest.mark.parametrize(("keeps", "before"), [(False, b""), (True, b""), (False, ROLE), (True, ALIVE)])
def test_first_tokens_are_read_before_those_of_streams_that_flow(keeps, before):
    """200 streams, and one that has no token yet, speak while we are held up, that one last. The kernel keeps one stamp
    for two tokens in a row, so a first token must not wait for its turn behind all the others."""
    streams, late, held_up = 200, b'{"late": true}', threading.Event()
    told = threading.Semaphore(0)

    def script(conn):
        while request := request_of(conn):
            if request.endswith(late):
                conn.sendall(CHUNKED + (chunk(before) if before else b""))
                for _ in range(streams):
                    told.acquire()
                conn.sendall(chunk(TOKEN))
            else:
                conn.sendall(CHUNKED + chunk(TOKEN))
                held_up.wait()
                conn.sendall(chunk(TOKEN))
                told.release()
            time.sleep(0.4)
            conn.sendall(chunk(FINISH + DONE) + b"0\r\n\r\n")

    async def go(url):
        async with open_sockets(url, keeps) as client:
            if keeps:  # the connection on which the late one asks has carried an answer
                held_up.set()
                await client.start(request_to(url), 0, 5.0)
                held_up.clear()
                told.acquire()
            behind = client.start(request_to(url, late), 0, 5.0)
            flowing = [client.start(request_to(url), 0, 5.0) for _ in range(streams)]
            while not all(exchange._raw.reads for exchange in client._exchanges if exchange._answer is not behind):
                await asyncio.sleep(0.01)
            held_up.set()
            time.sleep(0.3)
            return await behind, await asyncio.gather(*flowing)

    with scripted(script) as url:
        behind, flowing = asyncio.run(go(url))
    read_ns = [raw.reads[1][0] + raw.lags_ns[1] for raw in flowing]
    (at_ns, lag_ns) = next(
        (at_ns, lag_ns) for (at_ns, data), lag_ns in zip(behind.reads, behind.lags_ns, strict=True) if TOKEN in data
    )
    assert lag_ns > 50e6  # it lay there while we were held up
    assert sum(ns < at_ns + lag_ns for ns in read_ns) <= 32
