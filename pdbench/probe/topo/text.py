"""An answer on a terminal: the sentence first, then matrices and tables that fit, what to do last."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from pdbench.probe.topo.answer import Answer
from pdbench.probe.topo.finding import FAIL, NOTE, WARN
from pdbench.probe.topo.plan import Better, Plan
from pdbench.probe.topo.text_host import host_lines, refusals
from pdbench.probe.topo.text_matrices import ancestors, p2p
from pdbench.probe.topo.text_tables import gpu_table, grouped, nic_table, other_gpus, outlet_table, pair_table, spans
from pdbench.report.wording import clean

WIDTH = 80
_TRAILING = re.compile(r"(?: |\x1b\[[0-9;]*m)+$", re.MULTILINE)  # rich fills cells up to their column's width
_MARKS = {FAIL: ("FAIL", "bold red"), WARN: ("warn", "yellow"), NOTE: ("note", "dim")}


def show(answer: Answer, page: Path | None) -> None:
    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console.width = WIDTH
    with console.capture() as captured:
        for place, part in enumerate(_parts(answer, console.width)):
            console.print(*([""] if place else []), part, sep="\n")
        if page is not None:
            console.print(f"page  {page.resolve()}", soft_wrap=True)
    console.file.write(_TRAILING.sub(lambda tail: tail[0].replace(" ", ""), captured.get()))


def _parts(answer: Answer, width: int) -> Iterator[RenderableType]:
    yield Text(clean(answer.headline), style="bold")
    if answer.plan is not None:
        yield _plan(answer.plan)
    machine = answer.machine
    if machine.gpus:
        yield ancestors(answer, width)
    if answer.pairs:
        yield p2p(machine.nvml.p2p, width)
        yield pair_table(answer)
    if machine.gpus:
        yield gpu_table(machine)
    if others := other_gpus(machine):
        yield others
    if machine.nics:
        yield nic_table(machine)
    if answer.outlets:
        yield outlet_table(answer)
    yield host_lines(machine)
    if refused := refusals(machine):
        yield Text(f"not reported   {refused}", style="dim")
    if answer.findings:
        yield _findings(answer)
    if rates := [pair.gb_s for pair in answer.pairs if pair.gb_s is not None]:
        planned = f"pdbench plan transfer --model MODEL --tp N --link-gb-s {rates[0]:.3g}"
        yield Text(f"next  {planned}: how long a prompt takes\n      pdbench probe-transfer: measure it", style="dim")


def _plan(plan: Plan) -> RenderableType:
    said: list[RenderableType] = [Text(clean(plan.verdict, 1000), style="bold" if plan.works else "bold red")]
    said += [Padding(Text(remark), (0, 0, 0, 2)) for remark in remarks(plan)]
    return Group(*said)


def remarks(plan: Plan) -> list[str]:
    """What else is to be said of a plan: shared uplinks, and a better use of its GPUs."""
    said = []
    for group in grouped(plan.shared, lambda one: (one.uplink_gb_s, one.each_gb_s)):
        gpus = " and ".join(f"GPUs {spans(one.gpus)}" if len(one.gpus) > 1 else f"GPU {one.gpus[0]}" for one in group)
        one = group[0]
        said.append(
            f"{gpus} {'each ' if len(group) > 1 else ''}share a PCIe switch's uplink of {one.uplink_gb_s:.3g} GB/s: "
            f"{one.each_gb_s:.3g} GB/s a rank pair when all move at once."
        )
    return said + ([better(plan.better)] if plan.better else [])


def better(other: Better) -> str:
    roles = " ".join(
        f"--role {role}={','.join(map(str, gpus))}"
        for role, gpus in (("prefill", other.prefill), ("decode", other.decode))
    )
    text = f"{roles} gives every rank pair {other.across_gb_s:.3g} GB/s or more"
    now, then = other.inside_now_gb_s, other.inside_gb_s
    if now is not None and then is not None:
        change = f"stays at {then:.3g}" if f"{now:.3g}" == f"{then:.3g}" else f"goes from {now:.3g} to {then:.3g}"
        text += f"; inside a role the slowest pair {change} GB/s"
    return f"{text}. GPUs take their ranks in the order given."


def _findings(answer: Answer) -> Table:
    table = Table.grid(padding=(0, 1, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for finding in answer.findings:
        mark, style = _MARKS[finding.severity]
        lines = [Text(clean(finding.text, 1000))]
        if finding.advice:
            lines.append(Text.assemble(("-> ", "bold"), finding.advice))
        table.add_row(Text(mark, style=style), Group(*lines))
    return table
