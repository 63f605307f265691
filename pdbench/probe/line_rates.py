"""What a line carries one way at best, in GB/s (1e9 bytes/s): line coding is taken off, packet headers are not.

PCIe 1 and 2 send 8 bits as 10, 3 to 5 send 128 as 130, 6 and 7 send 242 of 256 bytes of a flit. NVLink's raw rates hold
its coding too: 26.562 GB/s a link is sold, and measured, as 25. `None`: not known.
"""

from __future__ import annotations

PCIE_GIGATRANSFERS = {1: 2.5, 2: 5.0, 3: 8.0, 4: 16.0, 5: 32.0, 6: 64.0, 7: 128.0}
_PCIE_CODING = {1: 8 / 10, 2: 8 / 10, 3: 128 / 130, 4: 128 / 130, 5: 128 / 130, 6: 242 / 256, 7: 242 / 256}

# NVML's number of an NVLink version -> its name, and GB/s of one link one way in NVIDIA's data sheets.
NVLINK_VERSIONS = {
    1: ("1.0", 20.0),
    2: ("2.0", 25.0),
    3: ("2.2", 25.0),
    4: ("3.0", 25.0),
    5: ("3.1", 25.0),
    6: ("4.0", 25.0),
    7: ("5.0", 50.0),
}
NVLINK_VERSION_NAMES = {number: name for number, (name, _) in NVLINK_VERSIONS.items()} | {8: "6.0"}


def pcie_gb_s(generation: int | None, lanes: int | None) -> float | None:
    """31.5 for generation 4 x16."""
    if generation not in PCIE_GIGATRANSFERS or lanes is None or lanes <= 0:
        return None
    return PCIE_GIGATRANSFERS[generation] * lanes * _PCIE_CODING[generation] / 8


def nvlink_gb_s(version: int | None, raw_mb_s: int | None) -> float | None:
    """One link: the data sheet's rate of its version, or the driver's figure where that is lower or all there is."""
    known = NVLINK_VERSIONS.get(version) if version is not None else None
    raw = raw_mb_s / 1000 if raw_mb_s is not None and raw_mb_s > 0 else None
    if known is None:
        return raw
    return known[1] if raw is None else min(known[1], raw)


def nic_gb_s(gbit_s: float | None) -> float | None:
    """50 for 400 Gb/s."""
    return gbit_s / 8 if gbit_s is not None and gbit_s > 0 else None
