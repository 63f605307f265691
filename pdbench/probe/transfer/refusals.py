"""Why NIXL or UCX refused, from what they write into their logs: known refusals with the next thing to do."""

from __future__ import annotations

import re

from pdbench.probe.transfer.nixl import NixlRefused

# What the log says, what that means, and what to do. The first that matches is the cause; later ones follow from it.
KNOWN = (
    (
        r"process_vm_(?:readv|writev)\(.*?(?P<why>Operation not permitted|No such process|Permission denied)",
        "UCX may not copy from the other process (cma, process_vm_readv: {why})",
        "Run both sides as one user in one PID namespace, with CAP_SYS_PTRACE or kernel.yama.ptrace_scope=0; "
        "or leave cma out: UCX_TLS=^cma.",
    ),
    (
        r"VRAM memory is detected as host by UCX",
        "this UCX cannot tell GPU memory from host memory: it was built without CUDA or ROCm, or sees no GPU",
        "Use the NIXL of the serving environment, or measure --memory dram.",
    ),
    (
        r"(?:ibv_reg_\w*mr|mlx5dv_devx_umem_reg)\b.*?"
        r"(?P<why>Cannot allocate memory|Operation not permitted|Bad address|Invalid argument)",
        "the NIC's driver will not register this memory ({why})",
        "RDMA pins memory: `ulimit -l` (memlock) must hold it, and GPU memory wants nvidia_peermem or dma-buf.",
    ),
    (
        r"transport '(?P<what>[^']+)' is not available, please use one or more of: (?P<has>.+)$",
        "UCX has no transport {what} here (UCX_TLS)",
        "It has: {has}.",
    ),
    (
        r"network device '(?P<what>[^']+)' is not available, please use one or more of: (?P<has>.+)$",
        "UCX sees no network device {what} (UCX_NET_DEVICES)",
        "It sees: {has}.",
    ),
    (
        r"no active messages transport to [^:]*: (?P<what>.+)$",
        "no transport that UCX may use can tell that a peer died, which NIXL asks for ({what})",
        "Add one that can to UCX_TLS, such as cma or tcp.",
    ),
    (
        r"no usable transports/devices \((?P<what>.+)\)$",
        "UCX finds no transport or device to use ({what})",
        "Look at UCX_TLS and UCX_NET_DEVICES.",
    ),
)  # fmt: skip
_SAID = re.compile(r"UCX\s+(?P<level>ERROR|WARN)\s+(?P<text>.+)$|^(?P<mark>[EW])\d{4} .*?\]\s*(?P<own>.+)$")


def complaints(log: str) -> list[str]:
    """What UCX and NIXL complain of, without times and places: errors before warnings, each once."""
    found: dict[str, int] = {}
    for line in log.splitlines():
        match = _SAID.search(line)
        if match:
            warning = "WARN" in (match["level"] or "") or match["mark"] == "W"
            found.setdefault((match["text"] or match["own"]).strip(), int(warning))
    return sorted(found, key=lambda text: found[text])


def explained(error: NixlRefused, log: str) -> NixlRefused:
    """The same refusal with its cause, as far as the log tells it."""
    said = complaints(log)
    for wanted, meaning, advice in KNOWN:
        match = next((found for text in said if (found := re.search(wanted, text))), None)
        if match:
            words = match.groupdict()
            return NixlRefused(error.what, error.kind, meaning.format(**words), advice.format(**words))
    return NixlRefused(error.what, error.kind, said[0] if said else error.why)
