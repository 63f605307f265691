"""What another tool told, in the summary: the flag that marks its cells, and those that have figures only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pdbench.report.cell import Measured
from pdbench.report.finding import VOID, WARN, Finding
from pdbench.report.statistics import needed_for
from pdbench.report.verdict import cell_verdict

CODE = "imported"
FAILED_VOID_SHARE = 0.05
LONGER_THAN_SENT = 0.9  # of the answers a second that sends and a mean answer allow
QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
SAMPLED = ("ttft", "tpot", "e2el")  # one value a request, so that requests tell how many values a percentile rests on


def imported(cell: Measured) -> Iterator[Finding]:
    """Every cell of a foreign run says so, and where its definitions are others."""
    about = cell.deployment.get("imported")
    if about:
        unseen = "what the client cost and what the servers said is not in the file: no parts of TTFT, no cache hits"
        yield Finding(CODE, WARN, f"{_made(about)}; {unseen}.")


def _made(about: Mapping[str, Any]) -> str:
    name = " ".join(filter(None, [about.get("tool"), about.get("version")]))
    return "; ".join([f"measured by {name}", *about.get("differs", ())])


def told_cells(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The summary's cells of which the run holds figures and no requests."""
    about: Mapping[str, Any] = document.get("imported") or {}
    entries: dict[int, list[Mapping[str, Any]]] = {}
    for entry in document.get("cell_runs") or []:
        if entry.get("figures"):
            entries.setdefault(int(entry["cell"]), []).append(entry)
    planned = (document.get("plan") or {}).get("cells") or []
    return [_told(cell, entries[cell["cell"]], about) for cell in planned if cell["cell"] in entries]


def _told(cell: Mapping[str, Any], entries: Sequence[Mapping[str, Any]], about: Mapping[str, Any]) -> dict[str, Any]:
    alone = [{**entry["figures"], "needs": _needs(entry["figures"])} for entry in entries]
    whole = alone[0] if len(alone) == 1 else _pooled(alone)
    found = [_findings(cell, figures, about, entry) for figures, entry in zip(alone, entries, strict=True)]
    flags = {finding.code: finding for each in found for finding in each}
    told: dict[str, Any] = {
        "cell": cell["cell"],
        "target": cell["target"],
        "state": "done",
        "loop": "open" if cell.get("request_rate") is not None else "closed",
        **{
            name: cell[name] for name in ("request_rate", "max_concurrency", "prompt_len", "output_len") if name in cell
        },
        **whole,
        "foreign": entries[0].get("foreign") if len(entries) == 1 else None,
        "notes": [],
        "validity": [finding.document() for finding in sorted(flags.values(), key=lambda f: f.severity != VOID)],
        "diagnosis": [],
    }
    told["repeats"] = [
        {
            "repeat": entry["repeat"],
            "state": "done",
            **figures,
            "validity": [finding.document() for finding in own],
            "valid": all(finding.severity != VOID for finding in own) and bool(figures.get("completed")),
        }
        for entry, figures, own in zip(entries, alone, found, strict=True)
    ]
    told["verdict"] = cell_verdict(told)
    return told


def _needs(figures: Mapping[str, Any]) -> dict[str, int]:
    """The percentiles for which these requests are too few."""
    counted = [(f"{q}_{metric}_ms", needed_for(value)) for metric in SAMPLED for q, value in QUANTILES.items()]
    return {name: n for name, n in counted if name in figures and figures.get("completed", 0) < n}


def _pooled(alone: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Counts add, means add by their requests; percentiles and spreads cannot be joined."""
    counts = ("completed", "failed", "total_input_tokens", "total_output_tokens")
    pooled: dict[str, Any] = {name: sum(f[name] for f in alone) for name in counts if all(name in f for f in alone)}
    total = sum(figures.get("completed", 0) for figures in alone)
    for metric in (*SAMPLED, "itl"):
        name = f"mean_{metric}_ms"
        if total and all(name in figures for figures in alone):
            pooled[name] = sum(figures[name] * figures["completed"] for figures in alone) / total
    return pooled


def _findings(
    cell: Mapping[str, Any], figures: Mapping[str, Any], about: Mapping[str, Any], entry: Mapping[str, Any]
) -> list[Finding]:
    unseen = "it does not hold the send time of every request, so steady state, arrivals and gaps could not be checked"
    found = [Finding(CODE, WARN, f"{_made(about)}; {unseen}.")]
    completed, failed = figures.get("completed") or 0, figures.get("failed") or 0
    if failed:
        share = failed / (completed + failed)
        severity = VOID if share > FAILED_VOID_SHARE else WARN
        text = f"{failed:,} of {completed + failed:,} requests failed ({share:.1%}; limit {FAILED_VOID_SHARE:.0%})."
        found.append(Finding("failed-requests", severity, text))
    if (late := _fell_behind(cell, figures, entry.get("send_s"), entry.get("took_s"))) is not None:
        found.append(Finding("not-steady-state", WARN, late))
    return found


def _fell_behind(
    cell: Mapping[str, Any], figures: Mapping[str, Any], send_s: float | None, took: float | None
) -> str | None:
    """A run that took much longer than its sends and a mean answer: its backlog grew, or its last answers were long."""
    mean, rate = _mean_e2el_ms(figures), cell.get("request_rate")
    if rate is None or mean is None or not took or not send_s:
        return None
    expected = send_s + mean / 1000
    if expected >= LONGER_THAN_SENT * took:
        return None
    answered = (figures.get("completed") or 0) / took
    return (
        f"the run took {took:,.0f} s, its sends and a mean answer take {expected:,.0f} s: its last answers took longer "
        f"than its mean one, as they do when a backlog grows; {answered:.3g} req/s were answered to the last, "
        f"{rate:.3g} asked. Import a file with the times of its requests to decide."
    )


def _mean_e2el_ms(figures: Mapping[str, Any]) -> float | None:
    """As the file has it; else a mean TTFT and as many mean gaps as a mean answer has after its first token."""
    if (mean := figures.get("mean_e2el_ms")) is not None:
        return float(mean)
    ttft, tpot = figures.get("mean_ttft_ms"), figures.get("mean_tpot_ms")
    tokens, completed = figures.get("total_output_tokens"), figures.get("completed")
    if ttft is None or tpot is None or not tokens or not completed:
        return None
    return float(ttft + tpot * max(tokens / completed - 1, 0))
