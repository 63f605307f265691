"""The boxes of the drawing: a GPU or a NIC, what it can do in three lines, and the rest on hovering."""

from __future__ import annotations

from collections.abc import Sequence

from pdbench.probe.nics import Nic
from pdbench.probe.topo.answer import Answer
from pdbench.probe.topo.gpu import Gpu
from pdbench.probe.topo.layout import BOX_WIDTH, Place
from pdbench.probe.topo.text_tables import nvlinks, pcie
from pdbench.report.markup import Markup, tag
from pdbench.report.wording import clean, short

BOX_HEIGHT, NIC_HEIGHT = 82, 66
_HEAD_CHARS, _LINE_CHARS = 17, 21


def gpu_box(answer: Answer, place: Place, y: float) -> Markup:
    gpu = place.what
    assert isinstance(gpu, Gpu)
    name = clean(gpu.name or "name not reported").removeprefix("NVIDIA ")
    role = _role(answer, gpu.index)
    title = f"GPU {gpu.index}: {gpu.name or 'name not reported'} at {gpu.pci or '?'}, PCIe {pcie(gpu.pcie)}"
    if gpu.unusable:
        return _box(
            place, y, BOX_HEIGHT, f"GPU {gpu.index}{role}", [name, gpu.unusable, "cannot be used"], "gpu lost", title
        )
    link = pcie(gpu.pcie).rpartition(" of ")[2]
    rate = f", {short(gpu.pcie_gb_s)} GB/s" if gpu.pcie_gb_s else ""
    lines = [name, f"PCIe {link}{rate}", "MIG is on" if gpu.mig else f"NVLink {nvlinks(gpu)}"]
    paths = {pair.path for pair in answer.pairs if gpu.index in (pair.a.index, pair.b.index)} - {"none"}
    bounces = paths == {"host"}
    return _box(place, y, BOX_HEIGHT, f"GPU {gpu.index}{role}", lines, "gpu bounces" if bounces else "gpu", title)


def _role(answer: Answer, index: int) -> str:
    if answer.plan is None:
        return ""
    roles = (("prefill", answer.plan.prefill), ("decode", answer.plan.decode))
    named = [role for role, instances in roles if any(index in gpus for gpus in instances)]
    return f" {'+'.join(named)}" if named else ""


def nic_box(place: Place, y: float) -> Markup:
    nic = place.what
    assert isinstance(nic, Nic)
    rate = f" {short(nic.rate_gbit_s)} Gb/s" if nic.rate_gbit_s is not None else ""
    carries = f"{short(nic.gb_s)} GB/s" if nic.gb_s is not None else clean(nic.state or "state not told")
    kind = f"nic{'' if nic.active else ' off'}{'' if nic.rdma else ' plain'}"
    title = f"{nic.name}: {nic.rate or 'rate not told'}, {nic.state or 'state not told'}, {nic.link_layer or ''}"
    return _box(place, y, NIC_HEIGHT, clean(nic.name), [f"{nic.link_layer or ''}{rate}", carries], kind, title)


def _box(place: Place, y: float, height: float, head: str, lines: Sequence[str], kind: str, title: str) -> Markup:
    x = f"{place.x + 9:.1f}"
    shape = tag("rect", x=f"{place.x:.1f}", y=f"{y:.1f}", width=BOX_WIDTH, height=height, rx=7, class_="box")
    texts = [tag("text", _cut(head, _HEAD_CHARS), x=x, y=f"{y + 19:.1f}", class_="strong")]
    for row, line in enumerate(lines):
        texts.append(tag("text", _cut(line.strip(), _LINE_CHARS), x=x, y=f"{y + 37 + 16 * row:.1f}", class_="small"))
    return tag("g", tag("title", title), shape, texts, class_=kind)


def _cut(text: str, limit: int) -> str:
    text = clean(text)
    return text if len(text) <= limit else f"{text[: limit - 1]}…"
