"""Named causes of a bad TTFT, each with its share of the mean, its evidence and the first thing to change.

A cause needs a substantial part of TTFT (a share and an absolute size), or a demand at or above capacity, and what the
servers' series say must agree with it; a healthy cell has none. Two may hold at once. Where the series that would decide
were not scraped, the evidence says so instead of guessing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass

from pdbench.littles_law.kv import effective_gb_s
from pdbench.littles_law.slots import implied_stall_s, max_qps
from pdbench.report.cell import COLOCATED, PUSH, Measured
from pdbench.report.demand import Slots, slots_of
from pdbench.report.finding import VOID, Finding
from pdbench.report.split import Split

SUBSTANTIAL_SHARE = 0.25  # of the mean TTFT; waits below it are not what makes a TTFT bad
SUBSTANTIAL_MS = 50.0  # and an absolute size: a quarter of a good TTFT is no cause
CAPACITY = 1.0  # needed / available slots
BUSY_PREFILL = 0.7  # of the window x servers spent in prefill: beyond, its queue is made by load, not by chance
COMPUTE_SHARE = 0.5  # of the mean TTFT spent computing the prompt
COMPUTE_MS = 500.0
LINK_SHARE = 0.3  # effective bandwidth below this share of the declared link is not the link's
HEADROOM = 0.75  # keep mean slot use under this in the advice; no universal threshold exists
MIN_RISE = 0.15  # TPOT above the low-load one before a stall per admission is worth a word


@dataclass(frozen=True, slots=True)
class Cause:
    """One diagnosis; `share` of the mean TTFT (0 to 1), None when it cannot be said."""

    cause: str
    share: float | None
    evidence: str
    advice: str

    def document(self) -> dict[str, object]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Case:
    """What a cause is judged by."""

    cell: Measured
    split: Split
    slots: Slots
    mean_ttft_ms: float
    findings: Sequence[Finding]
    tpot0_ms: float | None  # TPOT of the same shape at low load in this run

    def share(self, *parts: str) -> float:
        return sum(self.split.get(part) for part in parts) / self.mean_ttft_ms

    def substantial(self, *parts: str) -> bool:
        total = sum(self.split.get(part) for part in parts)
        return total >= SUBSTANTIAL_MS and total >= SUBSTANTIAL_SHARE * self.mean_ttft_ms


def diagnose(cell: Measured, split: Split | None, found: Sequence[Finding], tpot0_ms: float | None) -> list[Cause]:
    """The causes that hold, the largest share first."""
    mean = cell.answers.mean(cell.answers.ttft_ms)
    if split is None or mean is None or mean <= 0:
        return []
    case = Case(cell, split, slots_of(cell), mean, found, tpot0_ms)
    causes = [cause for judge in CAUSES.values() for cause in judge(case)]
    return sorted(causes, key=lambda cause: -(cause.share if cause.share is not None else 0.0))


def _decode_slots(case: Case) -> Iterator[Cause]:
    """Running at the limit, requests waiting for a slot, and a demand near or above capacity or a wait that matters."""
    cell, slots = case.cell, case.slots
    wait_part = "prefill_queue" if cell.mode == COLOCATED else "slot_wait"
    measured = wait_part in case.split.parts
    waits = case.substantial(wait_part)
    if not slots.reached or not (waits or slots.overload):
        return
    if cell.mode == COLOCATED and not _slots_full(case):
        return
    numbers = []
    if slots.needed is not None and slots.available is not None:
        numbers.append(f"the load needs {slots.needed:.1f} slots of {slots.available} ({slots.source})")
    running = cell.window.send_max(cell.decoder, "running")
    waiting = cell.window.send_mean(cell.decoder, "waiting")
    if running is not None and waiting is not None:
        numbers.append(f"running reached {running:.0f} with {waiting:.1f} waiting on average")
    if measured:
        numbers.append(f"waiting for a slot takes {case.split.get(wait_part):,.0f} of {case.mean_ttft_ms:,.0f} ms TTFT")
    elif not waits:
        numbers.append(
            "how much of TTFT it takes is not distinguishable: scrape vllm:num_requests_kv_fetch_by_stage on decode"
        )
    if (stall := _stall_text(case)) is not None:
        numbers.append(stall)
    advice = _slot_advice(case) + " Confirmed when waiting falls to 0 at the same rate with more slots."
    yield Cause("decode-slots", case.share(wait_part) if measured else None, "; ".join(numbers) + ".", advice)


def _slots_full(case: Case) -> bool:
    """Co-located: the queue is for slots when running sits at the limit for most of the send window."""
    running, available = case.cell.window.send_mean("colocated", "running"), case.slots.available
    return running is not None and available is not None and running >= 0.7 * available


def _slot_advice(case: Case) -> str:
    slots, cell = case.slots, case.cell
    tokens, tpot = cell.answers.mean(cell.answers.output_tokens), cell.answers.mean(cell.answers.tpot_ms)
    if slots.needed is None or slots.available is None or tokens is None or tpot is None:
        return "Raise --max-num-seqs on decode (check KV memory first), or lower the rate."
    wanted = max(int(slots.needed / HEADROOM) + 1, slots.available + 1)
    limit = max_qps(slots.available, tokens, tpot)
    rate = "" if limit is None or cell.rate is None else f", or lower the rate below {limit:.1f} req/s"
    kv = cell.window.send_max(cell.decoder, "kv_cache_usage", average=True)
    memory = "check KV memory first" if kv is None else f"its KV cache was at most {kv:.0%} full"
    return f"Raise --max-num-seqs on {cell.decoder} to {wanted} ({memory}){rate}."


def _stall_text(case: Case) -> str | None:
    """What a risen TPOT says of each admission on the decode loop."""
    cell = case.cell
    tpot, tokens = cell.answers.mean(cell.answers.tpot_ms), cell.answers.mean(cell.answers.output_tokens)
    running = cell.window.send_mean(cell.decoder, "running")
    if tpot is None or tokens is None or running is None or case.tpot0_ms is None:
        return None
    if tpot < (1 + MIN_RISE) * case.tpot0_ms:
        return None
    stall = implied_stall_s(tpot, case.tpot0_ms, tokens, running)
    if stall is None:
        return None
    return (
        f"TPOT rose from {case.tpot0_ms:.1f} ms at low load to {tpot:.1f} ms, which fits a stall of at most"
        f" {stall * 1000:.0f} ms an admission (what a larger batch costs included)"
    )


def _prefill(case: Case) -> Iterator[Cause]:
    """Prefill's queue against its compute: a queue needs a busy prefill server, or requests seen waiting there."""
    cell = case.cell
    role = "colocated" if cell.mode == COLOCATED else "prefill"
    if cell.mode == COLOCATED and case.slots.reached and _slots_full(case):
        return  # that queue is for slots
    queue, compute = case.split.parts.get("prefill_queue"), case.split.parts.get("prefill")
    busy = prefill_busy(cell)
    load = "" if busy is None or cell.mode == COLOCATED else f"; its servers spent {busy:.0%} of the window in prefill"
    tokens = cell.answers.mean(cell.answers.prompt_tokens)
    rate = cell.achieved
    speed = "" if tokens is None or rate is None else f"; {tokens * rate:,.0f} prompt tokens/s came out"
    if queue is not None and case.substantial("prefill_queue"):
        evidence = f"waiting for prefill takes {queue:,.0f} of {case.mean_ttft_ms:,.0f} ms TTFT (computing {compute or 0:,.0f} ms){load}{speed}."
        waiting = cell.window.send_mean(role, "waiting")
        if waiting is not None:
            evidence = evidence[:-1] + f"; {waiting:.1f} requests waited there on average."
        yield Cause(
            "prefill-queue",
            case.share("prefill_queue"),
            evidence,
            "Add a prefill instance, or lower the rate. Confirmed when prefill's waiting falls to 0 with one more.",
        )
    if compute is not None and compute >= COMPUTE_MS and compute >= COMPUTE_SHARE * case.mean_ttft_ms:
        yield Cause(
            "prefill-compute",
            case.share("prefill"),
            f"computing the prompt takes {compute:,.0f} of {case.mean_ttft_ms:,.0f} ms TTFT{load}{speed}.",
            "Give prefill more tensor parallelism or faster GPUs; instances help its queue only. Confirmed when a request alone has the same prefill time.",
        )


def prefill_busy(cell: Measured) -> float | None:
    """Share of the window that the prefill servers spent computing prompts, if they compute one at a time."""
    spent = cell.window.delta("prefill", "prefill_s", "sum")
    servers = {page.server for _, page in cell.window.pages("prefill")}
    time = cell.send_s
    return spent / time / len(servers) if spent is not None and servers and time > 0 else None


def _transfer(case: Case) -> Iterator[Cause]:
    """Bytes over time against the declared link, or the transfer's own share where none is declared."""
    cell = case.cell
    if not case.substantial("post", "transfer"):
        return
    role = "prefill" if cell.mode == PUSH else "decode"
    nbytes, time = cell.window.delta(role, "nixl_nbytes", "sum"), cell.window.delta(role, "nixl_xfer_s", "sum")
    speed = effective_gb_s(nbytes, time) if nbytes is not None and time is not None else None
    link = cell.deployment.get("link_gb_s")
    numbers = f"moving the KV takes {case.split.get('post') + case.split.get('transfer'):,.0f} of {case.mean_ttft_ms:,.0f} ms TTFT"
    if speed is not None and nbytes is not None:
        requests = cell.window.delta(role, "nixl_nbytes", "count") or 1
        numbers += f": {nbytes / requests / 1e6:,.1f} MB a handle at {speed:.3g} GB/s"
    loading = cell.window.send_max("decode", "kv_fetch_stage", stage="in_progress")
    if loading is not None and loading > 1:
        numbers += f", up to {loading:.0f} at once"
    if link is not None and speed is not None:
        if speed >= LINK_SHARE * float(link):
            numbers += f", {speed / float(link):.0%} of the declared {float(link):g} GB/s: the link itself is the limit"
        else:
            numbers += f", {speed / float(link):.0%} of the declared {float(link):g} GB/s: another transport than meant, or a shared link"
    else:
        numbers += " (no link declared: give link_gb_s to compare)"
    yield Cause(
        "transfer-bandwidth",
        case.share("post", "transfer"),
        numbers + ".",
        "Check the transport (UCX_TLS, RDMA devices, GPU P2P): pdbench topo, then pdbench probe-transfer. Confirmed when a transfer alone is as slow.",
    )


def _client(case: Case) -> Iterator[Cause]:
    ours = next((f for f in case.findings if f.code == "client-saturated" and f.severity == VOID), None)
    if ours is None:
        return
    late = case.cell.answers.mean((case.cell.answers.sent - case.cell.answers.intended) * 1000)
    share = None if late is None else min(1.0, max(0.0, late / case.mean_ttft_ms))
    yield Cause(
        "client",
        share,
        ours.evidence,
        "Move pdbench to a host of its own. Confirmed when lateness falls and TTFT with it.",
    )


CAUSES: dict[str, Callable[[Case], Iterator[Cause]]] = {
    "decode-slots": _decode_slots,
    "prefill": _prefill,
    "transfer-bandwidth": _transfer,
    "client": _client,
}
