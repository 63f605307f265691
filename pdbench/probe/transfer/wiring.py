"""What joins the two GPUs of a transfer within one host, as NVML and the PCI tree tell it; `pdbench topo` shows all."""

from __future__ import annotations

from typing import Any


def gpu_pair(one: str | None, other: str | None) -> dict[str, Any] | None:
    """Path and line rate between the GPUs at two PCI addresses; None where they are not two that NVML knows."""
    if one is None or other is None or _plain(one) == _plain(other):
        return None
    from pdbench.probe.topo.machine import look
    from pdbench.probe.topo.pairs import judged

    wanted = {_plain(one), _plain(other)}
    for pair in judged(look()):
        if {_plain(pair.a.pci or ""), _plain(pair.b.pci or "")} == wanted:
            return {
                "gpus": [pair.a.index, pair.b.index],
                "path": pair.path,
                "connection": pair.connection,
                "read": pair.read,
                "gb_s": pair.gb_s,
            }
    return None


def _plain(address: str) -> str:
    """0000:18:00.0 of what CUDA (0000:18:00.0) and NVML (00000000:18:00.0) write."""
    return address.lower()[-12:]
