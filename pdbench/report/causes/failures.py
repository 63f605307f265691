"""Failures that look like success, or like somebody else's: named even where no request was answered.

HTTP 200 proves little: decode may read KV that prefill has given away, compute prompts itself, or break off after the
head of its answer; a pair that mixes push and pull answers 200 with an error in the stream.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from pdbench.report.causes.case import Cause
from pdbench.report.cell import Measured
from pdbench.report.finding import VOID, Finding
from pdbench.report.split import decode_recomputed, recomputed

FAILED_SHARE = 0.05  # of the requests asked, as for the validity code failed-requests

Failure = Callable[[Measured, Sequence[Finding]], Iterator[Cause]]


def failed_share(cell: Measured) -> float:
    answers = cell.answers
    asked = len(answers) - answers.count("cancelled")
    return answers.count("failed", "truncated", "timeout") / asked if asked else 0.0


def kv_expired(cell: Measured, findings: Sequence[Finding]) -> Iterator[Cause]:
    """Prefill gave KV away before decode had read it; only prefill's counters tell."""
    found = next((f for f in findings if f.code == "kv-expired" and f.severity == VOID), None)
    if found is None:
        return
    waited = cell.window.mean_s("decode", "queue_s")
    late = "" if waited is None else f"; decode's queue is {waited:,.1f} s long on average"
    answered = _answered_from_freed_kv(cell)
    push = " Push cannot renew leases." if cell.mode == "push" else ""
    yield Cause(
        "kv-expired",
        None,
        f"{found.evidence.partition('. ')[0]}{late}. {answered}",
        f"Raise kv_lease_duration above decode's longest wait, and shorten that wait.{push}",
        "With a longer lease both counters stand still under the same load.",
    )


def _answered_from_freed_kv(cell: Measured) -> str:
    """What became of those requests: an answer all the same, or none, where as many had none."""
    unanswered = cell.answers.count("failed", "truncated", "timeout", "rejected")
    expired = cell.window.delta(None, "nixl_kv_expired") or 0
    used = cell.window.delta(None, "nixl_used_after_expiry") or 0
    if cell.answers.count("ok") and (used or expired > unanswered):
        return "HTTP 200 and a text came back all the same."
    return f"{unanswered:,} requests had no whole answer."


def recomputing(cell: Measured, findings: Sequence[Finding]) -> Iterator[Cause]:
    """Decode computes prompts itself: 200 and the right text, and no disaggregation."""
    found = recomputed(cell)
    if found is None or not decode_recomputed(cell):
        return
    mean, spent = cell.answers.mean(cell.answers.ttft_ms), cell.window.mean_ms("decode", "prefill_s")
    counts = [cell.window.delta(role, "nixl_xfer_s", "count") for role in ("decode", "prefill")]
    moved = max((count for count in counts if count is not None), default=None)
    share = None if mean is None or spent is None else min(1.0, spent / mean)
    took = "" if spent is None else f", {spent:,.0f} ms each"
    yield Cause(
        "decode-recomputed",
        share,
        f"decode computed {found[0]:,.0f} prompt tokens a request itself{took} ({found[1]:.0%} of its prompt tokens)"
        + ("." if moved is None else f", while NIXL moved {moved:,.0f} transfers."),
        "Make the proxy pass kv_transfer_params from prefill's answer on to decode; look for failed KV loads and"
        " preemptions in decode's log.",
        "Then decode's prompt_tokens_by_source shows external_kv_transfer, and its prefill time is one step.",
    )


def mixed_modes(cell: Measured, findings: Sequence[Finding]) -> Iterator[Cause]:
    """Handoffs fail from the first on: prefill and decode do not agree on push or pull, version or KV layout."""
    failed = cell.window.delta(None, "nixl_failed_transfers") or 0
    done = sum(cell.window.delta(role, "nixl_xfer_s", "count") or 0 for role in ("prefill", "decode"))
    if not failed or done or failed_share(cell) < FAILED_SHARE:
        return
    told = {role: _told(cell, role) for role in ("prefill", "decode")}
    differ = [f"{role} says {mode}" for role, mode in told.items() if mode is not None]
    proven = None not in told.values() and told["prefill"] != told["decode"]
    if cell.unread and not proven:
        return  # handoffs that worked are counted on the side that moves the KV
    text = f"NIXL counted {failed:,.0f} failed handoffs and not one that worked; {failed_share(cell):.0%} of the"
    text += " requests failed, as an error in a stream that began with HTTP 200"
    yield Cause(
        "mixed-modes",
        None,
        text + (f"; {' and '.join(differ)}." if proven else "."),
        "Start prefill and decode with the same connector (NixlConnector pulls, NixlPushConnector pushes), the same"
        " vLLM version, dtype and KV layout.",
        "Decode's log has 'NIXL compatibility hash mismatch' at the first request.",
    )


def _told(cell: Measured, role: str) -> str | None:
    servers = [server for server in cell.deployment.get("servers", []) if server.get("role") == role]
    modes = {(server.get("facts") or {}).get("transfer_mode") for server in servers}
    return next(iter(modes)) if len(modes) == 1 else None


FAILURES: tuple[Failure, ...] = (mixed_modes, kv_expired, recomputing)
