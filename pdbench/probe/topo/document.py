"""An answer as JSON (docs/topo.md lists the keys). null is "not reported"; what else a read says is in not_reported."""

from __future__ import annotations

import dataclasses
from typing import Any

from pdbench.probe.nics import Nic
from pdbench.probe.pci import PcieLink
from pdbench.probe.topo.answer import Answer
from pdbench.probe.topo.gpu import Gpu
from pdbench.probe.topo.host import UNLIMITED, Host, cpu_list
from pdbench.probe.topo.machine import Machine
from pdbench.probe.topo.nvml_side import SELF
from pdbench.probe.topo.pairs import Pair, links_between
from pdbench.probe.topo.plan import Plan

Document = dict[str, Any]


def document(answer: Answer) -> Document:
    machine = answer.machine
    nvml = machine.nvml
    trouble = nvml.trouble
    return {
        "answer": answer.headline,
        "nvml": dataclasses.asdict(trouble) if trouble else {"code": "ok", "message": "", "advice": ""},
        "driver": dataclasses.asdict(nvml.driver),
        "gpus": [_gpu(gpu) for gpu in machine.gpus],
        "p2p": {name: [list(row) for row in matrix] for name, matrix in nvml.p2p.items()},
        "ancestor": [list(row) for row in nvml.ancestor],
        "topo": connections(machine),
        "pairs": [
            _pair(place + 1, pair, verdict)
            for place, (pair, verdict) in enumerate(zip(answer.pairs, answer.verdicts, strict=True))
        ],
        "nics": [_nic(machine, place, nic) for place, nic in enumerate(machine.nics)],
        "outlets": [dataclasses.asdict(outlet) for outlet in answer.outlets],
        "pci_gpus": [dataclasses.asdict(gpu) for gpu in machine.pci_gpus],
        "host": _host(machine.host),
        "findings": [dataclasses.asdict(finding) for finding in answer.findings],
        "not_reported": dict(nvml.not_reported),
        **({"plan": _plan(answer.plan)} if answer.plan else {}),
    }


def connections(machine: Machine) -> list[list[str | None]]:
    """The cells of nvidia-smi topo -m: NVLinks where there are any, else the common ancestor."""
    gpus = machine.gpus
    return [
        [
            SELF if a == b else f"NV{links}" if (links := links_between(gpus[a], gpus[b])) else cell
            for b, cell in enumerate(row)
        ]
        for a, row in enumerate(machine.nvml.ancestor)
    ]


def _gpu(gpu: Gpu) -> Document:
    links = gpu.nvlinks
    return {
        "index": gpu.index,
        "name": gpu.name,
        "uuid": gpu.uuid,
        "pci": gpu.pci,
        "trouble": gpu.unusable,
        "memory_bytes": gpu.memory_bytes,
        "compute_capability": gpu.compute_capability,
        "pcie": {
            **_pcie(gpu.pcie),
            "card_gen_max": gpu.card_gen_max,
            "gb_s": gpu.pcie_gb_s,
            "replays": gpu.pcie_replays,
        },
        "numa_node": gpu.numa_node,
        "own_numa_node": gpu.own_numa_node,
        "cpu_affinity": cpu_list(gpu.cpu_affinity) if gpu.cpu_affinity else None,
        "bar1_bytes": gpu.bar1_bytes,
        "ecc": gpu.ecc,
        "ecc_pending": gpu.ecc_pending,
        "mig": gpu.mig,
        "mig_pending": gpu.mig_pending,
        "mig_instances": gpu.mig_instances,
        "nvlink": {
            "links": gpu.nvlinks_built,
            "active": len(gpu.active_links) if links is not None else None,
            "version": gpu.nvlink_version,
            "mb_s_per_link": max((link.raw_mb_s for link in links or () if link.raw_mb_s), default=None),
            "nvswitch": bool(gpu.switch_links) if links is not None else None,
            "each": [dataclasses.asdict(link) for link in links or ()],
        },
        "fabric": gpu.fabric,
        "fabric_degraded": gpu.fabric_degraded,
        "not_reported": dict(gpu.not_reported),
    }


def _pcie(link: PcieLink) -> Document:
    return dataclasses.asdict(link)


def _pair(rank: int, pair: Pair, verdict: str) -> Document:
    expect = pair.expect_gb_s
    return {
        "rank": rank,
        "a": pair.a.index,
        "b": pair.b.index,
        "read": pair.read,
        "write": pair.write,
        "ancestor": pair.ancestor,
        "nvlinks": pair.nvlinks,
        "path": pair.path,
        "gb_s": _rounded(pair.gb_s),
        "expect_gb_s": [_rounded(rate) for rate in expect] if expect else None,
        "acs_redirect": pair.acs,
        "verdict": verdict,
    }


def _rounded(rate: float | None) -> float | None:
    return None if rate is None else round(rate, 3)


def _nic(machine: Machine, place: int, nic: Nic) -> Document:
    return {
        **{name: value for name, value in dataclasses.asdict(nic).items() if name != "pcie"},
        "active": nic.active,
        "line_gb_s": nic.line_gb_s,
        "gb_s": _rounded(nic.gb_s),
        "pcie": _pcie(nic.pcie),
        "gpu_distance": [row[place] for row in machine.nic_distance],
    }


def _host(host: Host) -> Document:
    return {
        "kernel": host.kernel,
        "shm_bytes": host.shm_bytes,
        "shm_free_bytes": host.shm_free_bytes,
        "memlock_bytes": None if host.memlock_bytes == UNLIMITED else host.memlock_bytes,
        "memlock_unlimited": host.memlock_bytes == UNLIMITED,
        "ptrace_scope": host.ptrace_scope,
        "cap_ipc_lock": host.cap_ipc_lock,
        "cap_sys_ptrace": host.cap_sys_ptrace,
        "iommu": host.iommu,
        "iommu_domains": list(host.iommu_domains),
        "nvidia_peermem": host.peer_module,
        "peer_memory_registered": host.peer_registered,
        "open_kernel_module": host.open_module,
        "dmabuf_possible": host.dmabuf_possible,
        "uverbs": host.uverbs,
        "uverbs_usable": host.uverbs_usable,
        "numa_nodes": [dataclasses.asdict(node) for node in host.nodes],
        "allowed_cpus": cpu_list(host.allowed_cpus) if host.allowed_cpus else None,
        "namespaces": {kind: {"number": number, "own": own} for kind, number, own in host.namespaces},
    }


def _plan(plan: Plan) -> Document:
    return {
        "prefill": [list(gpus) for gpus in plan.prefill],
        "decode": [list(gpus) for gpus in plan.decode],
        "works": plan.works,
        "problems": list(plan.problems),
        "verdict": plan.verdict,
        "rank_pairs": [{"prefill": p, "decode": d} for p, d in plan.aligned],
        "shared": [dataclasses.asdict(shared) for shared in plan.shared],
        "better": dataclasses.asdict(plan.better) if plan.better else None,
    }
