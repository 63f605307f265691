"""Findings on GPUs and what lies between them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pdbench.probe.line_rates import pcie_gb_s
from pdbench.probe.topo.finding import FAIL, NOTE, WARN, Finding, capital, gib, listed_pairs, names, s
from pdbench.probe.topo.machine import Machine
from pdbench.probe.topo.pairs import Pair, reads_over_cuda_ipc
from pdbench.probe.topo.verdicts import named, width_in_doubt


def driver(machine: Machine, pairs: Sequence[Pair]) -> Iterator[Finding]:
    trouble = machine.nvml.trouble
    shown = {gpu.pci for gpu in machine.gpus}
    on_bus = [gpu for gpu in machine.pci_gpus if gpu.vendor == "NVIDIA"]
    if trouble is not None:
        seen = f" {len(on_bus)} NVIDIA GPU{s(on_bus)} on the PCI bus." if on_bus else ""
        severity = NOTE if trouble.code == "no-library" and not on_bus else FAIL
        yield Finding(trouble.code, severity, f"{capital(trouble.message)}.{seen}", trouble.advice)
    elif not machine.gpus:
        yield Finding("no-gpu", NOTE, "The NVIDIA driver is here, and shows no GPU.", "In a container: --gpus all.")
    hidden = [gpu for gpu in on_bus if gpu.pci not in shown]
    if trouble is None and hidden and not (machine.gpus and all(gpu.pci is None for gpu in machine.gpus)):
        where = ", ".join(f"{gpu.pci} (driver {gpu.driver or 'none'})" for gpu in hidden)
        yield Finding(
            "gpu-hidden", NOTE, f"On the PCI bus, but not shown by the driver: {where}.",
            "In a container these are other people's; on the host look for Xid and `fallen off the bus` in dmesg.",
        )  # fmt: skip


def gpus_at_fault(machine: Machine, pairs: Sequence[Pair]) -> Iterator[Finding]:
    for gpu in machine.gpus:
        if gpu.trouble:
            yield Finding(
                "gpu-lost" if "lost" in gpu.trouble else "gpu-unusable", FAIL, f"GPU {gpu.index}: {gpu.trouble}.",
                f"Look for Xid lines in dmesg; then reset it (nvidia-smi -r -i {gpu.index}) or the host.",
            )  # fmt: skip
    waiting = [gpu for gpu in machine.gpus if gpu.unusable and not gpu.trouble]
    if waiting:
        yield Finding(
            "fabric-not-ready", FAIL,
            f"{names(waiting)}: the NVSwitch fabric is {waiting[0].fabric}; NVLink is down, CUDA ends with error 802.",
            "systemctl status nvidia-fabricmanager (its version must be the driver's); then nvidia-smi -q -i 0.",
        )  # fmt: skip
    degraded = [gpu for gpu in machine.gpus if gpu.fabric_degraded]
    if degraded:
        yield Finding(
            "fabric-degraded", WARN, f"{names(degraded)}: the NVSwitch fabric runs at less than its full bandwidth.",
            "See the fabric manager's log and nvidia-smi nvlink -e.",
        )  # fmt: skip


def p2p(machine: Machine, pairs: Sequence[Pair]) -> Iterator[Finding]:
    off = [pair for pair in pairs if pair.path == "host" and not (pair.a.mig or pair.b.mig)]
    for status in sorted({pair.read for pair in off if pair.read}):
        where = listed_pairs([pair for pair in off if pair.read == status], len(pairs))
        yield Finding(
            "p2p-off", WARN,
            f"P2P read is {named(status)} on {where}: KV bounces through host memory there.",
            "Keep the roles off these pairs, or expect it. VMs, GeForce cards, IOMMU and ACS settings cause it.",
        )  # fmt: skip
    if any(pair.direct for pair in pairs) and reads_over_cuda_ipc(machine.gpus) is False:
        links = machine.gpus[0].nvlinks or ()
        dead = sum(link.remote_pci is None for link in links)
        why = f"{dead} of GPU 0's {len(links)} NVLinks do not answer" if links else "GPU 0 has no NVLink"
        yield Finding(
            "ucx-reads-off", WARN,
            f"{why}, so UCX turns cuda_ipc reads off for every GPU: pull (NixlConnector) then goes over a NIC or TCP "
            "(0.5 against 49 GB/s in vllm issue 52607).",
            "UCX_CUDA_IPC_ENABLE_GET_ZCOPY=on in prefill and decode, or push; pdbench probe-transfer proves it.",
        )  # fmt: skip
    redirected = [pair for pair in pairs if pair.acs]
    if redirected:
        yield Finding(
            "acs-redirect", WARN,
            f"ACS on a PCIe switch sends peer traffic up to the root complex: {listed_pairs(redirected, len(pairs))}.",
            "Turn ACS off in the BIOS, or with setpci on these bridges (lspci -vvv | grep ACSCtl).",
        )  # fmt: skip
    if any(pair.acs is None and pair.path == "pcie" and pair.ancestor in ("PIX", "PXB") for pair in pairs):
        yield Finding("acs-unknown", NOTE, "ACS settings of the PCIe switches are readable for root alone.")


def nvlinks(machine: Machine, pairs: Sequence[Pair]) -> Iterator[Finding]:
    for gpu in machine.gpus:
        down = [link for link in gpu.nvlinks or () if not link.active]
        if down and len(down) < len(gpu.nvlinks or ()):
            states = ", ".join(sorted({link.state for link in down}))
            yield Finding(
                "nvlink-down", WARN,
                f"GPU {gpu.index}: {len(down)} of {len(gpu.nvlinks or ())} NVLinks not active ({states}): "
                f"{', '.join(f'link {link.link}' for link in down[:6])}{' ...' if len(down) > 6 else ''}.",
                "nvidia-smi nvlink -s and -e; a link that does not train again needs a reset or a repair.",
            )  # fmt: skip


def pcie(machine: Machine, pairs: Sequence[Pair]) -> Iterator[Finding]:
    for gpu in machine.gpus:
        link = gpu.pcie
        if link.width_now is None or link.width_max is None or link.gen_max is None:
            continue
        if link.width_now < link.width_max:
            full, left = pcie_gb_s(link.gen_max, link.width_max), pcie_gb_s(link.gen_max, link.width_now)
            text = f"GPU {gpu.index}: PCIe x{link.width_now} of x{link.width_max}"
            loss = f"{left:.3g} instead of {full:.3g} GB/s" if left and full else "less bandwidth"
            if width_in_doubt(gpu):
                yield Finding(
                    "pcie-width", NOTE, f"{text} while it idles: {loss} if it stays so.",
                    "Put load on it and run this again: both ends may save power while nothing uses the GPU.",
                )  # fmt: skip
            else:
                yield Finding(
                    "pcie-width", WARN, f"{text}, at its full generation: {loss}.",
                    "Seat the card and riser again, and see how the BIOS splits the slot's lanes.",
                )  # fmt: skip
        if gpu.card_gen_max is not None and gpu.card_gen_max > link.gen_max:
            yield Finding(
                "pcie-slot", NOTE, f"GPU {gpu.index}: a PCIe {gpu.card_gen_max} card in a PCIe {link.gen_max} slot.",
                "See the BIOS setting of the slot's generation.",
            )  # fmt: skip


def memory(machine: Machine, pairs: Sequence[Pair]) -> Iterator[Finding]:
    small = [gpu for gpu in machine.gpus if gpu.bar1_bytes and gpu.memory_bytes and gpu.bar1_bytes < gpu.memory_bytes]
    if small:
        first = small[0]
        yield Finding(
            "bar1-small", WARN,
            f"{names(small)}: BAR1 is {gib(first.bar1_bytes)} for {gib(first.memory_bytes)} of memory; a KV pool "
            "larger than BAR1 cannot be registered for RDMA.",
            "Turn on Above 4G Decoding and Resizable BAR in the BIOS (in a VM: a larger 64-bit MMIO window).",
        )  # fmt: skip
    parted = [gpu for gpu in machine.gpus if gpu.mig]
    if parted:
        count = [gpu.mig_instances for gpu in parted if gpu.mig_instances is not None]
        yield Finding(
            "mig", WARN,
            f"{names(parted)}: MIG is on{f', {sum(count)} instances' if count else ''}. Instances have no P2P and no "
            "NVLink: KV bounces through host memory.",
            "nvidia-smi -mig 0 for GPUs that hand KV over.",
        )  # fmt: skip


CHECKS = (driver, gpus_at_fault, p2p, nvlinks, pcie, memory)
