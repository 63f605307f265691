"""Machines as topology tables of the stub (stub/nvml.c says the format). The figures are those of the data sheets."""

from __future__ import annotations

from collections.abc import Iterable

GIB = 2**30
BUSES = ("19", "3B", "4C", "5D", "9B", "BB", "CB", "DB")

# Every function that a read of a GPU uses, and those that ask about two.
OF_ONE = (
    "nvmlDeviceGetName", "nvmlDeviceGetUUID", "nvmlDeviceGetPciInfo_v3", "nvmlDeviceGetMemoryInfo",
    "nvmlDeviceGetBAR1MemoryInfo", "nvmlDeviceGetNvLinkState", "nvmlDeviceGetNvLinkVersion",
    "nvmlDeviceGetNvLinkRemoteDeviceType", "nvmlDeviceGetNvLinkRemotePciInfo_v2", "nvmlDeviceGetFieldValues",
    "nvmlDeviceGetCurrPcieLinkGeneration", "nvmlDeviceGetCurrPcieLinkWidth", "nvmlDeviceGetMaxPcieLinkGeneration",
    "nvmlDeviceGetMaxPcieLinkWidth", "nvmlDeviceGetGpuMaxPcieLinkGeneration", "nvmlDeviceGetPcieReplayCounter",
    "nvmlDeviceGetNumaNodeId", "nvmlDeviceGetCpuAffinity", "nvmlDeviceGetMemoryAffinity", "nvmlDeviceGetEccMode",
    "nvmlDeviceGetMigMode", "nvmlDeviceGetCudaComputeCapability", "nvmlDeviceGetGpuFabricInfoV",
    "nvmlDeviceGetMaxMigDeviceCount",
)  # fmt: skip
OF_TWO = ("nvmlDeviceGetP2PStatus", "nvmlDeviceGetTopologyCommonAncestor")
OF_ALL = (
    "nvmlSystemGetDriverVersion", "nvmlSystemGetNVMLVersion", "nvmlSystemGetCudaDriverVersion",
    "nvmlDeviceGetCount_v2", "nvmlDeviceGetHandleByIndex_v2", "nvmlShutdown",
)  # fmt: skip


def table(*parts: Iterable[str] | str) -> str:
    lines = [line for part in parts for line in ([part] if isinstance(part, str) else part)]
    return "\n".join(["driver 570.124.06", "cuda 12080", *lines, ""])


def h200(count: int = 8, **keys: object) -> list[str]:
    """An HGX board: 18 NVLink 4 links a GPU into NVSwitch, four GPUs on each socket."""
    rest = " ".join(f"{key}={value}" for key, value in keys.items())
    lines = [
        f"gpu {i} name=NVIDIA_H200 pci=00000000:{BUSES[i]}:00.0 mem={140 * GIB} bar1={256 * GIB} numa={i // 4} "
        f"cpus={'0xffffffff' if i < 4 else '0xffffffff00000000'} gen=5 gmax=5 dmax=5 width=16 wmax=16 ecc=1 mig=0 "
        f"cc=9.0 links=18 linkver=6 linkmbps=26562 fabric=3 {rest}"
        for i in range(count)
    ]
    across = [f"topo {a} {b} SYS" for a in range(min(count, 4)) for b in range(4, count)]
    return [*lines, "topo * * NODE", *across, "p2p * * OK OK OK OK OK", "link * * 1 switch 00000000:01:00.0"]


def l40s(status: str = "NS", *, now: str = "gen=1 width=16") -> list[str]:
    """Two cards on two sockets."""
    return [
        *(
            f"gpu {i} name=NVIDIA_L40S pci=00000000:{bus}:00.0 mem={48 * GIB} bar1={64 * GIB} numa={i} gmax=4 dmax=4 "
            f"wmax=16 ecc=1 cc=8.9 {now}"
            for i, bus in enumerate(("17", "CA"))
        ),
        "topo 0 1 SYS",
        f"p2p 0 1 {status} {status} NS NS {status}",
    ]


def a100_pcie() -> list[str]:
    """Eight PCIe cards over two sockets, joined in pairs by NVLink bridges of 12 links."""
    bus = [f"{2 + i}1" for i in range(8)]
    lines = [
        f"gpu {i} name=NVIDIA_A100_80GB_PCIe pci=00000000:{bus[i]}:00.0 mem={80 * GIB} bar1={128 * GIB} numa={i // 4} "
        "gen=4 gmax=4 dmax=4 width=16 wmax=16 ecc=1 mig=0 cc=8.0 links=12 linkver=4 linkmbps=25000"
        for i in range(8)
    ]
    near = [f"topo {a} {b} PHB" for first in (0, 4) for a in range(first, first + 4) for b in range(first, first + 4)]
    bridges = [
        line
        for a in (0, 2, 4, 6)
        for line in (
            f"topo {a} {a + 1} PIX",
            f"p2p {a} {a + 1} OK OK OK OK OK",
            f"link {a} * 1 gpu 00000000:{bus[a + 1]}:00.0",
            f"link {a + 1} * 1 gpu 00000000:{bus[a]}:00.0",
        )
    ]
    return [*lines, "topo * * SYS", "p2p * * OK OK NS OK OK", *near, *bridges]


def fails(functions: Iterable[str], code: int, gpu: int | None = None) -> list[str]:
    return [f"fail {function} {code}{'' if gpu is None else f' {gpu}'}" for function in functions]
