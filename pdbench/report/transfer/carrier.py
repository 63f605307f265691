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
CARRIES, CARRIES_NOT = 0.9, 0.1  # of the bytes that were moved
NEGLIGIBLE = 0.01


def is_rdma(transport: str) -> bool:
    return transport.startswith(("rc", "dc", "ud", "srd", "gga", "ib"))


def carrier_keys(cell: Sequence[Mapping[str, Any]], sides: Mapping[str, Any]) -> dict[str, Any]:
    """`transport` and `transport_proof` of a result."""
    told = next((each["ucx"] for each in cell if each.get("ucx")), None)
    counted = next((each["moved"] for each in cell if each.get("moved")), None)
    shares = counted_shares(counted, cell[0]["op"]) if counted else {}
    names = [f"{transport}/{device}" for transport, device in told["carriers"]] if told else []
    by_counter = [name for name, share in shares.items() if share >= CARRIES]
    transport = " ".join(names) or (" ".join(by_counter) and f"{cell[0]['backend']} over {' '.join(by_counter)}")
    agree, says = verdict(told, shares, counted is not None)
    proof = {
        "ucx": f"{told['how']} {told['config']}".strip() if told else None,
        "operation": told["operation"] if told else None,
        "moved_bytes": counted["nbytes"] if counted else None,
        "counters": {name: share for name, share in shares.items() if share >= NEGLIGIBLE},
        "agree": agree,
        "says": says,
    }
    return {"transport": transport or cell[0]["backend"], "transport_proof": proof}


def counted_shares(counted: Mapping[str, Any], op: str) -> dict[str, float]:
    """For each interface of the initiating side: bytes that it counted in the data's direction / bytes moved."""
    direction = 1 if op == "READ" else 0  # (sent, received)
    return {name: deltas[direction] / counted["nbytes"] for name, deltas in counted["here"].items()}


def verdict(told: Mapping[str, Any] | None, shares: Mapping[str, float], was_counted: bool) -> tuple[bool | None, str]:
    """Whether report and counters agree (None: cannot be told), in a sentence."""
    loud = {name: share for name, share in shares.items() if share >= CARRIES}
    most = max(shares.items(), key=lambda pair: pair[1], default=None)
    if told is None:
        if loud:
            return None, f"no report of UCX; {_listed(loud)} carried the bytes"
        return None, "no report of UCX, and no interface that counts carried the bytes"
    said = f"UCX says {told['how']} {told['config']}".strip()
    if not was_counted or most is None:
        return None, f"{said}; no counters"
    outside = [(transport, device) for transport, device in told["carriers"] if transport not in WITHIN_HOST]
    if not outside:
        if loud:
            return False, f"{said}, but {_listed(loud)} of the bytes"
        if most[1] >= CARRIES_NOT:
            return None, f"{said}; {most[0]} counted {most[1]:.0%} of the bytes, which may be somebody else's"
        return True, f"{said}; no interface counted even {CARRIES_NOT:.0%} of the bytes"
    known = [device for _, device in outside if device in shares]
    if not known:
        return None, f"{said}; {outside[0][1]} has no counters that can be read"
    carried = sum(shares[device] for device in dict.fromkeys(known))
    if carried >= CARRIES:
        return True, f"{said}; {_listed({device: shares[device] for device in dict.fromkeys(known)})} of the bytes"
    return False, f"{said}, but {' and '.join(dict.fromkeys(known))} counted {carried:.0%} of the bytes"


def _listed(shares: Mapping[str, float]) -> str:
    return " and ".join(f"{name} counted {share:.0%}" for name, share in shares.items())
