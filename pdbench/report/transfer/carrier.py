"""What really carried the bytes: UCX's protocol report and the interfaces' byte counters, which have to agree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

# UCX's transports that stay within a host and pass no interface.
WITHIN_HOST = {
    "self",
    "cma",
    "knem",
    "xpmem",
    "posix",
    "sysv",
    "cuda_ipc",
    "rocm_ipc",
    "cuda_copy",
    "rocm_copy",
    "ze_ipc",
}
GPU_DIRECT = {"cuda_ipc", "rocm_ipc", "ze_ipc"}
CARRIES, CARRIES_NOT = 0.9, 0.1  # of the bytes that were moved; what is said of the second names a tenth
NEGLIGIBLE = 0.01


def is_rdma(transport: str) -> bool:
    return transport.startswith(("rc", "dc", "ud", "srd", "gga", "ib"))


def carrier_keys(cell: Sequence[Mapping[str, Any]], sides: Mapping[str, Any]) -> dict[str, Any]:
    """`transport` and `transport_proof` of a result."""
    told = next((each["ucx"] for each in cell if each.get("ucx")), None)
    windows: Sequence[Mapping[str, Any]] = next((each["moved"] for each in cell if each.get("moved")), [])
    shares, always = counted_shares(windows, cell[0]["op"])
    names = [f"{transport}/{device}" for transport, device in told["carriers"]] if told else []
    by_counter = [name for name, share in always.items() if share >= CARRIES]
    transport = " ".join(names) or (" ".join(by_counter) and f"{cell[0]['backend']} over {' '.join(by_counter)}")
    agree, says = verdict(told, shares, always)
    proof = {
        "ucx": f"{told['how']} {told['config']}".strip() if told else None,
        "operation": told["operation"] if told else None,
        "moved_bytes": sum(window["nbytes"] for window in windows),
        "counters": {name: share for name, share in shares.items() if share >= NEGLIGIBLE},
        "agree": agree,
        "says": says,
    }
    return {"transport": transport or cell[0]["backend"], "transport_proof": proof}


def counted_shares(windows: Sequence[Mapping[str, Any]], op: str) -> tuple[dict[str, float], dict[str, float]]:
    """For each interface of the initiating side: bytes counted in the data's direction / bytes moved, over all windows
    and in the window where it is least. What others send comes in bursts; what carries the data is in every window."""
    direction = 1 if op == "READ" else 0  # (sent, received)
    names = set.intersection(*(set(window["counted"]) for window in windows)) if windows else set()
    counted = {name: [window["counted"][name][direction] for window in windows] for name in sorted(names)}
    moved = [window["nbytes"] for window in windows]
    always = {name: min(c / m for c, m in zip(counts, moved, strict=True)) for name, counts in counted.items()}
    return {name: sum(counts) / sum(moved) for name, counts in counted.items()}, always


def verdict(
    told: Mapping[str, Any] | None, shares: Mapping[str, float], always: Mapping[str, float]
) -> tuple[bool | None, str]:
    """Whether report and counters agree (None: cannot be told), in a sentence."""
    loud = {name: shares[name] for name, share in always.items() if share >= CARRIES}
    if told is None:
        if loud:
            return None, f"no report of UCX; {_listed(loud)} of the bytes"
        return None, "no report of UCX, and no interface that counts carried the bytes"
    said = f"UCX says {told['how']} {told['config']}".strip()
    if not shares:
        return None, f"{said}; no counters"
    devices = list(dict.fromkeys(device for transport, device in told["carriers"] if transport not in WITHIN_HOST))
    if not devices:
        return _within_host(said, shares, always, loud)
    known = {device: shares[device] for device in devices if device in shares}
    if not known:
        return None, f"{said}; {devices[0]} has no counters that can be read"
    if sum(known.values()) >= CARRIES:
        return True, f"{said}; {_listed(known)} of the bytes"
    return False, f"{said}, but {_listed(known)} of the bytes"


def _within_host(
    said: str, shares: Mapping[str, float], always: Mapping[str, float], loud: Mapping[str, float]
) -> tuple[bool | None, str]:
    if loud:
        return False, f"{said}, but {_listed(loud)} of the bytes"
    name, least = max(always.items(), key=lambda pair: pair[1])
    if least >= CARRIES_NOT:
        return None, f"{said}; {name} counted {shares[name]:.0%} of the bytes, which may be somebody else's"
    return True, f"{said}; no interface counted a tenth of the bytes"


def _listed(shares: Mapping[str, float]) -> str:
    return " and ".join(f"{name} counted {share:.0%}" for name, share in shares.items())
