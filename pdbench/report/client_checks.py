"""Validity checks that rest on what the client saw."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from pdbench.report.answers import FAILURES
from pdbench.report.arrivals_check import NO_CHANCE, arrivals_off, in_place
from pdbench.report.breakdown import kept_up
from pdbench.report.cell import COLOCATED, Measured
from pdbench.report.client_health import client_saturated, connection_cost
from pdbench.report.demand import slots_of
from pdbench.report.finding import VOID, WARN, Finding
from pdbench.report.link_load import link_load
from pdbench.report.lost_workers import lost_text
from pdbench.report.one_full import one_full
from pdbench.report.sent_rate import TELLING_SHARE
from pdbench.report.short_cell import too_short
from pdbench.report.short_run import short_run
from pdbench.report.slow_server import slow_server
from pdbench.report.statistics import needed_for
from pdbench.report.thinking import thinking_dropped, thought_before
from pdbench.report.uneven_prefill import one_prefill_overloaded, slow_prefill

FAILED_VOID_SHARE = 0.05
MISMATCH_VOID_SHARE = 0.01
CHAT_PROMPT_SHARE = 0.05  # a chat template adds tokens: text prompts may be this much or 16 tokens off
CHAT_PROMPT_TOKENS = 16
P99_NEEDS = needed_for(0.99)
SETTLED = ("ttft", "tpot", "e2el")  # figures that a request has once
TOO_FEW = "too-few-requests"

STALL_S = 2.0
STALL_TPOTS = 20.0
STALL_POSTS = 1.5  # times the posts of all requests that were seen waiting: the gauge is sampled, its peak is higher
STALL_PREFILLS = 5.0  # co-located: a long prompt's pass holds the streams up, which is interference and no stall

ROOM = 0.7  # of slots, or of prefill's time, that a load may take and have none of its bursts put down to capacity
LONGER = 10  # times as many requests as were in flight at once
OVERLOAD_UTILISATION = 1.05  # needed / available slots: no steady state exists, whatever this run's arrivals did


def _not_steady(cell: Measured) -> Iterator[Finding]:
    """The mean is a figure of the run's length."""
    if cell.stages:
        yield _moving(cell)
        return
    seen = cell.steadiness[0]
    slots = slots_of(cell)
    reasons: list[str] = []
    short = False
    if (growth := seen.growth_ms) is not None:
        reasons.append(f"TTFT grows {_ms(growth)} ms per request: the mean is a figure of this run's length")
    if seen.never_drains and seen.backlog is not None:
        out = seen.rate / seen.backlog.load if seen.rate else 0.0
        share = f"{seen.backlog.share:.0%} of the requests"
        reasons.append(f"{share} waited in one queue that never emptied and let {out:.2f} req/s through")
    if growth is None and seen.flight is not None and seen.flight_grows:
        reasons.append(
            f"requests in flight grew from {seen.flight.first:.0f} to {seen.flight.last:.0f}:"
            " the mean is a figure of this run's length"
        )
    closed = cell.rate is None and cell.streams is not None  # it overloads nothing: its streams wait for their answers
    if seen.one_burst:
        short = not reasons and (closed or _has_room(cell))
        reasons.append(
            f"{seen.peak_in_flight} of {seen.requests} requests were in flight at once:"
            " the mean is a figure of the number of prompts"
        )
    if _too_few_slots(cell):
        reasons.append(f"{cell.rate:g} req/s need {slots.wanted_text()}: at this rate no steady state exists")
    if cell.rate is not None:
        reasons += [alone for alone in (one_full(cell), one_prefill_overloaded(cell)) if alone is not None]
    link = link_load(cell)
    if link is not None and link.overload:
        reasons.append(link.text())
    if not reasons:
        yield from too_short(short_run(cell), link)
        return
    if short and len(reasons) == 1:
        longer = f"Run longer: --num-prompts {LONGER * seen.peak_in_flight} or more, or a longer --duration"
        room = "; slots and prefill have room for this load" if _has_room(cell) else ""
        yield Finding("not-steady-state", VOID, f"{reasons[0]}. {longer}{room}.")
        return
    if cell.rate is not None and cell.achieved is not None:
        sent = len(cell.answers) / cell.send_s
        by_chance = f" ({sent:.2f} were sent)" if abs(sent / cell.rate - 1) > TELLING_SHARE else ""
        reasons.append(f"{cell.achieved:.2f} of {cell.rate:g} req/s came out{by_chance}")
    lower = "Lower --speed" if cell.plan.get("trace") else "Lower --max-concurrency" if closed else "Lower the rate"
    if (slow := slow_server(cell) or slow_prefill(cell)) is not None:
        reasons.append(slow.text())
        lower = f"Find out why {slow.server} is slow, l{lower[1:]}"
    yield Finding(
        "not-steady-state", VOID, "; ".join(reasons) + f". {lower}, or add capacity; more requests don't help."
    )


def _has_room(cell: Measured) -> bool:
    """Whether slots and prefill, as far as the pages tell of both, carry this load: then a burst is a short cell's."""
    slots, computes = slots_of(cell), COLOCATED if cell.mode == COLOCATED else "prefill"
    prompt_s, servers = cell.window.mean_s(computes, "prefill_s"), cell.servers(computes)
    rate = cell.offered if cell.rate is None else cell.rate
    if slots.demand is None or not slots.available or prompt_s is None or not servers or rate is None:
        return False
    return slots.demand <= ROOM * slots.available and rate * prompt_s <= ROOM * servers


def _moving(cell: Measured) -> Finding:
    """A rate that moves is not steady by design: the figures are those of the whole way."""
    found = kept_up(cell)
    way = [cell.stages[0]["start"], *(stage["end"] for stage in cell.stages)]
    way = [rate for number, rate in enumerate(way) if number == 0 or rate != way[number - 1]]
    rates = " to ".join(f"{rate:g}" for rate in way)
    text = f"the rate went from {rates} req/s by design: a figure of the cell is one of the whole way"
    broken = next((each for each in found if each.steady is False), None)
    if broken is not None:
        a, b = broken.stretch.first, broken.stretch.last
        at = f"at {a:g} req/s" if a == b else f"between {a:.3g} and {b:.3g} req/s"
        text += f"; {at} the servers no longer kept up ({broken.why})"
    return Finding("not-steady-state", WARN, f"{text}. Read the stages; measure the rate that matters with --rates.")


def _too_few_slots(cell: Measured) -> bool:
    slots = slots_of(cell)
    enough = len(cell.answers) > 2 * (slots.available or 0)
    if cell.answers.count("rejected"):
        return False  # what is turned away needs no slot
    return cell.rate is not None and enough and slots.reached and slots.overload(OVERLOAD_UTILISATION)


def _stall(cell: Measured) -> Iterator[Finding]:
    """Streams under way, and no token from anyone."""
    limit = stall_limit_s(cell)
    answers = cell.answers
    times = answers.events.quiet_times(answers.sent, limit)
    if not times:
        return
    *pieces, (last, _) = times[1:]
    # A stream is under way from its first token until its last one, or until its end when it never got there.
    end = np.where(answers.status == "ok", answers.last, answers.done)
    hung = np.nanmax(end) if np.any(np.isfinite(end)) else last
    # Silence after the load, where one request hangs on, is that request's failure.
    if hung - last > limit and last < cell.parts[0].load.send_end:
        pieces.append((last, hung))
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


def stall_limit_s(cell: Measured, least_s: float = STALL_S) -> float:
    """Silence up to this long has a cause that is no hang: steps, a co-located prompt, or posting on decode's loop.
    Less than `least_s` is not looked into.

    When a slot frees, pull posts the loads of all that wait, one after the other, and no stream gets a token meanwhile.
    """
    cell = cell.as_read
    tpot_s = (cell.answers.mean(cell.answers.tpot_ms) or 0.0) / 1000
    limits = [least_s, STALL_TPOTS * tpot_s]
    if (prefill_s := cell.window.mean_s("colocated", "prefill_s")) is not None:
        limits.append(STALL_PREFILLS * prefill_s)
    if (post_s := cell.window.mean_s("decode", "nixl_post_s")) is not None:
        limits.append(STALL_POSTS * post_s * _most_waiting(cell))
    return max(limits)


def _most_waiting(cell: Measured) -> float:
    gauges = (
        gauge
        for _, page in cell.window.pages("decode")
        for key, gauge in page.series.items()
        if key.canonical == "waiting" and len(gauge.value)
    )
    return max((float(gauge.value.max()) for gauge in gauges), default=0.0)


def _arrivals_off(cell: Measured) -> Iterator[Finding]:
    """What was sent is not the named process."""
    if (found := lost_text(cell)) is not None:
        yield Finding("arrivals-off", VOID, f"{found}. Measure the cell again: pdbench sweep --resume RUN.")
        return
    if (off := arrivals_off(cell)) is None:
        return
    if cell.deployment.get("imported"):
        yield Finding("arrivals-off", VOID, f"{off.text}. Check client health, then repeat the cell.")
    elif off.p > NO_CHANCE and in_place(cell):
        text = f"{off.text}; the sends are where the schedule has them, so it is a rare draw, and so may its waits be"
        advice = f"Another draw: --seed {int(cell.plan.get('seed') or 0) + 1}, or a longer cell"
        yield Finding("arrivals-off", WARN, f"{text}. {advice}.")
    else:
        yield Finding("arrivals-off", VOID, f"{off.text}. Check client health, then repeat the cell.")


def _failed(cell: Measured) -> Iterator[Finding]:
    """Requests without a whole answer; rejected ones are a class of their own."""
    answers = cell.answers
    kinds = {kind: answers.count(kind) for kind in FAILURES if kind != "cancelled"}
    failed = sum(kinds.values())
    asked = len(answers) - answers.count("cancelled")
    if not failed:
        return
    share = failed / asked
    text = f"{failed} of {asked} requests ({share:.1%}; void above {FAILED_VOID_SHARE:.0%}) have no whole answer:"
    text += f" {_how_they_ended(cell)}"
    if kinds["timeout"]:
        text += "; timed-out ones rank above all others in the percentiles"
    severity = VOID if share > FAILED_VOID_SHARE else WARN
    yield Finding("failed-requests", severity, text + ". Each one's own message: requests.parquet, column error.")


def _how_they_ended(cell: Measured) -> str:
    """The kinds of failures in plain words, the most frequent first."""
    answers = cell.answers
    kinds = Counter(answers.error_kind[np.isin(answers.status, ("failed", "truncated", "timeout"))].tolist())
    shown, rest = kinds.most_common(3), sum(count for _, count in kinds.most_common()[3:])
    said = [f"{count:,} {_ended(kind)}" for kind, count in shown]
    return ", ".join([*said, *([f"{rest:,} failed otherwise"] if rest else [])])


_ENDED = {
    "connect": "could not connect to the server",
    "dns": "could not find the server's address",
    "tls": "failed at the encrypted connection (TLS)",
    "reset": "had their connection closed before an answer",
    "truncated": "broke off before the answer's end",
    "timeout": "had no whole answer within --timeout",
    "server-error": "had an error in an answer that began with HTTP 200",
    "no-tokens": "ended without any output",
    "not-sse": "got something else than a stream",
    "fd-limit": "found no free descriptor on this machine",
    "port-limit": "found no free local port",
}


def _ended(kind: str) -> str:
    return f"were answered with HTTP {kind[5:]}" if kind.startswith("http-") else _ENDED.get(kind, "failed")


def _token_mismatch(cell: Measured) -> Iterator[Finding]:
    """Another amount of work than asked."""
    answers = cell.answers
    chat = cell.plan.get("endpoint") == "chat"
    asked_in, got_in = answers.prompt_len, answers.prompt_tokens
    slack = np.maximum(CHAT_PROMPT_TOKENS, CHAT_PROMPT_SHARE * asked_in) if chat else np.zeros(len(answers))
    off = got_in - asked_in
    wrong_in = answers.ok & np.isfinite(got_in) & ((off > slack) | (-off > slack + thought_before(answers)))
    # Of an imported run what was asked is unknown.
    counted = np.isfinite(answers.output_tokens) & np.isfinite(answers.output_len)
    wrong_out = answers.ok & counted & (answers.output_tokens != answers.output_len)
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
    n, needs = cell.answers.count("ok", "timeout"), cell.latencies.get("needs") or {}
    lacking = {name.upper(): needs[f"p99_{name}_ms"] for name in SETTLED if f"p99_{name}_ms" in needs}
    if n == 0 or not (lacking or n < P99_NEEDS):
        return
    lacking = lacking or {"TTFT": P99_NEEDS}
    first, takes = next(iter(lacking.items()))
    alike = ", since those near one another are alike" if max(lacking.values()) > P99_NEEDS else ""
    text = f"{n:,} requests are too few for p99 of {_what_each_takes(lacking)}{alike}: only a lower bound is known"
    use = f"For {first} use" if takes < max(lacking.values()) else "Use"
    if takes > P99_NEEDS and cell.rate is None:
        why = "streams that wait for one another may keep their order for as long as a run lasts"
        advice = (
            f"{use} --repeats {math.ceil(len(cell.parts) * takes / n)} or more: {why}, so a longer one tells no more of"
            " these percentiles"
        )
    else:
        advice = f"{use} --num-prompts {takes} or more, or a longer --duration"
    yield Finding(TOO_FEW, WARN, f"{text}. {advice}.")


def _what_each_takes(lacking: Mapping[str, int]) -> str:
    """More than independent requests take is an estimate from requests that had not seen the longest queues."""
    takes = {name: f"{needed:,}{' or more' if needed > P99_NEEDS else ''}" for name, needed in lacking.items()}
    if len(set(takes.values())) == 1:
        return f"{', '.join(takes)}, which takes {next(iter(takes.values()))}"
    return ", ".join(f"{name} (takes {number})" for name, number in takes.items())


def _ms(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 10 else f"{value:.1f}"


CLIENT_CHECKS: tuple[Callable[[Measured], Iterator[Finding]], ...] = (
    _not_steady,
    client_saturated,
    connection_cost,
    _stall,
    _arrivals_off,
    _failed,
    _token_mismatch,
    thinking_dropped,
    too_few,
)
