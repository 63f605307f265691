"""Pairs, GPUs, NICs and the host as tables of 80 columns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from pdbench.probe.pci import PcieLink
from pdbench.probe.topo.answer import Answer
from pdbench.probe.topo.finding import gib
from pdbench.probe.topo.gpu import Gpu
from pdbench.probe.topo.host import cpu_list
from pdbench.probe.topo.machine import Machine
from pdbench.probe.topo.outlets import NEAR_FIRST
from pdbench.probe.topo.pci_gpus import PciGpu
from pdbench.probe.topo.text_matrices import PATH_STYLES
from pdbench.report.wording import NOT_MEASURED, clean, short

T = TypeVar("T")
OUTLET_HEADS = ("off this host", "nearest NIC that is up", "distance", "GB/s a GPU")
_LAYERS = {"InfiniBand": "IB", "Ethernet": "Eth"}


def grouped(items: Iterable[T], key: Callable[[T], object]) -> list[list[T]]:
    """Items of the same key together, in the order in which the keys first appear."""
    groups: dict[object, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return list(groups.values())


def spans(numbers: Iterable[int]) -> str:
    """`0-3,5`."""
    return cpu_list(frozenset(numbers))


def _table(*heads: str, right: Sequence[str] = ()) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for head in heads:
        table.add_column(head, justify="right" if head in right else "left", overflow="fold")
    return table


def pair_table(answer: Answer) -> RenderableType:
    """Pairs that are judged alike share a line, and the sentence below it."""
    judged = list(zip(answer.pairs, answer.verdicts, strict=True))
    parts: list[RenderableType] = [Text("  GB/s  ms/GB  link   read/write  GPU pairs, best first", style="dim")]
    for group in grouped(
        judged, lambda one: (one[0].path, one[0].connection, one[0].gb_s, one[0].read, one[0].write, one[1])
    ):
        pair, verdict = group[0]
        names = " ".join(f"{one.a.index}-{one.b.index}" for one, _ in group)
        every = len(group) == len(judged) > 1
        grid = Table.grid(padding=(0, 2, 0, 0))
        for width in (6, 5, 5, 10):
            grid.add_column(width=width, no_wrap=True, justify="right" if width in (6,) else "left")
        grid.add_column(overflow="fold")
        grid.add_row(
            Text(short(pair.gb_s), style=PATH_STYLES[pair.path]),
            short(pair.ms_per_gb),
            pair.connection or NOT_MEASURED,
            f"{pair.read or NOT_MEASURED}/{pair.write or NOT_MEASURED}",
            f"all {len(group)}" if every else names,
        )
        style = PATH_STYLES[pair.path] if pair.path in ("host", "none", "unknown") else "dim"
        parts += [grid, Padding(Text(clean(verdict, 1000), style=style), (0, 0, 0, 8))]
    return Group(*parts)


def pcie(link: PcieLink) -> str:
    """`5 x16`, or `1 x16 of 4 x16` when it could do more."""
    now, most = _lane(link.gen_now, link.width_now), _lane(link.gen_max, link.width_max)
    return now if now == most or most == NOT_MEASURED else f"{now} of {most}"


def _lane(generation: int | None, width: int | None) -> str:
    if generation is None and width is None:
        return NOT_MEASURED
    return f"{generation or '?'} x{width or '?'}"


def nvlinks(gpu: Gpu) -> str:
    if gpu.nvlinks is None:
        return f"? of {gpu.nvlinks_built}" if gpu.nvlinks_built else NOT_MEASURED
    if not gpu.nvlinks:
        return "none"
    return f"{len(gpu.active_links)}/{gpu.nvlinks_built} v{gpu.nvlink_version or '?'}"


def onoff(value: bool | None, pending: bool | None = None) -> str:
    if value is None:
        return NOT_MEASURED
    return ("on" if value else "off") + ("" if pending in (None, value) else "*")


def gpu_table(machine: Machine) -> RenderableType:
    """GPUs that differ in nothing but their number share a line."""
    driver = machine.nvml.driver
    table = _table("GPU", "name", "memory", "BAR1", "PCIe", "NVLinks", "ECC", "MIG")

    def row(gpu: Gpu) -> tuple[str, ...]:
        return (
            clean(gpu.name or NOT_MEASURED, 40).removeprefix("NVIDIA "),
            gib(gpu.memory_bytes),
            gib(gpu.bar1_bytes),
            pcie(gpu.pcie),
            nvlinks(gpu) + (" NVSwitch" if gpu.switch_links else ""),
            onoff(gpu.ecc, gpu.ecc_pending),
            onoff(gpu.mig, gpu.mig_pending),
        )

    for group in grouped(machine.gpus, lambda gpu: (row(gpu), gpu.unusable)):
        table.add_row(spans(gpu.index for gpu in group), *row(group[0]), style="red" if group[0].unusable else "")
    versions = f"driver {clean(driver.version or NOT_MEASURED, 40)}   CUDA {driver.cuda or NOT_MEASURED}"
    pending = any(onoff(gpu.ecc, gpu.ecc_pending)[-1] == "*" for gpu in machine.gpus)
    pending |= any(onoff(gpu.mig, gpu.mig_pending)[-1] == "*" for gpu in machine.gpus)
    return Group(table, Text(versions + ("   * changes at the next reset" if pending else ""), style="dim"))


def unshown(machine: Machine) -> list[PciGpu]:
    """GPUs that NVML does not show: AMD's and Intel's, and NVIDIA's without a driver."""
    shown = {gpu.pci for gpu in machine.gpus}
    return [gpu for gpu in machine.pci_gpus if gpu.pci not in shown]


def other_gpus(machine: Machine) -> RenderableType | None:
    others = unshown(machine)
    if not others:
        return None
    table = _table("on the PCI bus", "GPU", "driver", "memory", "PCIe", "NUMA", "XGMI to")
    for gpu in others:
        peers = [f"{link.peer_pci}{f' {short(link.gb_s)} GB/s' if link.gb_s else ''}" for link in gpu.xgmi]
        table.add_row(
            gpu.pci,
            f"{gpu.vendor} {clean(gpu.name or gpu.device_id, 40)}",
            clean(gpu.driver or "none", 20),
            gib(gpu.memory_bytes),
            pcie(gpu.pcie),
            NOT_MEASURED if gpu.numa_node is None else str(gpu.numa_node),
            ", ".join(peers) or NOT_MEASURED,
        )
    return table


def nic_table(machine: Machine) -> RenderableType:
    table = _table("NIC", "Gb/s", "GB/s", "state", "link", "PCIe", "GPUs by distance", right=("Gb/s", "GB/s"))
    for place, nic in enumerate(machine.nics):
        layer = nic.link_layer or NOT_MEASURED
        table.add_row(
            clean(nic.name, 24),
            short(nic.rate_gbit_s),
            short(nic.gb_s),
            clean(nic.state or NOT_MEASURED, 12),
            clean(_LAYERS.get(layer, layer), 12),
            pcie(nic.pcie).partition(" of ")[0],  # a NIC does not slow down while it idles
            distances(machine, place),
            style="" if nic.active else "red" if nic.rdma else "dim",
        )
    return table


def distances(machine: Machine, place: int) -> str:
    """`PIX 0,1  NODE 2,3  SYS 4-7`."""
    found = [(machine.nic_distance[at][place], gpu.index) for at, gpu in enumerate(machine.gpus)]
    parts = [(name, [index for distance, index in found if distance == name]) for name in (*NEAR_FIRST, None)]
    return "  ".join(f"{name or '?'} {spans(gpus)}" for name, gpus in parts if gpus) or NOT_MEASURED


def outlet_table(answer: Answer) -> RenderableType:
    table = _table(*OUTLET_HEADS, right=OUTLET_HEADS[3:])
    for row in outlet_rows(answer):
        table.add_row(*(clean(cell, 60) for cell in row))
    return table


def outlet_rows(answer: Answer) -> list[tuple[str, str, str, str]]:
    """The nearest NICs that are up, for each GPU or for several that share them."""
    rows = []
    for group in grouped(answer.outlets, lambda way: (way.nics, way.distance, way.gb_s)):
        way = group[0]
        rate = short(way.gb_s) + (f" shared by {len(way.shared_with) + 1}" if way.shared_with else "")
        names = ", ".join(way.nics) + ("" if way.rdma else " (TCP)")
        rows.append((f"GPU {spans(one.gpu for one in group)}", names, way.distance or NOT_MEASURED, rate))
    return rows
