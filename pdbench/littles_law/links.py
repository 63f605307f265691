"""Links that carry KV caches: what the line allows one way, and what public measurements reached."""

from __future__ import annotations

from dataclasses import dataclass

from pdbench.errors import UsageError


@dataclass(frozen=True, slots=True)
class Link:
    """One GPU's link, one way, in GB/s (1e9 bytes/s). `reached` is the span measured in public; `None`: no figure."""

    name: str
    what: str
    line_gb_s: float
    reached: tuple[float, float] | None
    source: str

    @property
    def practical_gb_s(self) -> float:
        """The lower end of what was reached, or the line rate where nothing was published."""
        return self.reached[0] if self.reached else self.line_gb_s

    @property
    def practical_fraction(self) -> float | None:
        return self.reached[0] / self.line_gb_s if self.reached else None


LINKS = {
    link.name: link
    for link in (
        Link("pcie4", "PCIe 4.0 x16", 31.5, (25.0, 25.0), "ai-dynamo/nixl PR 276"),
        Link("pcie5", "PCIe 5.0 x16", 63.0, (49.0, 55.6), "vllm issue 52607 (peer to peer); nvbandwidth's sample"),
        Link("nvlink3", "NVLink 3, 12 links (A100)", 300.0, None, "no public figure found"),
        Link("nvlink4", "NVLink 4, 18 links (H100)", 450.0, (376.0, 380.0), "nccl issue 1264"),
        Link("nvlink5", "NVLink 5, 18 links (B200)", 900.0, None, "no public figure found"),
        Link("ndr", "InfiniBand or RoCE 400 Gb/s", 50.0, (46.0, 49.0), "nccl-tests issue 290; nccl issue 2409"),
        Link("hdr", "InfiniBand or RoCE 200 Gb/s", 25.0, (24.0, 24.0), "nccl-tests issue 119"),
        Link("edr", "InfiniBand or RoCE 100 Gb/s", 12.5, (12.0, 12.1), "nccl-tests issue 119; NVIDIA forum 273376"),
        Link("efa", "EFA 400 Gb/s a GPU (p5, p5en)", 50.0, None, "no trustworthy public figure"),
        Link("25gbe", "Ethernet 25 Gb/s", 3.125, None, "line rate"),
        Link("10gbe", "Ethernet 10 Gb/s", 1.25, None, "line rate"),
        Link("tcp", "UCX over TCP on a cloud NIC, as found", 0.6, (0.23, 0.6), "ucx issue 10854; nixl issue 2039"),
    )
}


def known_link(name: str) -> Link:
    try:
        return LINKS[name.lower()]
    except KeyError:
        raise UsageError(
            f"--link {name}: not in the built-in table.",
            f"Known: {', '.join(LINKS)}. For another link give --link-gb-s.",
        ) from None


def own_link(gb_s: float) -> Link:
    """A link whose speed the caller knows."""
    return Link(f"{gb_s:g} GB/s", "as given", gb_s, (gb_s, gb_s), "--link-gb-s")
