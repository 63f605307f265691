"""GPUs as the PCI bus shows them, whatever their driver says: of NVIDIA, AMD and Intel.

For AMD this is all that is read: the amdgpu driver's files, and the XGMI links of the KFD topology. Whether peers may
reach each other is not in sysfs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pdbench.probe import pci
from pdbench.probe import sysfs as files
from pdbench.probe.pci import PcieLink

VENDORS = {0x10DE: "NVIDIA", 0x1002: "AMD", 0x8086: "Intel"}
_VGA, _DISPLAYS, _ACCELERATORS = 0x0300, 0x03, 0x12
_KFD_XGMI = 11  # CRAT_IOLINK_TYPE_XGMI


@dataclass(frozen=True, slots=True)
class Xgmi:
    """AMD's link from one GPU to another; `gb_s` one way as the driver states it, None where it states none."""

    peer_pci: str
    gb_s: float | None


@dataclass(frozen=True, slots=True)
class PciGpu:
    vendor: str
    pci: str
    device_id: str
    driver: str | None
    numa_node: int | None
    pcie: PcieLink
    memory_bytes: int | None = None
    name: str | None = None
    xgmi: tuple[Xgmi, ...] = ()


def pci_gpus(sysfs: Path) -> Iterator[PciGpu]:
    links = _xgmi(sysfs)
    for device in files.entries(sysfs / "bus/pci/devices"):
        vendor = VENDORS.get(files.whole(device / "vendor") or 0)
        kind = (files.whole(device / "class") or 0) >> 8
        if vendor is None or kind >> 8 not in (_DISPLAYS, _ACCELERATORS):
            continue
        if vendor == "Intel" and kind == _VGA:  # the graphics of a CPU
            continue
        yield PciGpu(
            vendor=vendor,
            pci=device.name,
            device_id=files.text(device / "device") or "",
            driver=files.target_name(device / "driver"),
            numa_node=pci.numa_node(sysfs, device.name),
            pcie=pci.link(sysfs, device.name),
            memory_bytes=files.whole(device / "mem_info_vram_total"),
            name=files.text(device / "product_name"),
            xgmi=tuple(links.get(device.name, ())),
        )


def _xgmi(sysfs: Path) -> dict[str, list[Xgmi]]:
    """XGMI links by the PCI address they start from, from the KFD topology (its node 0 is usually the CPU)."""
    nodes = {node.name: node for node in files.entries(sysfs / "class/kfd/kfd/topology/nodes")}
    places = {name: place for name, node in nodes.items() if (place := _place(_properties(node / "properties")))}
    found: dict[str, list[Xgmi]] = {}
    for name, place in places.items():
        for link in [*files.entries(nodes[name] / "io_links"), *files.entries(nodes[name] / "p2p_links")]:
            told = _properties(link / "properties")
            peer = places.get(str(told.get("node_to")))
            if told.get("type") == _KFD_XGMI and peer is not None:
                megabytes = told.get("max_bandwidth", 0)
                found.setdefault(place, []).append(Xgmi(peer, megabytes / 1000 if megabytes else None))
    return found


def _properties(path: Path) -> dict[str, int]:
    """`name value` a line."""
    pairs = [line.split() for line in (files.text(path) or "").splitlines()]
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdecimal()}


def _place(properties: dict[str, int]) -> str | None:
    """The PCI address of a KFD node; a CPU has none."""
    location = properties.get("location_id", 0)
    if not location:
        return None
    return f"{properties.get('domain', 0):04x}:{location >> 8 & 0xFF:02x}:{location >> 3 & 0x1F:02x}.{location & 7}"
