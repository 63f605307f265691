"""The tables of a cell's parts: its classes, the stages of its rate, the turns of its sessions; terminal and HTML."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.text import Text

from pdbench.report.columns import Column, arrange, percentile_with_doubt
from pdbench.report.markup import Child, Markup, table, tag
from pdbench.report.tables import figure_class
from pdbench.report.wording import (
    NOT_MEASURED,
    CellSummary,
    clean,
    is_unsound,
    number,
    number_of_tokens,
    percent,
    place,
    short,
    statistic,
)

INDENT = 6  # of a row in the terminal: where other tables have their mark
_TTFT = (
    Column(("TTFT", "mean"), (lambda part: number(statistic(part, "mean", "ttft")),)),
    Column(("TTFT", "p50"), percentile_with_doubt("p50", "ttft"), 3),
    Column(("TTFT", "p90"), percentile_with_doubt("p90", "ttft"), 13),
    Column(("TTFT", "p99"), percentile_with_doubt("p99", "ttft"), 2),
)
_TPOT = Column(("TPOT", "mean"), (lambda part: number(statistic(part, "mean", "tpot")),), 1)
_E2EL = Column(("E2EL", "mean"), (lambda part: number(statistic(part, "mean", "e2el")),), 6)
_ITL = Column(("ITL", "p99"), percentile_with_doubt("p99", "itl")[1:], 12)
_GOT = Column(("got", "req/s"), (lambda part: number(part.get("request_throughput")),), 4)
_GOOD = Column(("good", "req/s"), (lambda part: number(part.get("request_goodput")),), 2)
_NEED = Column(("slots", "need"), (lambda part: number((part.get("slots") or {}).get("needed")),), 2)
_OK = Column(("answers", "ok"), (lambda part: number_of_tokens(part.get("completed")),), 5)
_NOT_OK = Column(("not", "ok"), (lambda part: _not_ok(part),), 14)
_IN = Column(("prompt", "tokens"), (lambda part: number_of_tokens(part.get("prompt_len")),), 5)
_OUT = Column(("out", "tokens"), (lambda part: number_of_tokens(part.get("output_len")),), 5)
_ASKED = Column(("asked", "req/s"), (lambda part: short(part.get("request_rate")),))


def _not_ok(part: CellSummary) -> str:
    return short(float(sum(part.get(kind) or 0 for kind in ("failed", "rejected"))))


def _way(part: CellSummary) -> str:
    first, last = short(part.get("rate_start")), short(part.get("rate_end"))
    return first if first == last else f"{first} to {last}"


_KEPT_UP = {True: "yes", False: "NO", None: NOT_MEASURED}

KINDS: Mapping[str, tuple[str, tuple[Column, ...]]] = {
    "classes": (
        "By class",
        (
            Column(("", "class"), (lambda part: clean(part["name"], 40),), left=True),
            *(_ASKED, _GOT, _IN, _OUT, *_TTFT, _TPOT, _ITL, _E2EL, _GOOD, _NEED, _OK, _NOT_OK),
        ),
    ),
    "stages": (
        "By stage of the rate",
        (
            Column(("asked", "req/s"), (_way,)),
            Column(("until", "s"), (lambda part: short(part.get("end_s")),), 4),
            *(_GOT, *_TTFT, _TPOT, _ITL, _E2EL, _GOOD, _NEED),
            Column(("kept", "up"), (lambda part: _KEPT_UP[part.get("steady")],), 1),
            *(_OK, _NOT_OK),
        ),
    ),
    "turns": (
        "By turn",
        (
            Column(("", "turn"), (lambda part: str(part.get("turn")),)),
            Column(("prompt", "tokens"), (lambda part: number_of_tokens(part.get("prompt_tokens")),), 1),
            *(*_TTFT, _TPOT, _ITL, _E2EL),
            Column(("from", "cache"), (lambda part: percent(part.get("cached_share")),), 5),
            *(_OK, _NOT_OK),
        ),
    ),
}


def parts_of(cell: CellSummary, kind: str) -> list[CellSummary]:
    """The entries of one kind, each as a summary of its own; those of a void cell as void as it is."""
    found: Any = cell.get(kind) or ()
    named = [{"name": name, **entry} for name, entry in found.items()] if isinstance(found, Mapping) else found
    return list(named)


def part_lines(cells: Sequence[CellSummary], several_targets: bool, width: int) -> Iterator[Text]:
    """The terminal's tables: one a cell and kind, each with a line that says what it is."""
    for cell in cells:
        for kind, (title, columns) in KINDS.items():
            parts = parts_of(cell, kind)
            if not parts:
                continue
            layout = arrange(columns, parts, width - INDENT)
            yield Text()
            where = f" ({place(cell, several_targets)})" if len(cells) > 1 else ""
            yield Text(f"{title}{where} \N{MIDDLE DOT} latencies in ms", style="italic")
            for level in (0, 1):
                heads = " " * INDENT + layout.line([head[level] for head in layout.heads])
                yield Text(heads.rstrip(), style="bold" if level else "", no_wrap=True, overflow="ignore")
            for row in layout.rows:
                style = "dim" if is_unsound(cell) else ""
                yield Text(" " * INDENT + layout.line(row).rstrip(), style=style, no_wrap=True, overflow="ignore")


def part_tables(cells: Sequence[CellSummary], several_targets: bool) -> list[Child]:
    """The tables of report.html, one a kind, with every cell that has such parts."""
    return [made for kind in KINDS if (made := _table(cells, kind, several_targets)) is not None]


def _table(cells: Sequence[CellSummary], kind: str, several_targets: bool) -> Markup | None:
    title, columns = KINDS[kind]
    rows = [(cell, part) for cell in cells for part in parts_of(cell, kind)]
    if not rows:
        return None
    shown = [column for column in columns if any(column.forms[-1](part) != NOT_MEASURED for _, part in rows)]
    several = len({id(cell) for cell, _ in rows}) > 1
    heads: list[Child] = ["cell", *(["where"] if several else [])]
    heads += [tag("th", " ".join(filter(None, c.head)), scope="col", class_=None if c.left else "n") for c in shown]
    body: list[list[Child]] = []
    for cell, part in rows:
        line: list[Child] = [f"#{cell.get('cell', '?')}", *([place(cell, several_targets)] if several else [])]
        line += [tag("td", c.forms[-1](part), class_=None if c.left else figure_class(c)) for c in shown]
        body.append(line)
    classes = ["voided" if is_unsound(cell) else "" for cell, _ in rows]
    return table(heads, body, caption=f"{title}; latencies in ms", row_classes=classes)
