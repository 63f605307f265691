"""What sysfs, procfs and limits add: the way off the host, switches, ACS, GPUDirect, other vendors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pdbench.probe.topo.host import cpu_list, cpus_of, read_host
from pdbench.probe.topo.pci_gpus import pci_gpus
from tests.probe_topo.conftest import Look
from tests.probe_topo.hosts import CLOSED_MODULE, OPEN_MODULE, hgx, hgx_ways, nodes, plain
from tests.probe_topo.tables import a100_pcie, fails, h200, l40s, table
from tests.probe_topo.test_machines import codes
from tests.probe_topo.tree import Tree

Document = dict[str, Any]
# What the processes of a test may or may not do is not the machine's doing.
OURS = {"memlock", "shm-small", "cpus-far", "ptrace-scope"}


def test_a_healthy_host_has_nothing_to_change(look: Look, hgx_host: Path) -> None:
    seen = look(table(h200()), root=hgx_host)
    assert codes(seen) - OURS == set()
    assert [nic["name"] for nic in seen["nics"]][:3] == ["mlx5_0:1", "mlx5_1:1", "mlx5_2:1"]
    assert seen["nics"][0]["gpu_distance"] == ["PIX", "NODE", "NODE", "NODE", "SYS", "SYS", "SYS", "SYS"]
    assert seen["outlets"] == [
        {"gpu": i, "nics": [f"mlx5_{i}:1"], "distance": "PIX", "rdma": True, "gb_s": 50.0, "shared_with": []}
        for i in range(8)
    ]
    host = seen["host"]
    assert (host["nvidia_peermem"], host["peer_memory_registered"]) == ("nvidia_peermem", True)
    assert (host["open_kernel_module"], host["uverbs"], host["uverbs_usable"]) == (True, 1, 1)
    assert (host["cap_ipc_lock"], host["cap_sys_ptrace"]) == (True, True)
    assert host["numa_nodes"] == [{"node": 0, "cpus": "0-31"}, {"node": 1, "cpus": "32-63"}]


def test_two_hosts_are_judged_by_their_way_out(look: Look, hgx_host: Path) -> None:
    plan = look(table(h200()), root=hgx_host, roles=["decode=0-7"])["plan"]
    assert plan["verdict"] == "This side can be used: KV leaves this host over RDMA, at most 50 GB/s a GPU one way."


def test_ports_that_are_down_or_starved(look: Look, tmp_path: Path) -> None:
    tree = hgx(tmp_path)
    tree.rdma("mlx5_2", "0000:4d:00.0", state="1: DOWN", phys_state="3: Disabled", rate="10 Gb/sec (4X SDR)")
    tree.pci(hgx_ways(6)[1], numa=1, gen=4)
    seen = look(table(h200()), root=tree.root)
    assert {"nic-down", "nic-slot"} <= codes(seen, "warn")
    assert seen["outlets"][2]["distance"] == "NODE", "the nearest that is up"
    assert seen["outlets"][2]["nics"] == ["mlx5_0:1", "mlx5_1:1", "mlx5_3:1"]
    assert seen["outlets"][6]["gb_s"] == pytest.approx(31.5, rel=0.001)


def test_one_port_for_all_gpus(look: Look, tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    nodes(tree, "0-31", "32-63")
    tree.rdma("mlx5_0", tree.pci("pci0000:c0/0000:c0:01.0/0000:c1:00.0", numa=0))
    seen = look(table(a100_pcie()), root=tree.root)
    assert [way["distance"] for way in seen["outlets"]] == ["NODE"] * 4 + ["SYS"] * 4, "from NUMA nodes alone"
    assert seen["outlets"][0]["shared_with"] == [1, 2, 3, 4, 5, 6, 7]
    assert seen["outlets"][0]["gb_s"] == pytest.approx(31.5, rel=0.001), "the GPU's own line is the narrower"
    assert "nic-far" in codes(seen, "note")


def test_as_many_ports_as_gpus_are_not_shared(look: Look, tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    nodes(tree, "0-31")
    for port in range(2):
        tree.rdma(f"mlx5_{port}", tree.pci(f"pci0000:c0/0000:c0:0{port + 1}.0/0000:c{port + 1}:00.0"))
    two, three = (look(table(h200(count)), root=tree.root)["outlets"] for count in (2, 3))
    assert [way["nics"] for way in two] == [["mlx5_0:1", "mlx5_1:1"]] * 2
    assert [way["shared_with"] for way in two] == [[], []]
    assert [way["shared_with"] for way in three] == [[1, 2], [0, 2], [0, 1]]


@pytest.mark.parametrize(
    ("kernel", "version", "possible"),
    [
        ("5.11.22-generic", OPEN_MODULE, False),
        ("5.12.0", OPEN_MODULE, True),
        ("6.8.0-45-generic", OPEN_MODULE, True),
        ("6.8.0-45-generic", CLOSED_MODULE, False),
        ("6.8.0-45-generic", None, None),
        ("future", OPEN_MODULE, None),
    ],
)
def test_dmabuf_takes_a_recent_kernel_and_the_open_module(
    tmp_path: Path, kernel: str, version: str | None, possible: bool | None
) -> None:
    plain(tmp_path / "proc/sys/kernel/osrelease", kernel)
    if version is not None:
        plain(tmp_path / "proc/driver/nvidia/version", version)
    assert read_host(tmp_path).dmabuf_possible is possible


@pytest.mark.parametrize(
    ("module", "registered", "version", "code"),
    [
        (True, True, CLOSED_MODULE, None),
        (False, False, OPEN_MODULE, None),  # dma-buf
        (True, False, CLOSED_MODULE, "gpudirect-unregistered"),
        (False, False, CLOSED_MODULE, "gpudirect-off"),
        (False, False, None, "gpudirect-off"),
    ],
)
def test_gpudirect(
    look: Look, tmp_path: Path, module: bool, registered: bool, version: str | None, code: str | None
) -> None:
    tree = Tree(tmp_path)
    tree.rdma("mlx5_0", tree.pci("pci0000:16/0000:16:01.0/0000:19:00.0"))
    plain(tmp_path / "dev/infiniband/uverbs0", "")
    if module:
        tree.write("module/nvidia_peermem/version", "570")
    if registered:
        tree.write("kernel/mm/memory_peers/nv_mem/version", "1")
    if version is not None:
        plain(tmp_path / "proc/driver/nvidia/version", version)
    seen = look(table(h200(2)), root=tree.root)
    assert {found for found in codes(seen, "warn") if found.startswith("gpudirect")} == ({code} if code else set())


def test_a_container_without_the_verbs_devices(look: Look, tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    tree.rdma("mlx5_0", tree.pci("pci0000:16/0000:16:01.0/0000:19:00.0"))
    assert "no-uverbs" in codes(look(table(h200(2)), root=tree.root), "warn")


SWITCH = "pci0000:16/0000:16:01.0/0000:17:00.0"


@pytest.mark.parametrize(("control", "redirects"), [(0x1D, True), (0x00, False), (None, None)])
def test_acs_on_the_switch_of_a_pair(look: Look, tmp_path: Path, control: int | None, redirects: bool | None) -> None:
    tree = Tree(tmp_path)
    tree.pci(f"{SWITCH}/0000:18:00.0/0000:17:00.0")
    places = ("0000:1a:00.0", "0000:1b:00.0")
    ports = ("0000:18:00.0", "0000:18:01.0")
    for port, place in zip(ports, places, strict=True):
        tree.pci(f"{SWITCH}/{port}/{place}")
        if control is not None:
            tree.acs(port, control)
    tree.acs("0000:16:01.0", 0x1D)  # the root port is above what they share: it does not matter
    cards = [f"gpu {i} pci=0000{place} gen=4 gmax=4 width=16 wmax=16" for i, place in enumerate(places)]
    seen = look(table(l40s("OK"), cards, "topo 0 1 PIX"), root=tree.root)
    assert seen["pairs"][0]["acs_redirect"] is redirects
    assert ("acs-redirect" in codes(seen, "warn")) == (redirects is True)
    assert ("acs-unknown" in codes(seen, "note")) == (redirects is None)
    assert ("ACS" in seen["pairs"][0]["verdict"]) == (redirects is True)


def two_switches(root: Path, uplink_width: int = 16) -> Tree:
    """The eight A100 below two PCIe switches, four each, whose uplinks are all there is to the host."""
    tree = Tree(root)
    for index in range(8):
        socket = index // 4
        port = f"0000:{0xA0 + socket:02x}:00.0"
        above = f"pci0000:{0xA0 + socket:02x}/0000:{0xA0 + socket:02x}:01.0/{port}"
        tree.pci(
            f"{above}/0000:{0xB0 + socket:02x}:0{index % 4}.0/0000:{2 + index}1:00.0", numa=socket, gen=4, gen_max=4
        )
        tree.device(port, max_link_speed="16.0 GT/s PCIe", max_link_width=uplink_width)
    return tree


def test_ranks_behind_one_switch_share_its_uplink(look: Look, tmp_path: Path) -> None:
    tree = two_switches(tmp_path)
    plan = look(table(a100_pcie()), root=tree.root, roles=["prefill=0-3", "decode=4-7"])["plan"]
    assert [(one["switch"], one["gpus"]) for one in plan["shared"]] == [
        ("0000:a0:00.0", [0, 1, 2, 3]),
        ("0000:a1:00.0", [4, 5, 6, 7]),
    ]
    assert {round(one["each_gb_s"], 2) for one in plan["shared"]} == {7.88}
    seen = look(table(a100_pcie()), root=tree.root, roles=["prefill=0", "decode=4"], views=True)
    assert seen["document"]["plan"]["shared"] == [], "one pair has the uplink for itself"
    bridged = look(table(a100_pcie()), root=tree.root, roles=["prefill=0,2,4,6", "decode=1,3,5,7"])["plan"]
    assert bridged["shared"] == [], "what goes over NVLink does not use it"
    below = look(table(a100_pcie()), root=tree.root, roles=["prefill=0", "decode=2"])["plan"]
    assert below["shared"] == [], "below one switch nothing leaves it"


def test_sysfs_fills_what_nvml_refuses(look: Look, hgx_host: Path) -> None:
    refused = ["nvmlDeviceGetMemoryAffinity", "nvmlDeviceGetTopologyCommonAncestor", "nvmlDeviceGetMaxPcieLinkWidth",
               "nvmlDeviceGetMaxPcieLinkGeneration"]  # fmt: skip
    seen = look(table(h200(), fails(refused, 3)), root=hgx_host)
    assert [gpu["numa_node"] for gpu in seen["gpus"]] == [0] * 4 + [1] * 4
    assert seen["ancestor"][0][1:5] == ["NODE", "NODE", "NODE", "SYS"]
    assert seen["gpus"][0]["pcie"]["gb_s"] == pytest.approx(63.0, rel=0.001)
    assert seen["gpus"][0]["not_reported"]["numa_node"] == "not supported", "NVML's own refusal is still told"


def test_a_gpu_that_fell_off_is_seen_on_the_bus(look: Look, hgx_host: Path) -> None:
    seen = look(table(h200(7)), root=hgx_host)
    (hidden,) = [found for found in seen["findings"] if found["code"] == "gpu-hidden"]
    assert "0000:db:00.0 (driver nvidia)" in hidden["text"]


def test_gpus_without_a_driver_are_seen_on_the_bus(look: Look, hgx_host: Path) -> None:
    seen = look(table("init 9"), root=hgx_host, views=True)
    told = seen["document"]
    assert len(told["pci_gpus"]) == 8 and told["gpus"] == []
    assert "8 NVIDIA GPUs on the PCI bus" in next(each["text"] for each in told["findings"])
    assert "0000:19:00.0" in seen["text"] and "mlx5_0:1" in seen["text"]


def mi300(tree: Tree, count: int = 2) -> None:
    """AMD GPUs that the KFD joins by XGMI, behind a CPU node, as amdgpu lays them out."""
    for index in range(count):
        place = tree.pci(f"pci0000:{index:02x}/0000:{index:02x}:01.0/0000:{0xC1 + index:02x}:00.0", numa=index)
        tree.device(place, vendor="0x1002", device="0x74a1", mem_info_vram_total=192 * 2**30, **{"class": "0x120000"})
        tree.driver(place, "amdgpu")
        node = f"class/kfd/kfd/topology/nodes/{index + 1}"
        tree.write(
            f"{node}/properties", f"cpu_cores_count 0\nlocation_id {(0xC1 + index) << 8}\ndomain 0\nvendor_id 4098"
        )
        other = 2 - index
        tree.write(f"{node}/io_links/0/properties", "type 2\nnode_from 1\nnode_to 0\nmax_bandwidth 64000")
        tree.write(f"{node}/io_links/1/properties", f"type 11\nnode_to {other}\nweight 15\nmax_bandwidth 128000")
    tree.write("class/kfd/kfd/topology/nodes/0/properties", "cpu_cores_count 96\nlocation_id 0")


def test_amd_is_read_from_sysfs_and_said_not_to_be_judged(look: Look, tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    mi300(tree)
    seen = look(table("init 12"), root=tree.root, views=True)
    first, second = seen["document"]["pci_gpus"]
    assert (first["vendor"], first["pci"], first["driver"]) == ("AMD", "0000:c1:00.0", "amdgpu")
    assert (first["memory_bytes"], first["numa_node"]) == (192 * 2**30, 0)
    assert first["xgmi"] == [{"peer_pci": "0000:c2:00.0", "gb_s": 128.0}]
    assert second["xgmi"] == [{"peer_pci": "0000:c1:00.0", "gb_s": 128.0}]
    assert "amd-partly" in codes(seen["document"])
    assert "not supported yet" in " ".join(seen["text"].split())


def test_display_controllers_that_are_no_gpus_are_left_out(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    for index, (vendor, kind) in enumerate([("0x1234", "0x030000"), ("0x8086", "0x030000"), ("0x10de", "0x020000")]):
        place = tree.pci(f"pci0000:00/0000:00:0{index + 1}.0")
        tree.device(place, vendor=vendor, **{"class": kind})
    assert list(pci_gpus(tree.sysfs)) == []


def test_an_iommu_that_translates(look: Look, tmp_path: Path) -> None:
    tree = hgx(tmp_path)
    tree.write("class/iommu/dmar0/version", "1")
    tree.write("kernel/iommu_groups/0/type", "identity")
    assert "iommu-translates" not in codes(look(table(h200()), root=tree.root))
    tree.write("kernel/iommu_groups/1/type", "DMA-FQ")
    seen = look(table(h200()), root=tree.root)
    assert "iommu-translates" in codes(seen, "note") and seen["host"]["iommu"] is True


def test_a_container_is_known_by_its_namespaces(look: Look, tmp_path: Path) -> None:
    tree = hgx(tmp_path)
    (tmp_path / "proc/self/ns").mkdir()
    (tmp_path / "proc/self/ns/pid").symlink_to("pid:[4026532500]")
    (tmp_path / "proc/self/ns/ipc").symlink_to("ipc:[4026531839]")
    seen = look(table(h200()), root=tree.root)
    assert seen["host"]["namespaces"] == {
        "pid": {"number": 4026532500, "own": True},
        "ipc": {"number": 4026531839, "own": False},
    }
    assert "pid-namespace" in codes(seen, "note")


@pytest.mark.parametrize(
    ("scope", "capabilities", "told"),
    [("0", "0", False), ("1", "0", False), ("2", "0", True), ("2", "80000", False), ("3", "80000", True)],
)
def test_ptrace_scope_as_ucx_takes_it(look: Look, tmp_path: Path, scope: str, capabilities: str, told: bool) -> None:
    plain(tmp_path / "proc/sys/kernel/yama/ptrace_scope", f"{scope}\n")
    plain(tmp_path / "proc/self/status", f"CapEff:\t{capabilities}\n")
    assert ("ptrace-scope" in codes(look(table(h200(2)), root=tmp_path))) == told


def test_this_machine_is_read_without_complaint() -> None:
    host = read_host()
    assert host.kernel and host.allowed_cpus
    assert read_host(Path("/does/not/exist")).nodes == ()


@pytest.mark.parametrize(
    ("cpus", "text"), [({0}, "0"), ({0, 1, 2, 3}, "0-3"), ({0, 1, 5, 7, 8}, "0-1,5,7-8"), (set(range(32, 64)), "32-63")]
)
def test_cpu_lists_there_and_back(cpus: set[int], text: str) -> None:
    assert cpu_list(frozenset(cpus)) == text
    assert cpus_of(text) == frozenset(cpus)


@pytest.mark.parametrize("text", [None, "", "x", "1-", "-1", "3-99999999"])
def test_what_is_no_cpu_list(text: str | None) -> None:
    assert cpus_of(text) is None
