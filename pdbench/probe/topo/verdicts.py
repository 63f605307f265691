"""What a pair's path means for the handoff, in a sentence."""

from __future__ import annotations

from pdbench.probe.topo.gpu import Gpu
from pdbench.probe.topo.nvml import P2P_MEANING
from pdbench.probe.topo.pairs import Pair

_OVER = {
    "INT": "PCIe inside one board",
    "PIX": "PCIe below one switch",
    "PXB": "PCIe and several switches",
    "PHB": "PCIe and the host bridge",
    "NODE": "PCIe and two host bridges of one socket",
    "SYS": "PCIe and the link between sockets, which others share and whose speed is not known here",
}
_PUBLISHED_BOUNCE = "in public 470 MB took 1.3 s on two L40S"


def verdict(pair: Pair, reads_over_cuda_ipc: bool | None) -> str:
    """The path, what to expect of it, and what else must hold."""
    if pair.path == "none":
        return "; ".join(f"GPU {gpu.index} cannot be used: {gpu.unusable}" for gpu in (pair.a, pair.b) if gpu.unusable)
    if pair.path == "host":
        return _bounce(pair)
    if pair.path == "unknown":
        return "the driver does not say whether P2P is allowed: measure it with pdbench probe-transfer"
    parts = [_direct(pair), _expected(pair)]
    if pair.nvlinks and not pair.over_nvlink:
        parts.append(f"its {pair.nvlinks} NVLinks are not used: P2P over NVLink is {named(pair.nvlink)}")
    if pair.acs:
        parts.append("ACS sends it up through the root complex: slow, or it hangs; turn ACS off on the switch")
    if pair.write not in ("OK", None):
        parts.append(f"writes are {named(pair.write)}: push bounces through host memory, pull does not")
    if reads_over_cuda_ipc is False:
        parts.append("pull needs UCX_CUDA_IPC_ENABLE_GET_ZCOPY=on, or UCX takes a NIC or TCP")
    return "; ".join(part for part in [*parts, _doubt(pair)] if part)


def _direct(pair: Pair) -> str:
    if pair.path == "pcie":
        return f"direct over {_OVER.get(pair.ancestor or '', 'PCIe')}"
    count = f"{pair.nvlinks} NVLink{'' if pair.nvlinks == 1 else 's'}" if pair.nvlinks else "NVLink"
    return f"direct over {count}" + (" and NVSwitch" if pair.path == "nvswitch" else "")


def _expected(pair: Pair) -> str:
    if pair.gb_s is None:
        return "how much it carries is not reported"
    if pair.expect_gb_s is None or pair.measured is None:
        return f"at most {pair.gb_s:.3g} GB/s"
    low, high = pair.expect_gb_s
    reached = f"{low:.3g}" if f"{low:.3g}" == f"{high:.3g}" else f"{low:.3g} to {high:.3g}"
    return f"expect about {reached} of {pair.gb_s:.3g} GB/s (measured in {pair.measured.source.partition(';')[0]})"


def _bounce(pair: Pair) -> str:
    mig = [gpu for gpu in (pair.a, pair.b) if gpu.mig]
    why = "MIG has no P2P" if mig else named(pair.read)
    expect = "how much that carries is not reported"
    if pair.gb_s is not None:
        expect = f"expect less than {pair.gb_s:.3g} GB/s, {pair.gb_s / 2:.3g} unless both copies overlap"
    parts = [f"{why}: KV bounces through host memory", expect, _PUBLISHED_BOUNCE]
    if pair.write == "OK" and not mig:
        parts.append("writes are allowed, so push goes direct")
    return "; ".join(part for part in [*parts, _doubt(pair)] if part)


def _doubt(pair: Pair) -> str:
    """An idle GPU with fewer lanes than it could have may be saving power, or be badly seated."""
    doubted = [gpu for gpu in (pair.a, pair.b) if width_in_doubt(gpu)] if not pair.over_nvlink else []
    return "; ".join(
        f"GPU {gpu.index} idles at x{gpu.pcie.width_now} of x{gpu.pcie.width_max}: less if it stays so under load"
        for gpu in doubted
    )


def width_in_doubt(gpu: Gpu) -> bool:
    """Fewer lanes than possible while the generation is down too: it can't be told here whether it is saving power."""
    now, most = gpu.pcie.width_now, gpu.pcie.width_max
    return bool(gpu.idle and now is not None and most is not None and now < most)


def named(status: str | None) -> str:
    """`NS (not supported)`."""
    if status is None:
        return "not reported"
    return f"{status} ({P2P_MEANING.get(status, 'a status that this version does not know')})"
