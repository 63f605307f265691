"""Findings on the way off the host, on the host or container itself, and on GPUs of other vendors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pdbench.probe.topo.finding import NOTE, WARN, Finding, names, s
from pdbench.probe.topo.gpu import Gpu
from pdbench.probe.topo.host import Host
from pdbench.probe.topo.machine import Machine
from pdbench.probe.topo.outlets import outlets
from pdbench.probe.topo.pairs import Pair

_SMALL_SHM_BYTES = 2**30


def way_out(machine: Machine, pairs: Sequence[Pair]) -> Iterator[Finding]:
    ports, host = [nic for nic in machine.nics if nic.rdma], machine.host
    for nic in machine.nics:
        if nic.rdma and not nic.active:
            yield Finding(
                "nic-down", WARN, f"{nic.name}: {nic.state or 'state not reported'} ({nic.phys_state or '-'})."
            )
        line, slot = nic.line_gb_s, nic.pcie.now_gb_s
        if nic.rdma and line is not None and slot is not None and slot < line:
            yield Finding(
                "nic-slot", WARN,
                f"{nic.name}: a line of {line:.3g} GB/s in a slot of {slot:.3g} "
                f"(PCIe {nic.pcie.gen_now} x{nic.pcie.width_now}).",
                "Another slot, or its generation and lanes in the BIOS.",
            )  # fmt: skip
    if not ports or not machine.gpus:
        return
    far = [way for way in outlets(machine) if way.distance == "SYS"]
    if far and len(machine.host.nodes) > 1:
        yield Finding(
            "nic-far", NOTE,
            f"GPU{s(far)} {', '.join(str(way.gpu) for way in far)}: the nearest port that is up is on another socket.",
        )  # fmt: skip
    if host.peer_module and not host.peer_registered:
        yield Finding(
            "gpudirect-unregistered", NOTE if host.dmabuf_possible else WARN,
            f"{host.peer_module} is loaded, but the RDMA stack does not list it: UCX counts GPUDirect RDMA as off.",
            "Load it after the RDMA drivers of the same stack (MOFED), or use dma-buf with the open kernel module.",
        )  # fmt: skip
    if host.peer_module is None and not host.dmabuf_possible:
        unsure = " (dma-buf: not known)" if host.dmabuf_possible is None else ""
        yield Finding(
            "gpudirect-off", WARN,
            f"No nvidia_peermem, and no dma-buf{unsure}: NICs cannot reach GPU memory, KV to another host goes through "
            "host memory.",
            "modprobe nvidia_peermem, or install the open kernel module (dma-buf, Linux 5.12 or newer).",
        )  # fmt: skip
    if host.uverbs_usable < 1:
        yield Finding(
            "no-uverbs", WARN,
            f"RDMA ports, but no /dev/infiniband/uverbs that this user may open ({host.uverbs} there).",
            "In a container pass the devices in (--device /dev/infiniband, or the RDMA device plugin).",
        )  # fmt: skip
    if host.memlock_bytes is not None and host.memlock_bytes >= 0 and not host.cap_ipc_lock:
        yield Finding(
            "memlock", WARN,
            f"memlock is {host.memlock_bytes / 2**20:,.0f} MiB: registering more than that for RDMA can fail (ENOMEM).",
            "ulimit -l unlimited; in a container --ulimit memlock=-1 and --cap-add IPC_LOCK.",
        )  # fmt: skip


def host_limits(machine: Machine, pairs: Sequence[Pair]) -> Iterator[Finding]:
    host = machine.host
    if host.shm_bytes is not None and host.shm_bytes < _SMALL_SHM_BYTES:
        yield Finding(
            "shm-small", WARN,
            f"/dev/shm is {host.shm_bytes / 2**20:,.0f} MiB: engines and NCCL with TP > 1 may fail or stall.",
            "In a container: --ipc=host or --shm-size 16g.",
        )  # fmt: skip
    if host.ptrace_scope is not None and (
        host.ptrace_scope > 2 or (host.ptrace_scope == 2 and not host.cap_sys_ptrace)
    ):
        yield Finding(
            "ptrace-scope", NOTE,
            f"ptrace_scope is {host.ptrace_scope}: UCX cannot copy between processes (cma) and takes slower ways.",
            "sysctl kernel.yama.ptrace_scope=1, or --cap-add SYS_PTRACE.",
        )  # fmt: skip
    if len(machine.gpus) > 1 and any(kind.startswith("DMA") for kind in host.iommu_domains):
        yield Finding(
            "iommu-translates", NOTE,
            f"The IOMMU translates ({', '.join(host.iommu_domains)}): peer traffic over PCIe can be slow or fail.",
            "On bare metal boot with iommu=pt.",
        )  # fmt: skip
    if machine.gpus and any(kind == "pid" and own for kind, _, own in host.namespaces):
        yield Finding(
            "pid-namespace", NOTE,
            "This is a PID namespace of its own: UCX's cuda_ipc works only between engines that share one.",
            "With prefill and decode in two containers: --pid=container:OTHER or --pid=host, and --ipc likewise.",
        )  # fmt: skip
    beyond = [gpu for gpu in machine.gpus if _off_its_cpus(gpu, host)]
    if beyond:
        yield Finding(
            "cpus-far", NOTE, f"{names(beyond)}: none of the CPUs next to it may be used by this process.",
            "Give the engine's container or cgroup CPUs of that socket.",
        )  # fmt: skip


def _off_its_cpus(gpu: Gpu, host: Host) -> bool:
    near = (gpu.cpu_affinity or frozenset()) & (host.online_cpus or frozenset())
    return bool(near and host.allowed_cpus and not near & host.allowed_cpus)


def other_vendors(machine: Machine, pairs: Sequence[Pair]) -> Iterator[Finding]:
    amd = [gpu for gpu in machine.pci_gpus if gpu.vendor == "AMD" and gpu.driver == "amdgpu"]
    if amd:
        yield Finding(
            "amd-partly", NOTE,
            f"{len(amd)} AMD GPU{s(amd)}: place, memory, PCIe and XGMI links are read from sysfs. Whether peers may "
            "reach each other, and verdicts on pairs and plans, are not supported yet.",
            "rocm-smi --showtopo, and pdbench probe-transfer to measure.",
        )  # fmt: skip


CHECKS = (way_out, host_limits, other_vendors)
