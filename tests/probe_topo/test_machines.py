"""Whole machines through the real nvidia-ml-py binding: pairs, verdicts, and what is said when NVML refuses."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.probe_topo.conftest import Look, environment
from tests.probe_topo.tables import OF_ALL, OF_ONE, OF_TWO, a100_pcie, fails, h200, l40s, table

Document = dict[str, Any]


def pair(seen: Document, a: int, b: int) -> Document:
    return next(each for each in seen["pairs"] if (each["a"], each["b"]) == (a, b))


def codes(seen: Document, severity: str | None = None) -> set[str]:
    return {found["code"] for found in seen["findings"] if severity in (None, found["severity"])}


def test_eight_h200_behind_nvswitch(look: Look) -> None:
    seen = look(table(h200()))
    assert len(seen["pairs"]) == 28
    for each in seen["pairs"]:
        assert (each["read"], each["write"], each["nvlinks"], each["path"]) == ("OK", "OK", 18, "nvswitch")
        assert each["gb_s"] == 450.0, "18 links of 25 GB/s: what the data sheet sells, not the coded 478"
        assert each["expect_gb_s"] == [376.0, 380.0]
        assert each["ancestor"] == ("NODE" if (each["a"] < 4) == (each["b"] < 4) else "SYS")
    assert seen["ancestor"][0] == ["X", "NODE", "NODE", "NODE", "SYS", "SYS", "SYS", "SYS"]
    assert seen["topo"][7] == ["NV18"] * 7 + ["X"]
    assert set(seen["p2p"]) == {"read", "write", "nvlink", "atomics", "prop"}
    assert all(cell in ("X", "OK") for matrix in seen["p2p"].values() for row in matrix for cell in row)
    gpu = seen["gpus"][5]
    assert (gpu["name"], gpu["pci"], gpu["numa_node"], gpu["cpu_affinity"]) == (
        "NVIDIA H200",
        "0000:bb:00.0",
        1,
        "32-63",
    )
    assert (gpu["nvlink"]["active"], gpu["nvlink"]["version"], gpu["nvlink"]["nvswitch"]) == (18, "4.0", True)
    assert (gpu["ecc"], gpu["mig"], gpu["fabric"], gpu["bar1_bytes"]) == (True, False, "completed", 256 * 2**30)
    assert seen["driver"] == {"version": "570.124.06", "nvml": "12.570.124.06", "cuda": "12.8"}
    assert not codes(seen) & {"p2p-off", "ucx-reads-off", "nvlink-down", "pcie-width", "bar1-small"}


def test_two_l40s_without_p2p_bounce_through_host_memory(look: Look) -> None:
    seen = look(table(l40s()))
    (only,) = seen["pairs"]
    assert (only["read"], only["write"], only["ancestor"], only["nvlinks"], only["path"]) == (
        "NS",
        "NS",
        "SYS",
        0,
        "host",
    )
    assert only["gb_s"] == pytest.approx(31.5, rel=0.001), "both lines at their full generation, though the GPUs idle"
    assert "KV bounces through host memory" in only["verdict"] and "NS" in only["verdict"]
    assert "KV will bounce through host memory" in seen["answer"]
    assert "p2p-off" in codes(seen, "warn")
    assert "pcie-width" not in codes(seen), "an idle GPU's lower generation is no fault"
    assert seen["gpus"][0]["not_reported"]["mig"] == "not supported"
    assert seen["gpus"][0]["mig"] is None


def test_the_same_cards_with_p2p_go_directly_but_pull_needs_a_setting(look: Look) -> None:
    seen = look(table(l40s("OK")))
    (only,) = seen["pairs"]
    assert (only["path"], only["gb_s"]) == ("pcie", pytest.approx(31.5, rel=0.001))
    assert "UCX_CUDA_IPC_ENABLE_GET_ZCOPY=on" in only["verdict"]
    assert "ucx-reads-off" in codes(seen, "warn"), "GPU 0 has no NVLink"
    assert "p2p-off" not in codes(seen)


@pytest.mark.parametrize(
    ("now", "severity", "gb_s"),
    [
        ("gen=4 width=8", "warn", 15.75),  # at full speed on half its lanes: badly seated
        ("gen=1 width=8", "note", 31.5),  # idle: may be saving power, so no verdict and a doubt
        ("gen=4 width=16", None, 31.5),
        ("gen=1 width=16", None, 31.5),
        ("gen=1", None, 31.5),
    ],
)
def test_lanes_that_are_missing(look: Look, now: str, severity: str | None, gb_s: float) -> None:
    seen = look(table(l40s("OK", now=now)))
    assert [found["severity"] for found in seen["findings"] if found["code"] == "pcie-width"] == [severity] * 2 * bool(
        severity
    )
    assert seen["pairs"][0]["gb_s"] == pytest.approx(gb_s, rel=0.001)
    assert ("idles at x8 of x16" in seen["pairs"][0]["verdict"]) == (severity == "note")


def test_eight_a100_in_bridged_pairs_over_two_sockets(look: Look) -> None:
    seen = look(table(a100_pcie()))
    ranked = [(each["a"], each["b"]) for each in seen["pairs"]]
    assert ranked[:4] == [(0, 1), (2, 3), (4, 5), (6, 7)]
    assert all(pair(seen, a, a + 1)["gb_s"] == 300.0 for a in (0, 2, 4, 6))
    assert [pair(seen, 0, b)["ancestor"] for b in range(1, 8)] == ["PIX", "PHB", "PHB", "SYS", "SYS", "SYS", "SYS"]
    assert [pair(seen, 0, b)["nvlinks"] for b in range(1, 4)] == [12, 0, 0]
    assert {each["path"] for each in seen["pairs"][4:]} == {"pcie"}
    assert [each["ancestor"] for each in seen["pairs"][4:]] == ["PHB"] * 8 + ["SYS"] * 16, "near before far"
    assert pair(seen, 0, 2)["expect_gb_s"] is not None
    assert pair(seen, 0, 4)["expect_gb_s"] is None, "nothing was published across sockets"
    assert "ucx-reads-off" not in codes(seen), "GPU 0 has NVLinks, and all answer"


def test_mig_has_no_p2p(look: Look) -> None:
    seen = look(table(h200(), "gpu 3 mig=1 migs=4"))
    for each in seen["pairs"]:
        assert each["path"] == ("host" if 3 in (each["a"], each["b"]) else "nvswitch")
    assert "MIG has no P2P" in pair(seen, 0, 3)["verdict"]
    assert (seen["gpus"][3]["mig"], seen["gpus"][3]["mig_instances"]) == (True, 4)
    assert "mig" in codes(seen, "warn")


@pytest.mark.parametrize("functions", [["nvmlDeviceGetHandleByIndex_v2"], OF_ONE, ["nvmlDeviceGetMigMode"]])
def test_one_gpu_is_lost(look: Look, functions: list[str]) -> None:
    seen = look(table(h200(), fails(functions, 15, 5)))
    assert seen["gpus"][5]["trouble"] == "GPU is lost"
    assert "gpu-lost" in codes(seen, "fail")
    for each in seen["pairs"]:
        touched = 5 in (each["a"], each["b"])
        assert each["path"] == ("none" if touched else "nvswitch")
        assert each["gb_s"] == (None if touched else 450.0)
    assert [each["path"] for each in seen["pairs"][-7:]] == ["none"] * 7, "ranked last"
    assert "GPU 5 cannot be used" in seen["answer"]


@pytest.mark.parametrize("state", [1, 2])
def test_a_fabric_that_is_not_ready_stops_cuda(look: Look, state: int) -> None:
    seen = look(table(h200(fabric=state)))
    assert {each["path"] for each in seen["pairs"]} == {"none"}
    assert "fabric-not-ready" in codes(seen, "fail")


def test_a_dead_link_costs_its_own_pairs_one_link(look: Look) -> None:
    seen = look(table(h200(), "link 5 3 0 switch"))
    assert {each["nvlinks"] for each in seen["pairs"] if 5 in (each["a"], each["b"])} == {17}
    assert {each["nvlinks"] for each in seen["pairs"] if 5 not in (each["a"], each["b"])} == {18}
    assert pair(seen, 0, 5)["gb_s"] == 425.0
    assert "nvlink-down" in codes(seen, "warn")
    assert "ucx-reads-off" not in codes(seen), "UCX looks at GPU 0 alone"


def test_a_dead_link_of_gpu_0_turns_reads_off_for_all(look: Look) -> None:
    seen = look(table(h200(), "link 0 17 0 switch"))
    assert {"nvlink-down", "ucx-reads-off"} <= codes(seen, "warn")
    assert "UCX_CUDA_IPC_ENABLE_GET_ZCOPY" in pair(seen, 6, 7)["verdict"]


def test_links_that_sleep_are_told_and_not_counted(look: Look) -> None:
    seen = look(table(h200(), "link 2 0 2 switch"))
    assert seen["gpus"][2]["nvlink"]["each"][0]["state"] == "asleep"
    assert pair(seen, 2, 3)["nvlinks"] == 17


def test_link_states_that_are_not_reported_are_no_zero(look: Look) -> None:
    seen = look(table(h200(), fails(["nvmlDeviceGetNvLinkState"], 3, 2)))
    assert pair(seen, 2, 3)["nvlinks"] is None
    assert pair(seen, 2, 3)["gb_s"] is None
    assert seen["topo"][2] == ["NODE", "NODE", "X", "NODE", "SYS", "SYS", "SYS", "SYS"]
    assert seen["gpus"][2]["not_reported"]["nvlinks"] == "not supported"
    assert pair(seen, 0, 1)["nvlinks"] == 18


@pytest.mark.parametrize(
    ("status", "path", "said"),
    [
        ("NS OK NS OK OK", "host", "push goes direct"),
        ("OK NS NS OK OK", "pcie", "push bounces"),
        ("CNS CNS NS NS NS", "host", "CNS (the chipset does not support it)"),
        ("GNS GNS NS NS NS", "host", "GNS"),
        ("TNS TNS NS NS NS", "host", "TNS"),
        ("DR DR NS NS NS", "host", "DR (disabled by a driver registry key)"),
        ("U U U U U", "unknown", "does not say"),
        ("9 9 9 9 9", "host", "?9 (a status that this version does not know)"),
    ],
)
def test_every_p2p_status(look: Look, status: str, path: str, said: str) -> None:
    seen = look(table(l40s(), f"p2p 0 1 {status}"))
    (only,) = seen["pairs"]
    assert only["path"] == path
    assert said in only["verdict"]


@pytest.mark.parametrize("way", ["0 1", "1 0"])
def test_a_pair_is_as_bad_as_its_worse_direction(look: Look, way: str) -> None:
    seen = look(table(l40s("OK"), f"oneway {way} NS NS NS NS NS"))
    assert sorted(cell for row in seen["p2p"]["read"] for cell in row) == ["NS", "OK", "X", "X"]
    assert (seen["pairs"][0]["read"], seen["pairs"][0]["path"]) == ("NS", "host")


def test_nvlink_that_may_not_be_used_falls_back_to_pcie(look: Look) -> None:
    seen = look(table(a100_pcie(), "p2p 0 1 OK OK NS OK OK"))
    assert (pair(seen, 0, 1)["path"], pair(seen, 0, 1)["nvlinks"]) == ("pcie", 12)
    assert "12 NVLinks are not used" in pair(seen, 0, 1)["verdict"]


def test_the_weaker_of_two_lines_counts(look: Look) -> None:
    seen = look(table(l40s("OK"), "gpu 1 gen=3 gmax=3 dmax=5 width=16"))
    assert seen["pairs"][0]["gb_s"] == pytest.approx(15.75, rel=0.001)
    assert "pcie-slot" in codes(seen), "a generation 5 card in a generation 3 slot"


def test_a_small_bar1_is_told(look: Look) -> None:
    assert "bar1-small" in codes(look(table(l40s(), f"gpu 0 bar1={256 * 2**20}")), "warn")


TROUBLES = {3: "nvml-error", 4: "no-permission", 9: "driver-not-loaded", 12: "no-library", 15: "nvml-error",
            17: "blocked", 18: "driver-mismatch", 777: "nvml-error", 999: "nvml-error"}  # fmt: skip


@pytest.mark.parametrize(("code", "name"), TROUBLES.items())
def test_nvml_that_does_not_start(look: Look, code: int, name: str) -> None:
    seen = look(table(f"init {code}"), views=True)
    told = seen["document"]
    assert told["nvml"]["code"] == name
    assert told["nvml"]["message"] and told["nvml"]["advice"]
    assert (told["gpus"], told["pairs"], told["ancestor"]) == ([], [], [])
    assert set(told["p2p"]) == {"read", "write", "nvlink", "atomics", "prop"}
    assert "No GPU to judge" in seen["text"] and told["host"]["kernel"] in seen["text"], "the rest is reported"


def test_a_driver_that_hangs_is_left_behind(stub: Path, tmp_path: Path) -> None:
    """In a process of its own, which ends although the call never came back."""
    (tmp_path / "hang.topo").write_text("hang 60\n")
    request = json.dumps({"table": str(tmp_path / "hang.topo"), "limit_s": 0.2})
    done = subprocess.run(
        [sys.executable, "-m", "tests.probe_topo.worker"],
        input=request, capture_output=True, text=True, timeout=50, env=environment(stub),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["document"]["nvml"]["code"] == "driver-hangs"


@pytest.mark.parametrize("function", [*OF_ONE, *OF_TWO, *OF_ALL])
def test_any_function_may_be_refused_in_any_way(look: Look, function: str) -> None:
    """What the other functions tell is told."""
    healthy = look(table(h200(2)))
    for code in (2, 3, 13, 15, 777):
        told = look(table(h200(2), fails([function], code)))
        if function == "nvmlDeviceGetCount_v2":
            assert told["nvml"]["code"] != "ok"
            continue
        assert [gpu["index"] for gpu in told["gpus"]] == [0, 1]
        if function == "nvmlDeviceGetHandleByIndex_v2":
            assert all(gpu["trouble"] for gpu in told["gpus"])
            continue
        first, before = told["gpus"][0], healthy["gpus"][0]
        kept = [key for key in ("uuid", "name", "memory_bytes", "ecc") if first[key] == before[key]]
        assert len(kept) >= 3, "one refusal loses one field"
        reason = {**first["not_reported"], **told["not_reported"]}
        new = {name: why for name, why in reason.items() if before["not_reported"].get(name) != why}
        silent = function in SILENT or (
            function in OF_ONE and before["not_reported"].get(SAME.get(function, "")) == WHY[code]
        )
        assert silent or new, "and says so"


# Details of one link, and what is asked on MIG alone; the number of an NVLink is how the links end.
SILENT = {
    "nvmlDeviceGetNvLinkVersion", "nvmlDeviceGetNvLinkRemoteDeviceType", "nvmlDeviceGetNvLinkRemotePciInfo_v2",
    "nvmlDeviceGetMaxMigDeviceCount", "nvmlShutdown",
}  # fmt: skip
SAME = {"nvmlDeviceGetNumaNodeId": "own_numa_node"}
WHY = {
    2: "invalid argument",
    3: "not supported",
    13: "not in this driver",
    15: "GPU is lost",
    777: "a code of the future",
}


def test_nothing_is_supported_at_all(look: Look) -> None:
    seen = look(table(h200(), fails([*OF_ONE, *OF_TWO, *OF_ALL[:3]], 3)), views=True)
    told = seen["document"]
    assert {each["path"] for each in told["pairs"]} == {"unknown"}
    assert told["driver"] == {"version": None, "nvml": None, "cuda": None}
    assert told["p2p"]["read"][0] == ["X"] + [None] * 7
    assert told["not_reported"]["p2p.read"].startswith("not supported")
    assert all(gpu["name"] is None and gpu["pcie"]["gb_s"] is None for gpu in told["gpus"])
