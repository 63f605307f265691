"""report.html: one file that needs no network. The verdict first, then the evidence, then how it was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pdbench.report import (
    capacity_figures,
    connector_tables,
    explorer,
    heat,
    leg_tables,
    load_figures,
    measured,
    part_tables,
    series,
    split_figures,
    tables,
    time_figures,
    wording,
)
from pdbench.report.capacity.html import search_section
from pdbench.report.compare.between import between_targets
from pdbench.report.compare.html import difference as target_difference
from pdbench.report.figures import Figure
from pdbench.report.markup import Child, Markup, tag
from pdbench.report.material import Material, material
from pdbench.report.page import missing, page, part, placed, section
from pdbench.report.sent_rate import GOT, not_the_servers
from pdbench.report.window import Metrics
from pdbench.report.wording import CellSummary, Summary, clean, place, verdict_mark
from pdbench.run import Run

SPOKEN_CELLS = 24


def render_html(summary: Summary, run: Run, read: Material | None = None) -> str:
    """The whole report. Raises nothing for want of data: what is missing is said where it would be."""
    summary = wording.for_readers(summary)
    drawn: list[Figure] = []
    body = [tag("h2", "Verdict", id="verdict", class_="seen-by-few"), *_verdict(summary, run)]
    difference = between_targets(summary, run.path)
    body += target_difference(difference) if difference is not None else []
    body += [section(identity, title, parts) for identity, title, parts in _sections(summary, run, read, drawn)]
    name = _name(summary, run)
    simulated = "SIMULATED \u00b7 " if summary.get("simulated") else ""
    day = (measured.moment(summary.get("created_unix_s")) or "")[:10]
    title = " \u00b7 ".join(filter(None, [f"{simulated}pdbench", name, day]))
    return page(title, name, _subtitle(summary), body, drawn, part("compare.css") if difference is not None else "")


def _sections(
    summary: Summary, run: Run, read: Material | None, drawn: list[Figure]
) -> list[tuple[str, str, list[Child]]]:
    cells: Sequence[CellSummary] = summary.get("cells") or []
    several = len(wording.targets(summary)) > 1
    if not cells:
        return [("measured", "How it was measured", [measured.measured(summary, run.document)])]
    read = read or material(run)
    moved = connector_tables.connector_tables(cells, several)
    searched = [("search", "Which rate holds", search_section(summary, drawn))] if summary.get("capacity") else []
    return [
        *searched,
        (
            "grid",
            "The grid",
            [
                heat.maps(cells, several),
                tables.numbers(cells, several),
                _legend(summary, cells, heat.maps(cells, several) + tables.numbers(cells, several)),
                part_tables.part_tables(cells, several),
                _notes(cells, several),
            ],
        ),
        ("split", "Where TTFT went", _split(cells, several, drawn)),
        *([("moved", "What connectors moved", moved)] if moved else []),
        ("latency", "Latency against load", _latency(cells, _limits(summary), drawn)),
        ("capacity", "Slots and rates against load", _capacity(cells, wording.slos(summary), drawn)),
        ("time", "Waiting and running over time", _time(cells, run, read.metrics, drawn)),
        ("itl", "Gaps between tokens", _gaps(cells, read, drawn)),
        ("each", "Each request", _each(cells, read, _limits(summary).get("ttft"), drawn)),
        ("validity", "Validity", [tables.validity(cells, several)]),
        ("diagnosis", "Diagnosis", [tables.diagnosis(cells, several)]),
        (
            "measured",
            "How it was measured",
            [measured.measured(summary, run.document), tables.foreign(cells, several), _terms()],
        ),
    ]


def _verdict(summary: Summary, run: Run) -> list[Markup]:
    cells: Sequence[CellSummary] = summary.get("cells") or []
    marks = [verdict_mark(cell) for cell in cells]
    bad = sum(marks.count(kind) for kind in ("void", "cut", "none"))
    amiss = bad or "warn" in marks or any(cell.get("diagnosis") for cell in cells)
    tone = "void" if bad and bad == len(cells) else "warn" if amiss else "ok"
    counted = ", ".join(f"{marks.count(kind)} {word}" for kind, word in tables.MARK_WORDS.items() if kind in marks)
    size = wording.counted(len(cells), "cell")
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
    if tool := summary.get("imported_from"):
        text = f" from {clean(tool, 60)}: the flag \u201cimported\u201d says where its definitions differ."
        parts.append(tag("p", tag("b", "IMPORTED"), text, class_="banner"))
    if summary.get("interrupted") or run.document.get("interrupted"):
        text = " Stopped before its end. The rest: pdbench sweep --resume, with this run's directory."
        parts.append(tag("p", tag("b", "INTERRUPTED"), text, class_="banner"))
    if any(wording.loop(cell) == "closed" for cell in cells):
        text = " Each stream waits for its answer before it sends again, so the load gives way where servers slow down."
        parts.append(tag("p", tag("b", "CLOSED LOOP"), text, class_="banner"))
    spoken = [cell for cell in cells if verdict_mark(cell) in ("void", "cut", "none") or cell.get("diagnosis")]
    parts.append(
        tag("ul", [_spoken(cell, several, said) for cell in spoken[:SPOKEN_CELLS]], class_="cells") if spoken else None
    )
    if len(spoken) > SPOKEN_CELLS:
        parts.append(
            tag("p", f"and {wording.counted(len(spoken) - SPOKEN_CELLS, 'cell')} more: see below.", class_="note")
        )
    parts.append(tag("p", counted, class_="note") if cells else None)
    return [tag("div", parts, class_=f"verdict {tone}")]


def _spoken(cell: CellSummary, several: bool, run_verdict: str) -> Markup:
    said = wording.cell_sentence(cell) or wording.void_codes(cell)
    above = bool(said) and said in run_verdict
    said = wording.why_unsound(cell) if above else said
    # A void code may be its own cause, and a sentence names the first one.
    told = [cause for cause in cell.get("diagnosis") or [] if clean(cause.get("cause", "?"), 40) not in said]
    causes = ", ".join(dict.fromkeys(wording.named(cause) for cause in told))
    causes += ": see above" if causes and above else ""
    name = tag("b", f"{tables.identity(cell)} {place(cell, target=several)}")
    return tag(
        "li",
        tables.mark(cell),
        " ",
        name,
        f" {said}" if said else "",
        tag("span", causes, class_="cause") if causes else None,
    )


def _legend(summary: Summary, cells: Sequence[CellSummary], shown: str) -> Markup:
    """What the signs in `shown` mean, the maps and the table above; of others nothing is said."""
    words = "Hatched fields are void or cut short: their latencies are no result. "
    words += "Within one map a stronger colour is a longer TTFT, or more requests that wait; where a map has one value "
    words += "only, there is nothing to compare it with, and it has no colour. "
    closed = {wording.loop(cell) == "closed" for cell in cells}
    rate = "asked rate" if closed == {False} else "achieved rate" if closed == {True} else "asked (achieved) rate"
    words += f"Slots: blue below what is available, orange above; needed = {rate} \u00d7 output tokens \u00d7 TPOT. "
    if any((cell.get("slots") or {}).get("needed") and not cell["slots"].get("available") for cell in cells):
        words += "?: slots not known: pdbench slots --from-run RUN --max-num-seqs N (or sweep with --max-num-seqs). "
    words += f"good: {slos}. " if (slos := wording.slos(summary)) else ""
    words += f"{GOT}. "
    words += f"{chance[:1].upper()}{chance[1:]}. " if (chance := not_the_servers(summary)) else ""
    signs = {
        "\u00b1": "\u00b1 is the reach of a 95% interval",
        "+?": "+? means that the sample does not bound it from above",
        "needs ": "\u201cneeds N\u201d is how many requests the percentile takes, more than the cell has",
        "&gt;": ">x: too few requests for this percentile, and x is where its 95% interval begins",
    }
    said = "; ".join(meaning for sign, meaning in signs.items() if sign in shown)
    words += f"{said}." if said else ""
    needs = [n for cell in cells if (n := wording.needed_requests(cell, "p99", "ttft")) is not None]
    words += f" p99 takes {'up to ' if len(set(needs)) > 1 else ''}{max(needs):,} requests." if needs else ""
    if any(verdict_mark(cell) == "few" for cell in cells):
        words += " few: valid, with too few requests for some percentile."
    return tag("p", words, class_="note")


def _notes(cells: Sequence[CellSummary], several: bool) -> Markup | None:
    """Remarks on single cells, each once with where it holds."""
    found = wording.notes(cells, several)
    return (
        tag("ul", [tag("li", tag("b", f"{where}: "), said) for where, said in found], class_="note") if found else None
    )


def _limits(summary: Summary) -> dict[str, float]:
    """The SLOs in ms by metric."""
    given = (summary.get("plan") or {}).get("goodput_ms") or {}
    return {str(name): float(limit) for name, limit in given.items()}


def _split(cells: Sequence[CellSummary], several: bool, drawn: list[Figure]) -> list[Child]:
    bars, steps = split_figures.split_figure(cells, several), split_figures.waterfall(cells, several)
    if bars is None or steps is None:
        return [missing("the parts of TTFT: no metrics page of prefill or decode was scraped")]
    note = "Means add, percentiles do not: this is the mean. Hatched bars belong to cells that are void or cut short; "
    note += "crossed grey is what no measured part explains, left of zero where parts overlap."
    note += f" {said[0].upper()}{said[1:]}." if (said := wording.queue_note(cells)) else ""
    return [
        placed(bars, drawn),
        tag("p", note, class_="note"),
        placed(steps, drawn),
        tables.split(cells, several),
        leg_tables.legs(cells, several),
    ]


def _latency(cells: Sequence[CellSummary], slos_ms: Mapping[str, float], drawn: list[Figure]) -> list[Child]:
    found = load_figures.latency_figures(cells, slos_ms)
    if not found:
        return [missing("latency: no request was answered, or too few for a percentile")]
    note = "Whiskers are 95% intervals; where none goes up, the sample gives no upper bound. "
    note += "Hollow markers are void cells and cut ones, which no line passes through."
    return [_panels(found, drawn), tag("p", note, class_="note")]


def _capacity(cells: Sequence[CellSummary], slos: str, drawn: list[Figure]) -> list[Child]:
    found, left_out = capacity_figures.capacity_figures(cells, slos)
    if not found:
        return [missing(f"slots and rates: {_unanswered(cells)}")]
    note = f"{wording.counted(left_out, 'more prompt length')} in the table of cells." if left_out else None
    return [_panels(found, drawn, " two"), tag("p", note, class_="note") if note else None]


def _unanswered(cells: Sequence[CellSummary]) -> str:
    """Why a figure of the requests has none to show."""
    if any(wording.is_imported(cell) and cell.get("completed") for cell in cells):
        return "the imported file does not hold the send time of every request"
    return "no request was answered"


def _time(cells: Sequence[CellSummary], run: Run, metrics: Metrics, drawn: list[Figure]) -> list[Child]:
    lines = series.gauge_lines(metrics)
    if not lines:
        return [missing("waiting and running over time: no metrics page was scraped")]
    of = {int(cell["cell"]): cell for cell in cells if "cell" in cell}
    slots = {str(cell.get("target", "")): (cell.get("slots") or {}).get("available") for cell in cells}
    return [placed(figure, drawn) for figure in time_figures.time_figures(lines, series.windows(run), of, slots)]


def _gaps(cells: Sequence[CellSummary], read: Material, drawn: list[Figure]) -> list[Child]:
    found = time_figures.gap_figures(series.gap_curves(read.requests["cell"], read.events), cells)
    if not found:
        imported = any(wording.is_imported(cell) for cell in cells)
        why = "no answer had two tokens"
        if imported:
            why = _unanswered(cells) if not len(read.ids) else "the imported file does not hold each of them"
        return [missing(f"gaps between tokens: {why}")]
    note = (
        "Where a curve crosses 1%, one gap in a hundred is longer. Dotted curves are cells that are void or cut short."
    )
    return [_panels(found, drawn, " two"), tag("p", note, class_="note")]


def _each(cells: Sequence[CellSummary], read: Material, slo_ms: float | None, drawn: list[Figure]) -> list[Child]:
    found = explorer.explorer(cells, read.requests, read.ids, read.events, slo_ms)
    return [missing("single requests: the run has none")] if found is None else explorer.section_of(found, drawn)


def _panels(figures: Sequence[Figure], drawn: list[Figure], kind: str = "") -> Markup:
    return tag("div", [placed(figure, drawn) for figure in figures], class_=f"panels{kind}")


_TERMS = (
    ("TTFT", "time to first token, from the intended send time in open loop, from the free stream in closed loop"),
    ("ITL", "inter-token latency: each gap between streamed outputs"),
    ("TPOT", "time per output token of one request: (end to end - TTFT) / (output tokens - 1)"),
    ("E2EL", "end-to-end latency"),
    ("got", "answers a second, counted over the time of sending, shifted later by the mean E2EL"),
    ("goodput", "requests/s that meet every SLO"),
    ("slot", "one of max-num-seqs of the decode servers"),
    ("waiting, running", "as in vLLM's gauges"),
)


def _terms() -> Markup:
    return tag("details", tag("summary", "What the words mean"), tables.definitions(_TERMS))


def _name(summary: Summary, run: Run) -> str:
    """What was measured: model and mode, and the names of targets that somebody chose."""
    about: dict[str, None] = {}
    for deployment in run.document.get("deployments") or []:
        about |= dict.fromkeys(clean(deployment[key], 80) for key in ("model", "mode") if deployment.get(key))
    named = [clean(name, 60) for name in wording.targets(summary)]
    chosen = ", ".join(named) if named != ["default"] else ""
    return " \u00b7 ".join(filter(None, [*about, chosen])) or ", ".join(named) or "no target"


def _subtitle(summary: Summary) -> str:
    """When it was measured, and how much of it."""
    when = measured.moment(summary.get("created_unix_s"))
    size = wording.counted(len(summary.get("cells") or []), "cell")
    return " \u00b7 ".join(filter(None, [when, size]))
