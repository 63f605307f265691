"""Heat maps of the grid as tables: they print, take keyboard focus, and every field says its number and its doubt."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pdbench.report import wording
from pdbench.report.markup import Child, Markup, tag
from pdbench.report.wording import (
    CellSummary,
    clean,
    is_unsound,
    load,
    number,
    number_of_tokens,
    short,
    verdict_mark,
    why_unsound,
)


@dataclass(frozen=True, slots=True)
class Field:
    """What one field of a map shows: text, and its place on the colour scale from 0 to 1 (`None`: no colour)."""

    text: str
    heat: float | None
    doubt: str = ""


Reading = Callable[[CellSummary], Field | None]


def ttft(cells: Sequence[CellSummary]) -> Reading:
    quantile = wording.highest_percentile(cells, "ttft")
    scale = _log_scale([wording.statistic(cell, quantile, "ttft") for cell in cells if not is_unsound(cell)])

    def read(cell: CellSummary) -> Field | None:
        value = wording.statistic(cell, quantile, "ttft")
        needed = wording.needed_requests(cell, quantile, "ttft")
        low, high = wording.interval(cell, quantile, "ttft")
        if value is None:
            if needed is None:
                return None
            return Field(f">{number(low)}" if low else "too few", None, f"needs {needed:,} requests")
        known = low is not None or high is not None
        doubt = f"{number(low)} to {'?' if high is None else number(high)}" if known else ""
        return Field(number(value), scale(value), doubt)

    return read


def waiting(cells: Sequence[CellSummary]) -> Reading:
    known = [float(c["waiting_mean"]) for c in cells if c.get("waiting_mean") is not None and not is_unsound(c)]
    highest = max([1.0, *known])

    def read(cell: CellSummary) -> Field | None:
        mean, top = cell.get("waiting_mean"), cell.get("waiting_max")
        if mean is None:
            return None
        return Field(
            wording.tenths(float(mean)),
            math.sqrt(min(float(mean) / highest, 1.0)) if len(known) > 1 else None,
            "" if top is None else f"max {short(float(top))}",
        )

    return read


def slots(cells: Sequence[CellSummary]) -> Reading:
    def read(cell: CellSummary) -> Field | None:
        found: Mapping[str, float | None] = cell.get("slots") or {}
        needed, available = found.get("needed"), found.get("available")
        if needed is None:
            return None
        if not available:
            return Field(number(needed), None, "available: not known")
        # The scale ends at twice what is available; one is its middle.
        return Field(
            number(needed), min(needed / available / 2, 1.0), f"of {short(available)}: {needed / available:.0%}"
        )

    return read


def _log_scale(values: Sequence[float | None]) -> Callable[[float], float | None]:
    """From 0 to 1; one value alone has no place on a scale."""
    known = [math.log(value) for value in values if value is not None and value > 0]
    if len(known) < 2:
        return lambda value: None
    low, high = min(known, default=0.0), max(known, default=1.0)
    # Less than a factor of two between the ends is no contrast worth the full scale.
    span = max(high - low, math.log(2))
    return lambda value: min(max((math.log(value) - low) / span, 0.0), 1.0) if value > 0 else 0.0


MAPS: dict[str, tuple[str, Callable[[Sequence[CellSummary]], Reading]]] = {
    "heat latency": ("TTFT {percentile}, ms{why}", ttft),
    "heat wait": ("Decode waiting, mean requests", waiting),
    "heat slots": ("Decode slots needed, against available", slots),
}


def maps(cells: Sequence[CellSummary], several_targets: bool) -> Markup:
    """Each map for each target and output length, beside each other; a line for what was not measured."""
    groups: dict[tuple[str, float | None, str], list[CellSummary]] = {}
    for cell in cells:
        groups.setdefault((str(cell.get("target", "")), cell.get("output_len"), wording.loop(cell)), []).append(cell)
    parts: list[Child] = []
    for kind, (title, reading) in MAPS.items():
        read, drawn = reading(cells), []
        why = wording.why_not_p99(cells, "ttft")
        title = title.format(percentile=wording.highest_percentile(cells, "ttft"), why=f" ({why})" if why else "")
        for (target, output, _), group in groups.items():
            names = [clean(target, 60)] if several_targets else []
            names += [f"{number_of_tokens(output)} output tokens"] if len({key[1] for key in groups}) > 1 else []
            if any(read(cell) is not None for cell in group):
                drawn.append(_map(kind, ", ".join([title, *names]), group, read, several_targets))
        parts += drawn or [tag("p", f"Not measured: {title}.", class_="note wide")]
    return tag("div", parts, class_="maps")


def _map(kind: str, title: str, group: Sequence[CellSummary], read: Reading, several: bool) -> Markup:
    loads = sorted({value for cell in group if (value := load(cell)) is not None})
    lens = sorted({cell["prompt_len"] for cell in group if cell.get("prompt_len") is not None}, reverse=True)
    at = {(load(cell), cell.get("prompt_len")): cell for cell in group}
    unit = wording.load_unit(group[0])
    head = tag("tr", tag("th", "prompt tokens", scope="col"), [tag("th", short(value), scope="col") for value in loads])
    top = tag("tr", tag("td"), tag("th", unit, scope="colgroup", colspan=max(len(loads), 1)))
    rows = []
    for prompt in lens:
        fields = [_field(at.get((value, prompt)), read, several) for value in loads]
        rows.append(tag("tr", tag("th", number_of_tokens(prompt), scope="row"), fields))
    table = tag("table", tag("caption", title), tag("thead", top, head), tag("tbody", rows), class_=kind)
    return tag("div", table, class_="scroll map", tabindex="0", role="region", aria_label=title)


def _field(cell: CellSummary | None, read: Reading, several: bool) -> Markup:
    if cell is None:
        return tag("td", class_="absent")
    field, mark = read(cell), verdict_mark(cell)
    if field is None:
        return tag("td", tag("span", "not measured", class_="doubt"), class_="absent")
    title = wording.place(cell, several)
    words: list[Child] = [tag("b", field.text), tag("span", field.doubt, class_="doubt") if field.doubt else None]
    if is_unsound(cell):
        words.append(tag("span", mark, class_=f"mark {mark}"))
        return tag("td", words, class_="voided", title=f"{title}: {mark}, {why_unsound(cell)}")
    if mark == "warn":
        words.append(tag("span", "warn", class_="mark warn"))
    if field.heat is None:
        return tag("td", words, title=title)
    deep = " deep" if field.heat > 0.55 else ""
    return tag("td", words, class_=f"hot{deep}", title=title, style=f"--h:{field.heat:.3f}")
