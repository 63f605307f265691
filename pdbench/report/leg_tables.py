"""The two-hop legs and the proxy's cost on a terminal and in report.html."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.text import Text

from pdbench.report.columns import Column
from pdbench.report.markup import Markup, table, tag
from pdbench.report.wording import CellSummary, place, tenths

LEGS = {
    "render": "render", "prefill": "prefill leg", "between": "between", "decode": "decode leg",
    "second_token": "second token", "derender": "derender",
}  # fmt: skip
FIGURES = ("mean", "p50", "p90", "p99")


def drive_column(cells: Sequence[CellSummary]) -> list[Column]:
    """Who sent to the engines, where a run did it in several ways."""
    if len({cell.get("drive", "proxy") for cell in cells}) < 2:
        return []
    return [Column(("", "drive"), (lambda cell: str(cell.get("drive", "proxy")),), left=True)]


def leg_lines(cells: Sequence[CellSummary], several: bool) -> Iterator[Text]:
    """Each two-hop cell's legs, and what the proxy adds where both drives were measured."""
    told = [*_legs(cells, several), *_costs(cells, several)]
    if told:
        yield Text()
        yield from (Text(line) for line in told)


def _legs(cells: Sequence[CellSummary], several: bool) -> Iterator[str]:
    for cell in cells:
        legs = cell.get("legs_ms") or {}
        parts = [
            f"{name} {tenths(legs[leg]['mean'])} (p99 {tenths(legs[leg].get('p99'))})"
            for leg, name in LEGS.items()
            if leg in legs and leg != "between"
        ]
        if parts:
            yield f"{place(cell, several)}, ms: {', '.join(parts)}"


def _costs(cells: Sequence[CellSummary], several: bool) -> Iterator[str]:
    for cell in cells:
        cost = cell.get("proxy_cost_ms")
        if not cost:
            continue
        doubt = f" (95%: {tenths(cost['interval'][0])} to {tenths(cost['interval'][1])})" if "interval" in cost else ""
        more = "" if doubt else "; --repeats 3 gives it an interval"
        yield f"{place(cell, several)}: the proxy adds {tenths(cost['mean'])} ms to the mean TTFT{doubt}{more}"


def legs(cells: Sequence[CellSummary], several: bool) -> Markup | None:
    """The same as a table for report.html; None where no cell was driven in two hops."""
    rows = [
        [place(cell, several), name, *(tag("td", tenths(figures.get(key)), class_="n") for key in FIGURES)]
        for cell in cells
        for leg, name in LEGS.items()
        if (figures := (cell.get("legs_ms") or {}).get(leg))
    ]
    costs = [tag("p", line) for line in _costs(cells, several)]
    if not rows and not costs:
        return None
    found = table(["cell", "leg", "mean", "p50", "p90", "p99"], rows, caption="Two hops, ms") if rows else None
    return tag("div", found, *costs)
