"""Does the link carry the asked rate, and did the cell last long enough for its queue to be a steady state's?

What `short_run` asks of the slots. Transfers that take turns make M/D/1's queue, those that share the link wait twice
as long, so the steady wait is told as the least.
"""

from __future__ import annotations

from dataclasses import dataclass

from pdbench.littles_law.batch import Tpot
from pdbench.littles_law.demand import Demand
from pdbench.littles_law.steady import steady
from pdbench.report.cell import Measured
from pdbench.report.link_use import LinkUse, link_use
from pdbench.report.short_run import RELAXATIONS, TELLING, burstiness

BUSY = 0.8  # of the time that what was sent takes, with transfers under way: else something before lets fewer through
OVERLOAD = 1.05  # asked of what is carried; how much that is, is known to a few percent


@dataclass(frozen=True, slots=True)
class LinkLoad:
    """A load near what the link carries or beyond. Without a steady state its times are `None`."""

    use: LinkUse
    rate: float
    requests: int
    settles_after_requests: float | None = None
    steady_mean_ttft_ms: float | None = None

    @property
    def overload(self) -> bool:
        return (self.use.used or 0.0) >= OVERLOAD

    def document(self) -> dict[str, float]:
        """Under the names of `short_run`, where there is a steady state."""
        if self.settles_after_requests is None or self.steady_mean_ttft_ms is None:
            return {}
        return {
            "requests": self.requests,
            "link_used": self.use.used or 0.0,
            "settles_after_requests": self.settles_after_requests,
            "steady_mean_ttft_ms": self.steady_mean_ttft_ms,
        }

    def text(self) -> str:
        """`2 req/s ask 4.29 GB/s of a link that carries 4.00, 1.86 req/s of these prompts`, and what follows."""
        use = self.use
        carried = use.gb_s * use.servers
        link = "a link that carries" if use.servers == 1 else f"{use.servers} links that carry"
        asks = (
            f"{self.rate:g} req/s ask {self.rate * use.nbytes / 1e9:.3g} GB/s of {link} {carried:.3g},"
            f" {use.carries:.3g} req/s of these prompts"
        )
        if self.settles_after_requests is None:
            return f"{asks}: at this rate no steady state exists"
        return (
            f"{asks}: {self.requests:,} requests are a short run at {use.used:.0%} of the link, whose queue takes about"
            f" {self.settles_after_requests:,.0f} to build; in a steady state mean TTFT is"
            f" {self.steady_mean_ttft_ms:,.0f} ms or more"
        )


def link_load(cell: Measured) -> LinkLoad | None:
    """`None` where the link has room, where the run is long enough for it, or where nobody can say."""
    use, ttft = link_use(cell), cell.answers.mean(cell.answers.ttft_ms)
    moving = cell.stages or cell.plan.get("trace") or cell.answers.count("rejected")
    if use is None or use.used is None or cell.rate is None or moving or not ttft:
        return None
    sent = use.used * len(cell.answers) / (cell.rate * cell.send_s)
    if use.busy < BUSY * min(1.0, sent):
        return None
    requests = len(cell.answers) // max(1, len(cell.parts))
    if use.used >= 1:
        return LinkLoad(use, cell.rate, requests)
    settles = RELAXATIONS * use.used / (1 - use.used) ** 2
    one = Demand(cell.rate, 1.0, Tpot(use.alone_ms), burstiness=burstiness(cell)).share(use.servers)
    waits = steady(one, 1, simulate=False).waits
    if waits is None or requests >= settles or 1000 * waits.mean_s - use.queued_ms < TELLING * ttft:
        return None
    return LinkLoad(use, cell.rate, requests, settles, ttft + 1000 * waits.mean_s - use.queued_ms)
