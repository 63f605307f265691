"""What a run means: planted faults are named with the variable to change, and their healthy twins are not."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from pdbench.cli import main
from pdbench.report.transfer.summary import exit_code_of, summarise
from pdbench.report.transfer.view import view
from tests.probe_transfer.made import every_shape, made_run

TWO_HOSTS = {"prefill": {"boot_id": "two"}}
NDR = {"nic_gb_s": {"mlx5_0:1": 50.0}}
RC = ("zero-copy", "rc_mlx5/mlx5_0:1/path0")
IPC = ("zero-copy", "cuda_ipc/cuda")
EMULATED = ("software emulation", "tcp/eth0")


def judged(path: Path, knobs: dict[str, Any], sides: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    return summarise(made_run(path / "run", every_shape(**knobs), **(sides or {}), **more))


def causes(summary: dict[str, Any]) -> dict[str, str]:
    return {each["cause"]: f"{each['evidence']} | {each['advice']}" for each in summary["diagnosis"]}


def codes(summary: dict[str, Any]) -> dict[str, str]:
    return {each["code"]: each["severity"] for each in summary["validity"]}


def test_a_run_that_was_stopped_says_what_it_lacks_and_gives_no_verdict(tmp_path: Path) -> None:
    """The run would have had sixteen measurements; of the four asked shapes the first alone was measured."""
    whole = every_shape(references={"memcpy": 12.0})
    keys = ("op", "backend", "memory", "ids", "in_flight", "nbytes", "descriptors")
    asked = [{key: each[key] for key in keys} for each in whole if each["asked"]]
    planned = {"measurements": len(whole), "asked": asked}
    assert summarise(made_run(tmp_path / "whole", whole, planned=planned))["cut_short"] is None
    summary = summarise(made_run(tmp_path / "cut", whole[:1], planned=planned))
    assert summary["cut_short"] == {"done": 1, "planned": 16, "missing": summary["cut_short"]["missing"]}
    assert [name.split()[:2] for name in summary["cut_short"]["missing"]] == [
        ["READ", "contiguous"], ["WRITE", "scattered"], ["WRITE", "contiguous"],
    ]  # fmt: skip
    assert summary["verdict"] is None
    first, so_far = view(summary).answer.splitlines()
    assert first.startswith("CUT SHORT after 1 of 16 measurements; not measured: READ contiguous")
    assert so_far.startswith("So far: ") and "GB/s" in so_far
    nothing = summarise(made_run(tmp_path / "none", [each for each in whole[:3] if not each["asked"]], planned=planned))
    assert "Nothing that was asked for was measured." in nothing["answer"] and exit_code_of(nothing) == 3


def test_a_healthy_run_raises_nothing_but_that_posting_takes_time(tmp_path: Path) -> None:
    summary = judged(tmp_path, {"references": {"memcpy": 12.0, "process_vm": 11.0}})
    assert set(causes(summary)) == {"engine-loop-blocking"} and codes(summary) == {}
    assert "67% of" not in summary["answer"] and "over cma/memory: 6.7" in summary["answer"]
    assert "83% to 91% of what the machine does without it" in str(summary["verdict"])
    assert exit_code_of(summary) == 0
    assert [each["transport_proof"]["agree"] for each in summary["results"]] == [True] * 4
    (read, write) = summary["fits"]
    assert read["gb_s"] == pytest.approx(10, rel=0.02) and write["op"] == "WRITE"


# What is planted, what has to be named, and what the words must hold; then its twin, in which that must not be named.
FAULTS: dict[str, tuple[str, dict[str, Any], dict[str, Any], str, dict[str, Any], dict[str, Any]]] = {
    "reads of GPU memory go around": (
        "cuda-ipc-get-off",
        {"memory": "VRAM", "READ": {"carrier": EMULATED, "gb_s": 0.5}, "WRITE": {"carrier": IPC, "gb_s": 49.0}},
        {},
        r"98 times as fast.*UCX_CUDA_IPC_ENABLE_GET_ZCOPY=on",
        {"memory": "VRAM", "carrier": IPC},
        {},
    ),
    "GPU memory through host memory between hosts": (
        "host-bounce",
        {"memory": "VRAM", "carrier": ("multi-frag copy-in", "rc_mlx5/mlx5_0:1"), "counted": {"mlx5_0:1": 1.0}},
        {**TWO_HOSTS, "decode": NDR, "prefill": {"boot_id": "two", **NDR}},
        r"goes through host memory.*nvidia_peermem",
        {"memory": "VRAM", "carrier": RC, "counted": {"mlx5_0:1": 1.0}},
        {**TWO_HOSTS, "decode": NDR, "prefill": {"boot_id": "two", **NDR}},
    ),
    "GPU memory over shared memory on one host": (
        "host-bounce",
        {"memory": "VRAM", "carrier": ("software emulation", "sysv/memory")},
        {},
        r"one PID and IPC namespace",
        {"memory": "VRAM", "carrier": IPC},
        {},
    ),
    "TCP although both hosts have RDMA": (
        "silent-tcp",
        {"carrier": EMULATED, "counted": {"eth0": 1.02}},
        {"decode": {**NDR, "environment": {"UCX_NET_DEVICES": "eth0"}}, "prefill": {"boot_id": "two", **NDR}},
        r"UCX_NET_DEVICES=eth0 leaves out mlx5_0:1.*Set UCX_NET_DEVICES=mlx5_0:1",
        {"carrier": RC, "counted": {"mlx5_0:1": 1.0}},
        {"decode": NDR, "prefill": {"boot_id": "two", **NDR}},
    ),
    "TCP within a host, over two PID namespaces": (
        "silent-tcp",
        {"carrier": ("software emulation", "tcp/lo"), "counted": {"lo": 1.01}},
        {"prefill": {"pid_namespace": "pid:[2]"}},
        r"two PID namespaces.*--pid=container",
        {},
        {},
    ),
    "TCP within a host, since the kernel forbids the copy": (
        "silent-tcp",
        {
            "carrier": ("software emulation", "tcp/lo"),
            "counted": {"lo": 1.01},
            "missing": {"process_vm": "Operation not permitted"},
        },
        {},
        r"Operation not permitted.*CAP_SYS_PTRACE",
        {},
        {},
    ),
    "TCP is all that joins the hosts": (
        "tcp",
        {"carrier": EMULATED, "counted": {"eth0": 1.02}},
        {"decode": NDR, **TWO_HOSTS},
        "no RDMA port is up on both hosts",
        {"carrier": RC, "counted": {"mlx5_0:1": 1.0}},
        {"decode": NDR, "prefill": {"boot_id": "two", **NDR}},
    ),
    "TCP as asked": (
        "tcp",
        {"carrier": ("software emulation", "tcp/lo"), "counted": {"lo": 1.01}},
        {"decode": {"environment": {"UCX_TLS": "tcp"}}},
        "as UCX_TLS=tcp asks",
        {},
        {"decode": {"environment": {"UCX_TLS": "cma,tcp"}}},
    ),
    "the counters contradict UCX": (
        "transport-unproven",
        {"counted": {"eth0": 1.02}},
        {},
        r"cma/memory, but eth0 counted 102%",
        {"counted": {"eth0": 0.02}, "burst": {"eth0": 40.0}},
        {},
    ),
    "the NIC that UCX names counted nothing": (
        "transport-unproven",
        {"carrier": RC, "counted": {"mlx5_0:1": 0.0, "eth0": 0.3}},
        TWO_HOSTS,
        r"mlx5_0:1 counted 0% of the bytes",
        {"carrier": RC, "counted": {"mlx5_0:1": 1.0}},
        TWO_HOSTS,
    ),
    "far below the link": (
        "below-link",
        {"carrier": RC, "counted": {"mlx5_0:1": 1.0}, "gb_s": 4.0},
        {"decode": NDR, "prefill": {"boot_id": "two", **NDR}},
        r"4 of 50 GB/s \(8%\).*wrong NIC",
        {"carrier": RC, "counted": {"mlx5_0:1": 1.0}, "gb_s": 47.0},
        {"decode": NDR, "prefill": {"boot_id": "two", **NDR}},
    ),
    "fragments": (
        "transfer-fragmentation",
        {"us_per_descriptor": 2.4},
        {},
        r"8,192 scattered descriptors takes 26.* of 1 merged 6\.7.*2\.4 us for each",
        {"us_per_descriptor": 0.1},
        {},
    ),
    "seen late": (
        "completion-polling",
        {"poll_added_s": 0.009},
        {},
        r"done after 6\.7.*seen after 15\.7.*looked at every 10.0 ms",
        {"poll_added_s": 0.0002},
        {},
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_faults_are_named_and_their_twins_are_not(tmp_path: Path, name: str) -> None:
    wanted, planted, sides, words, healthy, healthy_sides = FAULTS[name]
    found = causes(judged(tmp_path / "bad", planted, sides))
    assert wanted in found and re.search(words, found[wanted]), found
    assert wanted not in causes(judged(tmp_path / "good", healthy, healthy_sides))


@pytest.mark.parametrize(
    ("knobs", "more", "code", "severity", "exit_code"),
    [
        ({"others": 2.0}, {}, "machine-loaded", "warn", 0),
        ({"references": {"memcpy": 12.0}}, {"link": {"name": "x", "gb_s": 11.0}}, "above-theory", "void", 3),
        ({}, {"link": {"name": "x", "gb_s": 9.0}}, "above-theory", "void", 3),
        ({"verified": False}, {}, "bytes-differ", "void", 3),
    ],
    ids=["others are busy", "a reference above theory", "NIXL above theory", "wrong bytes"],
)
def test_no_verdict(
    tmp_path: Path, knobs: dict[str, Any], more: dict[str, Any], code: str, severity: str, exit_code: int
) -> None:
    summary = judged(tmp_path, {**knobs, "us_per_descriptor": 2.4}, **more)
    assert codes(summary)[code] == severity and exit_code_of(summary) == exit_code
    assert summary["verdict"] is None and "transfer-fragmentation" not in causes(summary)
    assert len(summary["results"]) == 4 and summary["results"][0]["gb_s"] > 0  # the numbers are kept


def test_its_twin_has_a_verdict(tmp_path: Path) -> None:
    summary = judged(tmp_path, {"others": 0.2, "references": {"memcpy": 12.0}}, link={"name": "400 Gb/s", "gb_s": 12.5})
    assert codes(summary) == {} and summary["verdict"].startswith("At best 80% of 400 Gb/s (12.5 GB/s) one way")
    assert summary["results"][0]["theory_fraction"] == pytest.approx(0.8, rel=0.01)


def test_memory_within_a_host_is_not_the_link_that_was_named(tmp_path: Path) -> None:
    ndr = {"name": "ndr", "gb_s": 50.0}
    within = judged(tmp_path / "within", {"references": {"memcpy": 12.0}}, link=ndr)
    assert "cma within this host" in causes(within)["not-the-link"] and "--connect" in causes(within)["not-the-link"]
    assert (
        "below-link" not in causes(within)
        and "ndr" not in f"{within['answer']} {within['verdict']}"
        and "memcpy" in within["verdict"]
    )
    sides = {"decode": NDR, "prefill": {"boot_id": "two", **NDR}}
    over_nic = judged(
        tmp_path / "nic", {"carrier": RC, "counted": {"mlx5_0:1": 1.0}, "gb_s": 20.0}, {**sides, "link": ndr}
    )
    assert "below-link" in causes(over_nic) and "not-the-link" not in causes(over_nic)


def test_the_loop_is_blocked_by_reads_alone(tmp_path: Path) -> None:
    """With push, which writes, a post holds a thread of prefill, so that its length is no reason to push."""
    both = judged(tmp_path / "both", {"READ": {"gb_s": 20.0}, "WRITE": {"gb_s": 4.0}})
    assert causes(both)["engine-loop-blocking"].startswith("READ")
    writes = judged(tmp_path / "writes", {"READ": {"gb_s": 100.0}, "WRITE": {"gb_s": 4.0}})
    assert "engine-loop-blocking" not in causes(writes)


def test_two_gpus_have_the_theory_of_what_joins_them(tmp_path: Path) -> None:
    pair = {"gpus": [0, 1], "path": "nvswitch", "connection": "NV18", "read": "OK", "gb_s": 450.0}
    knobs = {"memory": "VRAM", "carrier": IPC, "gb_s": 378.0}
    summary = judged(tmp_path / "direct", knobs, gpu_pair=pair)
    assert "84% of NV18 (450 GB/s)" in summary["answer"] and codes(summary) == {}
    bounced = judged(tmp_path / "bounced", {**knobs, "carrier": ("software emulation", "sysv/memory")}, gpu_pair=pair)
    assert "theory" not in bounced["results"][0]


def test_memory_beside_a_nic_says_nothing_of_its_theory(tmp_path: Path) -> None:
    sides = {"decode": NDR, "prefill": {"boot_id": "two", **NDR}}
    knobs = {"carrier": RC, "counted": {"mlx5_0:1": 1.0}, "gb_s": 47.0, "references": {"memcpy": 90.0, "tcp": 3.0}}
    summary = judged(tmp_path, knobs, sides)
    assert codes(summary) == {} and "94% of mlx5_0:1 (50.0 GB/s)" in summary["answer"]


def test_few_rounds_are_told_and_decide_nothing(tmp_path: Path) -> None:
    summary = judged(tmp_path, {"rounds": 4, "us_per_descriptor": 2.4})
    assert codes(summary) == {"too-few-rounds": "warn"} and "transfer-fragmentation" not in causes(summary)
    assert summary["results"][0]["total_ms"]["p50_interval"] is None


def test_report_shows_it_again_and_a_cut_off_line_loses_only_itself(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made_run(tmp_path / "run", every_shape(repeats=2, us_per_descriptor=2.4, references={"memcpy": 12.0}))
    with (tmp_path / "run" / "transfers.jsonl").open("a") as lines:
        lines.write('{"cell": 3, "op": "RE')
    assert main(["report", str(tmp_path / "run")]) == 0
    text = capsys.readouterr().out
    assert re.sub(r"\s+", " ", text).startswith("67.1 MB over cma/memory: 6.7")
    assert all(len(line) <= 80 for line in text.splitlines() if not line.startswith("report"))
    assert main(["report", "--json", str(tmp_path / "run")]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary == json.loads((tmp_path / "run" / "summary.json").read_text())
    assert [len(each["repeats"]) for each in summary["results"]] == [2] * 4
    page = (tmp_path / "run" / "report.html").read_text()
    assert "transfer-fragmentation" in page and "<script" not in page


def test_words_of_the_other_host_cannot_steer_a_terminal_or_a_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nasty = "\x1b[2J<script>alert(1)</script>\u202e"
    passes = every_shape(carrier=("zero-copy" + nasty, "cma/memory"), missing={"process_vm": nasty})
    run = made_run(
        tmp_path / "run", passes, backends=[{"backend": nasty, "loads": False, "peers": False, "why": nasty}]
    )
    assert main(["report", str(run.path)]) == 0
    text, page = capsys.readouterr().out, (run.path / "report.html").read_text()
    assert "\x1b" not in text and "\u202e" not in text and "<script>" not in page


def test_nothing_measured_is_no_result(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = made_run(tmp_path / "run", [])
    assert main(["report", str(run.path)]) == 3
    assert "mean nothing" in capsys.readouterr().err
