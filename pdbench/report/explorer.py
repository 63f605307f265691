"""Each request of a cell as a point, and the stages of the one that a reader picks.

A page holds at most MAX_REQUESTS of them, spread evenly over the cells: every cell keeps what failed, its slowest
requests and an even sample of the rest, with the median and the maximum of all of them drawn behind.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from pdbench.report.events import Events, Gaps, Ints
from pdbench.report.figures import Figure, document, scatter, slo_line
from pdbench.report.markup import Child, Markup, script_json, tag
from pdbench.report.page import part, placed
from pdbench.report.series import Floats
from pdbench.report.split_figures import cell_name
from pdbench.report.wording import CellSummary, clean, counted
from pdbench.tables import Columns, Texts

if TYPE_CHECKING:
    import pyarrow

MAX_REQUESTS = 1500
LEAST_A_CELL = 15
KEPT_FOR_CAUSE = 0.25  # of a cell's share, for what failed and again for what was slowest
BINS = 24
MAX_ERROR_CHARS = 160
NUMBERS = ("index", "repeat", "prompt_tokens", "output_tokens", "cached_tokens", "chunks", "turn")
# The stamps of a request in the order in which they come; explorer.js names what lies before each.
STAMPS = (
    *("sent_s", "connected_s", "prefill_sent_s", "prefill_done_s", "decode_sent_s"),
    *("first_byte_s", "first_token_s", "second_token_s", "last_token_s", "done_s"),
)


_TEXTS = ("status", "class", "finish_reason", "error_kind", "error")
COLUMNS = ("cell", "intended_s", *STAMPS, *NUMBERS, *_TEXTS)  # of requests.parquet


def explorer(
    cells: Sequence[CellSummary], requests: Columns, ids: pyarrow.ChunkedArray, events: Events, slo_ms: float | None
) -> tuple[Figure, Markup] | None:
    """The scatter of TTFT against send time, and the data that its script fills it with; `None` without requests."""
    several = len({cell.get("target") for cell in cells}) > 1
    of_cell = [(cell, np.flatnonzero(requests["cell"] == cell.get("cell", -1))) for cell in cells]
    known = [(cell, places) for cell, places in of_cell if len(places)]
    if not known:
        return None
    share = max(LEAST_A_CELL, MAX_REQUESTS // len(known))
    shown = [_shown(cell, requests, ids, places, events, share, several) for cell, places in known]
    return _figure(slo_ms), tag("script", script_json(shown), type="application/json", id="requests")


def section_of(found: tuple[Figure, Markup], drawn: list[Figure]) -> list[Child]:
    """The explorer's part of the page: cell, scatter, and the request that is looked at."""
    figure, data = found
    label = tag("label", "Cell ", tag("select", id="explorer-cell"))
    steps = [
        tag("button", name, type="button", data_step=step)
        for step, name in (("-1", "Previous"), ("1", "Next"), ("slowest", "Slowest TTFT"), ("gap", "Longest gap"))
    ]
    picked = tag("div", id="picked", class_="picked", aria_live="polite")
    return [
        tag("p", label, class_="controls"),
        placed(figure, drawn),
        tag("p", id="explorer-note", class_="note"),
        tag("p", steps, class_="controls", role="group", aria_label="Pick a request"),
        picked,
        data,
        tag("script", Markup(f"window.addEventListener('figures', () => {{{part('explorer.js')}}});")),
    ]


def _figure(slo_ms: float | None) -> Figure:
    """The scatter without its points, which depend on the cell that is picked."""
    bands = [
        scatter(name=name, mode="lines", line={"color": "var(--muted)", "width": 1, "dash": dash}, hoverinfo="skip")
        for name, dash in (("median of all", "solid"), ("longest of all", "dot"))
    ]
    answered = {"size": 6, "color": "var(--line-0)", "opacity": 0.75}
    unanswered = {"size": 9, "symbol": "x", "color": "var(--void)"}
    ring = {"size": 15, "symbol": "circle-open", "color": "var(--ink)", "line": {"width": 2.5}}
    hover = "sent at %{x:.2f} s<br>TTFT %{y:,.1f} ms<extra></extra>"
    traces = [
        *bands,
        scatter(name="answered", mode="markers", marker=answered, hovertemplate=hover),
        scatter(name="no first token", mode="markers", marker=unanswered, hovertemplate="%{text}<extra></extra>"),
        scatter(name="picked", mode="markers", marker=ring, hoverinfo="skip", showlegend=False),
    ]
    shapes = [slo_line(slo_ms, "TTFT")] if slo_ms else []
    made = document(
        traces,
        height=380,
        showlegend=True,
        shapes=shapes,
        xaxis={"title": {"text": "s from the start of the cell"}, "rangemode": "tozero"},
        yaxis={"title": {"text": "TTFT, ms"}, "rangemode": "tozero", "tickformat": ",~f"},
    )
    spoken = (
        "TTFT of each request against the time at which it was to be sent. Arrow keys left and right go through the "
    )
    spoken += "requests in the order of their sends, up and down in the order of their TTFT."
    return Figure("", spoken, made, other=("logarithmic", {"yaxis": {"type": "log"}}), role="application")


def _shown(
    cell: CellSummary,
    requests: Columns,
    ids: pyarrow.ChunkedArray,
    places: Ints,
    events: Events,
    share: int,
    several: bool,
) -> dict[str, Any]:
    def column(name: str) -> Any:
        return requests[name][places]

    places = places[np.lexsort((column("index"), column("intended_s"), column("repeat")))]
    intended, repeat = column("intended_s"), column("repeat")
    ttft_ms = (column("first_token_s") - intended) * 1000
    # Sorted by repeat, then by time: each repeat's first one is its earliest.
    since_s = intended - intended[np.searchsorted(repeat, repeat)]
    keep = kept(ttft_ms, share)
    whole, places = len(places), places[keep]
    stamps = {name.removesuffix("_s"): _ms(column(name) - intended[keep]) for name in STAMPS}
    names = [str(ids[place]) for place in places.tolist()]
    prefix = _common_start(names)
    gaps = [_longest_gap(events.gaps(place)) for place in places]
    return {
        "name": clean(cell_name(cell, several), 160),
        "of": counted(whole, "request"),
        "all": len(keep) == whole,
        "band": None if len(keep) == whole else _band(since_s, ttft_ms),
        "prefix": clean(prefix, 80),
        "id": None if _numbered(names, prefix, column("index")) else [clean(name[len(prefix) :], 80) for name in names],
        "at": [float(f"{value:.6g}") for value in since_s[keep]],
        **{name: _column(values) for name, values in stamps.items()},
        **{name: _column(_known(column(name))) for name in NUMBERS},
        **{name: _column(_texts(column(name))) for name in _TEXTS},
        "gap": _column([gap for gap, _ in gaps]),
        "gap_before": _column([place for _, place in gaps]),
    }


def kept(ttft_ms: Floats, share: int) -> list[int]:
    """Which of a cell's requests are shown: some that got no token, the slowest, and an even sample of the others."""
    n = len(ttft_ms)
    if n <= share:
        return list(range(n))
    few = max(1, int(share * KEPT_FOR_CAUSE))
    silent = np.flatnonzero(np.isnan(ttft_ms))
    silent = silent[np.unique(np.linspace(0, len(silent) - 1, few).astype(int))] if len(silent) else silent
    slowest = np.argsort(np.where(np.isnan(ttft_ms), -np.inf, ttft_ms))[-few:]
    chosen = {*silent.tolist(), *slowest.tolist()}
    others = np.setdiff1d(np.arange(n), np.array(sorted(chosen)))
    even = others[np.unique(np.linspace(0, len(others) - 1, share - len(chosen)).astype(int))]
    return sorted(chosen | set(even.tolist()))


def _band(since_s: Floats, ttft_ms: Floats) -> dict[str, list[float]] | None:
    """Median and maximum of TTFT over stretches of a cell's time."""
    known = np.isfinite(ttft_ms)
    since_s, ttft_ms = since_s[known], ttft_ms[known]
    if len(since_s) == 0:
        return None
    order = np.argsort(since_s, kind="stable")
    parts = np.array_split(order, min(BINS, len(order)))
    found = [(np.median(since_s[p]), np.median(ttft_ms[p]), np.max(ttft_ms[p])) for p in parts]
    return {name: [float(f"{row[i]:.5g}") for row in found] for i, name in enumerate(("at", "median", "longest"))}


def _longest_gap(gaps: Gaps) -> tuple[float | None, int | None]:
    """The longest gap between events with output in ms, and the place of the event that ended it, from 1."""
    if len(gaps) == 0:
        return None, None
    place = int(np.argmax(gaps))
    return float(f"{gaps[place] * 1000:.5g}"), place + 2


def _numbered(ids: Sequence[str], prefix: str, index: Floats) -> bool:
    """Whether each id is the common start and the request's place in the schedule, so that it need not be written."""
    return all(name == f"{prefix}{place:.0f}" for name, place in zip(ids, index, strict=True))


def _common_start(names: Sequence[str]) -> str:
    first, last = min(names), max(names)
    end = next((i for i, pair in enumerate(zip(first, last, strict=False)) if pair[0] != pair[1]), len(first))
    return first[:end] if len(names) > 1 else ""


def _ms(seconds: Floats) -> list[float | None]:
    return [float(f"{value * 1000:.5g}") if np.isfinite(value) else None for value in seconds]


def _known(column: Floats) -> list[int | None]:
    return [int(value) if np.isfinite(value) else None for value in column]


def _texts(column: Texts) -> list[str | None]:
    return [None if value is None else clean(value, MAX_ERROR_CHARS) for value in np.asarray(column)]


def _column(values: Sequence[Any]) -> Any:
    """A column, or its one value where all are the same."""
    return values[0] if len(set(values)) == 1 else list(values)
