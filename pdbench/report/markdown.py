"""One run as Markdown: for a pull-request comment and for a job's summary page.

What a server or a command line said is text in it: no markup, no link, no mention and no reference to an issue.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from pdbench.report import wording
from pdbench.report.capacity import text as capacity
from pdbench.report.columns import NUMBERS, Column
from pdbench.report.measured import moment
from pdbench.report.tables import MARK_WORDS
from pdbench.report.wording import NOT_MEASURED, TOO_FEW, CellSummary, Summary, clean, place, verdict_mark
from pdbench.run import Run

COMMENT_LIMIT = 60_000  # characters; a comment on GitHub holds 65,536
SHOWN_CELLS = 40
_MEANING = re.compile(r"[\\&<>|`*\[\]~!]|(?<!\w)_|_(?!\w)|:(?=//)|(?<=www)\.")
_REFERENCE = re.compile(r"([@#])(?=[\w/])")


def render_markdown(summary: Summary, run: Run) -> str:
    """Verdict, cells, void flags, causes with the first thing to change, and how it was measured."""
    summary = wording.for_readers(summary)
    cells: Sequence[CellSummary] = summary.get("cells") or []
    several = len(wording.targets(summary)) > 1
    lines = [f"### {'SIMULATED: ' if summary.get('simulated') else ''}pdbench: {_size(cells)}", ""]
    lines += [plain(wording.sentence(summary) or "No cell was measured."), ""]
    if tool := summary.get("imported_from"):
        lines += [f"Imported from {plain(tool)}: docs/import.md says where its definitions differ.", ""]
    if cells:
        lines += [
            *_probes(summary),
            *_numbers(cells, several),
            *_doubts(cells, several),
            *_causes(cells, several),
            *_split(cells, several),
        ]
    lines.append(_method(summary, run))
    text = "\n".join(lines) + "\n"
    if len(text) <= COMMENT_LIMIT:
        return text
    return text[:COMMENT_LIMIT].rpartition("\n")[0] + "\n\nCut here; the rest is in report.html.\n"


def plain(text: object) -> str:
    """Foreign text whose characters mean nothing to Markdown, and which calls nobody."""
    return _REFERENCE.sub("\\1\u200b", _MEANING.sub(r"\\\g<0>", clean(text, 1000)))


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], numbers_from: int = 0) -> list[str]:
    """A Markdown table; columns from `numbers_from` on end at their right."""
    sides = [":--" if place < numbers_from else "--:" for place in range(len(heads))]
    return ["| " + " | ".join(row) + " |" for row in (heads, sides, *rows)] + [""]


def folded(title: str, lines: Sequence[str]) -> list[str]:
    """Lines that a reader unfolds; nothing where there are none."""
    return [f"<details><summary>{title}</summary>", "", *lines, "</details>", ""] if lines else []


def _size(cells: Sequence[CellSummary]) -> str:
    marks = [verdict_mark(cell) for cell in cells]
    said = ", ".join(f"{marks.count(kind)} {word}" for kind, word in MARK_WORDS.items() if kind in marks)
    return f"{wording.counted(len(cells), 'cell')} ({said})" if cells else "no cell"


def _probes(summary: Summary) -> list[str]:
    """What a search probed, folded: its answers are the verdict."""
    lines: list[str] = []
    for answer in capacity.answers(summary):
        rows = [[plain(word) for word in row] for _, row in capacity.rows(answer, summary)]
        lines += folded(f"Probes, {plain(capacity.name(answer, summary))}", table(capacity.heads(answer), rows))
    return lines


def _numbers(cells: Sequence[CellSummary], several: bool) -> list[str]:
    shown = cells[:SHOWN_CELLS]
    columns = [c for c in NUMBERS if c.rank < 10 and any(_written(c, cell) != NOT_MEASURED for cell in shown)]
    heads = ["validity", *(["target"] if several else []), *(" ".join(filter(None, c.head)) for c in columns)]
    rows = []
    for cell in shown:
        mark = MARK_WORDS[verdict_mark(cell)]
        names = [f"**{mark}**" if wording.is_unsound(cell) else mark]
        names += [plain(cell.get("target", ""))] if several else []
        rows.append([*names, *(plain(_written(column, cell)) for column in columns)])
    more = [f"{wording.counted(len(cells) - len(shown), 'more cell')} in report.html.", ""] * (len(cells) > len(shown))
    unit = wording.load_unit(shown[0])
    return [*table(heads, rows, len(heads) - len(columns)), f"Asked in {unit}; latencies in ms.", "", *more]


def _written(column: Column, cell: CellSummary) -> str:
    return column.forms[0](cell)


def _doubts(cells: Sequence[CellSummary], several: bool) -> list[str]:
    """Void flags in the open, warnings folded; the one that nearly every short run has is left to the table."""
    void, warn = ([*_flags(cells, severity, several)] for severity in ("void", "warn"))
    return [*void, *([""] if void else []), *folded(wording.counted(len(warn), "warning"), [*warn, ""] if warn else [])]


def _flags(cells: Sequence[CellSummary], severity: str, several: bool) -> Iterator[str]:
    """Each flag once, with the cells that it concerns."""
    concerned: dict[str, list[tuple[CellSummary, str]]] = {}
    for cell in cells:
        for flag in wording.flags(cell, severity):
            if flag.get("code") != TOO_FEW:
                code = clean(flag.get("code", "?"), 40)
                concerned.setdefault(code, []).append((cell, wording.listed(flag.get("evidence", ""))))
    for code, found in concerned.items():
        where = wording.which(len(found), len(cells), found[0][0], several)
        yield f"- {'**void** ' if severity == 'void' else ''}{plain(code)} ({plain(where)}): {plain(found[0][1])}"


def _causes(cells: Sequence[CellSummary], several: bool) -> list[str]:
    """Each cause once, in the cell where it has most of TTFT."""
    most: dict[str, tuple[float, CellSummary, dict[str, object]]] = {}
    for cell in cells:
        for cause in cell.get("diagnosis") or []:
            name, share = str(cause.get("cause", "?")), float(cause.get("share") or wording.is_down(cause))
            if name not in most or share > most[name][0]:
                most[name] = (share, cell, cause)
    lines = []
    for name, (_, cell, cause) in sorted(most.items(), key=lambda item: -item[1][0]):
        where = ", ".join(filter(None, [place(cell, several), wording.share_in_words(cause)]))
        advice = wording.listed(cause.get("advice") or "")
        lines.append(f"- **{plain(name)}** ({plain(where)}): {plain(wording.evidence(cause))}")
        lines += [f"  Change first: {plain(advice)}"] if advice else []
    return [*lines, ""] if lines else []


def _split(cells: Sequence[CellSummary], several: bool) -> list[str]:
    known = [cell for cell in cells if wording.split(cell)][:SHOWN_CELLS]
    parts = dict.fromkeys(part for cell in known for part in wording.split(cell))
    heads = ["cell", "mean TTFT", *(wording.part_name(part) for part in parts)]
    rows = [
        [
            plain(place(cell, several)),
            wording.tenths(wording.statistic(cell, "mean", "ttft")),
            *(wording.tenths(wording.split(cell).get(part)) for part in parts),
        ]
        for cell in known
    ]
    note = [plain(said), ""] if rows and (said := wording.queue_note(cells)) else []
    return folded("Where the mean TTFT went, ms", [*table(heads, rows, 1), *note] if rows else [])


def _method(summary: Summary, run: Run) -> str:
    command = run.document.get("command")
    when = moment(summary.get("created_unix_s"))
    versions = ", ".join(f"{name} {version}" for name, version in (summary.get("versions") or {}).items())
    said = [when, f"pdbench {summary['pdbench']}" if summary.get("pdbench") else None, versions, command]
    return f"<sub>{plain('; '.join(str(part) for part in said if part))}</sub>"
