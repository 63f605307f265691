"""A history as one page without network: the changes, every series with its levels, the drift of capacity."""

from __future__ import annotations

from collections.abc import Sequence

from pdbench.report import wording
from pdbench.report.compare.explain import measured_on
from pdbench.report.compare.said import metric_name, signed, unit
from pdbench.report.history import said
from pdbench.report.history.story import Drift, History, Series
from pdbench.report.markup import Child, Markup, table, tag
from pdbench.report.page import page, part, section
from pdbench.report.wording import clean, number

WIDTH, HEIGHT, MARGIN = 360, 110, 8
OPEN_SERIES = 60


def render_html(history: History) -> str:
    """The whole page."""
    body: list[Child] = [tag("h2", "Verdict", id="verdict", class_="seen-by-few"), _verdict(history)]
    body.append(section("changes", "Changes", _events(history)))
    body.append(section("series", "Every series", _series(history)))
    if history.drifts:
        body.append(section("capacity", said.capacity(history), _drifts(history)))
    body.append(section("runs", "The runs", [_runs(history)]))
    simulated = "SIMULATED · " if history.simulated else ""
    first, last = (measured_on(run)[:10] for run in (history.runs[0], history.runs[-1]))
    heading = f"history of {wording.counted(len(history.runs), 'run')}"
    return page(f"{simulated}pdbench · {heading}", heading, f"{first} to {last}", body, style=part("history.css"))


def _verdict(history: History) -> Markup:
    tone = "warn" if history.too_short else "void" if history.ended_worse else "ok"
    parts: list[Child] = [tag("p", said.verdict(history), class_="sentence")]
    if history.simulated:
        text = " These numbers come from a simulated engine, not from a real one."
        parts.append(tag("p", tag("b", "SIMULATED"), text, class_="banner"))
    notes = [*said.doubts(history), *(f"left out: {why}" for why in history.left_out)]
    parts.append(tag("ul", [tag("li", note) for note in notes], class_="note") if notes else None)
    return tag("div", parts, class_=f"verdict {tone}")


def _events(history: History) -> list[Child]:
    if not history.events:
        return [tag("p", "No change point.", class_="note missing")]
    found: list[Child] = []
    for event in reversed(history.events):
        figures = [tag("th", text, scope="col", class_="n") for text in ("before", "after", "change")]
        heads: list[Child] = ["cell", "metric", *figures, "verdict"]
        rows: list[list[Child]] = []
        for shift in event.shifts:
            name, values = shift.series.metric, (shift.before, shift.after)
            numbers = [tag("td", f"{number(value)} {unit(name)}".rstrip(), class_="n") for value in values]
            word = "worse" if shift.worse else "better"
            mark = tag("td", tag("span", word, class_=f"mark {word}"))
            rows.append(
                [shift.series.cell, metric_name(name), *numbers, tag("td", signed(shift.change), class_="n"), mark]
            )
        found.append(tag("h3", said.event_sentence(history, event)))
        found.append(tag("p", f"Not the same: {said.differs(event)}.", class_="note"))
        found.append(table(heads, rows, caption="Series that changed here"))
    return found


def _series(history: History) -> list[Child]:
    changed = [one for one in history.series if len(one.levels) > 1]
    others = [one for one in history.series if len(one.levels) <= 1]
    shown = [*changed, *others]
    note = "Lines are levels between change points, dots are runs; a run without a valid value has none."
    found: list[Child] = [tag("p", note, class_="note")]
    found.append(tag("div", [_drawn(history, one) for one in shown[:OPEN_SERIES]], class_="panels"))
    if rest := shown[OPEN_SERIES:]:
        named = f"{len(rest):,} more series"
        panels = tag("div", [_drawn(history, one) for one in rest], class_="panels")
        found.append(tag("details", tag("summary", named), panels))
    return found


def _drawn(history: History, series: Series) -> Markup:
    title = f"{series.cell}: {metric_name(series.metric)}"
    ends = [start for start, _ in series.levels[1:]]
    spoken = f"{title} over {len(history.runs)} runs, {wording.counted(len(ends), 'change')}"
    levels = [
        (start, stop, value) for (start, value), stop in zip(series.levels, [*ends, len(history.runs)], strict=True)
    ]
    drawing = _lines(history, series.values, levels, spoken, unit(series.metric))
    return tag("figure", tag("figcaption", title), drawing)


def _lines(
    history: History, values: Sequence[float | None], levels: Sequence[tuple[int, int, float]], spoken: str, of: str
) -> Markup:
    """Dots for the runs, a line for each level, a mark at each change; the scale begins at zero."""
    known = [value for value in values if value is not None]
    top = max(known, default=1.0) * 1.15
    step = (WIDTH - 2 * MARGIN) / max(len(values) - 1, 1)

    def x(run: float) -> float:
        return MARGIN + run * step

    def y(value: float) -> float:
        return HEIGHT - MARGIN - value / top * (HEIGHT - 2 * MARGIN - 12)

    parts: list[Child] = [tag("line", x1=MARGIN, x2=WIDTH - MARGIN, y1=f"{y(0):.1f}", y2=f"{y(0):.1f}", class_="axis")]
    for place, (start, stop, value) in enumerate(levels):
        if place:
            at = f"{x(start - 0.5):.1f}"
            parts.append(tag("line", x1=at, x2=at, y1=0, y2=HEIGHT, class_="change"))
        line = {"x1": f"{x(start):.1f}", "x2": f"{x(stop - 1):.1f}", "y1": f"{y(value):.1f}", "y2": f"{y(value):.1f}"}
        parts.append(tag("line", **line, class_="level"))
        parts.append(tag("text", number(value), x=f"{x(start):.1f}", y=f"{y(value) - 6:.1f}", class_="told"))
    for run, seen in enumerate(values):
        if seen is not None:
            name = tag("title", f"{said.run_name(history.runs[run])}: {number(seen)} {of}")
            parts.append(tag("circle", name, cx=f"{x(run):.1f}", cy=f"{y(seen):.1f}", r=2.5, class_="run"))
    return tag("svg", parts, viewBox=f"0 0 {WIDTH} {HEIGHT}", class_="series", role="img", aria_label=spoken)


def _drifts(history: History) -> list[Child]:
    note = "Requests/s at which the decode slots would be full, from the busiest cell's TPOT and output lengths."
    note += " A larger batch has a longer TPOT: where that cell left slots free they are upper bounds, not capacity."
    panels = [_capacity(history, drift) for drift in history.drifts]
    return [tag("p", note, class_="note"), tag("div", panels, class_="panels")]


def _capacity(history: History, drift: Drift) -> Markup:
    sentence = said.drift_sentence(history, drift)
    return tag("figure", tag("figcaption", sentence), _lines(history, drift.values, [], sentence, "req/s"))


def _runs(history: History) -> Markup:
    rows: list[list[Child]] = []
    for place, run in enumerate(history.runs):
        versions = ", ".join(str(value) for value in dict.fromkeys((run.summary.get("versions") or {}).values()))
        told = [run.summary.get("revision"), run.summary.get("driver"), versions, run.path]
        rows.append([str(place), measured_on(run), *(clean(value, 120) if value else "not known" for value in told)])
    return table(["run", "measured, UTC", "git", "driver", "engine", "path"], rows, caption="Runs, oldest first")
