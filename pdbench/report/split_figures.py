"""Figures of where TTFT went: a bar a cell, and the waterfall of one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pdbench.report import wording
from pdbench.report.figures import Figure, bar, document, load_name, plain, small
from pdbench.report.wording import CellSummary, counted, is_unsound, number_of_tokens, place, verdict_mark

PART_COLOURS = {part: f"var(--part-{i})" for i, part in enumerate(wording.SPLIT_PARTS)}


def tick(cell: CellSummary, several_targets: bool) -> str:
    """The short name of a cell on an axis: `#3 . 8 req/s . 16,384`."""
    parts = [f"#{cell.get('cell', '?')}", load_name(cell), number_of_tokens(cell.get("prompt_len"))]
    parts += [plain(cell.get("target", ""))] if several_targets else []
    parts += {"void": ["VOID"], "cut": ["cut"], "none": ["no answer"]}.get(verdict_mark(cell), [])
    return " \u00b7 ".join(parts)


def split_figure(cells: Sequence[CellSummary], several_targets: bool) -> Figure | None:
    """One bar a cell, stacked from the parts of its mean TTFT; void cells are hatched, the unexplained crossed."""
    known = [cell for cell in cells if wording.split(cell)]
    if not known:
        return None
    parts = dict.fromkeys(part for cell in known for part in wording.split(cell))
    names = [tick(cell, several_targets) for cell in known]
    void = [is_unsound(cell) for cell in known]
    traces = []
    ordered = sorted(parts, key=lambda part: part == "unexplained")
    for part in ordered:
        shapes = ["x" if part == "unexplained" else "/" if is_void else "" for is_void in void]
        pattern = {"shape": shapes, "fillmode": "overlay", "fgcolor": "var(--panel)", "size": 6, "solidity": 0.3}
        colour = PART_COLOURS.get(part, "var(--muted)")
        values = [wording.split(cell).get(part) for cell in known]
        said = [f"{wording.tenths(value)} ms" for value in values]
        traces.append(
            bar(
                y=names,
                x=values,
                name=plain(wording.part_name(part)),
                orientation="h",
                marker={"color": colour, "line": {"color": "var(--panel)", "width": 1}, "pattern": pattern},
                customdata=said,
                hovertemplate="%{y}<br>%{fullData.name}: %{customdata}<extra></extra>",
            )
        )
    made = document(
        traces,
        barmode="relative",
        height=84 + 26 * len(known),
        bargap=0.25,
        showlegend=False,
        xaxis={"title": {"text": "mean TTFT, ms"}, "tickformat": ",~f"},
        yaxis={"autorange": "reversed", "showgrid": False},
    )
    shares = {"barnorm": "percent", "xaxis": {"title": {"text": "share of mean TTFT"}, "ticksuffix": "%"}}
    spoken = (
        f"Stacked bars of the parts of mean TTFT for {counted(len(known), 'cell')}; the numbers are in the table below."
    )
    missing = len(cells) - len(known)
    note = f"Not measured in {missing} of {counted(len(cells), 'cell')}." if missing else ""
    keys = tuple(
        (trace["marker"]["color"], wording.part_name(part)) for trace, part in zip(traces, ordered, strict=True)
    )
    return Figure("", spoken, made, note, ("as shares of TTFT", shares) if len(known) > 1 else None, keys)


def waterfall(cells: Sequence[CellSummary], several_targets: bool) -> Figure | None:
    """The parts of one cell's mean TTFT as steps in the order in which a request meets them; the cell is picked."""
    known = [cell for cell in cells if wording.split(cell)]
    if not known:
        return None
    means = [sum(wording.split(cell).values()) for cell in known]
    chosen = means.index(max(means))
    made = [_steps(cell) for cell in known]
    choices = tuple((cell_name(cell, several_targets), each) for cell, each in zip(known, made, strict=True))
    most = max(len(wording.split(cell)) for cell in known)
    ranges = {"title": {"text": "ms from the intended send"}, "tickformat": ",~f", **made[chosen]["layout"]["xaxis"]}
    yaxis = {"autorange": "reversed", "showgrid": False}
    layout = {"height": 80 + 27 * (most + 1), "bargap": 0.25, "showlegend": False, "xaxis": ranges, "yaxis": yaxis}
    shown = document(made[chosen]["data"], **layout)
    spoken = (
        "The parts of the mean TTFT of one cell as steps from zero to the mean; the numbers are in the table below."
    )
    return Figure("Waterfall", spoken, shown, choices=choices, choice_of="Cell", chosen=chosen)


def cell_name(cell: CellSummary, several_targets: bool) -> str:
    mark = f" ({verdict_mark(cell)})" if is_unsound(cell) else ""
    return f"#{cell.get('cell', '?')} {place(cell, several_targets)}{mark}"


def _steps(cell: CellSummary) -> dict[str, Any]:
    parts = wording.split(cell)
    total = sum(parts.values())
    starts = [sum(list(parts.values())[:i]) for i in range(len(parts))]
    names = [plain(wording.part_name(part)) for part in parts]
    shares = [f" ({ms / total:.0%})" if total > 0 else "" for ms in parts.values()]
    said = [f"{wording.tenths(ms)} ms{share}" for ms, share in zip(parts.values(), shares, strict=True)]
    void = is_unsound(cell)
    pattern = {
        "shape": "/" if void else "",
        "fillmode": "overlay",
        "fgcolor": "var(--panel)",
        "size": 6,
        "solidity": 0.3,
    }
    bars = bar(
        y=[*names, "mean TTFT"],
        x=[*parts.values(), total],
        base=[*starts, 0.0],
        orientation="h",
        text=[*said, f"{wording.tenths(total)} ms"],
        textposition="outside",
        cliponaxis=False,
        marker={
            "color": [*(PART_COLOURS.get(part, "var(--muted)") for part in parts), "var(--ink)"],
            "pattern": pattern,
        },
        hovertemplate="%{y}: %{text}<extra></extra>",
    )
    reach = max([*starts, *(a + b for a, b in zip(starts, parts.values(), strict=True)), total])
    least = min([0.0, *starts, *(a + b for a, b in zip(starts, parts.values(), strict=True))])
    # Room for what is written behind the longest bar.
    return {"data": [small(bars)], "layout": {"xaxis": {"range": [least * 1.25, reach * 1.25]}}}
