"""The topology as inline SVG: NVLink above the GPUs, PCIe, NICs and sockets below them, bad pairs in red."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pdbench.probe.topo.answer import Answer
from pdbench.probe.topo.boxes import BOX_HEIGHT, NIC_HEIGHT, gpu_box, nic_box
from pdbench.probe.topo.gpu import Gpu
from pdbench.probe.topo.layout import BOX_WIDTH, Branch, Layout, Place, Socket, laid_out
from pdbench.probe.topo.pairs import Pair
from pdbench.report.markup import Markup, tag
from pdbench.report.wording import short

BAR_HEIGHT, SOCKET_HEIGHT, STEP, TOP = 26, 40, 28, 8
ARC_BASE, ARC_STEP, ARC_MAX, ARC_LABEL = 26, 15, 170, 24
LABELLED_ARCS = 4
SMALLEST = 0.7
_ARC_WORDS = {"host": "through host memory", "unknown": "P2P not reported"}


@dataclass(frozen=True, slots=True)
class Rows:
    """The upper sides of what stands in rows."""

    gpus: float
    switches: float
    nics: float
    sockets: float
    height: float


def drawing(answer: Answer) -> Markup:
    layout = laid_out(answer.machine)
    gpus = layout.gpus
    order = {index: place for place, index in enumerate(gpus)}
    arcs = [pair for pair in answer.pairs if pair.path in ("nvlink", *_ARC_WORDS)]
    spans = [abs(order[pair.a.index] - order[pair.b.index]) for pair in arcs]
    rise = min(ARC_MAX, ARC_BASE + ARC_STEP * max(spans)) + ARC_LABEL if spans else 14.0
    switched = [place for place in gpus.values() if isinstance(place.what, Gpu) and place.what.switch_links]
    rows = _rows(layout, (TOP + BAR_HEIGHT + STEP if switched else 0.0) + rise)
    parts = [
        *_nvswitch(switched, rows),
        *(part for socket in layout.sockets for part in _socket(socket, rows)),
        *_between_sockets(layout.sockets, rows),
        *(part for branch in layout.branches for part in _branch(branch, rows, answer.machine.uplinks)),
        *(
            part
            for pair, span in zip(arcs, spans, strict=True)
            for part in _arc(answer, pair, gpus, rows, span, rise, len(arcs))
        ),
        *(gpu_box(answer, place, rows.gpus) for branch in layout.branches for place in branch.gpus),
        *(nic_box(place, rows.nics) for branch in layout.branches for place in branch.nics),
    ]
    title = tag("title", f"Topology: {answer.headline}")
    # It shrinks with the page while it can be read, then scrolls.
    least = f"min-width:{SMALLEST * layout.width:.0f}px;max-width:{layout.width:.0f}px"
    box = f"0 0 {layout.width:.0f} {rows.height:.0f}"
    svg = tag("svg", title, parts, viewBox=box, style=least, class_="topology", role="img")
    frame = tag("div", svg, class_="scroll", tabindex="0", role="region", aria_label="Topology")
    return tag("div", _keys(answer, bool(switched)), frame)


def _rows(layout: Layout, gpus: float) -> Rows:
    """A row that nothing stands in takes no room."""
    some_switch = any(branch.switch for branch in layout.branches)
    some_nic = any(branch.nics for branch in layout.branches)
    switches = gpus + BOX_HEIGHT + STEP
    nics = switches + (BAR_HEIGHT + STEP if some_switch else 0)
    sockets = nics + (NIC_HEIGHT + STEP if some_nic else 0)
    return Rows(gpus, switches, nics, sockets, sockets + SOCKET_HEIGHT + 12)


def _nvswitch(places: Sequence[Place], rows: Rows) -> Iterator[Markup]:
    if not places:
        return
    left, right = min(place.x for place in places), max(place.x for place in places) + BOX_WIDTH
    yield _bar(left, TOP, right - left, BAR_HEIGHT, "nvswitch", "NVSwitch")
    for place in places:
        if not isinstance(place.what, Gpu):
            continue
        gpu, links = place.what, place.what.switch_links
        rates = [link.gb_s for link in links if link.gb_s is not None]
        missing = (gpu.nvlinks_built or 0) > len(links)
        label = f"{len(links)}{f' of {gpu.nvlinks_built}' if missing else ''} links"
        label += f", {short(sum(rates))} GB/s" if rates else ""
        yield _wire(place.middle, TOP + BAR_HEIGHT, rows.gpus, "nvlink")
        yield _text(label, place.middle + 6, TOP + BAR_HEIGHT + 16, "small bad" if missing else "small")


def _socket(socket: Socket, rows: Rows) -> Iterator[Markup]:
    name = "NUMA node ?" if socket.node is None else f"NUMA node {socket.node}"
    wide = socket.right - socket.left
    cpus = f", CPUs {socket.cpus}" if socket.cpus and wide > 2 * BOX_WIDTH else ""
    yield _bar(socket.left, rows.sockets, wide, SOCKET_HEIGHT, "socket", f"{name}{cpus}")


def _between_sockets(sockets: Sequence[Socket], rows: Rows) -> Iterator[Markup]:
    y = _n(rows.sockets + SOCKET_HEIGHT / 2)
    for left, right in itertools.pairwise(sockets):
        title = tag("title", "link between sockets: its speed is not known here")
        yield tag("line", title, x1=_n(left.right), x2=_n(right.left), y1=y, y2=y, class_="wire sockets")


def _branch(branch: Branch, rows: Rows, uplinks: dict[str, float | None]) -> Iterator[Markup]:
    """PCIe: from each GPU down to its switch or socket, from each NIC up to its switch or down to its socket."""
    gpu_bottom, nic_bottom = rows.gpus + BOX_HEIGHT, rows.nics + NIC_HEIGHT
    switched = branch.switch is not None
    uplink = uplinks.get(branch.switch or "")
    for place in branch.gpus:
        yield _wire(place.middle, gpu_bottom, rows.switches if switched else rows.sockets, "pci")
    for place in branch.nics:
        ends = (rows.switches + BAR_HEIGHT, rows.nics) if switched else (nic_bottom, rows.sockets)
        yield _wire(place.middle, *ends, "pci")
    if switched:
        lane = branch.left - 9 if branch.nics else (branch.left + branch.right) / 2
        start, middle = (
            (branch.left, rows.switches + BAR_HEIGHT / 2) if branch.nics else (lane, rows.switches + BAR_HEIGHT)
        )
        path = f"M{_n(start)} {_n(middle)} H{_n(lane)} V{_n(rows.sockets + 6)} H{_n(max(start, branch.left))}"
        yield tag("path", d=path, class_="wire pci")
        name = f"PCIe switch {branch.switch}" if branch.right - branch.left > 2 * BOX_WIDTH else "PCIe switch"
        name += f", {short(uplink)} GB/s" if uplink else ""
        yield _bar(branch.left, rows.switches, branch.right - branch.left, BAR_HEIGHT, "switch", name)


def _arc(
    answer: Answer, pair: Pair, gpus: dict[int, Place], rows: Rows, span: int, rise: float, count: int
) -> Iterator[Markup]:
    a, b = sorted((gpus[pair.a.index].middle, gpus[pair.b.index].middle))
    up = min(rise - ARC_LABEL, ARC_BASE + ARC_STEP * span)
    peak = rows.gpus - up / 0.75  # a cubic curve rises to three quarters of its control points
    path = f"M{_n(a)} {_n(rows.gpus)} C{_n(a)} {_n(peak)} {_n(b)} {_n(peak)} {_n(b)} {_n(rows.gpus)}"
    verdict = answer.verdicts[answer.pairs.index(pair)]
    yield tag(
        "path",
        tag("title", f"GPU {pair.a.index} and GPU {pair.b.index}: {verdict}"),
        d=path,
        class_=f"wire {pair.path}",
    )
    if count <= LABELLED_ARCS:
        yield _text(_arc_label(pair), (a + b) / 2, rows.gpus - up - 12, f"small middle {pair.path}")


def _arc_label(pair: Pair) -> str:
    if pair.path == "nvlink":
        rate = f", {short(pair.gb_s)} GB/s" if pair.gb_s is not None else ""
        return f"{pair.nvlinks or '?'} NVLinks{rate}"
    why = "MIG" if pair.a.mig or pair.b.mig else pair.read
    return f"{why}: {_ARC_WORDS['host']}" if pair.path == "host" else _ARC_WORDS[pair.path]


def _keys(answer: Answer, switched: bool) -> Markup:
    """Which lines mean what, of those that are drawn."""
    paths = {pair.path for pair in answer.pairs}
    nodes = {gpu.numa_node for gpu in answer.machine.gpus}
    keys = [
        ("nvlink", "NVLink", switched or "nvlink" in paths),
        ("pci", "PCIe", True),
        ("sockets", "link between sockets", len(nodes) > 1),
        ("host", "KV bounces through host memory", "host" in paths),
        ("unknown", "P2P not reported", "unknown" in paths),
    ]
    items = []
    for kind, words, drawn in keys:
        if drawn:
            stroke = tag("line", x1=0, x2=30, y1=5, y2=5, class_=f"wire {kind}")
            items.append(tag("li", tag("svg", stroke, viewBox="0 0 30 10"), f" {words}"))
    return tag("ul", items, class_="keys")


def _bar(x: float, y: float, width: float, height: float, kind: str, words: str) -> Markup:
    shape = tag("rect", x=_n(x), y=_n(y), width=_n(width), height=_n(height), rx=5, class_=kind)
    return tag("g", shape, _text(words, x + width / 2, y + height / 2, "middle strong"))


def _wire(x: float, y1: float, y2: float, kind: str) -> Markup:
    return tag("line", x1=_n(x), x2=_n(x), y1=_n(y1), y2=_n(y2), class_=f"wire {kind}")


def _text(words: str, x: float, y: float, kind: str) -> Markup:
    return tag("text", words, x=_n(x), y=_n(y), class_=kind)


def _n(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
