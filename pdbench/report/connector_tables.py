"""The table of report.html that says what each server's KV connectors moved."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pdbench.report.markup import Child, table, tag
from pdbench.report.wording import NOT_MEASURED, CellSummary, clean, number, percent, place, short

Entry = Mapping[str, Any]
NOTE = (
    "Seconds and GB/s each are those of the operations themselves, added up over the ranks that worked side by side, "
    "and hold their waits for each other. "
    "Only a handoff brings KV from prefill to decode: loads and saves of an offload or of a store are in no part of "
    "the TTFT split. Found: what the connector had of the tokens, chunks or rows it was asked for."
)
TOGETHER = "GB/s together"
HANDED = (
    " GB/s together: bytes over the time in which any handoff was under way, which is what the link carried; >: at"
    " least, since handoffs shorter than the time between two scrapes do not show when they met."
)
POSTED = (
    " Of NIXL's handoffs, ms each and GB/s each are those of the transfer once it is posted, as in the TTFT split; "
    "seconds and \u201cGB/s, post too\u201d hold its posting as well, in which shared memory moves the bytes."
)


def connector_tables(cells: Sequence[CellSummary], several: bool) -> list[Child]:
    """The table with its note; empty where no server's page shows what a connector moved."""
    entries = [(cell, entry) for cell in cells for entry in cell.get("connectors") or []]
    if not entries:
        return []
    columns = {head: [text(entry) for _, entry in entries] for head, text in COLUMNS.items()}
    posted = any(entry.get("post_ms") is not None for _, entry in entries)
    shown = {head: texts for head, texts in columns.items() if posted or head not in OF_POSTS}
    if not (handed := any(entry.get("together_gb_s") is not None for _, entry in entries)):
        del shown[TOGETHER]
    rows: list[list[Child]] = [
        [
            place(cell, several),
            clean(entry["server"], 60),
            f"{clean(entry['connector'], 60)} {entry['direction']}",
            *(tag("td", texts[index], class_="n") for texts in shown.values()),
        ]
        for index, (cell, entry) in enumerate(entries)
    ]
    heads: list[Child] = ["where", "server", "what", *(tag("th", head, scope="col", class_="n") for head in shown)]
    unsure = dict.fromkeys(doubt for _, entry in entries for doubt in (entry.get("unsure") or {}).items())
    doubts = [f" The {figure} of SGLang's handoffs cannot be known: {clean(why, 200)}." for figure, why in unsure]
    note = tag("p", NOTE + (HANDED if handed else "") + (POSTED if posted else "") + "".join(doubts), class_="note")
    return [table(heads, rows, caption="KV moved by connectors"), note]


def _after_post(name: str, whole: str) -> Callable[[Entry], str]:
    """A figure of the transfer once it is posted; of the whole operation, where nothing tells its posting."""
    return lambda entry: number(entry.get(whole if entry.get("post_ms") is None else name))


def _found(entry: Entry) -> str:
    found = entry.get("hit_share")
    return NOT_MEASURED if found is None else f"{percent(found)} of {entry['hits_of']}"


def _failed(entry: Entry) -> str:
    failed = entry.get("failed")
    return f"{short(failed)} {entry['failed_what']}" if failed else short(failed)


def _gigabytes(entry: Entry) -> str:
    nbytes = entry.get("nbytes")
    return number(None if nbytes is None else nbytes / 1e9)


COLUMNS: dict[str, Callable[[Entry], str]] = {
    "operations": lambda entry: short(entry.get("operations")),
    "GB": _gigabytes,
    "seconds": lambda entry: number(entry.get("time_s")),
    "post ms": lambda entry: number(entry.get("post_ms")),
    "ms each": _after_post("transfer_ms", "mean_ms"),
    "GB/s each": _after_post("transfer_gb_s", "gb_s"),
    "GB/s, post too": lambda entry: number(entry.get("gb_s") if entry.get("post_ms") is not None else None),
    TOGETHER: lambda entry: (">" if entry.get("together_is_least") else "") + number(entry.get("together_gb_s")),
    "found": _found,
    "failed": _failed,
}
OF_POSTS = ("post ms", "GB/s, post too")
