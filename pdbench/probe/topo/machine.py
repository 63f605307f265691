"""The whole machine: its GPUs and what lies between them as NVML tells it, its NICs and the rest as sysfs tells it."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

from pdbench.probe import pci
from pdbench.probe.nics import Nic, nics
from pdbench.probe.topo.gpu import Gpu
from pdbench.probe.topo.host import Host, read_host
from pdbench.probe.topo.nvml_side import NVML_LIMIT_S, Nvml, read_nvml
from pdbench.probe.topo.pci_gpus import PciGpu, pci_gpus

_SWITCH_AT = 2  # host bridge, root port, the switch's upstream port, one of its downstream ports, device


@dataclass(frozen=True, slots=True)
class Machine:
    """`nic_distance[gpu][nic]`; `acs[a, b]`: whether a bridge between two GPUs of one switch sends their traffic up;
    `switches[place]`: the upstream port of the PCIe switch that a GPU or NIC at that PCI address hangs below, and
    `uplinks[port]`: GB/s one way between such a port and the host, which all below it share."""

    nvml: Nvml
    nics: tuple[Nic, ...]
    nic_distance: tuple[tuple[str | None, ...], ...]
    acs: dict[tuple[int, int], bool | None]
    switches: dict[str, str]
    uplinks: dict[str, float | None]
    pci_gpus: tuple[PciGpu, ...]
    host: Host

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        return self.nvml.gpus


def look(root: Path = Path("/"), limit_s: float = NVML_LIMIT_S) -> Machine:
    """Read everything. `root` holds sys, proc and dev; another one than / is for trees that were made."""
    nvml = read_nvml(limit_s)
    sysfs = root / "sys"
    found = tuple(nics(sysfs))
    places = {gpu.index: gpu.pci for gpu in nvml.gpus if gpu.pci and pci.chain(sysfs, gpu.pci)}
    switches = {
        place: way[_SWITCH_AT]
        for place in [*places.values(), *(nic.pci for nic in found if nic.pci)]
        if len(way := pci.chain(sysfs, place)) > _SWITCH_AT + 2
    }
    return Machine(
        nvml=_with_sysfs(nvml, sysfs, places),
        nics=found,
        nic_distance=tuple(tuple(_to_nic(sysfs, gpu, nic) for nic in found) for gpu in nvml.gpus),
        acs={
            (a, b): _redirected(sysfs, places[a], places[b])
            for a in places
            for b in places
            if a < b and pci.distance(sysfs, places[a], places[b]) in ("PIX", "PXB")
        },
        switches=switches,
        uplinks={port: pci.link(sysfs, port).max_gb_s for port in switches.values()},
        pci_gpus=tuple(pci_gpus(sysfs)),
        host=read_host(root),
    )


def _with_sysfs(nvml: Nvml, sysfs: Path, places: dict[int, str]) -> Nvml:
    """NVML's answers, with what sysfs knows in the gaps: NUMA nodes, links, ancestors."""
    gpus = []
    for gpu in nvml.gpus:
        if place := places.get(gpu.index):
            own = pci.link(sysfs, place)
            link = pci.PcieLink(
                *(
                    told if told is not None else read
                    for told, read in zip(dataclasses.astuple(gpu.pcie), dataclasses.astuple(own), strict=True)
                )
            )
            node = gpu.numa_node if gpu.numa_node is not None else pci.numa_node(sysfs, place)
            gpu = dataclasses.replace(gpu, pcie=link, numa_node=node)
        gpus.append(gpu)
    ancestor = tuple(
        tuple(
            cell if cell is not None or not {a, b} <= places.keys() else pci.distance(sysfs, places[a], places[b])
            for b, cell in enumerate(row)
        )
        for a, row in enumerate(nvml.ancestor)
    )
    return dataclasses.replace(nvml, gpus=tuple(gpus), ancestor=ancestor)


def _to_nic(sysfs: Path, gpu: Gpu, nic: Nic) -> str | None:
    """From the PCI tree; where it lacks one of them, from their NUMA nodes."""
    known = pci.distance(sysfs, gpu.pci, nic.pci) if gpu.pci and nic.pci else None
    return known or pci.between_nodes(gpu.numa_node, nic.numa_node)


def _redirected(sysfs: Path, a: str, b: str) -> bool | None:
    """Whether a bridge below the lowest one that two devices share sends their traffic up; None: not readable."""
    ways = pci.chain(sysfs, a), pci.chain(sysfs, b)
    shared = len([one for one, other in zip(*ways, strict=False) if one == other])
    found = [pci.redirects(sysfs, bridge) for way in ways for bridge in way[shared:-1]]
    if True in found:
        return True
    return None if None in found else False
