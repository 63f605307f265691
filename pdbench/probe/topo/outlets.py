"""The way off this host: for each GPU the nearest NIC that is up, and what the two carry together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pdbench.probe.nics import Nic
from pdbench.probe.topo.gpu import Gpu
from pdbench.probe.topo.machine import Machine

NEAR_FIRST = ("PIX", "PXB", "PHB", "NODE", "SYS")


@dataclass(frozen=True, slots=True)
class Outlet:
    """One GPU's nearest NICs (`mlx5_0:1`), how far they are, and GB/s one way through the best of them.

    `shared_with` are the other GPUs that have the same nearest NICs, when there are fewer NICs than GPUs.
    """

    gpu: int
    nics: tuple[str, ...]
    distance: str | None
    rdma: bool
    gb_s: float | None
    shared_with: tuple[int, ...] = ()


def outlets(machine: Machine) -> list[Outlet]:
    """One for each GPU that can be used, over RDMA where any RDMA port is up; none where no NIC is."""
    up = [(place, nic) for place, nic in enumerate(machine.nics) if nic.active]
    chosen = [entry for entry in up if entry[1].rdma] or up
    if not chosen:
        return []
    found = [_outlet(gpu, machine.nic_distance[at], chosen) for at, gpu in enumerate(machine.gpus) if not gpu.unusable]
    sharing: dict[tuple[str, ...], list[int]] = {}
    for outlet in found:
        sharing.setdefault(outlet.nics, []).append(outlet.gpu)
    return [_shared(outlet, sharing[outlet.nics]) for outlet in found]


def _outlet(gpu: Gpu, distances: Sequence[str | None], chosen: Sequence[tuple[int, Nic]]) -> Outlet:
    def far(entry: tuple[int, Nic]) -> int:
        distance = distances[entry[0]]
        return NEAR_FIRST.index(distance) if distance in NEAR_FIRST else len(NEAR_FIRST)

    nearest = min(far(entry) for entry in chosen)
    near = [nic for place, nic in chosen if far((place, nic)) == nearest]
    rates = [nic.gb_s for nic in near if nic.gb_s is not None]
    limit = [rate for rate in (max(rates, default=None), gpu.pcie_gb_s) if rate is not None]
    return Outlet(
        gpu=gpu.index,
        nics=tuple(nic.name for nic in near),
        distance=NEAR_FIRST[nearest] if nearest < len(NEAR_FIRST) else None,
        rdma=near[0].rdma,
        gb_s=min(limit) if rates else None,
    )


def _shared(outlet: Outlet, gpus: Sequence[int]) -> Outlet:
    if len(gpus) <= len(outlet.nics):
        return outlet
    others = tuple(gpu for gpu in gpus if gpu != outlet.gpu)
    return Outlet(outlet.gpu, outlet.nics, outlet.distance, outlet.rdma, outlet.gb_s, others)
