"""How every view writes numbers, names a cell and marks its validity; and how foreign text is made harmless."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Summary = Mapping[str, Any]
CellSummary = Mapping[str, Any]

NOT_MEASURED = "-"
MAX_FOREIGN_CHARS = 600
_ESCAPE_SEQUENCE = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])|\x9b[0-?]*[ -/]*[@-~]"
)

TOO_FEW = "too-few-requests"
INTERRUPTED = "interrupted"
_OWN_HOST = re.compile(r"(?:Run|Move) pdbench (?:on|to) a host of its own(?:, or lower the rate)?\.")
_BUSY_HERE = "This machine was busy: close what else runs, then repeat."  # where servers and client must share it

# The disjoint parts of the TTFT split, in the order in which a request meets them, and what readers call them.
SPLIT_PARTS = {
    "proxy": "proxy and network",
    "prefill_queue": "prefill queue",
    "prefill": "prefill",
    "slot_wait": "slot wait",
    "post": "post",
    "transfer": "transfer",
    "poll": "poll",
    "first_step": "first step",
    "unexplained": "unexplained",
}


def clean(text: object, limit: int = MAX_FOREIGN_CHARS) -> str:
    """`text` on one line without escape sequences, control characters or direction marks; cut at `limit`."""
    bare = _ESCAPE_SEQUENCE.sub("", str(text))
    line = " ".join(bare.split())
    shown = "".join(c for c in line if unicodedata.category(c) not in ("Cc", "Cf", "Cs", "Co", "Cn"))
    return shown if len(shown) <= limit else shown[: limit - 3] + "..."


def number(value: float | None) -> str:
    """About three significant digits, thousands separated: 1,744 10.4 5.72 0.083."""
    if value is None:
        return NOT_MEASURED
    size = abs(value)
    if size >= 99.95:
        return f"{value:,.0f}"
    if size >= 9.995:
        return f"{value:.1f}"
    return f"{value:.2f}" if size >= 0.0995 or size < 0.0005 else f"{value:.3f}"


def two_digits(value: float) -> str:
    """Two significant digits of a rate that is only about so much, never as a power of ten: 0.64 13 110."""
    return f"{float(f'{value:.2g}'):,.12g}"


def tenths(value: float | None) -> str:
    """Milliseconds to a tenth, whole ones from 100 on."""
    if value is None:
        return NOT_MEASURED
    return f"{value:,.0f}" if abs(value) >= 99.95 else f"{value:.1f}".replace("-0.0", "0.0")


def short(value: float | None) -> str:
    """As `number`, without zeros after the point: 8 0.5 7.93."""
    text = number(value)
    return text.rstrip("0").rstrip(".") if "." in text else text


def percent(share: float | None) -> str:
    return NOT_MEASURED if share is None else f"{share * 100:.0f}%"


def loop(cell: CellSummary) -> str:
    return str(cell.get("loop") or ("closed" if cell.get("request_rate") is None else "open"))


def load(cell: CellSummary) -> float | None:
    """What the cell was driven with: requests/s, or streams in closed loop."""
    value = cell.get("max_concurrency") if loop(cell) == "closed" else cell.get("request_rate")
    return None if value is None else float(value)


def load_unit(cell: CellSummary) -> str:
    return "streams, closed loop" if loop(cell) == "closed" else "req/s"


def place(cell: CellSummary, target: bool = False) -> str:
    """`8 req/s x 16,384 tokens`, with the target in front where a run has several; other loads by their names, and a
    drive that is not the deployment's own behind."""
    drive = cell.get("drive", "proxy")
    own = "" if drive == "proxy" else f", {clean(drive, 20)}"
    driven = clean(cell.get("traffic") or f"{short(load(cell))} {load_unit(cell)}", 80).removesuffix(own)
    name = f"{driven} x {number_of_tokens(cell.get('prompt_len'))} tokens{own}"
    return f"{clean(cell.get('target', ''), 40)}: {name}" if target else name


def counted(count: int, thing: str) -> str:
    """`1 cell`, `1,200 cells`."""
    return f"{count:,} {thing}{'' if count == 1 else 's'}"


def number_of_tokens(count: float | None) -> str:
    return NOT_MEASURED if count is None else f"{count:,.0f}"


def sentence(summary: Summary) -> str:
    """The run's verdict, without the word that the views put in front of it themselves."""
    said = clean(summary.get("verdict") or "", 2000).removeprefix("SIMULATED. ")
    if not summary.get("interrupted") or said.startswith("Interrupted"):
        return said
    return f"{interruption(summary.get('plan') or {}, summary.get('cells') or [])} {said}".strip()


def interruption(plan: Mapping[str, Any], cells: Sequence[CellSummary]) -> str:
    """`Interrupted after 3 of 8 cells.`; every repeat of a cell counts."""
    done = 0
    for cell in cells:
        states = [repeat.get("state", "done") for repeat in cell.get("repeats") or []] or [cell.get("state", "done")]
        done += states.count("done")
    planned = len(plan.get("cells") or []) * int(plan.get("repeats") or 1)
    of = f"{done} of {counted(planned, 'cell')}" if planned else counted(done, "cell")
    lost = " (a load worker was lost)" if any(cell.get("lost_workers") for cell in cells) else ""
    return f"Interrupted after {of}{lost}."


def cut_short(cell: CellSummary) -> str:
    """What an interrupted cell has: `cut short: 6 of 11 answered`, and what it lacks where a load worker was lost."""
    answered, sent = cell.get("completed") or 0, cell.get("sent")
    gone, lost = cell.get("not_measured"), cell.get("lost_workers")
    missing = ""
    if gone is not None:
        missing = f", {gone:,} not measured: a load worker was lost"
    elif lost:
        unknown = "what it left to send is not known, and was not measured"
        missing = f", but a load worker was lost: {streams_gone(lost) or unknown}"
    if not answered:
        return f"cut short before any answer{missing}"
    if gone is None and lost:
        return f"cut short: {answered:,} answered{missing}"
    sent = None if sent is None else sent + (gone or 0)
    return f"cut short: {answered:,}{'' if sent is None else f' of {sent:,}'} answered{missing}"


def streams_gone(lost: Mapping[str, Any]) -> str:
    """`8 of 16 streams sent nothing from second 12 of 60 on`: what a closed loop that lasts a time lacks."""
    if not lost.get("streams"):
        return ""
    since, lasted = lost.get("from_s"), lost.get("of_s")
    when = "" if since is None or lasted is None else f" from second {since:.0f} of {lasted:.0f} on"
    return f"{lost['streams']:,} of {lost['of_streams']:,} streams sent nothing{when or ' any more'}"


def cell_sentence(cell: CellSummary) -> str:
    """The cell's verdict without the cell's name, which the views write in their own way."""
    said = clean(cell.get("verdict") or "", 2000).removeprefix(f"{place(cell)}: ")
    return said if not is_cut(cell) or "cut short" in said else cut_short(cell) + "."


def for_readers(summary: Summary) -> Summary:
    """The summary with advice that can be followed: on a simulated run no client has a host of its own."""
    return _rewritten(summary) if summary.get("simulated") else summary


def followable(text: str, simulated: bool) -> str:
    return _OWN_HOST.sub(_BUSY_HERE, text) if simulated else text


def _rewritten(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _rewritten(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_rewritten(item) for item in value]
    return followable(value, True) if isinstance(value, str) else value


def evidence(cause: Mapping[str, Any]) -> str:
    """The evidence of a cause, without the advice that its flag gave with it: a cause has its own."""
    return _OWN_HOST.sub("", listed(cause.get("evidence", ""))).replace(_BUSY_HERE, "").strip()


def is_down(cause: Mapping[str, Any]) -> bool:
    """A server was gone: nothing else of that cell is worth a word before it."""
    return str(cause.get("cause", "")).endswith("-down")


def share_of_ttft(cause: Mapping[str, Any]) -> str:
    """`86% of TTFT`; empty where it is not known, and for the client: what it spoils is more than what it takes."""
    share = cause.get("share")
    return "" if share is None or cause.get("cause") == "client" else f"{percent(share)} of TTFT"


def share_in_words(cause: Mapping[str, Any]) -> str:
    """The same, with what it is made of: `62% of TTFT: slot wait 270 ms + post 61 ms, because the loop is held`."""
    made_of = clean(cause.get("made_of") or "", 200)
    return ": ".join(filter(None, [share_of_ttft(cause), made_of])).replace("TTFT: itself", "TTFT itself")


def named(cause: Mapping[str, Any]) -> str:
    """`decode-slots (90% of TTFT)`."""
    share = share_of_ttft(cause)
    return clean(cause.get("cause", "?"), 40) + (f" ({share})" if share else "")


def first_change(cause: Mapping[str, Any]) -> str:
    """The first sentence of a cause's advice, as verdicts end with it."""
    advice = listed(cause.get("advice") or "").partition(". ")[0].rstrip(".")
    return advice and f"{advice}."


def new_advice(cause: Mapping[str, Any], said: str) -> str:
    """The advice of a cause, unless a sentence that was just said gives it already."""
    advice = listed(cause.get("advice") or "")
    return "" if not advice or advice.partition(". ")[0].rstrip(".") in said else advice


def targets(summary: Summary) -> list[str]:
    """Names of the targets in the order in which they were given."""
    cells: Sequence[CellSummary] = summary.get("cells") or []
    named = [*(summary.get("targets") or []), *(cell.get("target", "") for cell in cells)]
    return list(dict.fromkeys(str(name) for name in named if name is not None))


def slos(summary: Summary) -> str:
    """`TTFT <= 2,000 ms and TPOT <= 30 ms`: what a request must meet to be good."""
    limits: Mapping[str, Any] = (summary.get("plan") or {}).get("goodput_ms") or {}
    return " and ".join(f"{clean(name, 20).upper()} <= {short(float(limit))} ms" for name, limit in limits.items())


def flags(cell: CellSummary, severity: str | None = None) -> list[Mapping[str, Any]]:
    found: Sequence[Mapping[str, Any]] = cell.get("validity") or []
    return [flag for flag in found if severity is None or flag.get("severity") == severity]


def notes(cells: Sequence[CellSummary], target: bool = False) -> list[tuple[str, str]]:
    """The remarks of all cells as (where, what); those that differ in their numbers only are said once."""
    found: dict[str, list[tuple[CellSummary, str]]] = {}
    for cell in cells:
        for note in cell.get("notes") or []:
            said = clean(note)
            found.setdefault(re.sub(r"[\d.,]+", "#", said), []).append((cell, said))
    return [(which(len(some), len(cells), some[0][0], target), some[0][1]) for some in found.values()]


def which(concerned: int, of: int, first: CellSummary, target: bool = False, like: str = "such as") -> str:
    """`every cell, such as 8 req/s x 512 tokens`."""
    if concerned == 1:
        return place(first, target)
    return f"{'every cell' if concerned == of else counted(concerned, 'cell')}, {like} {place(first, target)}"


def verdict_mark(cell: CellSummary) -> str:
    """`cut` (interrupted), `void`, `none` (no request was answered), `warn`, `few` or `ok`.

    A mark judges the measurement, not the deployment: an overload may be measured well. `few` is a valid cell whose
    only flag is that some percentile lacks requests: nearly every short run has it.
    """
    if is_cut(cell):
        return "cut"
    if flags(cell, "void"):
        return "void"
    if not cell.get("completed"):
        return "none"
    codes = {flag.get("code") for flag in flags(cell, "warn")}
    return "few" if codes == {TOO_FEW} else "warn" if codes else "ok"


def is_imported(cell: CellSummary) -> bool:
    """Measured by another tool: nothing but its file was seen."""
    return any(flag.get("code") == "imported" for flag in flags(cell))


def is_cut(cell: CellSummary) -> bool:
    return bool(cell.get("state") == INTERRUPTED)


def is_unsound(cell: CellSummary) -> bool:
    """Void or cut short: its latencies are no result, and no view may show them as one."""
    return verdict_mark(cell) in ("void", "cut")


def why_unsound(cell: CellSummary) -> str:
    """The void codes, or how far an interrupted cell came."""
    return ", ".join(filter(None, [cut_short(cell) if is_cut(cell) else "", void_codes(cell)]))


def void_codes(cell: CellSummary) -> str:
    return ", ".join(dict.fromkeys(clean(flag.get("code", "?"), 40) for flag in flags(cell, "void")))


def statistic(cell: CellSummary, quantile: str, metric: str) -> float | None:
    """`statistic(cell, "p50", "ttft")`: a number in ms, `None` where not measured or too few requests carry it."""
    if needed_requests(cell, quantile, metric) is not None:
        return None
    names = {"p50": (f"median_{metric}_ms", f"p50_{metric}_ms")}.get(quantile, (f"{quantile}_{metric}_ms",))
    found = (cell.get(name) for name in names)
    return next((float(value) for value in found if value is not None), None)


def needed_requests(cell: CellSummary, quantile: str, metric: str) -> int | None:
    """How many requests the percentile needs, where the cell has too few for it."""
    needs: Mapping[str, Any] = cell.get("needs") or {}
    value = needs.get(f"{quantile}_{metric}_ms", needs.get(f"median_{metric}_ms") if quantile == "p50" else None)
    return None if value is None else int(value)


def most_needed(cell: CellSummary) -> int:
    """How many requests the most demanding percentile needs, 0 where the cell has enough for each."""
    needs: Mapping[str, Any] = cell.get("needs") or {}
    return max(map(int, needs.values()), default=0)


def interval(cell: CellSummary, quantile: str, metric: str) -> tuple[float | None, float | None]:
    """The interval of a percentile in ms; a bound is `None` where the sample does not give one."""
    pair = (cell.get(f"{metric}_ms_interval") or {}).get(quantile) or (None, None)
    low, high = (None if bound is None else float(bound) for bound in pair)
    return low, high


def highest_percentile(cells: Sequence[CellSummary], metric: str) -> str:
    """p99, or the highest below it that a sound cell (a void one, where there is no other) has enough requests for."""
    sound = [cell for cell in cells if not is_unsound(cell)] or cells
    known = (q for q in ("p99", "p90", "p50") if any(statistic(cell, q, metric) is not None for cell in sound))
    return next(known, "p99")


def why_not_p99(cells: Sequence[CellSummary], metric: str) -> str:
    """Why a lower percentile than p99 is shown; empty where p99 is."""
    needs = [n for cell in cells if (n := needed_requests(cell, "p99", metric)) is not None]
    upto = "up to " if len(set(needs)) > 1 else ""
    return f"p99 takes {upto}{max(needs):,} requests" if needs and highest_percentile(cells, metric) != "p99" else ""


def split(cell: CellSummary) -> dict[str, float]:
    """The measured parts of the TTFT split in ms, known ones in order, then any that a newer summary has."""
    parts: Mapping[str, Any] = cell.get("ttft_split_ms") or {}
    names = [*SPLIT_PARTS, *(name for name in parts if name not in SPLIT_PARTS)]
    return {name: float(parts[name]) for name in names if parts.get(name) is not None}


def queue_note(cells: Sequence[CellSummary]) -> str:
    """What the prefill queue of a co-located server holds, where a slot or KV blocks were waited for; else empty."""
    short_of = {"decode-slots", "decode-kv-pool"}
    for cell in cells:
        if (cell.get("slots") or {}).get("role") == "colocated" and any(
            cause.get("cause") in short_of for cause in cell.get("diagnosis") or []
        ):
            return "prefill queue, co-located: the wait for a slot, for KV blocks and for prefill; the causes say which"
    return ""


def part_name(part: str) -> str:
    return SPLIT_PARTS.get(part, clean(part.replace("_", " "), 30))


def listed(value: object) -> str:
    """Evidence, which is one sentence or several, as one line."""
    if isinstance(value, Mapping):
        return "; ".join(f"{clean(key)} {clean(item)}" for key, item in value.items())
    if isinstance(value, str) or not isinstance(value, Iterable):
        return clean(value)
    return "; ".join(clean(item) for item in value)
