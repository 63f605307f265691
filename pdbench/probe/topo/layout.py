"""Where each box of the drawing stands: sockets side by side, in each its PCIe branches, GPUs above and NICs below."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pdbench.probe.nics import Nic
from pdbench.probe.topo.gpu import Gpu
from pdbench.probe.topo.machine import Machine

BOX_WIDTH, BOX_GAP, BRANCH_GAP, SOCKET_GAP, MARGIN = 148, 12, 26, 56, 22


@dataclass(frozen=True, slots=True)
class Place:
    """A GPU or a NIC, and the left side of its box."""

    what: Gpu | Nic
    x: float

    @property
    def middle(self) -> float:
        return self.x + BOX_WIDTH / 2


@dataclass(frozen=True, slots=True)
class Branch:
    """What shares a PCIe switch, named by its upstream port; `switch` None: each sits on a root port of its own."""

    switch: str | None
    gpus: tuple[Place, ...]
    nics: tuple[Place, ...]

    @property
    def left(self) -> float:
        return min(place.x for place in (*self.gpus, *self.nics))

    @property
    def right(self) -> float:
        return max(place.x for place in (*self.gpus, *self.nics)) + BOX_WIDTH


@dataclass(frozen=True, slots=True)
class Socket:
    """One NUMA node; None: not reported which."""

    node: int | None
    cpus: str | None
    branches: tuple[Branch, ...]

    @property
    def left(self) -> float:
        return self.branches[0].left

    @property
    def right(self) -> float:
        return self.branches[-1].right


@dataclass(frozen=True, slots=True)
class Layout:
    sockets: tuple[Socket, ...]
    width: float

    @property
    def branches(self) -> Iterator[Branch]:
        for socket in self.sockets:
            yield from socket.branches

    @property
    def gpus(self) -> dict[int, Place]:
        return {
            place.what.index: place for branch in self.branches for place in branch.gpus if isinstance(place.what, Gpu)
        }


def laid_out(machine: Machine) -> Layout:
    """Network devices that are down and no RDMA ports are left out: every server has a few."""
    devices: list[Gpu | Nic] = [*machine.gpus, *(nic for nic in machine.nics if nic.rdma or nic.active)]
    cpus = {node.node: node.cpus for node in machine.host.nodes}
    nodes = sorted({device.numa_node for device in devices}, key=lambda node: (node is None, node or 0))
    sockets = []
    x = float(MARGIN)
    for node in nodes:
        branches = []
        for switch, members in _by_switch(machine, [device for device in devices if device.numa_node == node]):
            branches.append(_branch(switch, members, x))
            x = branches[-1].right + BRANCH_GAP
        sockets.append(Socket(node, cpus.get(node) if node is not None else None, tuple(branches)))
        x += SOCKET_GAP - BRANCH_GAP
    return Layout(tuple(sockets), max(x - SOCKET_GAP + MARGIN, 2 * MARGIN + BOX_WIDTH))


def _by_switch(machine: Machine, devices: Sequence[Gpu | Nic]) -> list[tuple[str | None, list[Gpu | Nic]]]:
    """Those with GPUs first, those on root ports last."""
    found: dict[str | None, list[Gpu | Nic]] = {}
    for device in devices:
        found.setdefault(machine.switches.get(device.pci or ""), []).append(device)
    return sorted(found.items(), key=lambda branch: (not any(isinstance(one, Gpu) for one in branch[1]), not branch[0]))


def _branch(switch: str | None, members: Sequence[Gpu | Nic], x: float) -> Branch:
    """NICs stand below the GPUs of their switch; without a switch beside them, so that each wire runs straight down."""
    gpus = [member for member in members if isinstance(member, Gpu)]
    nics = [member for member in members if isinstance(member, Nic)]
    beside = len(gpus) if switch is None else 0

    def at(column: int) -> float:
        return x + column * (BOX_WIDTH + BOX_GAP)

    return Branch(
        switch,
        tuple(Place(gpu, at(column)) for column, gpu in enumerate(gpus)),
        tuple(Place(nic, at(column + beside)) for column, nic in enumerate(nics)),
    )
