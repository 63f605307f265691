"""Two GPUs: by which path a KV cache goes from one to the other, and what that path carries at best."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pdbench.littles_law.links import LINKS, Link
from pdbench.probe.topo.gpu import Gpu
from pdbench.probe.topo.machine import Machine

# `host`: KV is copied to host memory and from there to the other GPU. `none`: one of the two cannot be used.
DIRECT = ("nvswitch", "nvlink", "pcie")
PATHS = (*DIRECT, "unknown", "host", "none")
_NEAR_FIRST = ("INT", "PIX", "PXB", "PHB", "NODE", "SYS")
_NOT_REFUSED = ("OK", "U", None)
# Links with published measurements: by NVLink version, and by PCIe generation.
_MEASURED_NVLINK = {"4.0": LINKS["nvlink4"]}
_MEASURED_PCIE = {4: LINKS["pcie4"], 5: LINKS["pcie5"]}
_MEASURED_DISTANCES = ("INT", "PIX", "PXB", "PHB")  # within one host bridge; beyond it nothing was published


@dataclass(frozen=True, slots=True)
class Pair:
    """`a.index` < `b.index`. `gb_s` is the best that the wiring allows one way; on path `host` if both copies overlap.

    `read`, `write` and `nvlink` are the worse P2P status of the two directions, `acs` whether a bridge between the two
    sends their traffic up to the root complex. None: not known.
    """

    a: Gpu
    b: Gpu
    read: str | None
    write: str | None
    nvlink: str | None
    ancestor: str | None
    nvlinks: int | None
    path: str
    gb_s: float | None
    acs: bool | None = None

    @property
    def connection(self) -> str | None:
        """The cell of nvidia-smi topo -m."""
        return f"NV{self.nvlinks}" if self.nvlinks else self.ancestor

    @property
    def direct(self) -> bool:
        return self.path in DIRECT

    @property
    def over_nvlink(self) -> bool:
        return self.path in ("nvswitch", "nvlink")

    @property
    def ms_per_gb(self) -> float | None:
        return 1000 / self.gb_s if self.gb_s else None

    @property
    def measured(self) -> Link | None:
        """A link of this kind that was measured in public."""
        if self.over_nvlink:
            same = self.a.nvlink_version == self.b.nvlink_version
            return _MEASURED_NVLINK.get(self.a.nvlink_version or "") if same else None
        generations = [gpu.pcie.gen_max for gpu in (self.a, self.b) if gpu.pcie.gen_max is not None]
        near = self.path == "pcie" and self.ancestor in _MEASURED_DISTANCES
        return _MEASURED_PCIE.get(min(generations)) if near and len(generations) == 2 else None

    @property
    def expect_gb_s(self) -> tuple[float, float] | None:
        """The share of the line that public measurements reached, of this line."""
        link = self.measured
        if link is None or link.reached is None or self.gb_s is None:
            return None
        low, high = (reached / link.line_gb_s * self.gb_s for reached in link.reached)
        return low, high


def judged(machine: Machine) -> list[Pair]:
    """Every pair of GPUs, best first."""
    gpus = machine.gpus
    return sorted((_pair(machine, a, b) for a in gpus for b in gpus if a.index < b.index), key=rank)


def rank(pair: Pair) -> tuple[int, float, int, int, int]:
    """Direct paths by what they carry, then what is not known, what bounces, and what cannot be used."""
    tier = 0 if pair.direct else PATHS.index(pair.path)
    near = _NEAR_FIRST.index(pair.ancestor) if pair.ancestor in _NEAR_FIRST else len(_NEAR_FIRST)
    return tier, -(pair.gb_s or 0.0), near, pair.a.index, pair.b.index


def _pair(machine: Machine, a: Gpu, b: Gpu) -> Pair:
    ways = (a.index, b.index), (b.index, a.index)
    read, write, nvlink = (_worse(machine.nvml.p2p.get(name, ()), ways) for name in ("read", "write", "nvlink"))
    links = links_between(a, b)
    path = _path(a, b, read, nvlink, links)
    return Pair(
        a=a,
        b=b,
        read=read,
        write=write,
        nvlink=nvlink,
        ancestor=next((cell for way in ways if (cell := _cell(machine.nvml.ancestor, *way))), None),
        nvlinks=links,
        path=path,
        gb_s=_line_gb_s(a, b, path, links),
        acs=machine.acs.get((a.index, b.index)),
    )


def _worse(matrix: Sequence[Sequence[str | None]], ways: Sequence[tuple[int, int]]) -> str | None:
    """The status that holds both ways: one that is not OK, else OK; None where neither way is reported."""
    told = [status for way in ways if (status := _cell(matrix, *way)) is not None]
    return next((status for status in told if status != "OK"), told[0] if told else None)


def _cell(matrix: Sequence[Sequence[str | None]], row: int, column: int) -> str | None:
    return matrix[row][column] if row < len(matrix) else None


def links_between(a: Gpu, b: Gpu) -> int | None:
    """Active NVLinks that lead from one GPU to the other, straight or over NVSwitch. None: not reported.

    Both ends should tell the same; if they don't, the smaller number holds.
    """
    straight = [
        sum(link.remote == "gpu" and link.remote_pci == other.pci for link in one.active_links)
        for one, other in ((a, b), (b, a))
        if other.pci is not None
    ]
    counted = [count for count in straight if count]
    if counted:
        return min(counted)
    if a.nvlinks is None or b.nvlinks is None:
        return None if _may_have_links(a) and _may_have_links(b) else 0
    return min(len(gpu.switch_links) for gpu in (a, b))


def _may_have_links(gpu: Gpu) -> bool:
    return bool(gpu.nvlinks) or (gpu.nvlinks is None and gpu.nvlinks_built != 0)


def _path(a: Gpu, b: Gpu, read: str | None, nvlink: str | None, links: int | None) -> str:
    if a.unusable or b.unusable:
        return "none"
    if a.mig or b.mig:  # instances of a GPU in MIG mode have no P2P
        return "host"
    linked = links or (links is None and nvlink == "OK")
    if linked and nvlink in _NOT_REFUSED and read in _NOT_REFUSED:
        return "nvswitch" if a.switch_links or b.switch_links else "nvlink"
    if read == "OK":
        return "pcie"
    return "unknown" if read in _NOT_REFUSED else "host"


def _line_gb_s(a: Gpu, b: Gpu, path: str, links: int | None) -> float | None:
    if path in ("nvswitch", "nvlink"):
        known = [link.gb_s for gpu in (a, b) for link in gpu.active_links if link.gb_s is not None]
        return links * min(known) if links and known else None
    if path in ("pcie", "host") and a.pcie_gb_s is not None and b.pcie_gb_s is not None:
        return min(a.pcie_gb_s, b.pcie_gb_s)
    return None


def reads_over_cuda_ipc(gpus: Sequence[Gpu]) -> bool | None:
    """Whether UCX's cuda_ipc does READs (GET): it looks at GPU 0 alone and wants an answer from each of its NVLinks.

    One link of GPU 0 that is down turns reads off for all GPUs, and pull then goes over TCP (UCX, cuda_ipc_iface.c).
    None: GPU 0 does not tell of its links.
    """
    if not gpus or (gpus[0].nvlinks is None and _may_have_links(gpus[0])):
        return None
    links = gpus[0].nvlinks or ()
    return bool(links) and len(links) >= (gpus[0].nvlinks_built or 0) and all(link.remote_pci for link in links)
