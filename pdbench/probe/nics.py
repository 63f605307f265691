"""The NICs of a sysfs tree: RDMA ports and network devices, their rates and states, and what they have moved so far."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pdbench.probe import pci as tree
from pdbench.probe import sysfs as files
from pdbench.probe.line_rates import nic_gb_s
from pdbench.probe.pci import PcieLink

_NO_GID = "0000:0000:0000:0000:0000:0000:0000:0000"
_NO_LINK = PcieLink()
# What an EFA port sends: its sends, and what peers read from it; what it receives: the reverse.
_EFA_SENT = ("tx_bytes", "rdma_read_resp_bytes")
_EFA_RECEIVED = ("rx_bytes", "rdma_read_bytes", "rdma_write_recv_bytes")
_IB_WORD_BYTES = 4  # port_xmit_data and port_rcv_data count words of four bytes


@dataclass(frozen=True, slots=True)
class Gid:
    """One address of an RDMA port: its index, `RoCE v2` or `IB/RoCE v1`, and the network device it belongs to."""

    index: int
    value: str
    kind: str | None
    netdev: str | None


@dataclass(frozen=True, slots=True)
class Nic:
    """An RDMA port, or a network device with hardware behind it and no RDMA.

    `name` is what UCX_NET_DEVICES takes (`mlx5_0:1`, `eth0`). `rate_gbit_s` is the line's rate as the kernel reports
    it, `pcie` the link to the host as trained now. None: the tree does not say.
    """

    name: str
    device: str
    rdma: bool
    port: int | None = None
    pci: str | None = None
    driver: str | None = None
    numa_node: int | None = None
    rate_gbit_s: float | None = None
    rate: str | None = None
    state: str | None = None
    phys_state: str | None = None
    link_layer: str | None = None
    board: str | None = None
    firmware: str | None = None
    netdevs: tuple[str, ...] = ()
    gids: tuple[Gid, ...] = ()
    pcie: PcieLink = _NO_LINK

    @property
    def active(self) -> bool:
        return self.state in ("ACTIVE", "up")

    @property
    def line_gb_s(self) -> float | None:
        """What the line carries one way; None also for a line that is down: its rate means nothing then."""
        return nic_gb_s(self.rate_gbit_s) if self.active else None

    @property
    def gb_s(self) -> float | None:
        """The line, or the slot it sits in where that carries less."""
        line, slot = self.line_gb_s, self.pcie.now_gb_s
        return line if line is None or slot is None else min(line, slot)


@dataclass(frozen=True, slots=True)
class Moved:
    """Bytes that went through since the counter began."""

    sent_bytes: int
    received_bytes: int


def nics(sysfs: Path = Path("/sys")) -> list[Nic]:
    """All RDMA ports, then the network devices that are not the other face of one."""
    ports = [nic for device in files.entries(sysfs / "class/infiniband") for nic in _ports(sysfs, device)]
    faces = {name for nic in ports for name in nic.netdevs}
    rest = [_netdev(sysfs, path) for path in files.entries(sysfs / "class/net") if path.name not in faces]
    return [*ports, *(nic for nic in rest if nic is not None)]


def _ports(sysfs: Path, device: Path) -> Iterator[Nic]:
    place = _place(sysfs, device / "device")
    for port in files.entries(device / "ports"):
        if not port.name.isdecimal():
            continue
        rate = files.text(port / "rate")
        gids = tuple(_gids(port))
        named = [path.name for path in files.entries(device / "device/net")]
        yield Nic(
            name=f"{device.name}:{port.name}",
            device=device.name,
            rdma=True,
            port=int(port.name),
            pci=place,
            driver=files.target_name(device / "device/driver"),
            numa_node=tree.numa_node(sysfs, place) if place else _node(device / "device"),
            rate_gbit_s=_rate(rate),
            rate=rate,
            state=_word(files.text(port / "state")),
            phys_state=_word(files.text(port / "phys_state")),
            link_layer=files.text(port / "link_layer"),
            board=files.text(device / "board_id") or files.text(device / "hca_type"),
            firmware=files.text(device / "fw_ver"),
            netdevs=tuple(dict.fromkeys([*named, *(gid.netdev for gid in gids if gid.netdev)])),
            gids=gids,
            pcie=tree.link(sysfs, place) if place else PcieLink(),
        )


def _netdev(sysfs: Path, path: Path) -> Nic | None:
    """A network device, if hardware is behind it: a bridge, a tunnel or loopback has no `device`."""
    if not (path / "device").exists():
        return None
    place = _place(sysfs, path / "device")
    megabits = files.whole(path / "speed")  # -1 while the line is down, unreadable on some virtual devices
    known = megabits is not None and megabits > 0
    return Nic(
        name=path.name,
        device=path.name,
        rdma=False,
        pci=place,
        driver=files.target_name(path / "device/driver"),
        numa_node=tree.numa_node(sysfs, place) if place else _node(path / "device"),
        rate_gbit_s=megabits / 1000 if known and megabits is not None else None,
        rate=f"{megabits} Mb/s" if known else None,
        state=files.text(path / "operstate"),
        link_layer="Ethernet" if files.text(path / "type") == "1" else None,
        netdevs=(path.name,),
        pcie=tree.link(sysfs, place) if place else PcieLink(),
    )


def _place(sysfs: Path, device: Path) -> str | None:
    """The PCI function of a device: its own, or the one above it (virtio and sub-functions hang below theirs)."""
    try:
        names = reversed(device.resolve(strict=True).parts)
    except (OSError, RuntimeError):
        return None
    return next((name for name in names if tree.chain(sysfs, name)), None)


def _node(device: Path) -> int | None:
    node = files.whole(device / "numa_node")
    return node if node is not None and node >= 0 else None


def _gids(port: Path) -> Iterator[Gid]:
    for path in files.entries(port / "gids"):
        value = files.text(path)
        if path.name.isdecimal() and value and value != _NO_GID:
            attributes = port / "gid_attrs"
            yield Gid(
                int(path.name),
                value,
                files.text(attributes / "types" / path.name),
                files.text(attributes / "ndevs" / path.name),
            )


def _rate(rate: str | None) -> float | None:
    """Gb/s of `400 Gb/sec (4X NDR)`."""
    match = re.match(r"([0-9]+(?:\.[0-9]+)?)\s*Gb/sec", rate or "")
    return float(match[1]) if match else None


def _word(state: str | None) -> str | None:
    """ACTIVE of `4: ACTIVE`."""
    return state.rpartition(": ")[2] if state else None


def moved(sysfs: Path = Path("/sys")) -> dict[str, Moved]:
    """Byte counters by name: every network device, loopback too, and every RDMA port that counts.

    RDMA goes past the network device's own counters. An EFA port has no port counters but sums of its own.
    """
    found: dict[str, Sequence[int | None]] = {}
    for path in files.entries(sysfs / "class/net"):
        found[path.name] = [files.whole(path / "statistics" / name) for name in ("tx_bytes", "rx_bytes")]
    for device in files.entries(sysfs / "class/infiniband"):
        for port in files.entries(device / "ports"):
            found[f"{device.name}:{port.name}"] = _port_bytes(port)
    return {name: Moved(sent, got) for name, (sent, got) in found.items() if sent is not None and got is not None}


def _port_bytes(port: Path) -> Sequence[int | None]:
    words = [files.whole(port / "counters" / name) for name in ("port_xmit_data", "port_rcv_data")]
    if None in words:
        return [_sum(port / "hw_counters", names) for names in (_EFA_SENT, _EFA_RECEIVED)]
    return [count * _IB_WORD_BYTES for count in words if count is not None]


def _sum(folder: Path, names: tuple[str, ...]) -> int | None:
    counts = [count for name in names if (count := files.whole(folder / name)) is not None]
    return sum(counts) if counts else None
