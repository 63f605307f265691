"""Generated sysfs trees: PCI devices at given places, RDMA ports and network devices on them, counters, ACS bits."""

from __future__ import annotations

from pathlib import Path

SPEEDS = {1: "2.5", 2: "5.0", 3: "8.0", 4: "16.0", 5: "32.0"}


class Tree:
    """A sysfs tree below a folder, laid out as the kernel does: real folders in devices/, links elsewhere."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "sys").mkdir(parents=True, exist_ok=True)
        self.sysfs = root / "sys"

    def write(self, path: str, value: object) -> None:
        file = self.sysfs / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(value if isinstance(value, bytes) else f"{value}\n".encode())

    def link(self, path: str, target: Path) -> None:
        place = self.sysfs / path
        place.parent.mkdir(parents=True, exist_ok=True)
        if not place.is_symlink():
            place.symlink_to(target)

    def pci(
        self, way: str, *, numa: int = 0, gen: int = 5, width: int = 16, gen_max: int = 5, width_max: int = 16
    ) -> str:
        """A device at the end of `way` (pci0000:16/0000:16:01.0/0000:17:00.0); its bridges come with it."""
        bridges, _, place = way.rpartition("/")
        if "/" in bridges:
            self.pci(bridges, numa=numa)
        folder = f"devices/{way}"
        self.write(f"{folder}/numa_node", numa)
        for name, value in (
            ("current_link_speed", f"{SPEEDS[gen]} GT/s PCIe"),
            ("max_link_speed", f"{SPEEDS[gen_max]} GT/s PCIe"),
            ("current_link_width", width),
            ("max_link_width", width_max),
        ):
            self.write(f"{folder}/{name}", value)
        self.link(f"bus/pci/devices/{place}", self.sysfs / folder)
        return place

    def device(self, place: str, **values: object) -> None:
        """Files of a PCI device."""
        for name, value in values.items():
            self.write(f"{(self.sysfs / 'bus/pci/devices' / place).resolve().relative_to(self.sysfs)}/{name}", value)

    def driver(self, place: str, name: str) -> None:
        self.write(f"bus/pci/drivers/{name}/new_id", "")
        folder = (self.sysfs / "bus/pci/devices" / place).resolve().relative_to(self.sysfs)
        self.link(f"{folder}/driver", self.sysfs / "bus/pci/drivers" / name)

    def rdma(self, name: str, place: str, **port: object) -> None:
        """An RDMA device with port 1. `port` overrides its files (`__` for `/` in a name); None leaves one out."""
        folder = f"{(self.sysfs / 'bus/pci/devices' / place).resolve().relative_to(self.sysfs)}/infiniband/{name}"
        values: dict[str, object] = {
            "rate": "400 Gb/sec (4X NDR)",
            "state": "4: ACTIVE",
            "phys_state": "5: LinkUp",
            "link_layer": "InfiniBand",
            "gids__0": "fe80:0000:0000:0000:b83f:d203:0012:3456",
            "gids__1": "0000:0000:0000:0000:0000:0000:0000:0000",
            "gid_attrs__types__0": "IB/RoCE v1",
            "counters__port_xmit_data": 250,
            "counters__port_rcv_data": 1,
        }
        for key, value in (values | port).items():
            if value is not None:
                self.write(f"{folder}/ports/1/{key.replace('__', '/')}", value)
        self.write(f"{folder}/fw_ver", "28.39.1002")
        self.write(f"{folder}/hca_type", "MT4129")
        self.link(f"{folder}/device", (self.sysfs / "bus/pci/devices" / place).resolve())
        self.link(f"class/infiniband/{name}", self.sysfs / folder)

    def netdev(
        self, name: str, place: str | None, *, speed: int | None = 25000, state: str = "up", sent: int = 7
    ) -> None:
        """A network device; without a place it is a virtual one."""
        if place is None:
            folder = f"devices/virtual/net/{name}"
        else:
            folder = f"{(self.sysfs / 'bus/pci/devices' / place).resolve().relative_to(self.sysfs)}/net/{name}"
        self.write(f"{folder}/operstate", state)
        self.write(f"{folder}/type", 1)
        self.write(f"{folder}/statistics/tx_bytes", sent)
        self.write(f"{folder}/statistics/rx_bytes", 2 * sent)
        if speed is not None:
            self.write(f"{folder}/speed", speed)
        if place is not None:
            self.link(f"{folder}/device", (self.sysfs / "bus/pci/devices" / place).resolve())
        self.link(f"class/net/{name}", self.sysfs / folder)

    def acs(self, place: str, control: int) -> None:
        """Configuration space with an ACS capability behind another one, as a root process reads it."""
        config = bytearray(4096)
        config[0x100:0x104] = (0x0001 | 1 << 16 | 0x148 << 20).to_bytes(4, "little")
        config[0x148:0x14C] = (0x000D | 1 << 16).to_bytes(4, "little")
        config[0x14E:0x150] = control.to_bytes(2, "little")
        self.device(place, config=bytes(config))
