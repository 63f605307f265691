"""Validity checks that rest on what the client saw."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from pdbench.report import steady_state
from pdbench.report.answers import FAILURES, token_times
from pdbench.report.arrivals_check import departure
from pdbench.report.cell import Measured
from pdbench.report.demand import slots_of
from pdbench.report.finding import VOID, WARN, Finding
from pdbench.report.statistics import needed_for

FAILED_VOID_SHARE = 0.05
MISMATCH_VOID_SHARE = 0.01
CHAT_PROMPT_SHARE = 0.05  # a chat template adds tokens: text prompts may be this much or 16 tokens off
CHAT_PROMPT_TOKENS = 16
P99_NEEDS = needed_for(0.99)
TOO_FEW = "too-few-requests"

# A send that is late, or a loop that wakes late, moves a latency by at most that much. Half a percent of requests moved
# by 5 % of the mean TTFT leaves every printed percentile within 5 %; below 20 ms it is what a busy host's timer gives.
CLIENT_LATE_MS = 20.0
CLIENT_LATE_SHARE = 0.05
CLIENT_CPU_SHARE = 0.9  # of one core: beyond, the loop queues its own work
CLIENT_ITL_SHARE = 0.5  # loop lag p99 beyond this share of TPOT (and 5 ms) shows in ITL percentiles
SHARED_READS_SHARE = 0.005  # reads with several token events: two gaps each are wrong, p99 is what 1 % of them say
CLIENT_ITL_LAG_MS = 5.0

STALL_S = 2.0
STALL_TPOTS = 20.0
STALL_PREFILLS = 5.0  # co-located: a long prompt's pass holds the streams up, which is interference and no stall

OVERLOAD_UTILISATION = 1.05  # needed / available slots: no steady state exists, whatever this run's arrivals did


def _not_steady(cell: Measured) -> Iterator[Finding]:
    """The mean is a figure of the run's length."""
    load = cell.parts[0].load
    seen = steady_state.judge(cell.answers, load.start, load.send_end, cell.rate, cell.streams)
    slots = slots_of(cell)
    reasons = []
    if (growth := seen.growth_ms) is not None:
        reasons.append(f"TTFT grows {_ms(growth)} ms per request: the mean is a figure of this run's length")
    if seen.never_drains and seen.backlog is not None:
        out = seen.rate / seen.backlog.load if seen.rate else 0.0
        reasons.append(f"{seen.backlog.share:.0%} of the requests stood in one backlog that let {out:.2f} req/s out")
    if growth is None and seen.flight is not None and seen.flight_grows:
        reasons.append(
            f"requests in flight grew from {seen.flight.first:.0f} to {seen.flight.last:.0f}:"
            " the mean is a figure of this run's length"
        )
    if seen.one_burst:
        reasons.append(
            f"{seen.peak_in_flight} of {seen.requests} requests were in flight at once:"
            " the mean is a figure of the number of prompts"
        )
    if _too_few_slots(cell):
        reasons.append(
            f"{cell.rate:g} req/s need {slots.demand:.1f} decode slots of {slots.available}:"
            " at this rate no steady state exists"
        )
    if not reasons:
        return
    if cell.rate is not None and cell.achieved is not None:
        reasons.append(f"{cell.achieved:.2f} of {cell.rate:g} req/s came out")
    yield Finding(
        "not-steady-state", VOID, "; ".join(reasons) + ". Lower the rate, or add capacity; more requests don't help."
    )


def _too_few_slots(cell: Measured) -> bool:
    slots = slots_of(cell)
    enough = len(cell.answers) > 2 * (slots.available or 0)
    return cell.rate is not None and enough and slots.reached and slots.overload(OVERLOAD_UTILISATION)


def _client_saturated(cell: Measured) -> Iterator[Finding]:
    """We were the bottleneck."""
    mean = cell.answers.mean(cell.answers.ttft_ms)
    limit = max(CLIENT_LATE_MS, CLIENT_LATE_SHARE * (mean or 0.0))
    late = cell.answers.lateness_ms
    client = cell.parts[0].client
    lag, cpu = client.get("loop_lag_p99_ms"), client.get("cpu_share")
    reasons = []
    if len(late) and (p99 := float(np.percentile(late, 99))) > limit:
        reasons.append(f"sends were up to {p99:,.0f} ms late (p99; limit {limit:.0f} ms)")
    if lag is not None and lag > limit:
        reasons.append(f"the client's loop woke {lag:,.0f} ms late (p99; limit {limit:.0f} ms)")
    if cpu is not None and cpu > CLIENT_CPU_SHARE:
        reasons.append(f"the client used {cpu:.0%} of its core (limit {CLIENT_CPU_SHARE:.0%})")
    if reasons:
        advice = ". Run pdbench on a host of its own, or lower the rate."
        yield Finding("client-saturated", VOID, "; ".join(reasons) + advice)
        return
    tpot = cell.answers.mean(cell.answers.tpot_ms)
    stamps = client.get("stamps") or {}
    if stamps.get("kernel") and not stamps.get("user"):
        yield from _shared_stamps(client, tpot)
        return
    if lag is not None and tpot is not None and lag > max(CLIENT_ITL_LAG_MS, CLIENT_ITL_SHARE * tpot):
        text = f"the client's loop woke {lag:.1f} ms late (p99) against a TPOT of {tpot:.1f} ms: p99 ITL may be our own"
        yield Finding("client-saturated", WARN, text + ". Run pdbench on a host of its own.")


def _shared_stamps(client: Mapping[str, Any], tpot: float | None) -> Iterator[Finding]:
    """The kernel's stamps don't wait for us, but events that it merged before we came have one between them. Where we
    came in time, the server sent them together."""
    share, lag = client.get("shared_reads_share"), client.get("kernel_to_user_p99_ms")
    if share is None or lag is None or tpot is None:
        return
    if share > SHARED_READS_SHARE and lag > CLIENT_ITL_SHARE * tpot:
        text = f"{share:.1%} of the reads brought several token events with one stamp between them, and reads came "
        text += f"{lag:.1f} ms after the kernel's stamp (p99) against a TPOT of {tpot:.1f} ms: p99 ITL may be our own"
        yield Finding("client-saturated", WARN, text + ". Run pdbench on a host of its own.")


def _stall(cell: Measured) -> Iterator[Finding]:
    """Streams under way, and no token from anyone."""
    limit = stall_limit_s(cell)
    answers = cell.answers
    stamps = token_times(answers)
    if len(stamps) == 0:
        return
    # A stream is under way from its first token until its last one, or until its end when it never got there.
    end = np.where(answers.status == "ok", answers.last, answers.done)
    gaps = np.diff(stamps)
    pieces = [(stamps[i], stamps[i + 1]) for i in np.flatnonzero(gaps > limit)]
    hung = np.nanmax(end) if np.any(np.isfinite(end)) else stamps[-1]
    # Silence after the load, where one request hangs on, is that request's failure.
    if hung - stamps[-1] > limit and stamps[-1] < cell.parts[0].load.send_end:
        pieces.append((stamps[-1], hung))
    for quiet_from, quiet_to in pieces:
        open_then = (answers.first <= quiet_from) & (end >= min(quiet_to, quiet_from + limit))
        if np.any(open_then & (end > quiet_from)):
            at = quiet_from - cell.parts[0].load.start
            text = (
                f"no token from any stream for {quiet_to - quiet_from:.1f} s from second {at:.0f} on"
                f" (limit {limit:.1f} s), with {int(open_then.sum())} streams under way"
            )
            yield Finding("stall", VOID, text + ". Look into the decode servers' logs at that time.")
            return


def stall_limit_s(cell: Measured) -> float:
    tpot_s = (cell.answers.mean(cell.answers.tpot_ms) or 0.0) / 1000
    limit = max(STALL_S, STALL_TPOTS * tpot_s)
    prefill = cell.window.mean_s("colocated", "prefill_s")
    return max(limit, STALL_PREFILLS * prefill) if prefill is not None else limit


def _arrivals_off(cell: Measured) -> Iterator[Finding]:
    """What was sent is not the named process."""
    if cell.rate is None:
        return
    kind = str(cell.plan.get("arrivals", "poisson"))
    load = cell.parts[0].load
    found = departure(cell.answers.sent, load.start, kind, cell.rate, float(cell.plan.get("burstiness") or 1.0))
    if found is not None:
        yield Finding("arrivals-off", VOID, f"{found}. Check client health, then repeat the cell.")


def _failed(cell: Measured) -> Iterator[Finding]:
    """Requests without a whole answer; rejected ones are a class of their own."""
    answers = cell.answers
    kinds = {kind: answers.count(kind) for kind in FAILURES if kind != "cancelled"}
    failed = sum(kinds.values())
    asked = len(answers) - answers.count("cancelled")
    if not failed:
        return
    share = failed / asked
    which = ", ".join(f"{n} {kind}" for kind, n in kinds.items() if n)
    text = (
        f"{failed} of {asked} requests ({share:.1%}) have no whole answer: {which} (void above {FAILED_VOID_SHARE:.0%})"
    )
    if kinds["timeout"]:
        text += "; timed-out ones rank above all others in the percentiles"
    severity = VOID if share > FAILED_VOID_SHARE else WARN
    yield Finding("failed-requests", severity, text + ". The column error of requests.parquet has each cause.")


def _token_mismatch(cell: Measured) -> Iterator[Finding]:
    """Another amount of work than asked."""
    answers = cell.answers
    chat = cell.plan.get("endpoint") == "chat"
    asked_in, got_in = answers.prompt_len, answers.prompt_tokens
    slack = np.maximum(CHAT_PROMPT_TOKENS, CHAT_PROMPT_SHARE * asked_in) if chat else np.zeros(len(answers))
    wrong_in = answers.ok & np.isfinite(got_in) & (np.abs(got_in - asked_in) > slack)
    wrong_out = answers.ok & np.isfinite(answers.output_tokens) & (answers.output_tokens != answers.output_len)
    if not cell.plan.get("ignore_eos", True):
        wrong_out &= answers.output_tokens > answers.output_len
    total, wrong = int(answers.ok.sum()), int((wrong_in | wrong_out).sum())
    if not wrong:
        return
    parts = []
    if wrong_out.any():
        mean = float(answers.output_tokens[wrong_out].mean())
        parts.append(
            f"{int(wrong_out.sum())} got {mean:.0f} output tokens on average"
            f" instead of {answers.output_len[wrong_out][0]:.0f}"
        )
    if wrong_in.any():
        mean = float(got_in[wrong_in].mean())
        parts.append(f"{int(wrong_in.sum())} had {mean:.0f} prompt tokens instead of {asked_in[wrong_in][0]:.0f}")
    share = wrong / total
    text = f"{' and '.join(parts)}, of {total} answers (void above {MISMATCH_VOID_SHARE:.0%})"
    severity = VOID if share > MISMATCH_VOID_SHARE else WARN
    yield Finding("token-mismatch", severity, text + ". Check max_model_len, ignore_eos and the endpoint.")


def too_few(cell: Measured) -> Iterator[Finding]:
    """A percentile without an upper bound."""
    n = cell.answers.count("ok", "timeout")
    if 0 < n < P99_NEEDS:
        text = f"{n} requests: p99 is no point below {P99_NEEDS}, its upper end is unbounded"
        advice = f". Use --num-prompts {P99_NEEDS} or a longer --duration."
        yield Finding(TOO_FEW, WARN, text + advice)


def _ms(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 10 else f"{value:.1f}"


CLIENT_CHECKS: tuple[Callable[[Measured], Iterator[Finding]], ...] = (
    _not_steady,
    _client_saturated,
    _stall,
    _arrivals_off,
    _failed,
    _token_mismatch,
    too_few,
)
