"""Why did a cell get another rate than asked, though all that was sent was answered?

Random arrivals are so many on average only, equal gaps begin with a gap, and what is counted is counted over a window:
in a short cell each of them makes the rate that was got another one than the rate that was asked, and a reader takes
that for the servers' doing.
"""

from __future__ import annotations

from collections.abc import Sequence

from pdbench.report.wording import CellSummary, Summary, is_cut, targets, void_codes, which

GOT = "got: answers a second, counted over the time of sending, shifted later by the mean E2EL"
TELLING_SHARE = 0.02  # by which a rate differs from another before it is worth a word beside a finding
NOTED_SHARE = 0.04  # before it is worth a note of its own
RANDOM = ("poisson", "gamma")
EDGE_SHARE = 0.1  # of the answers, or EDGE_REQUESTS: what may end outside of the window on servers that keep up
EDGE_REQUESTS = 2
LATE = ("not-steady-state", "arrivals-off")  # codes of cells that fell short, or sent something else


def not_the_servers(summary: Summary) -> str:
    """A sentence for the cells whose rate differs from the asked one for plain reasons; empty where there are none."""
    cells: Sequence[CellSummary] = summary.get("cells") or []
    plan = summary.get("plan") or {}
    found = [(cell, why) for cell in cells if (why := _why(cell, str(plan.get("arrivals")), plan.get("num_prompts")))]
    if not found:
        return ""
    cell, why = max(found, key=lambda each: abs(_off(each[0])))
    where = which(len(found), len(cells), cell, len(targets(summary)) > 1)
    return f"got is not what was asked in {where}, yet all {cell['sent']:,} that were sent were answered: {why}"


def _off(cell: CellSummary) -> float:
    return float(cell["request_throughput"]) / float(cell["request_rate"]) - 1


def _why(cell: CellSummary, arrivals: str, num_prompts: int | None) -> str:
    asked, sent, took = cell.get("request_rate"), cell.get("sent"), cell.get("duration_s")
    if not asked or not sent or not took or cell.get("request_throughput") is None or is_cut(cell):
        return ""
    outside, due = sent - float(cell["request_throughput"]) * took, asked * took
    late = any(code in void_codes(cell) for code in LATE)
    if late or cell.get("completed") != sent or abs(outside) > max(EDGE_SHARE * sent, EDGE_REQUESTS):
        return ""
    if abs(_off(cell)) < NOTED_SHARE:
        return ""
    reasons = []
    if arrivals in RANDOM and abs(sent / due - 1) >= TELLING_SHARE:
        by_chance = f"{due:,.0f} are due on average"
        if num_prompts:  # of a Poisson process so many arrivals are drawn: the time that they take is the chance
            by_chance = f"so many take {sent / float(asked):,.0f} s on average and took {took:,.0f} by chance"
        reasons.append(f"{by_chance}, and longer cells come closer")
    elif arrivals == "constant" and 0 < due - sent <= 1:
        reasons.append(f"equal gaps begin with a gap, so they are one fewer than rate x duration ({due:,.0f})")
    if outside / sent >= TELLING_SHARE:
        reasons.append(f"{outside:,.0f} of them ended outside of the window of got")
    return "; ".join(reasons)
