"""One GPU as NVML reports it. What it refuses is None, and `not_reported` says why."""

from __future__ import annotations

import ctypes
import dataclasses
import functools
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import pynvml

from pdbench.probe import pci
from pdbench.probe.line_rates import NVLINK_VERSION_NAMES, nvlink_gb_s, pcie_gb_s
from pdbench.probe.pci import PcieLink
from pdbench.probe.topo.nvml import (
    FABRIC_STATES,
    LINK_STATES,
    NO_MORE_LINKS,
    REMOTE_DEVICES,
    Reasons,
    ask,
    reason,
    words,
)

_CPU_WORDS, _NODE_WORDS, _WORD_BITS = 64, 16, 64
_LOST = ("GPU is lost", "GPU needs a reset")
_FABRIC_NOT_READY = ("not started", "in progress", "failed")
_NO_LINK = PcieLink()


@dataclass(frozen=True, slots=True)
class NvLink:
    """One NVLink: its state (`active`, `inactive`, `asleep`), NVML's number of its version, and what is at its end."""

    link: int
    state: str
    version: int | None
    remote: str | None
    remote_pci: str | None
    raw_mb_s: int | None

    @property
    def active(self) -> bool:
        return self.state == "active"

    @property
    def gb_s(self) -> float | None:
        return nvlink_gb_s(self.version, self.raw_mb_s)


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU by NVML's index. `trouble` is why it can't be used: lost, or not to be opened.

    `numa_node` is the node of the host's memory next to it, `own_numa_node` its own where its memory is a node.
    `nvlinks_built` is how many links the chip has; `nvlinks` None: their states are not reported.
    """

    index: int
    trouble: str | None = None
    name: str | None = None
    uuid: str | None = None
    pci: str | None = None
    memory_bytes: int | None = None
    compute_capability: str | None = None
    pcie: PcieLink = _NO_LINK
    card_gen_max: int | None = None
    pcie_replays: int | None = None
    numa_node: int | None = None
    own_numa_node: int | None = None
    cpu_affinity: frozenset[int] | None = None
    bar1_bytes: int | None = None
    ecc: bool | None = None
    ecc_pending: bool | None = None
    mig: bool | None = None
    mig_pending: bool | None = None
    mig_instances: int | None = None
    nvlinks_built: int | None = None
    nvlinks: tuple[NvLink, ...] | None = None
    fabric: str | None = None
    fabric_degraded: bool | None = None
    not_reported: Reasons = field(default_factory=dict)

    @property
    def active_links(self) -> list[NvLink]:
        return [link for link in self.nvlinks or () if link.active]

    @property
    def switch_links(self) -> list[NvLink]:
        return [link for link in self.active_links if link.remote == "switch"]

    @property
    def unusable(self) -> str | None:
        """Why nothing runs on it. CUDA does not start (error 802) before NVSwitch's fabric is set up."""
        if self.trouble is None and self.fabric is not None and self.fabric.startswith(_FABRIC_NOT_READY):
            return f"its NVSwitch fabric is not ready ({self.fabric}): CUDA ends with error 802"
        return self.trouble

    @property
    def nvlink_version(self) -> str | None:
        versions = {link.version for link in self.nvlinks or () if link.version is not None}
        return NVLINK_VERSION_NAMES.get(max(versions), f"?{max(versions)}") if versions else None

    @property
    def idle(self) -> bool | None:
        """Whether its PCIe link is down to a lower generation, as it is while nothing uses the GPU."""
        now, most = self.pcie.gen_now, self.pcie.gen_max
        return None if now is None or most is None else now < most

    @property
    def pcie_width(self) -> int | None:
        """The lanes to reckon with: fewer than possible count as they are, unless the GPU idles and may be saving."""
        now, most = self.pcie.width_now, self.pcie.width_max
        if now is None or most is None:
            return most if now is None else now
        return most if self.idle or now > most else now

    @property
    def pcie_gb_s(self) -> float | None:
        """One way at the full generation: an idle GPU's lower one is no limit."""
        generation = self.pcie.gen_now if self.pcie.gen_max is None else self.pcie.gen_max
        return pcie_gb_s(generation, self.pcie_width)


def read_gpu(index: int, handle: Any) -> Gpu:
    """Everything a handle tells. A GPU that is lost half-way keeps what it said before."""
    no: Reasons = {}
    info = ask(no, "pci", lambda: words(pynvml.nvmlDeviceGetPciInfo(handle).busId))
    ecc = ask(no, "ecc", lambda: pynvml.nvmlDeviceGetEccMode(handle)) or (None, None)
    mig = ask(no, "mig", lambda: pynvml.nvmlDeviceGetMigMode(handle)) or (None, None)
    fabric, degraded = _fabric(no, handle)
    built, links = _nvlinks(no, handle)
    cores = ask(no, "compute_capability", lambda: pynvml.nvmlDeviceGetCudaComputeCapability(handle))
    nodes = ask(no, "numa_node", lambda: _bits(pynvml.nvmlDeviceGetMemoryAffinity(handle, _NODE_WORDS, 0)))
    cpus = ask(no, "cpu_affinity", lambda: _bits(pynvml.nvmlDeviceGetCpuAffinity(handle, _CPU_WORDS)))
    gpu = Gpu(
        index=index,
        name=ask(no, "name", lambda: words(pynvml.nvmlDeviceGetName(handle))),
        uuid=ask(no, "uuid", lambda: words(pynvml.nvmlDeviceGetUUID(handle))),
        pci=pci.address(info) if info else None,
        memory_bytes=ask(no, "memory", lambda: int(pynvml.nvmlDeviceGetMemoryInfo(handle).total)) or None,
        compute_capability=f"{cores[0]}.{cores[1]}" if cores else None,
        pcie=PcieLink(
            ask(no, "pcie.gen_now", lambda: pynvml.nvmlDeviceGetCurrPcieLinkGeneration(handle)) or None,
            ask(no, "pcie.width_now", lambda: pynvml.nvmlDeviceGetCurrPcieLinkWidth(handle)) or None,
            ask(no, "pcie.gen_max", lambda: pynvml.nvmlDeviceGetMaxPcieLinkGeneration(handle)) or None,
            ask(no, "pcie.width_max", lambda: pynvml.nvmlDeviceGetMaxPcieLinkWidth(handle)) or None,
        ),
        card_gen_max=ask(no, "pcie.card_gen_max", lambda: pynvml.nvmlDeviceGetGpuMaxPcieLinkGeneration(handle)),
        pcie_replays=ask(no, "pcie.replays", lambda: pynvml.nvmlDeviceGetPcieReplayCounter(handle)),
        numa_node=min(nodes, default=None) if nodes else None,
        own_numa_node=ask(no, "own_numa_node", lambda: int(pynvml.nvmlDeviceGetNumaNodeId(handle))),
        cpu_affinity=cpus or None,
        bar1_bytes=ask(no, "bar1", lambda: int(pynvml.nvmlDeviceGetBAR1MemoryInfo(handle).bar1Total)),
        ecc=_switch(ecc[0]),
        ecc_pending=_switch(ecc[1]),
        mig=_switch(mig[0]),
        mig_pending=_switch(mig[1]),
        mig_instances=_mig_instances(no, handle) if mig[0] else None,
        nvlinks_built=built,
        nvlinks=links,
        fabric=fabric,
        fabric_degraded=degraded,
        not_reported=no,
    )
    return dataclasses.replace(gpu, trouble=next((why for why in no.values() if why in _LOST), None))


def _switch(value: int | None) -> bool | None:
    return None if value is None else bool(value)


def _bits(array: Iterable[int]) -> frozenset[int]:
    """The numbers of the bits that are set in an array of 64-bit words."""
    return frozenset(
        place * _WORD_BITS + bit for place, word in enumerate(array) for bit in range(_WORD_BITS) if word >> bit & 1
    )


def _fabric(no: Reasons, handle: Any) -> tuple[str | None, bool | None]:
    """The state of a GPU's registration with NVSwitch, and whether its bandwidth is degraded."""

    def call() -> Any:
        info = pynvml.c_nvmlGpuFabricInfoV_t()
        pynvml.nvmlDeviceGetGpuFabricInfoV(handle, ctypes.byref(info))
        return info

    info = ask(no, "fabric", call)
    if info is None:
        return None, None
    state = FABRIC_STATES.get(info.state, f"?{info.state}")
    if state == "completed" and info.status:
        state = f"failed ({reason(pynvml.NVMLError(info.status))})"
    degraded = {1: True, 2: False}.get(info.healthMask & 3)
    return state, degraded


def _mig_instances(no: Reasons, handle: Any) -> int | None:
    most = ask(no, "mig_instances", lambda: pynvml.nvmlDeviceGetMaxMigDeviceCount(handle))
    if most is None:
        return None
    unused: Reasons = {}
    handle_of = pynvml.nvmlDeviceGetMigDeviceHandleByIndex
    found = [ask(unused, "", functools.partial(handle_of, handle, slot)) for slot in range(most)]
    return sum(instance is not None for instance in found)


def _nvlinks(no: Reasons, handle: Any) -> tuple[int | None, tuple[NvLink, ...] | None]:
    """How many NVLinks the chip has, and each of them. (0, ()) is a GPU without; None is not reported."""
    fields = _fields(no, handle)
    built = fields.get(pynvml.NVML_FI_DEV_NVLINK_LINK_COUNT)
    most = pynvml.NVML_NVLINK_MAX_LINKS
    found: list[NvLink] = []
    why = None
    for number in range(most if built is None else min(built, most)):
        try:
            state = pynvml.nvmlDeviceGetNvLinkState(handle, number)
        except pynvml.NVMLError as error:
            why = reason(error)
            if built is None:  # then this is how the links end
                why = why if error.value not in NO_MORE_LINKS else None
                break
            continue
        found.append(_nvlink(handle, number, state, fields.get(pynvml.NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON)))
    if why is not None:
        no["nvlinks"] = why
    if why is not None and not found:
        return built, None
    return len(found) if built is None else built, tuple(found)


def _nvlink(handle: Any, number: int, state: int, common_mb_s: int | None) -> NvLink:
    no: Reasons = {}
    speed = ask(
        no,
        "",
        lambda: _value(pynvml.nvmlDeviceGetFieldValues(handle, [(pynvml.NVML_FI_DEV_NVLINK_GET_SPEED, number)])[0]),
    )
    remote = ask(no, "", lambda: words(pynvml.nvmlDeviceGetNvLinkRemotePciInfo(handle, number).busId))
    kind = ask(no, "", lambda: pynvml.nvmlDeviceGetNvLinkRemoteDeviceType(handle, number))
    return NvLink(
        link=number,
        state=LINK_STATES.get(state, f"?{state}"),
        version=ask(no, "", lambda: pynvml.nvmlDeviceGetNvLinkVersion(handle, number)),
        remote=REMOTE_DEVICES.get(kind) if kind is not None else None,
        remote_pci=pci.address(remote) if remote else None,
        raw_mb_s=speed or common_mb_s,
    )


def _fields(no: Reasons, handle: Any) -> dict[int, int]:
    wanted = [pynvml.NVML_FI_DEV_NVLINK_LINK_COUNT, pynvml.NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON]
    answers = ask(no, "nvlinks_built", lambda: pynvml.nvmlDeviceGetFieldValues(handle, wanted))
    found = {answer.fieldId: _value(answer) for answer in answers or ()}
    return {number: value for number, value in found.items() if value is not None}


def _value(answer: Any) -> int | None:
    """A field's number. Each has a return code of its own, and a type that says which member of a union holds it."""
    members = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
    if answer.nvmlReturn != pynvml.NVML_SUCCESS or answer.valueType >= len(members):
        return None
    return int(getattr(answer.value, members[answer.valueType]))
