"""Was the client the bottleneck? A figure that is printed may be at most 5 % the client's own.

Latencies count from the intended send, so a late send lies inside its TTFT, and what it did to each figure can be
computed: the figure with and without the lateness of each request. What a late wake-up of the loop did to a stamp
cannot, so that is bounded by the lag's own p99, over thousands of ticks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from pdbench.report.answers import QUANTILES
from pdbench.report.cell import Measured
from pdbench.report.finding import VOID, WARN, Finding
from pdbench.report.statistics import Floats, needed_for

OWN_SHARE = 0.05  # of a printed figure that may be lateness
OWN_MEAN_MS = 2.0  # and what a mean may be moved by in any case
OWN_TAIL_MS = 5.0  # the same of a percentile
LATE_MS = 20.0  # one send this late, and 5 % of mean TTFT, is worth a word
LAG_MS = 20.0  # what the timer of a busy host does
CPU_SHARE = 0.9  # of one core: beyond, the loop queues its own work
ITL_SHARE = 0.5  # loop lag p99 beyond this share of TPOT (and 5 ms) shows in ITL percentiles
ITL_LAG_MS = 5.0
SHARED_READS_SHARE = 0.005  # reads with several token events: two gaps each are wrong, p99 is what 1 % of them say
SHARED_READS_VOID = 0.1  # a fifth of all gaps is wrong then
MERGED_AT_MOST = 16  # events in a first read that are counted
MERGED_TOLD, MERGED_FEWEST = 0.01, 3  # of the answers, and answers: from here on it is told, whatever it moved
MERGED_BY_THE_SERVER = 0.5  # of the first reads: more is how the server sends
HELD_SHARE, HELD_VOID = 0.9, 0.75  # of a closed loop's streams that were under way, on average
HELD_NEEDS, HELD_OK = 3, 0.95  # requests a stream, and answers among them, from which that can be judged
MIXED_SHARE = 0.001  # of reads with stamps of our own beside the kernel's
RETRIED_SHARE = 0.01  # of the requests that met the close of a kept connection


def client_saturated(cell: Measured) -> Iterator[Finding]:
    """Void when the client moved a figure, used up its core, stamped late, held too few streams, or ran out of what its
    host gives it; a word where it was only near."""
    mean = cell.answers.mean(cell.answers.ttft_ms)
    client = cell.parts[0].client
    lag, cpu = client.get("loop_lag_p99_ms"), client.get("cpu_share")
    if _kernel_stamped(client):
        lag = None  # the kernel's stamps don't wait for our loop; late sends are judged by themselves
    limit = max(LAG_MS, OWN_SHARE * (mean or 0.0))
    tpot = cell.answers.mean(cell.answers.tpot_ms)
    merged = _merged(cell, tpot) if tpot is not None and _read_late(client, tpot) else ()
    reasons = [*_limits(client), *_moved(cell), *merged]
    if lag is not None and lag > limit:
        reasons.append(f"the client's loop woke {lag:,.0f} ms late (p99; limit {limit:.0f} ms)")
    if cpu is not None and cpu > CPU_SHARE:
        reasons.append(f"the client used {cpu:.0%} of its core (limit {CPU_SHARE:.0%})")
    reasons += [text for share, text in _shared_stamps(client, tpot) if share > SHARED_READS_VOID]
    held = _held(cell)
    if held is not None and held < HELD_VOID:
        reasons.append(f"{_streams_held(cell, held)} (limit {HELD_VOID:.0%})")
    if reasons:
        advice = ". Run pdbench on a host of its own, or lower the rate."
        yield Finding("client-saturated", VOID, "; ".join(reasons) + advice)
        return
    words = [*_near(cell, mean, lag)]
    if words:
        yield Finding("client-saturated", WARN, "; ".join(words) + ". Run pdbench on a host of its own.")


def connection_cost(cell: Measured) -> Iterator[Finding]:
    """What connecting did to the figures: it belongs to no TTFT but that of a client that cannot connect ahead."""
    answers, client = cell.answers, cell.parts[0].client
    mean, sent = answers.mean(answers.ttft_ms), client.get("connections_opened") or 0
    waited = np.maximum(0.0, answers.connected - np.maximum(answers.sent, answers.intended)) * 1000
    own = answers.mean(np.where(np.isfinite(waited), waited, 0.0))
    reasons = []
    if mean is not None and own is not None and own > max(OWN_MEAN_MS, OWN_SHARE * mean):
        reasons.append(f"connecting makes {own:,.1f} of {mean:,.1f} ms mean TTFT. --connections pool takes it out")
    retried = client.get("resets_retried") or 0
    if retried > RETRIED_SHARE * max(1, sent + (client.get("connections_reused") or 0)):
        reasons.append(
            f"{retried} requests met the close of a kept connection and were sent again, which is in their TTFT."
            " Use --connections fresh, or raise the server's keep-alive above 5 s"
        )
    for reason in reasons:
        yield Finding("connections", WARN, f"{reason}.")


def stamps_note(cell: Measured) -> Iterator[str]:
    """How the times were taken, where that was not by the kernel, and how good they are."""
    client = cell.parts[0].client
    tpot = cell.answers.mean(cell.answers.tpot_ms)
    merged = [*_merged(cell, tpot)]
    if tpot is not None and merged and not _read_late(client, tpot):
        yield f"{'; '.join(merged)}, unless the server sent them together: who held them up is not known."
    elif tpot is not None and not merged:
        yield from _merged_note(cell, tpot)
    stamps = client.get("stamps") or {}
    user, every = stamps.get("user") or 0, sum(stamps.values())
    if not user:
        return
    lag = client.get("loop_lag_p99_ms")
    good = "" if lag is None else f", which may be late by the loop's lag: {lag:.1f} ms (p99)"
    if user == every:
        yield f"the client's stamps are its own{good}; the kernel stamps TCP that takes no HTTP proxy."
    elif user > MIXED_SHARE * every:
        yield f"{user / every:.1%} of the reads have stamps of the client's own{good}."


def _limits(client: Mapping[str, Any]) -> Iterator[str]:
    """What its host did not give the client."""
    if ports := client.get("out_of_ports"):
        yield f"{ports} requests found no local port (use --connections pool, or widen net.ipv4.ip_local_port_range)"
    if files := client.get("out_of_files"):
        yield f"{files} requests found no descriptor (raise ulimit -n)"


def _held(cell: Measured) -> float | None:
    """The share of a closed loop's streams that were under way, from the moment when all had begun until the last send.

    `None` where streams pause by design, where a lost worker took its own with it (`arrivals-off` says so), or where
    there were too few requests, or answers that were none: a stream that is refused waits before it asks again.
    """
    streams, answers, load = cell.streams, cell.answers, cell.parts[0].load
    if cell.rate is not None or streams is None or cell.plan.get("think_s") or cell.plan.get("session_turns"):
        return None
    if cell.parts[0].entry.get("lost"):
        return None
    sent = np.sort(answers.sent[np.isfinite(answers.sent)])
    if len(sent) < HELD_NEEDS * streams or answers.count("ok") < HELD_OK * len(answers):
        return None
    begin, end = sent[streams - 1], load.send_end
    if end <= begin:
        return None
    spans = np.clip(answers.done, begin, end) - np.clip(answers.sent, begin, end)
    return float(np.nansum(spans) / (end - begin) / streams)


def _streams_held(cell: Measured, held: float) -> str:
    streams = cell.streams or 0
    text = f"{held * streams:,.1f} of {streams} streams were under way on average"
    connect = cell.parts[0].client.get("connect_p50_ms")
    if connect is not None and not cell.parts[0].client.get("connections_reused"):
        text += f"; between two requests a connection is opened, in {connect:.1f} ms (p50): try --connections pool"
    return text


def _moved(cell: Measured) -> Iterator[str]:
    """Printed figures of TTFT of which more than 5 % is lateness of sends."""
    answers = cell.answers
    kept = answers.ok & np.isfinite(answers.sent)
    if not kept.any():
        late = answers.lateness_ms
        if len(late) and float(late.mean()) > LATE_MS:
            yield f"sends were {late.mean():,.0f} ms late on average (limit {LATE_MS:.0f} ms)"
        return
    seen, late = answers.ttft_ms[kept], (answers.sent - answers.intended)[kept] * 1000
    if own := _share_of_mean(seen, late):
        yield f"sends were {late.mean():,.1f} ms late on average, {own} (the latest {late.max():,.0f} ms)"
    yield from _share_of_tails(seen, late, "late sends")


def _merged(cell: Measured, tpot: float | None) -> Iterator[str]:
    """The same of first tokens that came in one read with later ones: the stamp is that of the last of them, about one
    TPOT late for each. Nothing where that is the rule, since then the server sends them so."""
    seen, late = _in_one_read(cell, tpot)
    few = int(np.count_nonzero(late))
    if few > MERGED_BY_THE_SERVER * len(seen) or not few:
        return
    if own := _share_of_mean(seen, late):
        yield f"{few} first tokens came in one read with later ones, which makes {late.mean():,.1f} ms, {own}"
    what = f"{few:,} of {len(seen):,} first tokens in one read with later ones"
    yield from _share_of_tails(seen, late, what)


def _merged_note(cell: Measured, tpot: float) -> Iterator[str]:
    """The same where it moves no printed figure by much and is no rare thing: the share of all reads hides it, since
    only the first of an answer's many counts. Reads must have been late some time, or the server sent them so."""
    client = cell.parts[0].client
    lag = client.get("kernel_to_user_max_ms") or client.get("kernel_to_user_p99_ms")
    seen, late = _in_one_read(cell, tpot)
    few = int(np.count_nonzero(late))
    if not max(MERGED_FEWEST, MERGED_TOLD * len(seen)) <= few <= MERGED_BY_THE_SERVER * len(seen):
        return
    if _kernel_stamped(client) and lag is not None and lag > ITL_SHARE * tpot:
        yield (
            f"{few:,} of {len(seen):,} first tokens came in one read with later ones and have one time stamp with them:"
            f" their TTFT is up to about {late.max():,.0f} ms too long. This client came up to {lag:,.1f} ms late to a"
            " read; else the server sent them together."
        )


def _in_one_read(cell: Measured, tpot: float | None) -> tuple[Floats, Floats]:
    """TTFT of the answers, and by how much a first token that came in one read with later ones is late, in ms."""
    answers = cell.answers
    kept = np.flatnonzero(answers.ok & np.isfinite(answers.ttft_ms))
    if tpot is None or not len(kept):
        return np.empty(0), np.empty(0)
    events, late = answers.events, np.zeros(len(kept))
    together = np.ones(len(kept), dtype=bool)
    for step in range(MERGED_AT_MOST):
        together &= events.count[kept] > step
        some = np.flatnonzero(together)
        together[some] = events.gaps_s[events.start[kept[some]] + step] <= 0
        late += together * tpot
    return answers.ttft_ms[kept], late


def _share_of_mean(seen: Floats, own: Floats) -> str:
    """What the client's own part is of the mean, where it is too much."""
    mean, part = float(seen.mean()), float(own.mean())
    if part <= max(OWN_MEAN_MS, OWN_SHARE * mean):
        return ""
    return f"{part / mean:.0%} of the mean TTFT (limit {OWN_SHARE:.0%})"


def _share_of_tails(seen: Floats, own: Floats, what: str) -> Iterator[str]:
    for label, q in QUANTILES.items():
        if len(seen) < needed_for(q):
            continue
        value = float(np.quantile(seen, q))
        shift = value - float(np.quantile(seen - own, q))
        if shift > max(OWN_TAIL_MS, OWN_SHARE * value):
            yield f"{what} make {shift:,.0f} of {value:,.0f} ms {label} TTFT (limit {OWN_SHARE:.0%})"


def _near(cell: Measured, mean: float | None, lag: float | None) -> Iterator[str]:
    late = cell.answers.lateness_ms
    worst = float(late.max()) if len(late) else 0.0
    if worst > max(LATE_MS, OWN_SHARE * (mean or 0.0)):
        text = (
            f"{int((late > LATE_MS).sum())} of {len(late)} sends were over {LATE_MS:.0f} ms late (up to {worst:,.0f})"
        )
        yield text if mean is None else f"{text}, which is {late.mean() / mean:.1%} of the mean TTFT"
    tpot = cell.answers.mean(cell.answers.tpot_ms)
    yield from (text for _, text in _shared_stamps(cell.parts[0].client, tpot))
    held = _held(cell)
    if held is not None and held < HELD_SHARE:
        yield _streams_held(cell, held)
    if lag is not None and tpot is not None and lag > max(ITL_LAG_MS, ITL_SHARE * tpot):
        yield f"the client's loop woke {lag:.1f} ms late (p99) against a TPOT of {tpot:.1f} ms: p99 ITL may be our own"


def _kernel_stamped(client: Mapping[str, Any]) -> bool:
    stamps = client.get("stamps") or {}
    return bool(stamps.get("kernel")) and not stamps.get("user")


def _read_late(client: Mapping[str, Any], tpot: float) -> bool:
    """Whether we came so late after the kernel's stamps that it may have merged what the server sent one by one: late
    against the time between two reads."""
    lag, between = client.get("kernel_to_user_p99_ms"), tpot * max(1.0, client.get("events_per_read") or 1.0)
    return _kernel_stamped(client) and lag is not None and lag > ITL_SHARE * between


def _shared_stamps(client: Mapping[str, Any], tpot: float | None) -> Iterator[tuple[float, str]]:
    """The share of such reads, and what it means.

    Events that the kernel merged before we came have one stamp between them. Where we came in time, the server sent
    them together.
    """
    share = client.get("shared_reads_share")
    if share is not None and share > SHARED_READS_SHARE and tpot is not None and _read_late(client, tpot):
        lag = client["kernel_to_user_p99_ms"]
        text = (
            f"in {share:.1%} of the reads several tokens came with one time stamp, and this client read them up to"
            f" {lag:.1f} ms late (p99; TPOT is {tpot:.1f} ms): part of p99 ITL may be its own delay"
        )
        yield share, text
