"""Can disaggregation win here at all? Said with the arithmetic, where what was measured says no.

A prefill on a co-located instance stalls the streams that decode beside it; P/D removes that and pays with the handoff.
In total latency it pays while the handoff takes less than (streams stalled) x (prefill), a little less for what the
pair loses in queues (`littles_law.crossover`). And it gives decode no capacity that it did not have.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from urllib.parse import urlsplit

from pdbench.littles_law.batch import Tpot
from pdbench.littles_law.crossover import BreakEven, break_even
from pdbench.report.cell import COLOCATED, Measured
from pdbench.report.demand import slots_of
from pdbench.report.prefix import PREFIX_WARN_SHARE, prefix_hits
from pdbench.report.split import Split


@dataclass(frozen=True, slots=True)
class Counsel:
    """`topic`: handoff (it costs more than it saves), decode-full (P/D is no capacity), one-node."""

    topic: str
    text: str

    def document(self) -> dict[str, str]:
        return asdict(self)


def counsel(cell: Measured, split: Split | None) -> list[Counsel]:
    """What to consider before anything is tuned; empty for co-located servers and closed loops."""
    if cell.mode == COLOCATED or cell.mode is None or cell.rate is None or split is None:
        return []
    return [*_handoff_costs_more(cell, split), *_decode_full(cell)]


def _handoff_costs_more(cell: Measured, split: Split) -> Iterator[Counsel]:
    even, compute = _break_even(cell, split), split.parts.get("prefill")
    if even is None or compute is None or "transfer" not in split.parts:
        return
    handoff = split.get("post") + split.get("transfer") + split.get("poll")
    if handoff <= even.total_latency_ms:
        return
    saves = f"keeping that away saves a request {even.total_latency_ms:,.1f} ms"
    if even.total_latency_ms <= 0:
        saves = "keeping that away saves nothing, since all prompts then queue for one instance in place of two"
    text = (
        f"P/D cannot win in latency at this rate: computing the prompt takes {compute:,.1f} ms and would stall"
        f" {even.stalled_decodes:.1f} streams on each of two co-located instances; {saves}; handing its KV"
        f" over costs {handoff:,.1f} ms (post {split.get('post'):,.1f}, transfer"
        f" {split.get('transfer'):,.1f}, poll {split.get('poll'):,.1f}). Measure the same GPUs co-located with chunked"
        " prefill (--server) before tuning the handoff."
    )
    yield Counsel("handoff", text)
    if _one_node(cell):
        text = "Prefill and decode are on one host: co-located instances would have the same GPUs and no handoff."
        yield Counsel("one-node", text)


def _break_even(cell: Measured, split: Split) -> BreakEven | None:
    """With the prefill time and the loop's turns of this cell; `None` where a cache or a queue distorts them."""
    turns, tokens = cell.turns, cell.answers.mean(cell.answers.output_tokens)
    compute, hits = split.parts.get("prefill"), prefix_hits(cell, "prefill")
    cached = hits is not None and hits > PREFIX_WARN_SHARE
    if turns is None or not tokens or not compute or cached or cell.rate is None:
        return None
    tpot = Tpot.measured(turns.quiet_ms, turns.slope_ms or 0.0, turns.streams)
    return break_even(cell.rate, compute, tokens, tpot) if tpot.alone_ms > 0 else None


def _decode_full(cell: Measured) -> Iterator[Counsel]:
    slots = slots_of(cell)
    if not (slots.reached and slots.overload()) or slots.demand is None or not slots.available:
        return
    yield Counsel(
        "decode-full",
        f"Decode is full: the load needs {slots.demand:.1f} of {slots.available} slots. Moving prefill away adds no"
        " slot; a co-located deployment on the same GPUs has those of both pools.",
    )


def _one_node(cell: Measured) -> bool:
    servers = cell.deployment.get("servers", [])
    hosts = {urlsplit(str(s.get("url"))).hostname for s in servers if s.get("role") in ("prefill", "decode")}
    return len(hosts) == 1
