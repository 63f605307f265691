"""The columns of the terminal tables, and which of them a line of a given width can hold."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from pdbench.report import wording
from pdbench.report.wording import (
    NOT_MEASURED,
    CellSummary,
    counted,
    interval,
    is_unsound,
    load,
    needed_requests,
    number,
    short,
    statistic,
    tenths,
)

Text = Callable[[CellSummary], str]
TARGET_CUT = 10
EXTRA = 10  # ranks from here on are for wide terminals; nothing is said when they go


@dataclass(frozen=True, slots=True)
class Column:
    """One column. `forms`: most telling first, shortest last. `rank`: 0 stays, the highest goes first."""

    head: tuple[str, str]
    forms: tuple[Text, ...]
    rank: int = 0
    left: bool = False  # words begin at their left, numbers end at their right


@dataclass(frozen=True, slots=True)
class Layout:
    """The columns that fit, each as its cells of text; `left_out` names those that did not."""

    heads: list[tuple[str, str]]
    rows: list[list[str]]
    widths: list[int]
    gap: int
    left_out: list[str]
    shortened: list[str]
    left: list[bool]

    @property
    def width(self) -> int:
        return sum(self.widths) + self.gap * len(self.widths)

    def line(self, texts: Sequence[str]) -> str:
        """One row of text, each in its column."""
        placed = zip(texts, self.widths, self.left, strict=True)
        return "".join(" " * self.gap + (text.ljust(n) if left else text.rjust(n)) for text, n, left in placed)


def arrange(columns: Sequence[Column], cells: Sequence[CellSummary], width: int) -> Layout:
    """The richest layout that fits: extras go first, then the gaps narrow, then forms shorten, then columns go."""
    chosen = [(column, 0) for column in columns if not _empty(column, cells)]
    gap = 3
    left_out: list[str] = []
    while True:
        layout = _lay_out(chosen, cells, gap, left_out)
        if layout.width <= width:
            return layout
        extras = [pair for pair in chosen if pair[0].rank >= EXTRA]
        long_forms = [pair for pair in chosen if pair[1] + 1 < len(pair[0].forms)]
        if gap > 2:
            gap -= 1
        elif extras:
            chosen.remove(_drop(extras, left_out))
        elif gap > 1:
            gap = 1
        elif long_forms:
            column, form = max(long_forms, key=lambda pair: pair[0].rank)
            chosen[chosen.index((column, form))] = (column, form + 1)
        elif any(column.rank for column, _ in chosen):
            chosen.remove(_drop([pair for pair in chosen if pair[0].rank], left_out))
        else:
            return layout


def _drop(pairs: list[tuple[Column, int]], left_out: list[str]) -> tuple[Column, int]:
    pair = max(pairs, key=lambda pair: pair[0].rank)
    if pair[0].rank < EXTRA:
        left_out.append(" ".join(pair[0].head).strip())
    return pair


def _empty(column: Column, cells: Sequence[CellSummary]) -> bool:
    return column.rank > 0 and all(column.forms[0](cell) == NOT_MEASURED for cell in cells)


def _lay_out(
    chosen: Sequence[tuple[Column, int]], cells: Sequence[CellSummary], gap: int, left_out: list[str]
) -> Layout:
    heads = [column.head for column, _ in chosen]
    rows = [[column.forms[form](cell) for column, form in chosen] for cell in cells]
    widths = [max([len(h) for h in head] + [len(row[i]) for row in rows]) for i, head in enumerate(heads)]
    shortened = [" ".join(column.head).strip() for column, form in chosen if form]
    return Layout(heads, rows, widths, gap, left_out, shortened, [column.left for column, _ in chosen])


def percentile_with_doubt(quantile: str, metric: str) -> tuple[Text, Text]:
    """The percentile and how far its interval reaches; then the percentile alone. Too few requests are said."""

    def too_few(cell: CellSummary) -> tuple[str, int] | None:
        """What the cell can say all the same, a bound from below, and how many requests the percentile needs."""
        needed = needed_requests(cell, quantile, metric)
        low, _ = interval(cell, quantile, metric)
        return None if needed is None else ("" if low is None else f">{number(low)}", needed)

    def alone(cell: CellSummary) -> str:
        few = too_few(cell)
        return number(statistic(cell, quantile, metric)) if few is None else few[0] or f"n<{few[1]:,}"

    def doubted(cell: CellSummary) -> str:
        value = statistic(cell, quantile, metric)
        if few := too_few(cell):
            return f"{few[0]} needs {few[1]:,}".strip()
        return NOT_MEASURED if value is None else _with_reach(value, *interval(cell, quantile, metric))

    return doubted, alone


def _with_reach(value: float, low: float | None, high: float | None) -> str:
    if (reach := _reach(value, low, high)) is not None:
        return number(value) + _percent(reach)
    return number(value) + ("" if value <= 0 or (low is None and high is None) else "+?" if high is None else "-?")


def _reach(value: float, low: float | None, high: float | None) -> float | None:
    """How far the interval reaches, as a share of the value; `None` where an end of it is not known."""
    return None if value <= 0 or low is None or high is None else max(value - low, high - value) / value


def _percent(share: float) -> str:
    return f"\N{PLUS-MINUS SIGN}{share * 100:.0f}%" if share >= 0.005 else "\N{PLUS-MINUS SIGN}<1%"


def reach_of(quantile: str, metric: str, cells: Sequence[CellSummary]) -> str:
    """How far the intervals of this percentile reach over all cells, for a table too narrow to say it in each. Empty
    where no cell is sound: there is nothing to know more exactly then."""
    cells = [cell for cell in cells if not is_unsound(cell)]
    known: list[float] = []
    unbounded = lacking = 0
    for cell in cells:
        value, (low, high) = statistic(cell, quantile, metric), interval(cell, quantile, metric)
        if value is None:
            lacking += needed_requests(cell, quantile, metric) is not None
        elif (reach := _reach(value, low, high)) is not None:
            known.append(reach)
        else:
            unbounded += low is not None or high is not None
    ends = dict.fromkeys(map(_percent, (min(known), max(known)))) if known else ()
    said = [" to ".join(ends)] if ends else []
    of = f"of {counted(len(cells), 'sound cell')}"
    said += [f"no upper bound in {unbounded} {of}"] if unbounded else []
    said += [f"too few requests for it in {lacking} {of}"] if lacking else []
    return ", ".join(said)


def _value(*path: str) -> Text:
    return lambda cell: number(_dig(cell, path))


def _dig(cell: CellSummary, path: Sequence[str]) -> float | None:
    found: object = cell
    for key in path:
        found = found.get(key) if isinstance(found, dict) else None
    return float(found) if isinstance(found, int | float) else None


def _pair(first: Sequence[str], second: Sequence[str], write: Callable[[float | None], str] = short) -> Text:
    def text(cell: CellSummary) -> str:
        a, b = _dig(cell, first), _dig(cell, second)
        return NOT_MEASURED if a is None and b is None else f"{write(a)}/{short(b)}"

    return text


def _slots(cell: CellSummary) -> str:
    needed, available = _dig(cell, ("slots", "needed")), _dig(cell, ("slots", "available"))
    return NOT_MEASURED if needed is None else f"{number(needed)}/{'?' if available is None else short(available)}"


def _load_got(cell: CellSummary) -> str:
    return number(_dig(cell, ("request_throughput",)))


def _answers(cell: CellSummary) -> str:
    """How many were answered in full, and how many were not; timed out ones are among the failed."""
    completed = _dig(cell, ("completed",))
    found = [_dig(cell, (kind,)) for kind in ("failed", "rejected")]
    known = [value for value in found if value is not None]
    if completed is None and not known:
        return NOT_MEASURED
    return f"{wording.number_of_tokens(completed)}/{wording.number_of_tokens(sum(known)) if known else NOT_MEASURED}"


ASKED = Column(("", "asked"), (lambda cell: short(load(cell)),))
PROMPT = Column(("prompt", "tokens"), (lambda cell: wording.number_of_tokens(cell.get("prompt_len")),))

NUMBERS = (
    ASKED,
    Column(("got", "req/s"), (_load_got,), 2),
    PROMPT,
    Column(("out", "tokens"), (_value("output_len"),), 15),
    Column(("TTFT", "mean"), (lambda cell: number(statistic(cell, "mean", "ttft")),)),
    Column(("TTFT", "p50"), percentile_with_doubt("p50", "ttft"), 6),
    Column(("TTFT", "p90"), percentile_with_doubt("p90", "ttft"), 13),
    Column(("TTFT", "p99"), percentile_with_doubt("p99", "ttft"), 3),
    Column(("TPOT", "mean"), (lambda cell: number(statistic(cell, "mean", "tpot")),), 1),
    Column(("ITL", "p99"), percentile_with_doubt("p99", "itl")[1:], 7),
    Column(("ITL", "max"), (_value("max_itl_ms"),), 10),
    Column(("E2EL", "p99"), percentile_with_doubt("p99", "e2el")[1:], 14),
    Column(("good", "req/s"), (_value("request_goodput"),), 4),
    Column(("slots", "need/have"), (_slots,), 2),
    Column(("waiting", "mean/max"), (_pair(("waiting_mean",), ("waiting_max",), tenths),), 5),
    Column(
        ("prefill wait", "mean/max"),
        (_pair(("servers", "prefill", "waiting_mean"), ("servers", "prefill", "waiting_max"), tenths),),
        12,
    ),
    Column(("decode KV", "max"), (lambda cell: _share(cell, ("servers", "decode", "kv_cache_usage_max")),), 16),
    Column(("output", "tokens/s"), (_value("output_throughput"),), 11),
    Column(("answers", "ok/not"), (_answers,), 17),
)


# In report.html what decides stands left: what a narrow screen cuts off is the rest. The requests that a percentile
# would need are said once below, not in each row.
_LAST_IN_HTML = (("TTFT", "p90"), ("E2EL", "p99"))
_SHORT_IN_HTML = (("TTFT", "p90"), ("TTFT", "p99"))
IN_HTML = tuple(
    replace(column, forms=column.forms[-1:]) if column.head in _SHORT_IN_HTML else column
    for column in sorted(NUMBERS, key=lambda column: column.rank >= EXTRA or column.head in _LAST_IN_HTML)
)


def target_column(names: Sequence[str]) -> tuple[Column, dict[str, str]]:
    """The target of each row, and what its shortest form stands for: a cut name, or t1, t2 where cuts look alike."""
    shown = {name: wording.clean(name, 40) for name in names}
    cuts = {name: text[:TARGET_CUT] for name, text in shown.items()}
    short_names = {name: f"t{i + 1}" for i, name in enumerate(names)}
    tables = [shown]
    if any(len(text) > TARGET_CUT for text in shown.values()):
        tables += [cuts] if len(set(cuts.values())) == len(cuts) else []
        tables.append(short_names)

    def form(table: dict[str, str]) -> Text:
        return lambda cell: table.get(str(cell.get("target", "")), NOT_MEASURED)

    return Column(("", "target"), tuple(form(table) for table in tables), left=True), {
        short_names[name]: text for name, text in shown.items()
    }


def _share(cell: CellSummary, path: Sequence[str]) -> str:
    value = _dig(cell, path)
    return NOT_MEASURED if value is None else f"{value * 100:.0f}%"


_SPLIT_HEADS = {
    "prefill_queue": ("pref.", "queue"),
    "slot_wait": ("slot", "wait"),
    "transfer": ("trans-", "fer"),
    "first_step": ("first", "step"),
    "unexplained": ("un-", "expl."),
}


def split_columns(cells: Sequence[CellSummary]) -> list[Column]:
    """Load, prompt, mean TTFT, then each part of the split that at least one cell measured."""
    parts = dict.fromkeys(part for cell in cells for part in wording.split(cell))
    columns = [ASKED, PROMPT, Column(("TTFT", "mean"), (lambda cell: number(statistic(cell, "mean", "ttft")),))]
    for part in sorted(parts, key=lambda part: part == "unexplained"):
        head = _SPLIT_HEADS.get(part, ("", part[:9]))
        columns.append(Column(head, (lambda cell, part=part: tenths(wording.split(cell).get(part)),)))  # type: ignore[misc]
    return columns
