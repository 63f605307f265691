"""The disk is full, the link is down, descriptors and ports run out: what was measured stays, what failed is named."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.cli.conftest import environment
from tests.survival.conftest import PROMPTS, VALID_OR_NOT, Server, Sweep, until
from tests.survival.test_processes import unchanged
from tests.sweep.conftest import started
from tests.sweep.one_cell import closed_cell, measure, plan_for
from tests.sweep.scripted import scripted
from tests.sweep.test_wire import WHOLE, sends

MANY = Path(__file__).parent / "many_requests.py"


def test_a_full_disk(sweep: Sweep, server: Server, small_disk: Path) -> None:
    sweep.out = str(small_disk / "run")
    sweep.start().in_cell(1, 5)
    filler = small_disk / "filler"
    with contextlib.suppress(OSError), filler.open("wb") as file:
        while True:
            file.write(bytes(4096))
            file.flush()
    assert sweep.end() == 74
    assert "No space left on device" in sweep.told and str(small_disk) in sweep.told and "Free space" in sweep.told
    before = sweep.readable(server)
    counts = before.groupby("cell").size()
    assert counts[0] == PROMPTS and 5 <= counts[1] < PROMPTS
    assert sweep.states()[0] == "done" and sweep.states()[1] != "done"
    filler.unlink()
    assert sweep.resume() in VALID_OR_NOT, sweep.told
    unchanged(before, sweep.finished(server))


class Link:
    """A server in a network namespace of its own, at the other end of a pair of virtual interfaces. Names and addresses
    are those of this process: two tests that run side by side would answer over each other's link."""

    def __init__(self) -> None:
        self.space, self.near, self.far = (f"pdb{os.getpid() % 100_000}{letter}" for letter in "sab")
        place = os.getpid() % (1 << 14) * 4
        self.here, self.address = (f"10.231.{place >> 8}.{place % 256 + end}" for end in (1, 2))

    def _run(self, *words: str) -> None:
        subprocess.run(["ip", *words], check=True, capture_output=True)

    @contextlib.contextmanager
    def up(self) -> Iterator[None]:
        if os.geteuid() != 0 or shutil.which("ip") is None:
            pytest.skip("needs root and the command `ip`: a network namespace is made")
        try:
            self._run("netns", "add", self.space)
        except subprocess.CalledProcessError as error:
            pytest.skip(f"no network namespace can be made here: {error.stderr.decode().strip()}")
        try:
            self._run("link", "add", self.near, "type", "veth", "peer", "name", self.far, "netns", self.space)
            self._run("addr", "add", f"{self.here}/30", "dev", self.near)
            self._run("link", "set", self.near, "up")
            self._run("-n", self.space, "addr", "add", f"{self.address}/30", "dev", self.far)
            self.set("up")
            yield
        finally:
            self._run("netns", "del", self.space)  # the pair of interfaces goes with it
            with contextlib.suppress(subprocess.CalledProcessError):
                self._run("link", "del", self.near)

    def set(self, state: str) -> None:
        self._run("-n", self.space, "link", "set", self.far, state)

    def server(self, log: Path) -> Server:
        return Server(log, self.address, ("ip", "netns", "exec", self.space)).start()


def test_a_link_that_is_down_for_a_second_and_for_longer_than_a_request_may_last(tmp_path: Path) -> None:
    link = Link()
    with link.up():
        server = link.server(tmp_path / "truth.jsonl")
        sweep = Sweep(tmp_path, server.url, "40,41,42", ("--timeout", "3s"))
        try:
            sweep.start().in_cell(0, 5)
            link.set("down")
            time.sleep(0.8)
            link.set("up")
            sweep.in_cell(1, 5)
            link.set("down")
            until(lambda: rows_of(sweep, 1) == PROMPTS, "the deadlines")
            link.set("up")
            assert sweep.end() in VALID_OR_NOT
            rows = sweep.readable(server)
        finally:
            server.kill()
    assert rows.groupby("cell").size().to_dict() == dict.fromkeys(range(3), PROMPTS)
    status = rows.groupby("cell")["status"].agg(set).to_dict()
    # TCP brings what a short outage held up, and the rows show how long that was.
    assert status[0] == {"ok"} and {"ok", "timeout"} <= status[1] and status[2] == {"ok"}
    # Who cannot even ask where the server is hears so from its own host.
    assert set(rows[rows["status"] == "failed"]["error_kind"]) <= {"connect"}
    first = rows[rows["cell"] == 0]
    assert (first["last_token_s"] - first["intended_s"]).max() > 0.5
    late = rows[rows["status"] == "timeout"]
    assert np.allclose(late["done_s"] - late["sent_s"], 3.0, atol=1.0)
    assert sweep.states() == dict.fromkeys(range(3), "done")
    flags = {flag["code"] for flag in sweep.summary()["cells"][1]["validity"] if flag["severity"] == "void"}
    assert "failed-requests" in flags


def rows_of(sweep: Sweep, cell: int) -> int:
    live = sweep.path / "live" / f"requests-c{cell:04d}-r00.jsonl"
    part = sweep.path / "parts" / f"requests-c{cell:04d}-r00.parquet"
    return PROMPTS if part.exists() else live.read_bytes().count(b"\n") if live.exists() else 0


@pytest.mark.alone
def test_ten_thousand_streams(tmp_path: Path) -> None:
    """All open at once: more descriptors than a process usually may have, and a hundred times what a browser opens."""
    streams = 10_000
    if resource.getrlimit(resource.RLIMIT_NOFILE)[1] < streams + 200:
        pytest.skip(f"the hard limit of descriptors is below {streams + 200} (ulimit -Hn)")
    with contextlib.ExitStack() as stack:
        server = started(stack, tmp_path / "truth.jsonl", ("--ttft", "20", "--itl", "1", "--gather", str(streams)))
        plan = plan_for(closed_cell(streams, output_len=2), num_prompts=streams, timeout_s=120.0)
        outcome = measure(tmp_path, server.deployment(), plan)
        log = server.log()
    assert outcome.statuses == ["ok"] * streams == ["ok"] * len(log)
    # The server answered none before it had all of them.
    assert max(record["received_ns"] for record in log.values()) < min(record["sent_ns"][0] for record in log.values())
    rows = outcome.run.table("requests")
    assert len(rows) == streams and rows["request_id"].is_unique and set(rows["output_tokens"]) == {2}
    client = outcome.entry["client"]
    assert client["out_of_files"] == client["out_of_ports"] == 0 and client["kernel_stamps_share"] == 1
    errors_ms = [
        (outcome.run.origin_ns + row.first_token_s * 1e9 - log[row.request_id]["sent_ns"][0]) / 1e6
        for row in rows.itertuples()
    ]
    assert 0 < np.median(errors_ms) < 5


def test_too_few_descriptors(sweep: Sweep, server: Server) -> None:
    """Each request that found none says so, the cell is void with the client as its cause, and what to do is told."""
    sweep.rates, sweep.limit = "4000", 60
    assert sweep.start().end() == 3
    rows = sweep.readable(server)
    assert len(rows) == PROMPTS and set(rows["status"]) == {"ok", "failed"}
    failed = rows[rows["status"] == "failed"]
    assert set(failed["error_kind"]) == {"fd-limit"} and failed["error"].str.contains("ulimit -n").all()
    (cell,) = sweep.summary()["cells"]
    saturated = next(flag for flag in cell["validity"] if flag["code"] == "client-saturated")
    assert saturated["severity"] == "void" and f"{len(failed)} requests found no descriptor" in saturated["evidence"]
    assert "client" in [cause["cause"] for cause in cell["diagnosis"]]
    assert "ulimit -n" in sweep.told


PORTS = 100


@pytest.mark.parametrize("first", ["server", "client"])
def test_connections_that_are_over_use_up_no_port(tmp_path: Path, first: str) -> None:
    """A namespace with 100 ports, 200 requests over fresh connections, a server that closes 0.1 s after its answer.

    Who waits for that close keeps no port. With a client that closes first each is gone for a minute: that is told.
    """
    link = Link()
    with link.up(), scripted(sends(WHOLE, stay_s=0.1), link.here) as url:
        inside = ("ip", "netns", "exec", link.space)
        for setting in (f"ip_local_port_range=40000 {40000 + PORTS - 1}", "tcp_tw_reuse=0"):
            subprocess.run([*inside, "sysctl", "-qw", f"net.ipv4.{setting}"], check=True)
        program = [*inside, sys.executable, str(MANY), url, first]
        done = subprocess.run(program, capture_output=True, text=True, check=True, env=environment())
    ends, health, told = json.loads(done.stdout)
    if first == "server":
        assert ends == {"complete": 200} and health["out_of_ports"] == 0, done.stdout
    else:
        assert ends["port-limit"] == health["out_of_ports"] > 50, done.stdout
        assert any("--connections pool" in text for text in told)
