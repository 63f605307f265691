"""The host in words, and what was not reported."""

from __future__ import annotations

from rich.console import RenderableType
from rich.table import Table

from pdbench.probe.topo.finding import gib
from pdbench.probe.topo.host import UNLIMITED, Host
from pdbench.probe.topo.machine import Machine
from pdbench.probe.topo.text_tables import grouped, spans
from pdbench.report.wording import NOT_MEASURED, clean


def host_lines(machine: Machine) -> RenderableType:
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True, style="dim")
    grid.add_column(overflow="fold")
    for name, words in host_facts(machine.host):
        grid.add_row(name, words)
    return grid


def host_facts(host: Host) -> list[tuple[str, str]]:
    """What the host allows, in words."""
    limit = f"{(host.memlock_bytes or 0) / 2**20:,.0f} MiB"
    memlock = {None: NOT_MEASURED, UNLIMITED: "unlimited"}.get(host.memlock_bytes, limit)
    caps = [name for name, has in (("IPC_LOCK", host.cap_ipc_lock), ("SYS_PTRACE", host.cap_sys_ptrace)) if has]
    own = [kind for kind, _, own in host.namespaces if own]
    peer = (
        f"{host.peer_module}{'' if host.peer_registered else ' (not registered)'}"
        if host.peer_module
        else "no nvidia_peermem"
    )
    dmabuf = {True: "dma-buf possible", False: "no dma-buf", None: "dma-buf not known"}[host.dmabuf_possible]
    iommu = {True: f"on ({', '.join(host.iommu_domains) or 'domains not readable'})", False: "off", None: NOT_MEASURED}
    nodes = "; ".join(f"node {node.node}: {node.cpus or 'no CPUs'}" for node in host.nodes) or NOT_MEASURED
    return [
        ("CPUs", nodes),
        ("memory", f"/dev/shm {gib(host.shm_bytes)}, memlock {memlock}"),
        ("access", f"ptrace_scope {'no Yama' if host.ptrace_scope is None else host.ptrace_scope}, "
                   f"capabilities {' '.join(caps) or 'neither IPC_LOCK nor SYS_PTRACE'}"),
        ("GPUDirect", f"{peer}, {dmabuf}, {host.uverbs_usable} of {host.uverbs} uverbs usable"),
        ("IOMMU", iommu[host.iommu]),
        ("namespaces", ", ".join(f"{kind} {number}" for kind, number, _ in host.namespaces)
                       + (f" (own {' and '.join(own)}: a container)" if own else "") or NOT_MEASURED),
        ("kernel", clean(host.kernel, 60)),
    ]  # fmt: skip


def refusals(machine: Machine) -> str:
    """What NVML did not report, and why, by reason; empty when it reported everything."""
    told: list[tuple[str, str, int | None]] = [(name, why, None) for name, why in machine.nvml.not_reported.items()]
    told += [(name, why, gpu.index) for gpu in machine.gpus for name, why in gpu.not_reported.items()]
    by_why: dict[str, list[str]] = {}
    for group in grouped(told, lambda one: (one[0], one[1])):
        name, why, _ = group[0]
        gpus = [index for _, _, index in group if index is not None]
        where = "" if len(gpus) in (0, len(machine.gpus)) else f" on GPU {spans(gpus)}"
        by_why.setdefault(clean(why, 80), []).append(f"{name}{where}")
    return "; ".join(f"{', '.join(names)}: {why}" for why, names in by_why.items())
