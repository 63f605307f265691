"""What the client saw of one cell: its requests as arrays, and the figures under vllm bench serve's names.

Latencies count from the intended send time. TPOT is (last - first)/(output tokens - 1) of each request; ITL is every
gap between events that carried output; E2EL ends at the last token. Percentiles are of the requests that were answered,
with those that ran into their deadline ranked above all others (censored); rejected requests are counted apart.
Gaps are a clustered sample: what their percentiles rest on is in `pdbench.report.clustered`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pdbench.report.clustered import gap_sizes
from pdbench.report.events import Events, Gaps, Ints, joined
from pdbench.report.independent import alike_of, independent_sizes, streams_of
from pdbench.report.statistics import Floats, needed_for, percentile, quantile_interval
from pdbench.tables import Columns

QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
FIRST_SHARE = 0.1  # of the requests: the first ones, whose answers tell how long one takes before a backlog
FIRST_AT_LEAST = 5
GROWN = 1.5  # mean E2EL over that of the first ones: beyond, the mean is of a backlog
FAILURES = ("failed", "truncated", "timeout", "cancelled")


@dataclass(frozen=True, slots=True)
class Answers:
    """Requests in the order of their intended sends; times in s from the run's origin, NaN where there is none."""

    status: NDArray[np.str_]
    intended: Floats
    sent: Floats
    first: Floats
    last: Floats
    done: Floats
    prompt_len: Floats
    output_len: Floats
    prompt_tokens: Floats
    output_tokens: Floats
    cached_tokens: Floats
    chunks: Floats
    request_class: NDArray[np.str_]
    error_kind: NDArray[np.str_]
    http_status: Floats
    session: Floats
    turn: Floats  # of its session, from 1
    reasoning_tokens: Floats  # of its answer
    shared_len: Floats  # prompt tokens that an earlier request of the cell began with
    second: Floats  # token
    first_content: Floats  # first piece of the answer itself, not of a thinking trace
    first_reasoning: Floats
    render_done: Floats  # of --drive render
    derender_sent: Floats
    derender_done: Floats
    prefill_sent: Floats  # hop 1 of a two-hop drive
    prefill_done: Floats
    decode_sent: Floats
    told_prefill: Floats  # s, as Dynamo tells: prefill's queue and compute
    told_transfer: Floats  # s, as Dynamo estimates it: up to decode's first token
    events: Events  # that carried output
    connected: Floats  # NaN also where a connection was used again
    repeat: Floats
    stream: Floats  # of a closed loop: which one sent it

    def __len__(self) -> int:
        return len(self.status)

    def chosen(self, which: NDArray[np.bool_]) -> Answers:
        """Some of the requests, in the same order."""
        places = np.flatnonzero(which)
        arrays = {name: _some(getattr(self, name), places) for name in _ARRAYS}
        return Answers(**arrays, events=self.events.chosen(places))

    @property
    def ok(self) -> NDArray[np.bool_]:
        answered: NDArray[np.bool_] = (self.status == "ok") & np.isfinite(self.first)
        return answered

    @property
    def timed_out(self) -> NDArray[np.bool_]:
        late: NDArray[np.bool_] = self.status == "timeout"
        return late

    def count(self, *status: str) -> int:
        return int(np.isin(self.status, status).sum())

    @property
    def ttft_ms(self) -> Floats:
        value: Floats = (self.first - self.intended) * 1000
        return value

    @property
    def e2el_ms(self) -> Floats:
        value: Floats = (self.last - self.intended) * 1000
        return value

    @property
    def tpot_ms(self) -> Floats:
        """NaN for one token or less, which has no gap."""
        tokens = np.where(self.output_tokens > 1, self.output_tokens, np.nan)
        value: Floats = (self.last - self.first) / (tokens - 1) * 1000
        return value

    @property
    def lateness_ms(self) -> Floats:
        late = (self.sent - self.intended) * 1000
        finite: Floats = late[np.isfinite(late)]
        return finite

    @property
    def with_gaps(self) -> Ints:
        """Whose gaps count: the answered requests; timed-out ones keep theirs as seen."""
        found: Ints = np.flatnonzero((self.ok | self.timed_out) & (self.events.count > 0))
        return found

    def mean(self, values: Floats) -> float | None:
        """Mean over the answered requests that have the value."""
        kept = values[self.ok & np.isfinite(values)]
        return float(kept.mean()) if len(kept) else None


_ARRAYS = tuple(name for name in Answers.__slots__ if name != "events")


_COLUMN_OF = {
    "intended": "intended_s",
    "sent": "sent_s",
    "first": "first_token_s",
    "last": "last_token_s",
    "done": "done_s",
    "second": "second_token_s",
    "first_content": "first_content_s",
    "first_reasoning": "first_reasoning_s",
    "connected": "connected_s",
    **{name: f"{name}_s" for name in ("render_done", "derender_sent", "derender_done")},
    **{name: f"{name}_s" for name in ("prefill_sent", "prefill_done", "decode_sent", "told_prefill", "told_transfer")},
    **{name: name for name in ("prompt_len", "output_len", "shared_len", "session", "turn", "chunks", "http_status")},
    "repeat": "repeat",
    **{name: name for name in ("prompt_tokens", "output_tokens", "cached_tokens", "reasoning_tokens")},
}
COLUMNS = ("cell", "index", "status", "class", "error_kind", *_COLUMN_OF.values())  # of requests.parquet


def _unknown(n: int) -> Floats:
    """A column of which nothing is known. It takes no memory."""
    return np.broadcast_to(np.nan, n)


def _some(column: NDArray[Any], places: Ints | slice) -> NDArray[Any]:
    return column[places] if isinstance(places, slice) or column.strides != (0,) else _unknown(len(places))


def _in_a_row(places: Ints) -> Ints | slice:
    """A slice where these places follow one another, so that nothing is copied."""
    if len(places) and places[-1] - places[0] == len(places) - 1 and bool(np.all(np.diff(places) == 1)):
        return slice(int(places[0]), int(places[-1]) + 1)
    return places


def answers_of(requests: Columns, events: Events, places: Ints, closed: bool = False) -> Answers:
    """The requests at these places of a table and of its events: those of one cell and repeat."""
    places = places[np.lexsort((requests["index"][places], requests["intended_s"][places]))]
    some = _in_a_row(places)
    closed = closed and not np.isfinite(requests["session"][places]).any()
    sent, done = requests["sent_s"][places], requests["done_s"][places]
    return Answers(
        stream=streams_of(sent, done) if closed else _unknown(len(places)),
        status=np.asarray(requests["status"][some], str),
        request_class=np.asarray(requests["class"][some], str),
        error_kind=np.asarray(requests["error_kind"][some], str),
        events=events.chosen(some),
        **{field: _some(requests[name], some) for field, name in _COLUMN_OF.items()},
    )


def pooled(parts: Sequence[Answers]) -> Answers:
    """The requests of several repeats as one population."""
    if len(parts) == 1:
        return parts[0]
    arrays: dict[str, Any] = {n: np.concatenate([getattr(p, n) for p in parts]) for n in _ARRAYS}
    return Answers(**arrays, events=joined([part.events for part in parts]))


@dataclass(frozen=True, slots=True)
class Load:
    """One repeat's requests with its send window."""

    answers: Answers
    start: float
    send_end: float

    @property
    def duration_s(self) -> float:
        return self.send_end - self.start

    closed: bool = False

    def counted(self) -> Floats:
        """How much of each answer counts as made while the load lasted: 0 to 1.

        On a system that keeps up: the answers that ended in the send window shifted by the mean E2EL. Where requests
        take ever longer that window lies in the drain, whose answers come faster than the load ever let them; there it
        is shifted by what the first requests took, and an answer counts by the share of its tokens' time inside, so
        that answers which end in batches cannot make more than the slots hold.
        """
        answers = self.answers
        if self.closed:  # all streams start at once, so what ended while they sent is what they made
            within: Floats = (answers.ok & (answers.last <= self.send_end)).astype(float)
            return within
        e2el = answers.e2el_ms[answers.ok] / 1000
        e2el = e2el[np.isfinite(e2el)]
        if len(e2el) == 0:
            return np.zeros(len(answers))
        mean, first = float(e2el.mean()), float(np.median(e2el[: max(FIRST_AT_LEAST, int(FIRST_SHARE * len(e2el)))]))
        grown = mean > GROWN * first
        shift = first if grown else mean
        start, end = self.start + shift, self.send_end + shift
        ended: Floats = (answers.ok & (answers.last > start) & (answers.last <= end)).astype(float)
        took = answers.last - answers.first
        if not grown or not np.all(took[answers.ok] > 0):
            return ended
        inside = np.minimum(answers.last, end) - np.maximum(answers.first, start)
        share: Floats = np.where(answers.ok, np.clip(inside / np.where(took > 0, took, 1.0), 0.0, 1.0), 0.0)
        return share


def rates(loads: Sequence[Load], goodput_ms: Mapping[str, float]) -> dict[str, float]:
    """Requests and tokens a second over the time the cell was under load.

    That time is the send window shifted by what a request takes (`Load.counted`), so that neither the empty start nor
    the drain moves the rate: on a system that keeps up the result is the rate that was sent, else its capacity.
    Goodput counts those of the same answers that meet every SLO.
    """
    time = sum(load.duration_s for load in loads)
    if time <= 0:
        return {}
    counted = [(load.answers, load.counted()) for load in loads]
    requests = sum(float(weight.sum()) for _, weight in counted)
    outputs = sum(float(np.nansum(a.output_tokens * weight)) for a, weight in counted)
    prompts = sum(float(np.nansum(a.prompt_tokens * weight)) for a, weight in counted)
    found = {
        "request_throughput": requests / time,
        "output_throughput": outputs / time,
        "total_token_throughput": (outputs + prompts) / time,
    }
    if goodput_ms:
        found["request_goodput"] = sum(float(weight[good(a, goodput_ms)].sum()) for a, weight in counted) / time
    return found


def good(answers: Answers, limits_ms: Mapping[str, float]) -> NDArray[np.bool_]:
    """Which answers meet every SLO. `itl` is the request's mean gap; with one token there is no gap, which meets it."""
    values = {"ttft": answers.ttft_ms, "tpot": answers.tpot_ms, "e2el": answers.e2el_ms}
    values["e2e"] = values["e2el"]
    if "itl" in limits_ms:
        values["itl"] = answers.events.mean_gap_ms()
    met = answers.ok.copy()
    for name, limit in limits_ms.items():
        value = values[name]
        met &= (value <= limit) | (np.isnan(value) & (name in ("tpot", "itl")))
    return met


def _population(answers: Answers, name: str) -> tuple[Floats, Ints]:
    """Values for percentiles, censored ones as infinity, and whose they are."""
    value = getattr(answers, f"{name}_ms")
    late = answers.timed_out
    known = np.isfinite(value) & (answers.ok | (late & (name == "ttft")))
    places: Ints = np.flatnonzero(known | late)
    found: Floats = np.where(known, value, np.inf)[places]
    return found, places


def latencies(answers: Answers, settles: bool = True) -> dict[str, Any]:
    """mean, median, std, p50, p90, p99 of TTFT, TPOT, ITL and E2EL in ms, with intervals and what is still needed.

    `settles`: whether there is a steady state to know them of. Without one they are those of these requests, and that
    one resembles the next is no reason to doubt them.
    """
    found: dict[str, Any] = {}
    needs: dict[str, int] = {}
    alike = alike_of(answers.repeat, answers.stream, answers.session)
    for name in ("ttft", "tpot", "e2el"):
        measured = _measured(answers, name)
        if len(measured) == 0:
            continue
        found[f"mean_{name}_ms"] = float(measured.mean())
        found[f"std_{name}_ms"] = float(measured.std())
        values, places = _population(answers, name)
        ordered = np.sort(values)
        sizes: Mapping[float, float] = dict.fromkeys(QUANTILES.values(), float(len(values)))
        if settles:
            sizes = independent_sizes(values, ordered, alike.chosen(places), tuple(sizes))
        found |= _percentiles(name, ordered, {q: _doubt(ordered, q, sizes[q], len(values)) for q in sizes}, needs)
    found |= _itl(answers, needs)
    if needs:
        found["needs"] = needs
    return found


Doubt = tuple[tuple[float | None, float | None], int | None]  # the interval, and how many requests are needed if more


def _percentiles(name: str, ordered: Gaps, doubts: Mapping[float, Doubt], needs: dict[str, int]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if (median := percentile(ordered, 0.5, ordered=True)) is not None:
        found[f"median_{name}_ms"] = median
    interval: dict[str, list[float | None]] = {}
    least = 0  # what a lower percentile takes a higher one takes too, however few are in its tail to tell
    for label, q in QUANTILES.items():
        if (value := percentile(ordered, q, ordered=True)) is not None:
            found[f"{label}_{name}_ms"] = value
        ends, needed = doubts[q]
        interval[label] = list(ends)
        if needed is not None:
            needs[f"{label}_{name}_ms"] = least = max(least, needed)
    return {**found, f"{name}_ms_interval": interval}


def _doubt(ordered: Gaps, q: float, size: float, requests: int) -> Doubt:
    """`size`: how many independent ones the values of so many `requests` are worth."""
    needed = needed_for(q)
    more = max(requests + 1, math.ceil(requests * needed / max(size, 1.0)))
    if more > needed:  # an estimate of few clusters: two digits are more than it knows
        ten = 10 ** max(0, len(str(more)) - 2)
        more = math.ceil(more / ten) * ten
    return quantile_interval(ordered, q, int(size), ordered=True), more if size < needed else None


def _itl(answers: Answers, needs: dict[str, int]) -> dict[str, Any]:
    """The same of the gaps, which come in clusters."""
    places = answers.with_gaps
    if len(places) == 0:
        return {}
    ordered = answers.events.gathered_ms(places)
    mean = float(ordered.mean(dtype=np.float64))
    square = sum(float(np.square(piece - mean).sum(dtype=np.float64)) for piece in np.array_split(ordered, 64))
    ordered.sort()
    found = {
        "mean_itl_ms": mean,
        "std_itl_ms": math.sqrt(square / len(ordered)),
        "max_itl_ms": float(ordered[-1]),  # a stall of seconds is beyond every percentile
    }
    points = {q: percentile(ordered, q, ordered=True) or 0.0 for q in QUANTILES.values()}
    block_s = answers.mean(answers.last - answers.sent) or 0.0
    sizes = gap_sizes(answers.events, answers.sent, places, points, block_s)
    requests = int((answers.ok | answers.timed_out).sum())
    doubts = {q: _doubt(ordered, q, size, requests) for q, size in sizes.items()}
    return {**found, **_percentiles("itl", ordered, doubts, needs)}


def _measured(answers: Answers, name: str) -> Floats:
    value = {"ttft": answers.ttft_ms, "tpot": answers.tpot_ms, "e2el": answers.e2el_ms}[name]
    kept: Floats = value[answers.ok & np.isfinite(value)]
    return kept


def counts(answers: Answers) -> dict[str, int]:
    """How the requests ended. `failed` holds truncated, timed-out and cancelled ones too; rejected ones are apart."""
    found = {
        "sent": int(np.isfinite(answers.sent).sum()),
        "completed": answers.count("ok"),
        "failed": answers.count("failed", "truncated", "timeout"),
        "rejected": answers.count("rejected"),
        "timed_out": answers.count("timeout"),
        "truncated": answers.count("truncated"),
        "cancelled": answers.count("cancelled"),
    }
    for key, values in (("total_input_tokens", answers.prompt_tokens), ("total_output_tokens", answers.output_tokens)):
        known = values[(answers.status == "ok") & np.isfinite(values)]
        if len(known):
            found[key] = int(known.sum())
    return found


def in_flight(answers: Answers) -> tuple[Floats, NDArray[np.int64]]:
    """Times at which a request is sent or ends, and how many are in flight from then on."""
    sent = answers.sent[np.isfinite(answers.sent)]
    done = answers.done[np.isfinite(answers.sent)]
    done = done[np.isfinite(done)]
    times = np.concatenate((sent, done))
    steps = np.concatenate((np.ones(len(sent), dtype=np.int64), -np.ones(len(done), dtype=np.int64)))
    order = np.lexsort((steps, times))
    return times[order], np.cumsum(steps[order])


def several_tokens_per_event(answers: Answers) -> float | None:
    """Mean output tokens per event over the answered requests; above 1 an ITL is not the gap between tokens."""
    kept = answers.ok & (answers.chunks > 0) & np.isfinite(answers.output_tokens)
    events = float(answers.chunks[kept].sum())
    return float(answers.output_tokens[kept].sum()) / events if events else None
