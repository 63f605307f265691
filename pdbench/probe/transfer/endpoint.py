"""One end of the path: an agent of NIXL, its registered memory, and what it knows of the other end's."""

from __future__ import annotations

import base64
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from pdbench.littles_law.plan_text import binary_size
from pdbench.probe.transfer.channel import Message
from pdbench.probe.transfer.cuda import pci_address
from pdbench.probe.transfer.memory import Memory, memory_of, wipe
from pdbench.probe.transfer.nixl import agent_of, refused


@dataclass(frozen=True, slots=True)
class Remote:
    """The other end's memory, under the name by which this end's agent knows it."""

    agent: str
    address: int
    device: int
    pci: str | None


@dataclass(slots=True)
class Endpoint:
    """`remote` is None until both ends have met. `setup_ms`: what happens once, and is in no figure of a transfer."""

    agent: Any
    name: str
    backend: str
    memory: Memory
    registration: Any
    setup_ms: dict[str, float]
    remote: Remote | None = None

    def introduction(self) -> Message:
        metadata = base64.b64encode(self.agent.get_agent_metadata()).decode()
        where = {"address": self.memory.address, "device": self.memory.device, "pci": self.pci}
        return {"metadata": metadata, **where}

    @property
    def pci(self) -> str | None:
        return pci_address(self.memory.device) if self.memory.kind == "VRAM" else None

    def meet(self, other: Message) -> None:
        begin = time.perf_counter()
        with refused("connect to the other side"):
            name = self.agent.add_remote_agent(base64.b64decode(other["metadata"]))
            self.agent.make_connection(name)
        self.setup_ms["connect"] = since_ms(begin)
        self.remote = Remote(name, int(other["address"]), int(other["device"]), other["pci"])

    def close(self) -> None:
        with refused("take back its registration"):
            if self.remote is not None:
                self.agent.remove_remote_agent(self.remote.agent)
            self.agent.deregister_memory(self.registration)


def open_endpoint(api: Any, role: str, backend: str, kind: str, nbytes: int, device: int, threads: int) -> Endpoint:
    """`nbytes` of memory of `kind`, touched and registered with a fresh agent."""
    memory = memory_of(kind, nbytes, device)
    wipe(memory, nbytes)
    name = f"pdbench-{role}-{backend}-{kind}".lower()
    begin = time.perf_counter()
    agent = agent_of(api, name, backend, threads)
    setup_ms = {"agent": since_ms(begin)}
    begin = time.perf_counter()
    with refused(f"register {binary_size(nbytes)} of {kind}"):
        rows = np.array([[memory.address, nbytes, memory.device]], dtype=np.uint64)
        registration = agent.register_memory(rows, kind, backends=[backend])
    setup_ms["register"] = since_ms(begin)
    return Endpoint(agent, name, backend, memory, registration, setup_ms)


def since_ms(begin: float) -> float:
    return (time.perf_counter() - begin) * 1000
