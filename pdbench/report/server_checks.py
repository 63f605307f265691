"""Validity checks that rest on the servers' pages. A page or series that is missing is named, never read as 0."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np

from pdbench.deployment import DEFAULT_TARGET, flags_for
from pdbench.report.causes.down import gone
from pdbench.report.cell import COLOCATED, PUSH, Measured
from pdbench.report.client_checks import stall_limit_s
from pdbench.report.finding import VOID, WARN, Finding
from pdbench.report.prefix import prefix_hits, served_from_cache
from pdbench.report.split import decode_recomputed, recomputed
from pdbench.report.whole_pages import FEWER, STILL, TURNS

FOREIGN_SHARE = 0.02
FOREIGN_REQUESTS = 2
LITTLE_SHARE = 0.10
LITTLE_SIGMAS = 3.0  # a gauge sampled now and then is only so good: less than this many standard errors is no finding
LITTLE_AT_LEAST = 0.5  # requests


def _restarted(cell: Measured) -> Iterator[Finding]:
    for doubt in cell.doubts.values():
        if doubt.kind == TURNS:
            then = f"{doubt.advice[:1].upper()}{doubt.advice[1:]}, then repeat."
            yield Finding("server-restarted", VOID, f"{doubt.text}. {then}")
            return
    for _, page in cell.window.pages():
        if page.resets or page.restarted:
            what = (
                f"counters went back ({', '.join(page.resets[:3])})"
                if page.resets
                else "its process start time changed"
            )
            yield Finding(
                "server-restarted", VOID, f"{page.server}: {what} during the cell. Find out why it ended, then repeat."
            )
            return


def _expired(cell: Measured) -> Iterator[Finding]:
    """KV blocks whose lease ended. Counted per rank, so never divided by requests.

    Nobody comes for the KV of a request that decode turned away: where no more expired than were, and none was read
    after it had, every answer was made from its own KV.
    """
    turned_away = cell.answers.count("rejected")
    all_used = cell.window.delta(None, "nixl_used_after_expiry") or 0
    harmless = not all_used and (cell.window.delta(None, "nixl_kv_expired") or 0) <= turned_away
    for _, page in cell.window.pages():
        expired = cell.window.delta(None, "nixl_kv_expired", server=page.server) or 0
        used = cell.window.delta(None, "nixl_used_after_expiry", server=page.server) or 0
        if not expired and not used:
            continue
        text = f"{page.server}: KV leases expired {expired:.0f} times"
        if harmless:
            text += f" and none was used after that: no more than the {turned_away:,} requests that were turned away"
            yield Finding("kv-expired", WARN, text + ", whose KV nobody collects. A shorter lease frees it sooner.")
        else:
            text += f" and KV was used {used:.0f} times after expiry (limit 0): outputs untrusted"
            yield Finding("kv-expired", VOID, text + ". Raise kv_lease_duration above decode's longest wait.")
        return


def _recomputed(cell: Measured) -> Iterator[Finding]:
    found = recomputed(cell)
    if found is None or not decode_recomputed(cell):
        return
    tokens, share = found
    text = (
        f"decode computed {tokens:,.0f} prompt tokens a request itself"
        f" ({share:.0%} of its prompt tokens; one step computes about 1)"
    )
    yield Finding("decode-recomputed", VOID, text + ". The proxy may drop kv_transfer_params, or the KV load failed.")


def _server_stall(cell: Measured) -> Iterator[Finding]:
    """Decode shows running requests while its token counter stands still."""
    if cell.mode == COLOCATED:
        return  # running there includes requests in prefill; the client's streams tell
    limit = stall_limit_s(cell)
    quiet = cell.answers.events.quiet_times(cell.answers.sent, limit) or [(-np.inf, np.inf)]
    for segment, page in cell.window.pages("decode"):
        for engine in page.engines():
            running = next((g for k, g in page.series.items() if k.canonical == "running" and k.engine == engine), None)
            tokens = [g for k, g in page.series.items() if k.canonical == "generation_tokens" and k.engine == engine]
            if running is None or len(tokens) != 1:
                continue
            _, at, of = np.intersect1d(running.t, tokens[0].t, return_indices=True)
            busy, made, times = running.value[at] > 0, tokens[0].value[of], running.t[at]
            since: int | None = None
            for i in range(1, len(times)):
                still = busy[i] and busy[i - 1] and made[i] == made[i - 1] and times[i] <= segment.end
                since = (i - 1 if since is None else since) if still else None
                if since is None or times[i] - times[since] <= limit:
                    continue
                if any(begin <= times[since] and times[i] <= end for begin, end in quiet):
                    still_for = f"made no token for {times[i] - times[since]:.1f} s (limit {limit:.1f} s)"
                    text = f"{page.server} had requests running and {still_for}"
                    yield Finding("stall", VOID, text + ". Look into its log at that time.")
                    return


def _failed_transfers(cell: Measured) -> Iterator[Finding]:
    failed = cell.window.delta(None, "nixl_failed_transfers") or 0
    notes = cell.window.delta(None, "nixl_failed_notifications") or 0
    if failed or notes:
        text = f"NIXL counted {failed:.0f} failed transfers and {notes:.0f} failed notifications (limit 0)"
        yield Finding("failed-transfers", WARN, text + ". Look for 'NIXL transfer failure' in the servers' logs.")


def _foreign(cell: Measured) -> Iterator[Finding]:
    """Work of others on the same servers."""
    ours = int(np.isfinite(cell.answers.sent).sum())
    if any(page.resets for _, page in cell.window.pages(cell.decoder)):
        return  # counters that went back count nothing
    if any(part.entry.get("lost") for part in cell.parts):
        return  # what a lost worker sent is ours, and in no row
    for canonical, kind in (("e2e_s", "count"), ("request_success", "counter")):
        theirs = cell.window.delta(cell.decoder, canonical, kind)
        if theirs is None:
            continue
        if theirs > ours * (1 + FOREIGN_SHARE) and theirs - ours >= FOREIGN_REQUESTS:
            text = (
                f"{cell.decoder} servers ended {theirs:.0f} requests, we sent {ours} (limit {FOREIGN_SHARE:.0%} more):"
                " someone else used them"
            )
            yield Finding("foreign-traffic", WARN, text + ". Repeat on servers of your own.")
            return
        break
    made = cell.window.delta(cell.decoder, "generation_tokens")
    if made is None or not np.all((cell.answers.status == "ok") & np.isfinite(cell.answers.output_tokens)):
        return
    got = float(cell.answers.output_tokens.sum())
    if got and made > got * (1 + FOREIGN_SHARE):
        text = f"{cell.decoder} servers made {made:,.0f} tokens, we got {got:,.0f} (limit {FOREIGN_SHARE:.0%} more)"
        yield Finding("foreign-traffic", WARN, text + ". Repeat on servers of your own.")


def _littles_law(cell: Measured) -> Iterator[Finding]:
    """Requests in the servers by their gauges against throughput x mean E2EL, as request-seconds of the window."""
    # In push decode holds a request from the start, so prefill's gauges would count it twice.
    roles = [cell.decoder] if cell.mode in (COLOCATED, PUSH) else ["prefill", "decode"]
    answers = cell.answers
    spent = answers.done - answers.sent
    if cell.mode is None or gone(cell) or not np.all(np.isfinite(spent[np.isfinite(answers.sent)])):
        return
    seconds, error = 0.0, 0.0
    for role in roles:
        for gauge in ("running", "waiting"):
            area = cell.window.integral(role, gauge)
            if area is None:
                return
            seconds += area
        error += _sampling_error(cell, role) ** 2
    ours, time = float(np.nansum(spent)), cell.window.duration_s
    apart = abs(seconds - ours)
    if ours <= 0 or time <= 0:
        return
    if apart > LITTLE_SHARE * ours and apart > LITTLE_SIGMAS * error**0.5 and apart > LITTLE_AT_LEAST * time:
        text = (
            f"the servers' gauges show {seconds / time:.2f} requests on average, throughput x mean E2EL is"
            f" {ours / time:.2f} (limit {LITTLE_SHARE:.0%} apart)"
        )
        hint = "The servers hold requests that are not ours, or gauges stand still."
        if seconds < ours:
            hint = "Requests spend time where no server counts them: proxy, front end, or a server that isn't scraped."
        yield Finding("littles-law", WARN, f"{text}. {hint}")


def _sampling_error(cell: Measured, role: str) -> float:
    """Standard error of a role's area under running + waiting: what samples miss is about the jumps between them."""
    variance = 0.0
    for name in ("running", "waiting"):
        for _, _, _, gauge in cell.window.gauges(role, name):
            missed = np.diff(gauge.value) * np.diff(gauge.t)
            variance += float(np.sum(missed**2)) / 4
    return math.sqrt(variance)


MISSING = (
    ("prefill", "queue_s", "the time in prefill's queue"),
    ("prefill", "prefill_s", "the time that prefill computes"),
    ("decode", "queue_s", "decode's wait (slot, transfer, poll)"),
    ("decode", "kv_fetch_stage", "the slot wait apart from transfer and polling"),
    ("decode", "running", "whether decode's slots are full"),
    ("colocated", "queue_s", "the server's queue time"),
    ("colocated", "running", "whether its slots are full"),
)

# What other engines show in place of vLLM's series: SGLang has stages, TensorRT-LLM a transfer time of its own.
OTHERWISE = {"prefill_s": ("stage_s",), "nixl_xfer_s": ("kv_transfer_s", "stage_s")}
# Dynamo's decode waits for slots only, so its waiting gauge says what these would.
NOT_DYNAMO = ("kv_fetch_stage", "queue_s")


def _shown(cell: Measured, role: str, canonical: str) -> bool:
    return any(cell.window.has(role, name) for name in (canonical, *OTHERWISE.get(canonical, ())))


def _missing(cell: Measured) -> Iterator[Finding]:
    """Names what was not scraped and what cannot be said for want of it."""
    if cell.deployment.get("imported") or cell.renders_only:
        return  # nothing was, and its own flag says so; or no engine had a part in it
    roles = {str(server.get("role")) for server in cell.deployment.get("servers", [])}
    read = set(cell.window.roles())
    wanted = {"colocated"} if cell.mode == COLOCATED else {"prefill", "decode"}
    texts = []
    if absent := sorted(wanted - roles):
        given = flags_for(absent, str(cell.deployment.get("target") or DEFAULT_TARGET))
        texts.append(f"no {' or '.join(absent)} server was given: what they take of TTFT is in unexplained ({given})")
    texts += [
        f"no metrics page of {role} was read: its share of TTFT is in unexplained"
        for role in sorted((wanted & roles) - read - set(cell.doubts))
    ]
    for role, doubt in cell.doubts.items():
        if role in wanted and doubt.kind in (STILL, FEWER):
            slots = ", and how many slots there are is not known" if doubt.of_others and role == cell.decoder else ""
            texts.append(f"{doubt.text}; its share of TTFT is in unexplained{slots}: {doubt.advice}")
    for role, canonical, meaning in MISSING:
        if role in read and not _shown(cell, role, canonical) and not (cell.dynamo and canonical in NOT_DYNAMO):
            texts.append(f"{role} lacks {canonical}, which tells {meaning}")
    source = "prefill" if cell.mode == PUSH else "decode"
    if source in read and not _shown(cell, source, "nixl_xfer_s") and cell.mode != COLOCATED and not cell.dynamo:
        texts.append(f"{source} lacks nixl_xfer_s, which tells the transfer time")
    servers = {str(s.get("name")) for s in cell.deployment.get("servers", []) if s.get("role") in wanted & read}
    if unread := sorted(servers - {page.server for _, page in cell.window.pages()}):
        texts.append(f"no metrics page of {', '.join(unread)} was read: means are of the other servers")
    if not cell.window.has("prefill", "prefix_cache_queries") and prefix_hits(cell) is None:
        texts.append("no page tells prefix-cache hits: whether prompts were computed or cached cannot be said")
    ok = cell.answers.ok
    if ok.any() and not np.isfinite(cell.answers.output_tokens[ok]).any():
        texts.append("answers carry no usage: no TPOT, no slots, token counts unchecked")
    if texts:
        yield Finding("metrics-missing", WARN, "; ".join(texts) + ".")


SERVER_CHECKS: tuple[Callable[[Measured], Iterator[Finding]], ...] = (
    _restarted,
    _expired,
    _recomputed,
    _server_stall,
    served_from_cache,
    _failed_transfers,
    _foreign,
    _littles_law,
    _missing,
)
