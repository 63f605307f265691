"""What a `plan` verb says, and how it is printed: the answer first, then tables of 80 columns, then what to doubt."""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pdbench.errors import StorageError
from pdbench.littles_law.plan_charts import Chart

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True, slots=True)
class Table:
    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """One verb's result: a sentence, tables, remarks, the same as data, and the charts of its page."""

    answer: str
    tables: tuple[Table, ...]
    remarks: tuple[str, ...]
    document: dict[str, Any]
    charts: tuple[Chart, ...] = ()


def show(plan: Plan, *, as_json: bool, html: Path | None) -> None:
    """Print a plan as text or JSON, and write its page where one is asked for."""
    if html is not None:
        from pdbench.littles_law.plan_html import page

        try:
            html.write_text(page(plan), encoding="utf-8")
        except OSError as error:
            raise StorageError(
                f"--html {html}: {error.strerror or error}.", "Name a file in a directory that exists."
            ) from None
    if as_json:
        json.dump({"answer": plan.answer, **plain(plan.document)}, sys.stdout, indent=1, allow_nan=False)
        sys.stdout.write("\n")
        return
    print_plan(plan, html)


def print_plan(plan: Plan, html: Path | None) -> None:
    """The answer, the tables and the remarks on stdout; rich takes 80 columns where neither a terminal nor COLUMNS
    says otherwise."""
    from rich.console import Console

    console = Console(highlight=False, markup=False)
    with console.capture() as captured:
        _draw(plan, html, console)
    console.file.write(re.sub(r" +$", "", captured.get(), flags=re.MULTILINE))


def _draw(plan: Plan, html: Path | None, console: Console) -> None:
    from rich.padding import Padding
    from rich.table import Table as RichTable

    console.print(plan.answer, style="bold")
    for table in plan.tables:
        console.print()
        console.print(table.title)
        drawn = RichTable(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
        for index, head in enumerate(table.heads):
            words = any(_is_words(row[index]) for row in table.rows)
            drawn.add_column(head, justify="left" if index == 0 or words else "right", overflow="fold")
        for row in table.rows:
            drawn.add_row(*row)
        console.print(drawn)
    if plan.remarks:
        console.print()
    for remark in plan.remarks:
        console.print(Padding(remark, (0, 0, 0, 2)))
    if html is not None:
        console.print(f"page  {html.resolve()}", soft_wrap=True)


def _is_words(cell: str) -> bool:
    return " " in cell and not cell[:1].isdigit() and cell[:1] not in "-+<>~"


def plain(value: Any) -> Any:
    """`value` as JSON can hold it: no NaN, no Infinity, tuples as lists."""
    if isinstance(value, dict):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value


def number(value: float | None, digits: int = 3) -> str:
    """Three significant digits, thousands in full; `-` is not known."""
    if value is None or not math.isfinite(value):
        return "-"
    if value == 0:
        return "0"
    decimals = digits - 1 - math.floor(math.log10(abs(value)))
    return f"{value:,.{max(0, min(decimals, 6))}f}"


def ms(value: float | None) -> str:
    """A time with its unit: ms below a second, then s."""
    if value is None or not math.isfinite(value):
        return "-"
    return f"{number(value)} ms" if abs(value) < 1000 else f"{number(value / 1000)} s"


def size(nbytes: float) -> str:
    """Bytes in the decimal unit that reads best."""
    for unit, scale in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if nbytes >= scale:
            return f"{number(nbytes / scale)} {unit}"
    return f"{nbytes:.0f} B"


def binary_size(nbytes: float) -> str:
    """Bytes as memory is counted: KiB, MiB, GiB."""
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if nbytes >= scale:
            return f"{number(nbytes / scale, 4)} {unit}"
    return f"{nbytes:.0f} B"


def percent(fraction: float | None) -> str:
    return "-" if fraction is None else f"{fraction:,.0%}"


def listed(words: Sequence[str]) -> str:
    """`a, b and c`."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
