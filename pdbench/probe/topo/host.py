"""What of a host or container decides whether a fast path can be used: limits, modules, IOMMU, namespaces."""

from __future__ import annotations

import os
import platform
import re
import resource
from dataclasses import dataclass
from pathlib import Path

from pdbench.probe import sysfs as files

_PEER_MODULES = ("nvidia_peermem", "nv_peer_mem")
_CAP_IPC_LOCK, _CAP_SYS_PTRACE = 14, 19
# Inode numbers that the kernel gives to the first namespaces; a container has others.
_FIRST_NAMESPACES = {"pid": 4026531836, "ipc": 4026531839}
UNLIMITED = -1


@dataclass(frozen=True, slots=True)
class NumaNode:
    node: int
    cpus: str | None


@dataclass(frozen=True, slots=True)
class Host:
    """None: not to be read here. `memlock_bytes` is UNLIMITED without a limit, `ptrace_scope` None without Yama.

    `peer_module` is the loaded module that lets RDMA NICs into GPU memory, `peer_registered` whether the RDMA stack
    took it; `open_module` whether NVIDIA's kernel module is the open one, which dma-buf needs.
    """

    kernel: str
    shm_bytes: int | None = None
    shm_free_bytes: int | None = None
    memlock_bytes: int | None = None
    ptrace_scope: int | None = None
    cap_ipc_lock: bool | None = None
    cap_sys_ptrace: bool | None = None
    iommu: bool | None = None
    iommu_domains: tuple[str, ...] = ()
    peer_module: str | None = None
    peer_registered: bool = False
    open_module: bool | None = None
    uverbs: int = 0
    uverbs_usable: int = 0
    nodes: tuple[NumaNode, ...] = ()
    online_cpus: frozenset[int] | None = None
    allowed_cpus: frozenset[int] | None = None
    namespaces: tuple[tuple[str, int, bool], ...] = ()

    @property
    def dmabuf_possible(self) -> bool | None:
        """Linux 5.12 brought dma-buf to RDMA; on NVIDIA's side it takes the open kernel module."""
        try:
            recent = tuple(int(part) for part in self.kernel.split(".")[:2]) >= (5, 12)
        except ValueError:
            return None
        return None if self.open_module is None else recent and self.open_module


def read_host(root: Path = Path("/")) -> Host:
    sysfs, proc = root / "sys", root / "proc"
    shm = _space(root / "dev/shm")
    capabilities = _capabilities(files.text(proc / "self/status"))
    verbs = [path for path in files.entries(root / "dev/infiniband") if path.name.startswith("uverbs")]
    module = next((name for name in _PEER_MODULES if (sysfs / "module" / name).exists()), None)
    iommus = files.entries(sysfs / "class/iommu")
    return Host(
        kernel=files.text(proc / "sys/kernel/osrelease") or platform.release(),
        shm_bytes=shm[0] if shm else None,
        shm_free_bytes=shm[1] if shm else None,
        memlock_bytes=resource.getrlimit(resource.RLIMIT_MEMLOCK)[0],
        ptrace_scope=files.whole(proc / "sys/kernel/yama/ptrace_scope"),
        cap_ipc_lock=None if capabilities is None else bool(capabilities >> _CAP_IPC_LOCK & 1),
        cap_sys_ptrace=None if capabilities is None else bool(capabilities >> _CAP_SYS_PTRACE & 1),
        iommu=bool(iommus) if (sysfs / "class").exists() else None,
        iommu_domains=tuple(sorted(_domains(sysfs))),
        peer_module=module,
        peer_registered=any((sysfs / "kernel/mm/memory_peers" / name).exists() for name in ("nv_mem", "nv_mem_nc")),
        open_module=_open_module(files.text(proc / "driver/nvidia/version")),
        uverbs=len(verbs),
        uverbs_usable=sum(os.access(path, os.R_OK | os.W_OK) for path in verbs),
        nodes=tuple(_nodes(sysfs)),
        online_cpus=cpus_of(files.text(sysfs / "devices/system/cpu/online")),
        allowed_cpus=frozenset(os.sched_getaffinity(0)),
        namespaces=tuple(_namespaces(proc)),
    )


def _space(folder: Path) -> tuple[int, int] | None:
    try:
        space = os.statvfs(folder)
    except OSError:
        return None
    return space.f_blocks * space.f_frsize, space.f_bavail * space.f_frsize


def _capabilities(status: str | None) -> int | None:
    """The effective capabilities of this process as bits."""
    for line in (status or "").splitlines():
        if line.startswith("CapEff:"):
            return int(line.split()[1], 16)
    return None


def _domains(sysfs: Path) -> set[str]:
    """The kinds of IOMMU domain in use: `identity` passes addresses through, `DMA` and `DMA-FQ` translate them."""
    kinds = [files.text(group / "type") for group in files.entries(sysfs / "kernel/iommu_groups")]
    return {kind for kind in kinds if kind}


def _open_module(version: str | None) -> bool | None:
    return None if version is None else "Open Kernel Module" in version


def _nodes(sysfs: Path) -> list[NumaNode]:
    found = [path for path in files.entries(sysfs / "devices/system/node") if path.name[4:].isdecimal()]
    return [NumaNode(int(path.name[4:]), files.text(path / "cpulist")) for path in found if path.name[:4] == "node"]


def _namespaces(proc: Path) -> list[tuple[str, int, bool]]:
    """(kind, number, whether it is a container's own). Two containers share one where the numbers are equal."""
    found = []
    for kind, first in _FIRST_NAMESPACES.items():
        try:
            number = int((proc / "self/ns" / kind).readlink().name.partition("[")[2].rstrip("]"))
        except (OSError, ValueError):
            continue
        found.append((kind, number, number != first))
    return found


def cpu_list(cpus: frozenset[int]) -> str:
    """`0-31,64-95`, as the kernel and taskset write it."""
    spans: list[list[int]] = []
    for cpu in sorted(cpus):
        if spans and spans[-1][1] == cpu - 1:
            spans[-1][1] = cpu
        else:
            spans.append([cpu, cpu])
    return ",".join(f"{a}" if a == b else f"{a}-{b}" for a, b in spans)


def cpus_of(text: str | None) -> frozenset[int] | None:
    """The reverse; None for what is no list of CPUs."""
    cpus: set[int] = set()
    for span in (text or "").split(","):
        match = re.fullmatch(r"([0-9]{1,5})(?:-([0-9]{1,5}))?", span.strip())
        if match is None:
            return None
        cpus.update(range(int(match[1]), int(match[2] or match[1]) + 1))
    return frozenset(cpus)
