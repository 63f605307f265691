"""An answer as one page that needs no network: the drawing, what to do, and the tables."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources

from pdbench.probe.topo.answer import Answer
from pdbench.probe.topo.document import connections
from pdbench.probe.topo.drawing import drawing
from pdbench.probe.topo.finding import gib
from pdbench.probe.topo.nvml import HANDOFF, P2P_MEANING
from pdbench.probe.topo.nvml_side import SELF
from pdbench.probe.topo.pairs import Pair
from pdbench.probe.topo.text import remarks
from pdbench.probe.topo.text_host import host_facts, refusals
from pdbench.probe.topo.text_matrices import uniform
from pdbench.probe.topo.text_tables import OUTLET_HEADS, distances, grouped, nvlinks, onoff, outlet_rows, pcie, unshown
from pdbench.report.markup import Child, Markup, table, tag
from pdbench.report.wording import NOT_MEASURED, short

POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def page(answer: Answer) -> str:
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", http_equiv="Content-Security-Policy", content=POLICY),
        tag("title", "pdbench topo"),
        Markup(
            f"<style>{resources.files('pdbench.probe.topo').joinpath('topo.css').read_text(encoding='utf-8')}</style>"
        ),
    )
    machine = answer.machine
    sections = [
        _plan(answer),
        tag("section", tag("h2", "Topology"), drawing(answer)) if machine.gpus or machine.nics else None,
        _findings(answer),
        tag("section", _connections(answer), _pairs(answer), _p2p(answer)) if answer.pairs else None,
        tag("section", _gpus(answer), _refused(answer)) if machine.gpus else None,
        tag("section", _others(answer)) if unshown(machine) else None,
        tag("section", _nics(answer), _outlets(answer)) if machine.nics else None,
        tag("section", table(("host", "what it allows"), host_facts(machine.host), caption="Host")),
    ]
    versions = f"driver {machine.nvml.driver.version or 'none'}, CUDA {machine.nvml.driver.cuda or 'none'}"
    body = tag(
        "body",
        tag("header", tag("h1", tag("span", "pdbench", class_="brand"), " topo")),
        tag("main", tag("p", answer.headline, class_="answer"), sections),
        tag("footer", f"{versions}. Rates are what the lines allow one way; nothing was measured."),
    )
    return f"<!doctype html>\n{tag('html', head, body, lang='en')}\n"


def _plan(answer: Answer) -> Markup | None:
    plan = answer.plan
    if plan is None:
        return None
    said = [tag("p", plan.verdict, class_="plan" if plan.works else "plan bad")]
    return tag("section", said, [tag("p", remark) for remark in remarks(plan)])


def _findings(answer: Answer) -> Markup | None:
    if not answer.findings:
        return None
    rows = [
        tag(
            "li",
            tag("span", finding.severity, class_=f"mark {finding.severity}"),
            tag(
                "span",
                finding.text,
                tag("br") if finding.advice else None,
                tag("span", finding.advice, class_="advice"),
            ),
        )
        for finding in answer.findings
    ]
    return tag("section", tag("h2", "What to know and to change"), tag("ul", rows, class_="findings"))


def _connections(answer: Answer) -> Markup:
    paths = {frozenset((pair.a.index, pair.b.index)): (pair.path, verdict) for pair, verdict in _judged(answer)}
    rows: list[Sequence[Child]] = []
    for a, row in enumerate(connections(answer.machine)):
        cells: list[Child] = [f"GPU {a}"]
        for b, cell in enumerate(row):
            path, verdict = paths.get(frozenset((a, b)), ("self", ""))
            shown = SELF if a == b else cell or NOT_MEASURED
            cells.append(
                tag("td", shown, class_=f"cell {path}", title=f"GPU {a} and GPU {b}: {verdict}" if verdict else None)
            )
        rows.append(cells)
    heads = ["", *(f"GPU {gpu.index}" for gpu in answer.machine.gpus)]
    return table(heads, rows, caption="As nvidia-smi topo -m has it; red: KV bounces through host memory")


def _judged(answer: Answer) -> list[tuple[Pair, str]]:
    return list(zip(answer.pairs, answer.verdicts, strict=True))


def _pairs(answer: Answer) -> Markup:
    rows = []
    classes = []
    for group in grouped(
        _judged(answer), lambda one: (one[0].path, one[0].connection, one[0].read, one[0].write, one[1])
    ):
        pair, verdict = group[0]
        names = ", ".join(f"{one.a.index}-{one.b.index}" for one, _ in group)
        status = f"{pair.read or NOT_MEASURED} / {pair.write or NOT_MEASURED}"
        rows.append((
            tag("span", names, class_="names"), pair.connection or NOT_MEASURED, status, short(pair.gb_s),
            short(pair.ms_per_gb), tag("td", verdict, class_="long"),
        ))  # fmt: skip
        classes.append(f"pair {pair.path}")
    heads = ("GPUs", "link", "read / write", "GB/s", "ms a GB", "what to expect")
    return table(heads, rows, caption="Pairs, best first", row_classes=classes)


def _p2p(answer: Answer) -> Markup:
    """What is the same on every pair in a line; one matrix for each group of capabilities that are not."""
    matrices = answer.machine.nvml.p2p
    same = uniform(matrices)
    drawn = []
    for group in grouped(matrices.items(), lambda one: (one[1], one[0] in HANDOFF)):
        matters = group[0][0] in HANDOFF
        if group[0][0] in same:
            continue
        rows = [
            [f"GPU {a}", *(tag("td", cell or NOT_MEASURED, class_=f"cell {_tone(cell, matters)}") for cell in row)]
            for a, row in enumerate(group[0][1])
        ]
        heads = ["", *(f"GPU {gpu.index}" for gpu in answer.machine.gpus)]
        drawn.append(table(heads, rows, caption=f"P2P {', '.join(name for name, _ in group)}"))
    codes = {cell for matrix in matrices.values() for row in matrix for cell in row}
    legend = "; ".join(f"{code}: {words}" for code, words in P2P_MEANING.items() if code in codes and code != "OK")
    said = ", ".join(f"{name} {status or 'not reported'}" for name, status in same.items())
    line = tag("p", f"P2P on every pair: {said}") if said else None
    return tag("div", line, tag("div", drawn, class_="matrices"), tag("p", legend, class_="note") if legend else None)


def _tone(status: str | None, matters: bool) -> str:
    known = {"OK": "nvlink", SELF: "self", "U": "unknown", None: "unknown"}
    return known.get(status, "host" if matters else "no")


def _gpus(answer: Answer) -> Markup:
    rows = [
        (
            f"GPU {gpu.index}",
            gpu.name or NOT_MEASURED,
            gpu.pci or NOT_MEASURED,
            gib(gpu.memory_bytes),
            gib(gpu.bar1_bytes),
            pcie(gpu.pcie),
            nvlinks(gpu),
            NOT_MEASURED if gpu.numa_node is None else str(gpu.numa_node),
            onoff(gpu.ecc, gpu.ecc_pending),
            onoff(gpu.mig, gpu.mig_pending),
            gpu.fabric or NOT_MEASURED,
            gpu.unusable or "",
        )
        for gpu in answer.machine.gpus
    ]
    heads = ("GPU", "name", "PCI", "memory", "BAR1", "PCIe", "NVLinks", "NUMA", "ECC", "MIG", "fabric", "trouble")
    return table(
        heads, rows, caption="GPUs", row_classes=["bad" if gpu.unusable else "" for gpu in answer.machine.gpus]
    )


def _refused(answer: Answer) -> Markup | None:
    said = refusals(answer.machine)
    return tag("p", f"Not reported: {said}.", class_="note") if said else None


def _others(answer: Answer) -> Markup:
    rows = [
        (
            gpu.pci,
            f"{gpu.vendor} {gpu.name or gpu.device_id}",
            gpu.driver or "none",
            gib(gpu.memory_bytes),
            pcie(gpu.pcie),
            NOT_MEASURED if gpu.numa_node is None else str(gpu.numa_node),
            ", ".join(f"{link.peer_pci} {short(link.gb_s)} GB/s" for link in gpu.xgmi) or NOT_MEASURED,
        )
        for gpu in unshown(answer.machine)
    ]
    return table(
        ("PCI", "GPU", "driver", "memory", "PCIe", "NUMA", "XGMI to"),
        rows,
        caption="GPUs on the PCI bus that NVML does not show",
    )


def _nics(answer: Answer) -> Markup:
    machine = answer.machine
    rows = [
        (
            nic.name,
            nic.rate or NOT_MEASURED,
            short(nic.gb_s),
            nic.state or NOT_MEASURED,
            nic.link_layer or NOT_MEASURED,
            pcie(nic.pcie),
            NOT_MEASURED if nic.numa_node is None else str(nic.numa_node),
            distances(machine, place),
        )
        for place, nic in enumerate(machine.nics)
    ]
    heads = ("NIC", "rate", "GB/s", "state", "link layer", "PCIe", "NUMA", "GPUs by distance")
    return table(heads, rows, caption="NICs", row_classes=["" if nic.active else "off" for nic in machine.nics])


def _outlets(answer: Answer) -> Markup | None:
    return table(OUTLET_HEADS, outlet_rows(answer), caption="The way off this host") if answer.outlets else None
