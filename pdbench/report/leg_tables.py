"""The two-hop legs and the proxy's cost on a terminal and in report.html."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rich.text import Text

from pdbench.report.columns import Column
from pdbench.report.markup import Markup, table, tag
from pdbench.report.wording import CellSummary, place, tenths

LEGS = {
    "render": "render", "prefill": "prefill leg", "between": "hand-over", "decode": "decode leg",
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
        parts = [_leg(name, legs[leg]) for leg, name in LEGS.items() if leg in legs]
        if parts:
            yield f"{place(cell, several)}, ms: {', '.join(parts)}"


def _leg(name: str, figures: Mapping[str, float]) -> str:
    """A leg in words; a hand-over is below 0 where both hops leave together (push)."""
    if figures["mean"] < 0:
        return f"hop 2 sent {tenths(-figures['mean'])} before hop 1 ended"
    return f"{name} {tenths(figures['mean'])} (p99 {tenths(figures.get('p99'))})"


def _costs(cells: Sequence[CellSummary], several: bool) -> Iterator[str]:
    for cell in cells:
        if cost := cell.get("proxy_cost_ms"):
            yield f"{place(cell, several)}: {_cost(float(cost['mean']), cost.get('interval'))}"


def _cost(mean_ms: float, interval_ms: Sequence[float] | None) -> str:
    """What the proxy costs, as far as the interval tells; a difference alone is no finding."""
    if interval_ms is None:
        return (
            f"what the proxy costs is not known: {mean_ms:+,.1f} ms between the mean TTFTs of too few requests for an"
            " interval; --repeats 3 gives one"
        )
    low, high = interval_ms
    doubt = f"(95%: {tenths(low)} to {tenths(high)})"
    if low <= 0 <= high:
        return f"no evidence that the proxy costs anything: {mean_ms:+,.1f} ms of the mean TTFT {doubt}"
    if high < 0:
        return f"through the proxy the mean TTFT is {tenths(-mean_ms)} ms shorter {doubt}"
    return f"the proxy adds {tenths(mean_ms)} ms to the mean TTFT {doubt}"


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
