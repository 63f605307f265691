"""Matrices by GPU, as nvidia-smi topo shows them, cut into blocks where a terminal is too narrow."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from rich.columns import Columns
from rich.console import Group, RenderableType
from rich.text import Text

from pdbench.probe.topo.answer import Answer
from pdbench.probe.topo.document import connections
from pdbench.probe.topo.host import cpu_list
from pdbench.probe.topo.nvml import HANDOFF, P2P_MEANING
from pdbench.probe.topo.nvml_side import SELF, Matrix
from pdbench.report.wording import NOT_MEASURED

LABEL, CELL = 6, 6
PATH_STYLES = {
    "nvswitch": "green",
    "nvlink": "green",
    "pcie": "cyan",
    "host": "bold red",
    "none": "red reverse",
    "unknown": "yellow",
}
_LEGEND = {
    "NV": "NV# NVLinks",
    "PIX": "PIX one PCIe switch",
    "PXB": "PXB several switches",
    "PHB": "PHB host bridge",
    "NODE": "NODE two host bridges of a socket",
    "SYS": "SYS between sockets",
    "!": "! bounces through host memory",
    "#": "# cannot be used",
    "?": "? P2P not reported",
}
_MARKS = {"host": "!", "none": "#", "unknown": "?"}


def ancestors(answer: Answer, width: int) -> RenderableType:
    """nvidia-smi topo -m with the verdicts in it: a mark and a colour for every pair that does not go directly."""
    machine = answer.machine
    paths = {(one, other): pair.path for pair in answer.pairs for one, other in _ways(pair.a.index, pair.b.index)}
    rows = []
    used: set[str] = set()
    for a, row in enumerate(connections(machine)):
        cells = []
        for b, cell in enumerate(row):
            path = paths.get((a, b), "")
            mark = _MARKS.get(path, "")
            used |= {mark, "NV" if (cell or "").startswith("NV") else cell or ""}
            cells.append(Text(f"{cell or NOT_MEASURED}{mark}", style="dim" if a == b else PATH_STYLES.get(path, "")))
        rows.append(cells)
    ends = [
        (
            NOT_MEASURED if gpu.numa_node is None else str(gpu.numa_node),
            cpu_list(gpu.cpu_affinity or frozenset()) or "-",
        )
        for gpu in machine.gpus
    ]
    return Group(*_blocks(rows, width, ends), *_legend([_LEGEND[sign] for sign in _LEGEND if sign in used], width))


def _legend(entries: Sequence[str], width: int) -> list[Text]:
    """Entries side by side, none of them broken."""
    lines: list[str] = []
    for entry in entries:
        if lines and len(lines[-1]) + 3 + len(entry) <= width:
            lines[-1] += f"   {entry}"
        else:
            lines.append(entry)
    return [Text(line, style="dim") for line in lines]


def _ways(a: int, b: int) -> tuple[tuple[int, int], tuple[int, int]]:
    return (a, b), (b, a)


def _blocks(
    rows: Sequence[Sequence[Text]], width: int, ends: Sequence[tuple[str, str]] | None = None
) -> Iterator[RenderableType]:
    """Rows under their heads. `ends` are a NUMA node and CPUs for each row, shown after the last block's columns."""
    count = len(rows)
    fit = max(1, (width - LABEL) // CELL)
    each = math.ceil(count / math.ceil(count / fit))
    for first in range(0, count, each):
        shown = range(first, min(first + each, count))
        last = shown.stop == count and ends is not None
        room = width - LABEL - CELL * len(shown) - 6
        with_cpus = last and room >= 8
        head = "".join(f"GPU{column}".ljust(CELL) for column in shown)
        yield Text(" " * LABEL + head + ("NUMA  " if last else "") + ("CPUs" if with_cpus else ""), style="dim")
        for row in range(count):
            line = Text(f"GPU{row}".ljust(LABEL), style="")
            for column in shown:
                cell = rows[row][column]
                line.append(cell.plain[: CELL - 1].ljust(CELL), style=cell.style)
            if last and ends is not None:
                node, cpus = ends[row]
                line.append(node.ljust(6))
                if with_cpus:
                    line.append(cpus if len(cpus) <= room else cpus[: room - 3] + "...")
            yield line


def uniform(matrices: dict[str, Matrix]) -> dict[str, str | None]:
    """The capabilities that have one status on every pair, and that status."""
    told = {name: {cell for row in matrix for cell in row if cell != SELF} for name, matrix in matrices.items()}
    return {name: next(iter(cells)) for name, cells in told.items() if len(cells) == 1}


def p2p(matrices: dict[str, Matrix], width: int) -> RenderableType:
    """What is the same on every pair in a line, and one matrix for each group of capabilities that are not."""
    same = uniform(matrices)
    groups: dict[tuple[Matrix, bool], list[str]] = {}
    for name, matrix in matrices.items():
        if name not in same:
            groups.setdefault((matrix, name in HANDOFF), []).append(name)
    said = ", ".join(f"{name} {status or 'not reported'}" for name, status in same.items())
    lines: list[RenderableType] = [Text(f"P2P   {said} on every pair")] if said else []
    drawn = [_p2p_matrix(names, matrix, width) for (matrix, _), names in groups.items()]
    if drawn:
        lines.append(Columns(drawn, padding=(0, 4)))
    codes = {cell for matrix in matrices.values() for row in matrix for cell in row if cell not in (None, SELF, "OK")}
    return Group(*lines, *_legend([f"{code} {P2P_MEANING[code]}" for code in P2P_MEANING if code in codes], width))


def _p2p_matrix(names: Sequence[str], matrix: Matrix, width: int) -> RenderableType:
    rows = [[Text(cell or NOT_MEASURED, style=_style(cell, names[0] in HANDOFF)) for cell in row] for row in matrix]
    return Group(Text(f"P2P {', '.join(names)}"), *_blocks(rows, width))


def _style(status: str | None, matters: bool) -> str:
    known = {"OK": "green", SELF: "dim", "U": "yellow", None: "yellow"}
    return known.get(status, "bold red" if matters else "dim")
