"""report.html: one file that needs no network. The verdict first, then the evidence, then how it was measured."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources

from pdbench.report import heat, load_figures, measured, series, tables, time_figures, wording
from pdbench.report.figures import Figure
from pdbench.report.markup import Child, Markup, joined, script_json, tag
from pdbench.report.wording import CellSummary, Summary, clean, place, verdict_mark
from pdbench.run import Run

POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:"
SPOKEN_CELLS = 24


def render_html(summary: Summary, run: Run) -> str:
    """The whole report. Raises nothing for want of data: what is missing is said where it would be."""
    drawn: list[Figure] = []
    body = [tag("h2", "Verdict", id="verdict", class_="seen-by-few"), *_verdict(summary, run)]
    body += [_section(identity, title, parts) for identity, title, parts in _sections(summary, run, drawn)]
    return _page(summary, body, drawn, _subtitle(summary, run))


def _sections(summary: Summary, run: Run, drawn: list[Figure]) -> list[tuple[str, str, list[Child]]]:
    cells: Sequence[CellSummary] = summary.get("cells") or []
    several = len(wording.targets(summary)) > 1
    if not cells:
        return [("measured", "How it was measured", [measured.measured(summary, run.document)])]
    return [
        ("grid", "The grid", [heat.maps(cells), tables.numbers(cells, several), _legend(cells), _notes(cells)]),
        ("split", "Where TTFT went", _split(cells, several, drawn)),
        ("latency", "Latency against load", _latency(cells, drawn)),
        ("time", "Waiting and running over time", _time(cells, run, drawn)),
        ("itl", "Gaps between tokens", _gaps(cells, run, drawn)),
        ("validity", "Validity", [tables.validity(cells, several)]),
        ("diagnosis", "Diagnosis", [tables.diagnosis(cells, several)]),
        ("measured", "How it was measured", [measured.measured(summary, run.document), _terms()]),
    ]


def _section(identity: str, title: str, parts: Sequence[Child]) -> Markup:
    return tag("section", tag("h2", title, id=identity), parts, aria_labelledby=identity)


def _verdict(summary: Summary, run: Run) -> list[Markup]:
    cells: Sequence[CellSummary] = summary.get("cells") or []
    marks = [verdict_mark(cell) for cell in cells]
    bad = marks.count("void") + marks.count("none")
    tone = "void" if bad and bad == len(cells) else "warn" if bad or "warn" in marks else "ok"
    counted = ", ".join(f"{marks.count(kind)} {word}" for kind, word in tables.MARK_WORDS.items() if kind in marks)
    size = "1 cell" if len(cells) == 1 else f"{len(cells)} cells"
    said = (wording.sentence(summary) or f"{size}: {counted}.") if cells else "No cell was measured."
    several = len(wording.targets(summary)) > 1
    parts: list[Child] = [tag("p", said, class_="sentence")]
    if summary.get("simulated"):
        parts.append(
            tag(
                "p",
                tag("b", "SIMULATED"),
                " These numbers come from a simulated engine, not from a real one.",
                class_="banner",
            )
        )
    if summary.get("interrupted") or run.document.get("interrupted"):
        planned = len((run.document.get("plan") or {}).get("cells") or [])
        of = f" of {planned}" if planned else ""
        parts.append(
            tag(
                "p",
                tag("b", "INTERRUPTED"),
                f" Stopped before its end: {len(cells)}{of} cells are here.",
                class_="banner",
            )
        )
    if any(wording.loop(cell) == "closed" for cell in cells):
        text = " Each stream waits for its answer before it sends again, so the load gives way where servers slow down."
        parts.append(tag("p", tag("b", "CLOSED LOOP"), text, class_="banner"))
    spoken = [cell for cell in cells if verdict_mark(cell) in ("void", "none") or cell.get("diagnosis")]
    parts.append(
        tag("ul", [_spoken(cell, several) for cell in spoken[:SPOKEN_CELLS]], class_="cells") if spoken else None
    )
    if len(spoken) > SPOKEN_CELLS:
        parts.append(
            tag("p", f"and {len(spoken) - SPOKEN_CELLS} more cells: see Validity and Diagnosis.", class_="note")
        )
    parts.append(tag("p", counted, class_="note") if cells else None)
    return [tag("div", parts, class_=f"verdict {tone}")]


def _spoken(cell: CellSummary, several: bool) -> Markup:
    said = wording.cell_sentence(cell) or wording.void_codes(cell)
    causes = ", ".join(dict.fromkeys(clean(cause.get("cause", "?"), 40) for cause in cell.get("diagnosis") or []))
    name = tag("b", f"{tables.identity(cell)} {place(cell, target=several)}")
    return tag(
        "li",
        tables.mark(cell),
        " ",
        name,
        f" {said}" if said else "",
        tag("span", causes, class_="cause") if causes else None,
    )


def _legend(cells: Sequence[CellSummary]) -> Markup:
    words = "Hatched fields are void: their latencies are no result. The stronger a colour, the more. "
    words += "Slots: blue below what is available, orange above; needed = asked rate \u00d7 output tokens \u00d7 TPOT. "
    words += "\u00b1 is the reach of a 95% interval, +? means that the sample does not bound it from above, "
    words += "\u201cneeds N\u201d that too few requests carry the percentile; then >x is where its 95% interval begins."
    return tag("p", words, class_="note")


def _notes(cells: Sequence[CellSummary]) -> Markup | None:
    """Remarks on single cells, each once with where it holds."""
    found = wording.notes(cells)
    return (
        tag("ul", [tag("li", tag("b", f"{where}: "), said) for where, said in found], class_="note") if found else None
    )


def _figure(figure: Figure, drawn: list[Figure]) -> Markup:
    drawn.append(figure)
    name = f"figure-{len(drawn) - 1}"
    plot = tag("div", class_="plot", id=name, tabindex="0", role="img", aria_label=figure.spoken,
               style=f"height:{figure.document['layout'].get('height', 330)}px")  # fmt: skip
    note = tag("p", figure.note, class_="note") if figure.note else None
    button = (
        tag("button", figure.other[0], type="button", aria_pressed="false", data_figure=name) if figure.other else None
    )
    caption = tag("figcaption", figure.title, button) if figure.title or button else None
    keys = [tag("li", tag("i", style=f"background:{colour}"), key) for colour, key in figure.keys]
    return tag("figure", caption, tag("ul", keys, class_="keys") if keys else None, plot, note)


def _split(cells: Sequence[CellSummary], several: bool, drawn: list[Figure]) -> list[Child]:
    figure = load_figures.split_figure(cells, several)
    if figure is None:
        return [_missing("the parts of TTFT: no metrics page of prefill or decode was scraped")]
    note = "Means add, percentiles do not: this is the mean. Hatched bars belong to void cells; "
    note += "crossed grey is what no measured part explains, left of zero where parts overlap."
    return [_figure(figure, drawn), tag("p", note, class_="note"), tables.split(cells)]


def _latency(cells: Sequence[CellSummary], drawn: list[Figure]) -> list[Child]:
    found = load_figures.latency_figures(cells)
    if not found:
        return [_missing("latency: no request was answered, or too few for a percentile")]
    note = "Whiskers are 95% intervals; where none goes up, the sample gives no upper bound. "
    note += "Hollow markers are void cells, which no line passes through."
    return [tag("div", [_figure(figure, drawn) for figure in found], class_="panels"), tag("p", note, class_="note")]


def _time(cells: Sequence[CellSummary], run: Run, drawn: list[Figure]) -> list[Child]:
    lines = series.gauge_lines(run)
    if not lines:
        return [_missing("waiting and running over time: no metrics page was scraped")]
    of = {int(cell["cell"]): cell for cell in cells if "cell" in cell}
    slots = {str(cell.get("target", "")): (cell.get("slots") or {}).get("available") for cell in cells}
    return [_figure(figure, drawn) for figure in time_figures.time_figures(lines, series.windows(run), of, slots)]


def _gaps(cells: Sequence[CellSummary], run: Run, drawn: list[Figure]) -> list[Child]:
    found = time_figures.gap_figures(series.gap_curves(run), cells)
    if not found:
        return [_missing("gaps between tokens: no answer had two tokens")]
    note = "Where a curve crosses 1%, one gap in a hundred is longer. Dotted curves are void cells."
    return [
        tag("div", [_figure(figure, drawn) for figure in found], class_="panels two"),
        tag("p", note, class_="note"),
    ]


def _missing(what: str) -> Markup:
    return tag("p", f"Not measured: {what}.", class_="note missing")


_TERMS = (
    ("TTFT", "time to first token, from the intended send time in open loop, from the free stream in closed loop"),
    ("ITL", "inter-token latency: each gap between streamed outputs"),
    ("TPOT", "time per output token of one request: (end to end - TTFT) / (output tokens - 1)"),
    ("E2EL", "end-to-end latency"),
    ("goodput", "requests/s that meet every SLO"),
    ("slot", "one of max-num-seqs of the decode servers"),
    ("waiting, running", "as in vLLM's gauges"),
)


def _terms() -> Markup:
    return tag("details", tag("summary", "What the words mean"), tables.definitions(_TERMS))


def _page(summary: Summary, body: Sequence[Child], drawn: Sequence[Figure], subtitle: str) -> str:
    names = ", ".join(clean(name, 60) for name in wording.targets(summary)) or "no target"
    simulated = "SIMULATED \u00b7 " if summary.get("simulated") else ""
    title = f"{simulated}pdbench \u00b7 {names}"
    data = script_json([{**figure.document, "other": figure.other and figure.other[1]} for figure in drawn])
    scripts = [tag("script", Markup(_plotly()))] if drawn else []
    scripts += [tag("script", data, type="application/json", id="figures"), tag("script", Markup(_part("page.js")))]
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=POLICY),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", title),
        tag("style", Markup(_part("page.css"))),
    )
    top = tag(
        "header",
        tag("h1", tag("span", "pdbench", class_="brand"), " ", names),
        tag("p", subtitle, class_="note"),
    )
    whole = tag(
        "body", tag("a", "Skip to the verdict", href="#verdict", class_="skip"), top, tag("main", body), scripts
    )
    return f'<!doctype html>\n<html lang="en">{joined([head, whole])}</html>\n'


def _subtitle(summary: Summary, run: Run) -> str:
    """What was measured, when, and how much of it."""
    about: dict[str, None] = {}
    for deployment in run.document.get("deployments") or []:
        about |= dict.fromkeys(clean(deployment[key], 80) for key in ("model", "mode") if deployment.get(key))
    count = len(summary.get("cells") or [])
    when = measured.moment(summary.get("created_unix_s"))
    return " \u00b7 ".join(filter(None, [*about, when, f"{count} {'cell' if count == 1 else 'cells'}"]))


def _part(name: str) -> str:
    return resources.files("pdbench.report").joinpath(name).read_text(encoding="utf-8")


def _plotly() -> str:
    from plotly.offline import get_plotlyjs

    return str(get_plotlyjs())
