"""The checks on a terminal: what fails first, with its fix; what passes in one line."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from pdbench.probe.doctor.finding import Check

STYLE = {"fail": "bold red", "warn": "yellow", "unknown": "dim", "pass": "green"}
WIDTH = 80


def print_checks(checks: Sequence[Check], *, simulated: bool) -> None:
    console = Console(highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console.width = WIDTH
    if simulated:
        console.print("SIMULATED: these servers are the practice testbed, no engine.", style="bold magenta")
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column()
    table.add_column(max_width=20)
    told = [check for check in checks if check.level != "pass"]
    for check in told:
        alike = [one for one in told if one[1:] == check[1:]]
        if check is not alike[0]:
            continue
        where = f"{check.where}: " if check.where else ""
        said = Text(_plain(where + check.evidence))
        if check.fix:
            said.append("\n" + _plain(check.fix), style="italic")
        table.add_row(Text(check.level, style=STYLE[check.level]), ", ".join(one.rule for one in alike), said)
    with console.capture() as captured:
        console.print(table)
    console.file.write("\n".join(line.rstrip() for line in captured.get().splitlines()) + "\n" if told else "")
    passed = [check.rule for check in checks if check.level == "pass"]
    if passed:
        console.print(Text("pass", style=STYLE["pass"]) + Text(f"  {', '.join(passed)}"))
    counts = ", ".join(f"{sum(check.level == level for check in checks)} {level}" for level in STYLE)
    console.print(Text(counts, style="bold"))


def _plain(text: str) -> str:
    return "".join(c if c.isprintable() else " " for c in text)
