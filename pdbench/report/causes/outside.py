"""Outside the engines: the proxy, servers that turn requests away, and our own client."""

from __future__ import annotations

from collections.abc import Iterator

from pdbench.report.causes.case import Case, Cause, Taken
from pdbench.report.finding import VOID
from pdbench.report.split import Split

REJECTED_SHARE = 0.01  # of the requests turned away, from which on latencies are those of a selection


def outside(split: Split) -> float | None:
    return split.parts.get("proxy")


def proxy(case: Case) -> Iterator[tuple[Cause, Taken | None]]:
    """Time outside both engines: client TTFT less what prefill and decode account for."""
    taken = case.taken("proxy", outside)
    if case.colocated or taken is None or not taken.is_wait():
        return
    yield case.named(
        "proxy",
        taken,
        [f"{case.of_ttft(taken.ms)} pass outside both engines: in the proxy, on the network, in engines' front ends"],
        "Look at the proxy: its CPU, its connections to the engines, whether it buffers or retries.",
        "A request sent to the engines without the proxy lacks that time.",
    )


def admission(case: Case) -> Iterator[tuple[Cause, Taken | None]]:
    """Requests that the servers turned away: latencies are of the others, which wait less for it."""
    answers = case.cell.answers
    turned_away, asked = answers.count("rejected"), len(answers) - answers.count("cancelled")
    if not asked or turned_away < REJECTED_SHARE * asked:
        return
    yield case.named(
        "admission",
        None,
        [
            f"{turned_away:,} of {asked:,} requests ({turned_away / asked:.0%}) were turned away (HTTP 429 or 503):"
            " latencies and rates are of those admitted"
        ],
        "Raise the servers' admission limit, or lower the rate to what is admitted.",
        "With fewer requests turned away TTFT rises.",
    )


def client(case: Case) -> Iterator[tuple[Cause, Taken | None]]:
    ours = next((f for f in case.findings if f.code == "client-saturated" and f.severity == VOID), None)
    if ours is None:
        return
    late_ms = case.cell.answers.mean((case.cell.answers.sent - case.cell.answers.intended) * 1000)
    taken = None if late_ms is None else case.taken("client", lambda split: late_ms)
    share = None if taken is None else min(1.0, max(0.0, taken.of_ttft.value))
    advice, confirm = "Move pdbench to a host of its own.", "Lateness falls, and TTFT with it."
    yield Cause("client", share, ours.evidence, advice, confirm), taken
