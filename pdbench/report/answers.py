"""What the client saw of one cell: its requests as arrays, and the figures under vllm bench serve's names.

Latencies count from the intended send time. TPOT is (last - first)/(output tokens - 1) of each request; ITL is every
gap between events that carried output; E2EL ends at the last token. Percentiles are of the requests that were answered,
with those that ran into their deadline ranked above all others (censored); rejected requests are counted apart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pdbench.report.statistics import Floats, needed_for, percentile, quantile_interval

if TYPE_CHECKING:
    import pandas

QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
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
    gaps: tuple[Floats, ...]  # s between token-carrying events, per request
    offsets: tuple[Floats, ...]  # s from sent, per request

    def __len__(self) -> int:
        return len(self.status)

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

    def itl_ms(self) -> Floats:
        """All gaps of the answered requests; timed-out ones keep theirs as seen."""
        kept = self.ok | self.timed_out
        found = [gaps for gaps, keep in zip(self.gaps, kept, strict=True) if keep and len(gaps)]
        return np.concatenate(found) * 1000 if found else np.array([])

    def mean(self, values: Floats) -> float | None:
        """Mean over the answered requests that have the value."""
        kept = values[self.ok & np.isfinite(values)]
        return float(kept.mean()) if len(kept) else None


def read_answers(requests: pandas.DataFrame, chunks: Mapping[str, Floats]) -> Answers:
    """The requests of one cell and repeat. `chunks` maps a request id to the arrival offsets of its output."""
    rows = requests.sort_values(["intended_s", "index"], kind="stable")
    offsets = tuple(np.asarray(chunks.get(name, ()), dtype=float) for name in rows["request_id"])

    def column(name: str) -> Floats:
        return rows[name].to_numpy(dtype=float, na_value=np.nan)

    return Answers(
        status=rows["status"].to_numpy(dtype=str),
        intended=column("intended_s"),
        sent=column("sent_s"),
        first=column("first_token_s"),
        last=column("last_token_s"),
        done=column("done_s"),
        prompt_len=column("prompt_len"),
        output_len=column("output_len"),
        prompt_tokens=column("prompt_tokens"),
        output_tokens=column("output_tokens"),
        cached_tokens=column("cached_tokens"),
        chunks=column("chunks"),
        gaps=tuple(np.diff(each) for each in offsets),
        offsets=offsets,
    )


def pooled(parts: Sequence[Answers]) -> Answers:
    """The requests of several repeats as one population."""
    if len(parts) == 1:
        return parts[0]
    names = [n for n in Answers.__slots__ if n not in ("gaps", "offsets")]
    joined: dict[str, Any] = {n: np.concatenate([getattr(p, n) for p in parts]) for n in names}
    return Answers(
        **joined,
        gaps=tuple(g for part in parts for g in part.gaps),
        offsets=tuple(o for part in parts for o in part.offsets),
    )


@dataclass(frozen=True, slots=True)
class Load:
    """One repeat's requests with its send window."""

    answers: Answers
    start: float
    send_end: float

    @property
    def duration_s(self) -> float:
        return self.send_end - self.start

    def counted(self) -> NDArray[np.bool_]:
        """Answers that ended in the send window shifted by the mean E2EL: what leaves while the load lasts."""
        mean = self.answers.mean(self.answers.e2el_ms)
        shift = (mean or 0.0) / 1000
        inside: NDArray[np.bool_] = (
            self.answers.ok & (self.answers.last > self.start + shift) & (self.answers.last <= self.send_end + shift)
        )
        return inside


def rates(loads: Sequence[Load], goodput_ms: Mapping[str, float]) -> dict[str, float]:
    """Requests and tokens a second over the time the cell was under load.

    That time is the send window shifted by the mean E2EL of the repeat, so that neither the empty start nor the drain
    lowers the rate: on a system that keeps up the result is the rate that was sent, on one that doesn't its capacity.
    Goodput counts those of the same answers that meet every SLO.
    """
    time = sum(load.duration_s for load in loads)
    if time <= 0:
        return {}
    counted = [(load.answers, load.counted()) for load in loads]
    requests = sum(int(inside.sum()) for _, inside in counted)
    outputs = sum(float(np.nansum(a.output_tokens[inside])) for a, inside in counted)
    prompts = sum(float(np.nansum(a.prompt_tokens[inside])) for a, inside in counted)
    found = {
        "request_throughput": requests / time,
        "output_throughput": outputs / time,
        "total_token_throughput": (outputs + prompts) / time,
    }
    if goodput_ms:
        found["request_goodput"] = sum(int((inside & good(a, goodput_ms)).sum()) for a, inside in counted) / time
    return found


def good(answers: Answers, limits_ms: Mapping[str, float]) -> NDArray[np.bool_]:
    """Which answers meet every SLO. `itl` is the request's mean gap; with one token there is no gap, which meets it."""
    values = {"ttft": answers.ttft_ms, "tpot": answers.tpot_ms, "e2el": answers.e2el_ms}
    values["e2e"] = values["e2el"]
    values["itl"] = np.array([g.mean() * 1000 if len(g) else np.nan for g in answers.gaps])
    met = answers.ok.copy()
    for name, limit in limits_ms.items():
        value = values[name]
        met &= (value <= limit) | (np.isnan(value) & (name in ("tpot", "itl")))
    return met


def _population(answers: Answers, name: str) -> tuple[Floats, int]:
    """Values for percentiles (censored ones as infinity) and how many independent requests they come from."""
    if name == "itl":
        gaps = answers.itl_ms()
        return gaps, min(len(gaps), int((answers.ok | answers.timed_out).sum()))
    value = {"ttft": answers.ttft_ms, "tpot": answers.tpot_ms, "e2el": answers.e2el_ms}[name]
    done = value[answers.ok & np.isfinite(value)]
    late = value[answers.timed_out] if name == "ttft" else np.full(answers.count("timeout"), np.inf)
    late = np.where(np.isfinite(late), late, np.inf)
    both = np.concatenate((done, late))
    return both, len(both)


def latencies(answers: Answers) -> dict[str, Any]:
    """mean, median, std, p50, p90, p99 of TTFT, TPOT, ITL and E2EL in ms, with intervals and what is still needed."""
    found: dict[str, Any] = {}
    needs: dict[str, int] = {}
    for name in ("ttft", "tpot", "itl", "e2el"):
        values, size = _population(answers, name)
        measured = values[np.isfinite(values)] if name == "itl" else _measured(answers, name)
        if len(measured) == 0:
            continue
        found[f"mean_{name}_ms"] = float(measured.mean())
        found[f"std_{name}_ms"] = float(measured.std())
        if (median := percentile(values, 0.5)) is not None:
            found[f"median_{name}_ms"] = median
        interval: dict[str, list[float | None]] = {}
        for label, q in QUANTILES.items():
            if (value := percentile(values, q)) is not None:
                found[f"{label}_{name}_ms"] = value
            interval[label] = list(quantile_interval(values, q, size))
            if size < (needed := needed_for(q)):
                needs[f"{label}_{name}_ms"] = needed
        found[f"{name}_ms_interval"] = interval
    if needs:
        found["needs"] = needs
    return found


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


def token_times(answers: Answers) -> Floats:
    """Arrival times of all output events, sorted."""
    stamps = [s + o for s, o in zip(answers.sent, answers.offsets, strict=True) if len(o) and np.isfinite(s)]
    return np.sort(np.concatenate(stamps)) if stamps else np.array([])


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
