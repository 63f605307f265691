"""Two hosts behind a one-time token, here as two addresses or two namespaces; and what happens when a side ends."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.probe_transfer.conftest import (
    QUICK,
    SMALL,
    Ended,
    command,
    ended,
    ends_soon,
    environment,
    needs_nixl,
    run,
    worker_of,
)

pytestmark = needs_nixl
LONG = [
    "--bytes",
    "1MiB",
    "--descriptors",
    "64",
    "--duration",
    "1s",
    "--repeats",
    "100",
    "--op",
    "read",
    "--out",
    "run",
]
AS_ROOT = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("unshare") is None, reason="needs root and unshare to make namespaces"
)


class Listening:
    """A probe that listens, with the address and the token that it printed."""

    def __init__(self, address: str, cwd: Path, before: list[str] | None = None) -> None:
        words = [*(before or []), *command("--listen", f"{address}:0", "--timeout", "60s")]
        self.process = subprocess.Popen(
            words, cwd=cwd, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert self.process.stderr is not None
        said = [self.process.stderr.readline(), self.process.stderr.readline()]
        token, where = re.search(r"token.*: (\S+)", said[0]), re.search(r"--connect (\S+)", said[1])
        assert token and where, said
        self.token, self.where = token[1], where[1]

    def end(self) -> Ended:
        return ended(self.process)


@pytest.fixture
def listening(tmp_path: Path) -> Iterator[Callable[..., Listening]]:
    made: list[Listening] = []

    def start(address: str = "127.0.0.1", before: list[str] | None = None) -> Listening:
        made.append(Listening(address, tmp_path, before))
        return made[-1]

    yield start
    for each in made:
        each.process.kill()
        each.process.communicate()


def test_two_sides_a_wrong_token_and_nothing_on_all_addresses(
    tmp_path: Path, listening: Callable[..., Listening]
) -> None:
    other = listening("127.0.0.2")
    wrong = run(*SMALL, "--connect", other.where, "--out", "wrong", cwd=tmp_path, PDBENCH_TRANSFER_TOKEN="wrong")
    assert wrong.code == 2 and "does not take this token" in wrong.err and not (tmp_path / "wrong").exists()

    token = tmp_path / "token"
    token.write_text(other.token + "\n")
    words = [
        "--bytes",
        "1MiB",
        "--descriptors",
        "64",
        "--duration",
        "300ms",
        "--repeats",
        "1",
        "--out",
        "run",
        "--json",
    ]
    process = subprocess.Popen(
        command(*words, "--connect", other.where, "--token-file", token),
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    addresses = set()
    for role in ("decode", "prefill"):
        worker = worker_of(process, role, tmp_path / "run")
        addresses |= {c.laddr.ip for c in worker.net_connections("inet") if c.status == psutil.CONN_LISTEN}
    assert addresses and all(address.startswith("127.") for address in addresses)
    done = ended(process)
    assert done.code == 0, done.err
    assert {(r["op"], r["verified"]) for r in done.summary["results"]} == {("READ", True), ("WRITE", True)}
    here = other.end()
    assert here.code == 0 and "its results are on the host that connected" in here.err
    for file in (tmp_path / "run").rglob("*"):
        assert file.is_dir() or other.token not in file.read_text(errors="replace")


@AS_ROOT
def test_silent_tcp_between_two_pid_namespaces(tmp_path: Path, listening: Callable[..., Listening]) -> None:
    other = listening()
    apart = ["unshare", "--pid", "--fork", "--mount-proc"]
    words = [*SMALL, "--ids", "scattered", "--connect", other.where, "--json"]
    done = run(*words, cwd=tmp_path, before=apart, PDBENCH_TRANSFER_TOKEN=other.token)
    assert done.code == 0, done.err
    assert all(r["verified"] and r["transport"] == "tcp/lo" for r in done.summary["results"])
    (cause,) = [each for each in done.summary["diagnosis"] if each["cause"] == "silent-tcp"]
    assert "two PID namespaces" in cause["evidence"] and "--pid=container" in cause["advice"]
    assert "process_vm" in done.summary["results"][0]["reference_missing"]
    assert other.end().code == 0


@AS_ROOT
@pytest.mark.skipif(shutil.which("setpriv") is None, reason="needs setpriv to give up a capability")
def test_without_permission_to_copy_reads_go_by_tcp(tmp_path: Path, listening: Callable[..., Listening]) -> None:
    """Decode without CAP_SYS_PTRACE may not read prefill's memory, so UCX goes another way without a word."""
    other = listening()
    weak = ["setpriv", "--bounding-set", "-sys_ptrace"]
    done = run(
        *SMALL, "--connect", other.where, "--json", cwd=tmp_path, before=weak, PDBENCH_TRANSFER_TOKEN=other.token
    )
    assert done.code == 0, done.err
    reads = [r for r in done.summary["results"] if r["op"] == "READ"]
    assert {r["transport"] for r in reads} == {"tcp/lo"} and all(r["transport_proof"]["agree"] for r in reads)
    (cause,) = [each for each in done.summary["diagnosis"] if each["cause"] == "silent-tcp"]
    assert "Operation not permitted" in cause["evidence"] and "CAP_SYS_PTRACE" in cause["advice"]
    assert other.end().code == 0


@pytest.fixture
def two_hosts() -> Iterator[tuple[list[str], list[str]]]:
    """Two network namespaces with a cable between them, and how to run in each."""
    names = [f"pdbench-{os.getpid()}-{side}" for side in "ab"]

    def ip(*words: str) -> None:
        subprocess.run(["ip", *words], check=True, capture_output=True)

    try:
        for name in names:
            ip("netns", "add", name)
        ip("link", "add", "cable", "netns", names[0], "type", "veth", "peer", "name", "cable", "netns", names[1])
        for number, name in enumerate(names, 1):
            ip("-n", name, "addr", "add", f"10.77.0.{number}/24", "dev", "cable")
            for device in ("cable", "lo"):
                ip("-n", name, "link", "set", device, "up")
        yield ["ip", "netns", "exec", names[0]], ["ip", "netns", "exec", names[1]]
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


@AS_ROOT
@pytest.mark.skipif(shutil.which("ip") is None, reason="needs ip (iproute2)")
def test_over_a_cable_the_interface_counts_what_was_moved(
    tmp_path: Path, two_hosts: tuple[list[str], list[str]], listening: Callable[..., Listening]
) -> None:
    other = listening("10.77.0.1", two_hosts[0])
    apart = [*two_hosts[1], "unshare", "--pid", "--fork", "--mount-proc"]
    words = [*SMALL, "--ids", "scattered", "--connect", other.where, "--link-gb-s", "1000", "--json"]
    done = run(*words, cwd=tmp_path, before=apart, PDBENCH_TRANSFER_TOKEN=other.token)
    assert done.code == 0, done.err
    for result in done.summary["results"]:
        assert result["verified"] and result["transport"] == "tcp/cable"
        assert result["transport_proof"]["agree"] is True and result["transport_proof"]["counters"]["cable"] >= 0.9
        assert 0 < result["theory_fraction"] < 1
    assert done.summary["environment"]["prefill"]["UCX_NET_DEVICES"] == "cable"
    assert other.end().code == 0


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_a_side_that_dies_is_one_sentence_and_leaves_nobody(
    tmp_path: Path, started: Callable[..., subprocess.Popen[str]], role: str
) -> None:
    process = started(*LONG)
    workers = {name: worker_of(process, name, tmp_path / "run") for name in ("prefill", "decode")}
    workers[role].kill()
    done = ended(process)
    assert done.code == 4 and f"the {role} worker was ended by SIGKILL" in done.err
    assert all(ends_soon(worker) for worker in workers.values())
    assert (tmp_path / "run" / "transfers.jsonl").read_text().count("\n") >= 1
    assert "\n" in done.out or json.loads((tmp_path / "run" / "summary.json").read_text())["results"] == []


def test_a_side_that_hangs_meets_the_deadline(tmp_path: Path, started: Callable[..., subprocess.Popen[str]]) -> None:
    process = started(*LONG, "--timeout", "8s", UCX_TLS="tcp")
    workers = [worker_of(process, name, tmp_path / "run") for name in ("prefill", "decode")]
    workers[0].suspend()
    done = ended(process)
    assert done.code == 4 and "was not over after 8 s" in done.err
    assert all(ends_soon(worker) for worker in workers)


def test_on_a_machine_that_others_keep_busy_there_is_no_verdict(tmp_path: Path) -> None:
    hogs = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count() or 1)]
    try:
        done = run(*SMALL, "--ids", "scattered", "--json", cwd=tmp_path)
    finally:
        for hog in hogs:
            hog.kill()
            hog.wait()
    assert done.code == 0, done.err
    assert done.summary["verdict"] is None and all(r["verified"] for r in done.summary["results"])
    assert "machine-loaded" in {each["code"] for each in done.summary["validity"]}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_whoever_stops_it_gets_what_was_measured(
    tmp_path: Path, started: Callable[..., subprocess.Popen[str]], number: signal.Signals
) -> None:
    process = started(*LONG)
    workers = [worker_of(process, name, tmp_path / "run") for name in ("prefill", "decode")]
    done = ended(process, number)
    assert done.code == 130 and "what was measured is saved" in done.err
    assert all(ends_soon(worker) for worker in workers)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["kind"] == "transfer" and summary["verdict"] is None
    cut = summary["cut_short"]
    assert cut["done"] == len((tmp_path / "run" / "transfers.jsonl").read_text().splitlines()) < cut["planned"]
    assert f"CUT SHORT after {cut['done']} of {cut['planned']} measurements; not measured: READ" in done.out
    assert done.err.splitlines()[0].endswith("100 passes"), done.err


def test_when_we_are_killed_the_workers_end_too(tmp_path: Path, started: Callable[..., subprocess.Popen[str]]) -> None:
    process = started(*LONG)
    workers = [worker_of(process, name, tmp_path / "run") for name in ("prefill", "decode")]
    process.kill()
    assert all(ends_soon(worker) for worker in workers)


def test_the_other_host_goes_away(tmp_path: Path, listening: Callable[..., Listening]) -> None:
    other = listening()
    process = subprocess.Popen(
        command(*LONG, "--connect", other.where),
        cwd=tmp_path,
        env=environment(PDBENCH_TRANSFER_TOKEN=other.token),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    worker_of(process, "prefill", tmp_path / "run").kill()
    done = ended(process)
    assert done.code == 4 and ("the prefill side is gone" in done.err or "NIXL could not" in done.err), done.err
    assert other.end().code == 4


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--connect", "127.0.0.1:5000"], "needs the token"),
        (["--connect", "127.0.0.1"], "wants ADDRESS:PORT"),
        (["--listen", "203.0.113.7:5000"], "cannot listen on 203.0.113.7:5000"),
        (["--listen", "127.0.0.1:0", "--connect", "127.0.0.1:1"], "are the two ends"),
        (["--prompt-len", "100"], "need a model"),
        (["--model", "Qwen3-32B", "--bytes", "1MiB"], "exclude --model"),
        (["--memory", "auto,dram"], "excludes dram and vram"),
        (["--op", "copy"], "--op copy: not known"),
        (["--poll-interval", "0s"], "wants a time above 0"),
        (["--gpu", "a,b"], "--gpu wants an index"),
        (["--link", "ndr", "--link-gb-s", "5"], "not both"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_flags_that_make_no_sense(tmp_path: Path, words: list[str], sentence: str) -> None:
    done = run(*words, *([] if "--bytes" in words else QUICK), cwd=tmp_path)
    assert done.code == 2 and sentence in done.err, done.err
    assert not any(tmp_path.iterdir())
