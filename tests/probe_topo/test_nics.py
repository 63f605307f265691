"""NICs and PCI distances from generated sysfs trees, whose layout is known because it was made here."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdbench.probe import pci
from pdbench.probe.line_rates import nvlink_gb_s, pcie_gb_s
from pdbench.probe.nics import Gid, Moved, moved, nics
from tests.probe_topo.tree import Tree

GPU = "pci0000:16/0000:16:01.0/0000:17:00.0/0000:18:00.0/0000:19:00.0"
SECOND_SOCKET = "pci0000:80/0000:80:01.0/0000:81:00.0"
ELSEWHERE = {
    "PIX": "pci0000:16/0000:16:01.0/0000:17:00.0/0000:18:01.0/0000:1a:00.0",  # the same switch
    "PXB": "pci0000:16/0000:16:01.0/0000:17:00.0/0000:18:02.0/0000:1b:00.0/0000:1c:00.0/0000:1d:00.0",  # two
    "PHB": "pci0000:16/0000:16:05.0/0000:30:00.0",
    "NODE": "pci0000:40/0000:40:01.0/0000:41:00.0",
}


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


@pytest.mark.parametrize("name", [*ELSEWHERE, "SYS"])
def test_distances_have_their_names_both_ways(tree: Tree, name: str) -> None:
    a = tree.pci(GPU)
    b = tree.pci(ELSEWHERE.get(name, SECOND_SOCKET), numa=0 if name in ELSEWHERE else 1)
    assert pci.distance(tree.sysfs, a, b) == pci.distance(tree.sysfs, b, a) == name


def test_two_functions_of_one_card_are_near(tree: Tree) -> None:
    a, b = tree.pci("pci0000:16/0000:16:01.0/0000:17:00.0"), tree.pci("pci0000:16/0000:16:01.0/0000:17:00.1")
    assert pci.distance(tree.sysfs, a, b) == "PIX"


def test_what_the_tree_does_not_say_is_no_distance(tree: Tree) -> None:
    a, b = tree.pci(GPU, numa=-1), tree.pci(SECOND_SOCKET, numa=-1)
    assert pci.distance(tree.sysfs, a, b) is None, "no node named, and perhaps several nodes"
    assert pci.distance(tree.sysfs, a, "0000:ff:00.0") is None
    assert pci.distance(tree.sysfs, "../../etc", a) is None
    tree.write("devices/system/node/online", "0")
    assert pci.distance(tree.sysfs, a, b) == "NODE", "the host has one node"


@pytest.mark.parametrize(
    ("bus_id", "place"),
    [
        ("00000000:19:00.0", "0000:19:00.0"),
        ("00000000:AB:1F.7", "0000:ab:1f.7"),
        ("00010000:01:00.0", "10000:01:00.0"),
        ("0009:01:00.0", "0009:01:00.0"),
        ("", None),
        ("GPU-19", None),
    ],
)
def test_addresses_of_nvml_as_sysfs_writes_them(bus_id: str, place: str | None) -> None:
    assert pci.address(bus_id) == place


def test_the_slot_limits_the_card(tree: Tree) -> None:
    place = tree.pci("pci0000:16/0000:16:01.0/0000:17:00.0", gen=1, width=8)
    tree.device("0000:16:01.0", max_link_speed="16.0 GT/s PCIe", max_link_width=8)
    assert pci.link(tree.sysfs, place) == pci.PcieLink(1, 8, 4, 8)
    tree.device(place, current_link_speed="Unknown", current_link_width=0)
    assert pci.link(tree.sysfs, place) == pci.PcieLink(None, None, 4, 8)


def test_an_infiniband_port(tree: Tree) -> None:
    tree.rdma("mlx5_0", tree.pci(GPU))
    (nic,) = nics(tree.sysfs)
    assert (nic.name, nic.device, nic.port, nic.rdma, nic.pci) == ("mlx5_0:1", "mlx5_0", 1, True, "0000:19:00.0")
    assert (nic.rate, nic.rate_gbit_s, nic.state, nic.phys_state) == ("400 Gb/sec (4X NDR)", 400.0, "ACTIVE", "LinkUp")
    assert (nic.link_layer, nic.board, nic.firmware, nic.numa_node) == ("InfiniBand", "MT4129", "28.39.1002", 0)
    assert nic.gids == (Gid(0, "fe80:0000:0000:0000:b83f:d203:0012:3456", "IB/RoCE v1", None),)
    assert (nic.active, nic.line_gb_s, nic.gb_s) == (True, 50.0, 50.0)


def test_a_slot_narrower_than_the_line_and_a_line_that_is_down(tree: Tree) -> None:
    tree.rdma("mlx5_2", tree.pci(GPU, gen=4), link_layer="Ethernet", gid_attrs__ndevs__0="eth2")
    tree.rdma(
        "mlx5_10", tree.pci(SECOND_SOCKET, numa=1), state="1: DOWN", phys_state="3: Disabled", rate="10 Gb/sec (4X SDR)"
    )
    narrow, down = nics(tree.sysfs)
    assert (narrow.name, narrow.line_gb_s) == ("mlx5_2:1", 50.0)
    assert narrow.gb_s == pytest.approx(31.508, abs=0.001)
    assert narrow.netdevs == ("eth2",)
    assert (down.name, down.active, down.line_gb_s, down.gb_s) == ("mlx5_10:1", False, None, None)


def test_network_devices_are_listed_once_and_only_with_hardware(tree: Tree) -> None:
    gpu = tree.pci(GPU)
    tree.rdma("mlx5_0", gpu, link_layer="Ethernet")
    tree.netdev("eth2", gpu)
    tree.netdev("eth0", tree.pci(SECOND_SOCKET, numa=1), speed=25000)
    tree.netdev("eth1", tree.pci(ELSEWHERE["PHB"]), speed=-1, state="down")
    tree.netdev("lo", None)
    assert [(nic.name, nic.gb_s, nic.numa_node) for nic in nics(tree.sysfs)] == [
        ("mlx5_0:1", 50.0, 0),
        ("eth0", 3.125, 1),
        ("eth1", None, 0),
    ]


def test_byte_counters(tree: Tree) -> None:
    tree.rdma("mlx5_0", tree.pci(GPU))
    tree.rdma(
        "efa_0",
        tree.pci(SECOND_SOCKET),
        counters__port_xmit_data=None,
        counters__port_rcv_data=None,
        hw_counters__tx_bytes=5,
        hw_counters__rdma_read_resp_bytes=100,
        hw_counters__rx_bytes=7,
        hw_counters__rdma_read_bytes=1000,
    )
    tree.rdma("siw0", tree.pci(ELSEWHERE["PHB"]), counters__port_xmit_data=None)
    tree.netdev("lo", None, sent=11)
    assert moved(tree.sysfs) == {
        "lo": Moved(11, 22),
        "mlx5_0:1": Moved(1000, 4),
        "efa_0:1": Moved(105, 1007),
    }, "siw0 counts nothing: absent, not 0"


def test_a_machine_without_any_of_it(tmp_path: Path) -> None:
    assert (nics(tmp_path / "none"), moved(tmp_path / "none")) == ([], {})


@settings(max_examples=25, deadline=None)
@given(st.binary(max_size=40), st.binary(max_size=40))
def test_no_content_of_a_file_is_a_crash(rate: bytes, speed: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        tree = Tree(Path(folder))
        place = tree.pci(GPU)
        tree.rdma("mlx5_0", place, rate=rate, state=speed, counters__port_xmit_data=rate)
        tree.device(place, current_link_speed=speed, current_link_width=rate, numa_node=speed)
        tree.netdev("eth0", tree.pci(SECOND_SOCKET), state="up")
        tree.write("class/net/eth0/speed", rate)
        for nic in nics(tree.sysfs):
            assert nic.gb_s is None or nic.gb_s > 0
        moved(tree.sysfs)


@pytest.mark.parametrize(
    ("control", "redirects"), [(0x00, False), (0x01, False), (0x04, True), (0x08, True), (0x1D, True), (0x5F, True)]
)
def test_acs_of_a_bridge(tree: Tree, control: int, redirects: bool) -> None:
    place = tree.pci(GPU)
    tree.acs("0000:18:00.0", control)
    assert pci.redirects(tree.sysfs, "0000:18:00.0") is redirects
    assert pci.redirects(tree.sysfs, place) is None, "no configuration space to read"
    tree.device(place, config=bytes(64))
    assert pci.redirects(tree.sysfs, place) is None, "without root the kernel shows the header alone"
    tree.device(place, config=bytes(4096))
    assert pci.redirects(tree.sysfs, place) is False, "no such capability"


def test_a_capability_list_that_goes_round_ends(tree: Tree) -> None:
    place = tree.pci(GPU)
    tree.device(place, config=bytes(0x100) + (0x0001 | 1 << 16 | 0x100 << 20).to_bytes(4, "little") + bytes(64))
    assert pci.redirects(tree.sysfs, place) is False


@pytest.mark.parametrize(
    ("generation", "lanes", "gb_s"),
    [(1, 16, 4.0), (2, 8, 4.0), (3, 16, 15.75), (4, 16, 31.5), (5, 16, 63.0), (5, 8, 31.5)],
)
def test_pcie_rates_of_the_data_sheets(generation: int, lanes: int, gb_s: float) -> None:
    assert pcie_gb_s(generation, lanes) == pytest.approx(gb_s, rel=0.001)


@pytest.mark.parametrize(("generation", "lanes"), [(None, 16), (4, None), (0, 16), (9, 16), (4, 0), (4, -1)])
def test_an_unknown_link_has_no_rate(generation: int | None, lanes: int | None) -> None:
    assert pcie_gb_s(generation, lanes) is None


@pytest.mark.parametrize(
    ("version", "raw_mb_s", "gb_s"),
    [
        (6, 26562, 25.0),
        (4, 25000, 25.0),
        (3, 25781, 25.0),
        (7, 53125, 50.0),
        (6, None, 25.0),
        (6, 13281, 13.281),
        (99, 40000, 40.0),
        (None, 40000, 40.0),
        (None, None, None),
        (99, 0, None),
    ],
)
def test_one_nvlink(version: int | None, raw_mb_s: int | None, gb_s: float | None) -> None:
    assert nvlink_gb_s(version, raw_mb_s) == gb_s
