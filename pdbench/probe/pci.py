"""The PCI tree of sysfs: how far two devices are apart, what their links carry, what redirects their traffic.

Every function takes the root of a sysfs tree and PCI addresses as sysfs writes them (`0000:19:00.0`). Distances have
nvidia-smi's names:

    PIX  at most one bridge of each below the lowest one they share (one switch)
    PXB  several bridges, below one root port
    PHB  over the host bridge            NODE  over two host bridges of one NUMA node
    SYS  over the link between NUMA nodes
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pdbench.probe import sysfs as files
from pdbench.probe.line_rates import PCIE_GIGATRANSFERS, pcie_gb_s

_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_HOST_BRIDGE = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}")
_UNKNOWN_LANES = (0, 255)  # what the kernel writes for a device without a PCIe link
_ACS_CAPABILITY, _ACS_REDIRECTS = 0x000D, 0x04 | 0x08  # P2P request and completion redirect
_CONFIG_HEADER_BYTES, _EXTENDED_AT = 64, 0x100


@dataclass(frozen=True, slots=True)
class PcieLink:
    """Generation and lanes as trained now, and what device and slot could do. None: not reported."""

    gen_now: int | None = None
    width_now: int | None = None
    gen_max: int | None = None
    width_max: int | None = None

    @property
    def now_gb_s(self) -> float | None:
        return pcie_gb_s(self.gen_now, self.width_now)

    @property
    def max_gb_s(self) -> float | None:
        return pcie_gb_s(self.gen_max, self.width_max)


def address(bus_id: str) -> str | None:
    """NVML's `00000000:19:00.0` as sysfs writes it; None for what is no address."""
    match = re.fullmatch(r"0*([0-9a-f]+):([0-9a-f]{2}):([0-9a-f]{2})\.([0-7])", bus_id.strip().lower())
    return f"{match[1]:0>4}:{match[2]}:{match[3]}.{match[4]}" if match else None


def device(sysfs: Path, place: str) -> Path:
    return sysfs / "bus/pci/devices" / place


def chain(sysfs: Path, place: str) -> tuple[str, ...]:
    """From the host bridge down to the device: ('pci0000:16', '0000:16:01.0', ..., place). Empty: not in this tree."""
    if not _ADDRESS.fullmatch(place) or not device(sysfs, place).exists():
        return ()
    parts = Path(os.path.realpath(device(sysfs, place))).parts  # realpath: a loop of links is no error to it
    kept = [part for part in parts if _ADDRESS.fullmatch(part) or _HOST_BRIDGE.fullmatch(part)]
    return tuple(kept) if kept and kept[-1] == place else ()


def numa_node(sysfs: Path, place: str) -> int | None:
    """The node whose memory is nearest. On a host with one node that one, also where firmware names none (-1)."""
    node = files.whole(device(sysfs, place) / "numa_node")
    if node is not None and node >= 0:
        return node
    return 0 if files.text(sysfs / "devices/system/node/online") == "0" and device(sysfs, place).exists() else None


def distance(sysfs: Path, a: str, b: str) -> str | None:
    """PIX, PXB, PHB, NODE or SYS; None where the tree does not say."""
    ways = chain(sysfs, a), chain(sysfs, b)
    if not all(ways):
        return None
    shared = len(_common(ways))
    if shared == 0:
        return between_nodes(numa_node(sysfs, a), numa_node(sysfs, b))
    if shared == 1:
        return "PHB"
    return "PIX" if all(len(way) - 1 - shared <= 1 for way in ways) else "PXB"


def _common(ways: Sequence[Sequence[str]]) -> list[str]:
    """The steps that all ways begin with."""
    same = itertools.takewhile(lambda steps: len(set(steps)) == 1, zip(*ways, strict=False))
    return [steps[0] for steps in same]


def between_nodes(a: int | None, b: int | None) -> str | None:
    """The distance of two devices of which only the NUMA nodes are known to matter."""
    if a is None or b is None:
        return None
    return "NODE" if a == b else "SYS"


def shared_port(sysfs: Path, places: list[str]) -> str | None:
    """The lowest bridge that all devices hang below, None when that is a host bridge or nothing."""
    common = _common([chain(sysfs, place) for place in places])
    return common[-1] if len(common) > 1 else None


def link(sysfs: Path, place: str) -> PcieLink:
    """A device's link. Its maximum is the lower one of the device's and of the port's that it is plugged into."""
    own, way = device(sysfs, place), chain(sysfs, place)
    port = device(sysfs, way[-2]) if len(way) > 2 else None
    ends = [own] if port is None else [own, port]
    return PcieLink(
        _generation(files.text(own / "current_link_speed")),
        _lanes(own / "current_link_width"),
        min((gen for end in ends if (gen := _generation(files.text(end / "max_link_speed")))), default=None),
        min((lanes for end in ends if (lanes := _lanes(end / "max_link_width"))), default=None),
    )


def _generation(speed: str | None) -> int | None:
    """`16.0 GT/s PCIe` is generation 4."""
    match = re.match(r"([0-9.]+) GT/s", speed or "")
    by_rate = {str(rate): generation for generation, rate in PCIE_GIGATRANSFERS.items()}
    return by_rate.get(match[1] if "." in match[1] else f"{match[1]}.0") if match else None


def _lanes(path: Path) -> int | None:
    lanes = files.whole(path)
    return None if lanes is None or lanes in _UNKNOWN_LANES else lanes


def redirects(sysfs: Path, place: str) -> bool | None:
    """Whether a bridge sends peer traffic up to the root complex (ACS). None: its settings can't be read (not root)."""
    try:
        config = (device(sysfs, place) / "config").read_bytes()
    except OSError:
        return None
    if len(config) <= _CONFIG_HEADER_BYTES:
        return None
    at, seen = _EXTENDED_AT, 0
    while at and at + 8 <= len(config) and seen < 64:
        header = int.from_bytes(config[at : at + 4], "little")
        if header & 0xFFFF == _ACS_CAPABILITY:
            return bool(int.from_bytes(config[at + 6 : at + 8], "little") & _ACS_REDIRECTS)
        at, seen = header >> 20, seen + 1
    return False
