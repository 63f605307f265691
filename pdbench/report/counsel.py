"""Can disaggregation win here at all? Said with the arithmetic, where what was measured says no.

A prefill on a co-located instance stalls the streams that decode beside it; P/D removes that and pays with the handoff.
In total latency it pays while the handoff takes less than (streams stalled) x (prefill), a little less for what the
pair loses in queues (`littles_law.crossover`). And it gives decode no capacity that it did not have.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from urllib.parse import urlsplit

from pdbench.littles_law.batch import Tpot
from pdbench.littles_law.crossover import BreakEven, break_even
from pdbench.report.causes.case import Cause
from pdbench.report.cell import COLOCATED, Measured
from pdbench.report.demand import slots_of
from pdbench.report.prefix import PREFIX_WARN_SHARE, prefix_hits
from pdbench.report.split import Split

# Faults of the handoff and of what waits behind it: what a handoff costs with them says nothing of one without.
REPAIRED_FIRST = (
    "transfer-bandwidth",
    "transfer-fragmentation",
    "completion-polling",
    "engine-loop-blocking",
    "decode-slots",
    "decode-kv-pool",
)
SHORTENS_POST = {"transfer-bandwidth", "transfer-fragmentation"}  # what mends these may; off the loop a post is as long


@dataclass(frozen=True, slots=True)
class Counsel:
    """`topic`: handoff (it costs more than it saves), decode-full (P/D is no capacity)."""

    topic: str
    text: str

    def document(self) -> dict[str, str]:
        return asdict(self)


def counsel(cell: Measured, split: Split | None, causes: Sequence[Cause] = ()) -> list[Counsel]:
    """What to consider before anything is tuned, or after what the `causes` name; empty for co-located servers and
    closed loops."""
    if cell.mode == COLOCATED or cell.mode is None or cell.rate is None or split is None:
        return []
    first = [cause.cause for cause in causes if cause.cause in REPAIRED_FIRST]
    return [*_handoff_costs_more(cell, split, first), *_decode_full(cell)]


def _handoff_costs_more(cell: Measured, split: Split, first: Sequence[str]) -> Iterator[Counsel]:
    """What it costs with a fault is no reason against P/D: that is mended first."""
    even, compute = _break_even(cell, split), split.parts.get("prefill")
    if even is None or compute is None or "transfer" not in split.parts:
        return
    handoff, saves = split.get("post") + split.get("transfer") + split.get("poll"), even.total_latency_ms
    if handoff <= saves:
        return
    if first:
        after = f"Once {' and '.join(first)} {'is' if len(first) == 1 else 'are'} mended, "
        if 0 < saves <= split.get("post") and not SHORTENS_POST & set(first):
            text = (
                f"a handoff still has its post in TTFT, {split.get('post'):,.0f} ms, and P/D wins in latency here only"
                f" where a whole one costs less than {saves:,.0f} ms: shorten the post, too, or measure the same GPUs"
                " co-located (--server)."
            )
        elif saves > 0:
            text = f"P/D wins in latency here if a handoff then costs less than {saves:,.0f} ms ({handoff:,.0f} now)."
        else:
            text = "measure the same GPUs co-located too (--server): at this rate P/D cannot win in latency."
        yield Counsel("handoff", after + text)
        return
    gains = f"saves {saves:,.1f}" if saves > 0 else "saves nothing"
    one = ", on one host as these are" if _one_node(cell) else ""
    text = (
        f"P/D cannot win in latency at this rate: a handoff costs {handoff:,.1f} ms, and keeping prompts of"
        f" {compute:,.1f} ms away from {even.stalled_decodes:.1f} streams {gains}. Measure the same GPUs co-located"
        f" with chunked prefill (--server) before tuning the handoff{one}."
    )
    yield Counsel("handoff", text)


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
