"""Whole hosts as trees: sys, proc and dev of machines that fit the tables."""

from __future__ import annotations

from pathlib import Path

from tests.probe_topo.tables import BUSES
from tests.probe_topo.tree import Tree

OPEN_MODULE = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.124.06  Release Build\n"
CLOSED_MODULE = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.124.06  Release Build\n"


def hgx(root: Path) -> Tree:
    """Eight GPUs, each with a 400 Gb/s port of its own below one PCIe switch; two sockets; a management NIC."""
    tree = Tree(root)
    for index, bus in enumerate(BUSES):
        gpu_way, nic_way = hgx_ways(index)
        place = tree.pci(gpu_way, numa=index // 4)
        tree.device(place, vendor="0x10de", device="0x2335", **{"class": "0x030200"})
        tree.driver(place, "nvidia")
        tree.rdma(f"mlx5_{index}", tree.pci(nic_way, numa=index // 4))
        assert place == f"0000:{bus.lower()}:00.0"
    tree.netdev("eth0", tree.pci("pci0000:f0/0000:f0:01.0/0000:f1:00.0", numa=1, gen=3, width=8), speed=25000)
    tree.netdev("lo", None)
    nodes(tree, "0-31", "32-63")
    tree.write("module/nvidia_peermem/version", "570.124.06")
    tree.write("kernel/mm/memory_peers/nv_mem/version", "1")
    plain(root / "proc/driver/nvidia/version", OPEN_MODULE)
    plain(root / "proc/self/status", "Name:\tpdbench\nCapEff:\t0000000000084000\n")
    plain(root / "dev/infiniband/uverbs0", "")
    (root / "dev/shm").mkdir(parents=True, exist_ok=True)
    return tree


def hgx_ways(index: int) -> tuple[str, str]:
    """The PCI paths of a GPU and of its NIC: host bridge, root port, the switch's upstream and downstream ports."""
    bus = int(BUSES[index], 16)
    above = f"pci0000:{0x10 + index:02x}/0000:{0x10 + index:02x}:01.0/0000:{bus - 2:02x}:00.0"
    return (
        f"{above}/0000:{bus - 1:02x}:00.0/0000:{bus:02x}:00.0",
        f"{above}/0000:{bus - 1:02x}:01.0/0000:{bus + 1:02x}:00.0",
    )


def nodes(tree: Tree, *cpus: str) -> None:
    tree.write("devices/system/node/online", f"0-{len(cpus) - 1}" if len(cpus) > 1 else "0")
    for node, listed in enumerate(cpus):
        tree.write(f"devices/system/node/node{node}/cpulist", listed)


def plain(path: Path, content: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
