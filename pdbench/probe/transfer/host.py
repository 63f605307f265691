"""What one side of a transfer is: host, namespaces, limits, UCX's settings, and how busy others keep its processors."""

from __future__ import annotations

import fcntl
import ipaddress
import os
import platform
import re
import resource
import socket
import struct
import time
from pathlib import Path
from typing import Any

from pdbench import __version__
from pdbench.probe.nics import nics

_SECRET = re.compile(r"TOKEN|KEY|PASS|SECRET|ENDPOINT|CRED")
_OURS = {"UCX_PROTO_INFO", "UCX_LOG_FILE", "UCX_WARN_UNUSED_ENV_VARS"}  # set by pdbench itself
_SIOCGIFADDR, _SIOCGIFNETMASK = 0x8915, 0x891B


def facts(nixl: str | None) -> dict[str, Any]:
    """What the other side and the report need to know of this process."""
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return {
        "host": platform.node(),
        "boot_id": _read("/proc/sys/kernel/random/boot_id"),
        "pid": os.getpid(),
        "pid_namespace": _link("/proc/self/ns/pid"),
        "net_namespace": _link("/proc/self/ns/net"),
        "uid": os.geteuid(),
        "pdbench": __version__,
        "nixl": nixl,
        "python": platform.python_version(),
        "kernel": platform.release(),
        "cpus": len(os.sched_getaffinity(0)),
        "load_average": os.getloadavg()[0],
        "memlock_bytes": None if soft == resource.RLIM_INFINITY else soft,
        "ptrace_scope": _read("/proc/sys/kernel/yama/ptrace_scope"),
        "nic_gb_s": {nic.name: nic.gb_s for nic in nics() if nic.gb_s is not None},
        "environment": settings(),
    }


def settings() -> dict[str, str]:
    """The variables that steer UCX and NIXL, but none that may hold a secret."""
    return {
        name: value
        for name, value in sorted(os.environ.items())
        if name.startswith(("UCX_", "NIXL_", "CUDA_VISIBLE_DEVICES")) and not _SECRET.search(name) and name not in _OURS
    }


def same_host(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return one["boot_id"] is not None and one["boot_id"] == other["boot_id"]


def same_pids(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether a pid of one side means the same process on the other."""
    return same_host(one, other) and one["pid_namespace"] == other["pid_namespace"] is not None


def busy() -> dict[str, float]:
    """Seconds of processor time so far: of everybody (`busy_s`) and of this process (`own_s`); work done in
    interrupts is left out, since it belongs to nobody. `at_s` is the moment."""
    fields = [int(word) for word in (_read("/proc/stat") or "cpu 0").splitlines()[0].split()[1:]]
    fields += [0] * (8 - len(fields))
    user, nice, system, _, _, _, _, steal = fields[:8]
    ticks = os.sysconf("SC_CLK_TCK")
    return {
        "busy_s": (user + nice + system + steal) / ticks,
        "own_s": time.process_time(),
        "at_s": time.monotonic(),
    }


def net_devices(address: str, sysfs: Path = Path("/sys")) -> str | None:
    """A value for UCX_NET_DEVICES: the interface that holds `address`, and every RDMA port.

    UCX's TCP listens on every interface that it is let see; RDMA ports listen on nothing.
    """
    interface = interface_of(address)
    if interface is None:
        return None
    ports = [f"{port.parent.parent.name}:{port.name}" for port in sorted(sysfs.glob("class/infiniband/*/ports/[0-9]*"))]
    return ",".join([interface, *ports])


def interface_of(address: str) -> str | None:
    """The network interface whose address or subnet holds this address of ours."""
    wanted = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(wanted, ipaddress.IPv6Address):
        if wanted.ipv4_mapped is None:
            return _interface_of_v6(wanted)
        wanted = wanted.ipv4_mapped
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        found = []
        for _, name in socket.if_nameindex():
            own, mask = _ioctl(asked, name, _SIOCGIFADDR), _ioctl(asked, name, _SIOCGIFNETMASK)
            if own is None or mask is None:
                continue
            network = ipaddress.ip_network(f"{own}/{mask}", strict=False)
            if wanted == own:
                return name
            if wanted in network:
                found.append((network.prefixlen, name))
    return max(found)[1] if found else None


def _ioctl(asked: socket.socket, name: str, request: int) -> ipaddress.IPv4Address | None:
    try:
        answer = fcntl.ioctl(asked.fileno(), request, struct.pack("256s", name.encode()[:15]))
    except OSError:
        return None
    return ipaddress.IPv4Address(answer[20:24])


def _interface_of_v6(wanted: ipaddress.IPv6Address) -> str | None:
    for line in (_read("/proc/net/if_inet6") or "").splitlines():
        words = line.split()
        if len(words) >= 6 and ipaddress.IPv6Address(bytes.fromhex(words[0])) == wanted:
            return words[5]
    return None


def _read(path: str) -> str | None:
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except OSError:
        return None


def _link(path: str) -> str | None:
    try:
        return str(Path(path).readlink())
    except OSError:
        return None
