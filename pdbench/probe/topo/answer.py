"""A machine and what follows from it: the record that every view shows, and its first sentence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from pdbench.probe.topo.finding import Finding, listed_pairs, names
from pdbench.probe.topo.findings import findings
from pdbench.probe.topo.machine import Machine
from pdbench.probe.topo.outlets import Outlet, outlets
from pdbench.probe.topo.pairs import Pair, judged, reads_over_cuda_ipc
from pdbench.probe.topo.plan import Instances, Plan, judge
from pdbench.probe.topo.verdicts import verdict

_NAMED = 4  # pairs that a headline names
_KINDS = {"nvswitch": "over NVSwitch", "nvlink": "over NVLink", "pcie": "over PCIe"}


@dataclass(frozen=True, slots=True)
class Answer:
    """`pairs` are ranked, best first, each with its verdict at the same place of `verdicts`."""

    headline: str
    machine: Machine
    pairs: tuple[Pair, ...]
    verdicts: tuple[str, ...]
    outlets: tuple[Outlet, ...]
    findings: tuple[Finding, ...]
    plan: Plan | None


def answer(machine: Machine, roles: dict[str, Instances] | None = None) -> Answer:
    pairs = judged(machine)
    reads = reads_over_cuda_ipc(machine.gpus)
    return Answer(
        headline=headline(machine, pairs),
        machine=machine,
        pairs=tuple(pairs),
        verdicts=tuple(verdict(pair, reads) for pair in pairs),
        outlets=tuple(outlets(machine)),
        findings=tuple(findings(machine, pairs)),
        plan=judge(machine, pairs, roles) if roles else None,
    )


def headline(machine: Machine, pairs: Sequence[Pair]) -> str:
    """What a reader came for: which way KV goes between these GPUs."""
    trouble, gpus = machine.nvml.trouble, machine.gpus
    if trouble is not None:
        return f"No GPU to judge: {trouble.message}."
    if not gpus:
        return "No GPU to judge: the NVIDIA driver is here and shows none."
    gone = [gpu for gpu in gpus if gpu.unusable]
    kinds = Counter(gpu.name or "unnamed GPU" for gpu in gpus if gpu not in gone) or Counter({"GPU": len(gpus)})
    have = " and ".join(f"{count} x {name}" for name, count in kinds.items())
    tail = f" {names(gone)} cannot be used." if gone else ""
    usable = [pair for pair in pairs if pair.path != "none"]
    if not usable:
        return f"{have}: no pair of GPUs to judge.{tail}"
    return f"{have}: {'; '.join(_ways(usable))}.{tail}"


def _ways(pairs: Sequence[Pair]) -> list[str]:
    by_path = {path: [pair for pair in pairs if pair.path == path] for path in (*_KINDS, "host", "unknown")}
    said = []
    if some := by_path["host"]:
        said.append(f"KV will bounce through host memory {_where(some, pairs)}")
    direct = [f"{over}{_speed(some)} {_where(some, pairs)}" for path, over in _KINDS.items() if (some := by_path[path])]
    if direct:
        said.append(f"KV goes directly {', '.join(direct)}")
    if some := by_path["unknown"]:
        said.append(f"the driver does not say whether P2P is allowed {_where(some, pairs)}")
    return said


def _speed(pairs: Sequence[Pair]) -> str:
    rates = sorted({pair.gb_s for pair in pairs if pair.gb_s is not None})
    if not rates:
        return ""
    return f" ({rates[-1]:.3g} GB/s)" if len(rates) == 1 else f" ({rates[0]:.3g} to {rates[-1]:.3g} GB/s)"


def _where(some: Sequence[Pair], pairs: Sequence[Pair]) -> str:
    if len(pairs) == 1:
        return f"between GPU {some[0].a.index} and {some[0].b.index}"
    if _NAMED < len(some) < len(pairs):
        return f"on {len(some)} of {len(pairs)} pairs"
    return f"on {listed_pairs(some, len(pairs))}"
