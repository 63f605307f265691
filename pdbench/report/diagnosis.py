"""Named causes of a bad TTFT, each with its share of the mean, its evidence and the first thing to change.

A cause needs a substantial part of TTFT (a share and an absolute size), or a demand at or above capacity, and what the
servers' series say must agree with it; a healthy cell has none. Two may hold at once. Where the series that would
decide were not scraped, the cause is `not-distinguishable` and says what to scrape: doubt is never made a verdict.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass

from pdbench.littles_law.kv import effective_gb_s
from pdbench.littles_law.slots import implied_stall_s
from pdbench.report.advice import slot_advice
from pdbench.report.cell import COLOCATED, PUSH, Measured
from pdbench.report.demand import Slots, slots_of
from pdbench.report.finding import VOID, Finding
from pdbench.report.prefix import PREFIX_WARN_SHARE, prefix_hits
from pdbench.report.split import POLL_STEPS, Split, stages_of

SUBSTANTIAL_SHARE = 0.25  # of the mean TTFT; what takes less is not what makes a TTFT bad
SUBSTANTIAL_MS = 50.0  # and an absolute size: a quarter of a good TTFT is no cause
LARGE_SHARE = 0.10  # beside another cause, what takes this share
LARGE_MS = 500.0  # and this long is worth naming too
COMPUTE_SHARE = 0.5  # of the mean TTFT spent computing the prompt, which every request has to some extent
COMPUTE_MS = 300.0
COPIED_IN_POST = 0.9  # of the transfer time spent in its post: the copy itself runs there (same host), not the posting
LINK_SHARE = 0.3  # of the declared link: below, the KV does not go where it was meant to
SLOTS_FULL = 0.7  # co-located: mean running / slots from which on a queue is for slots
REJECTED_SHARE = 0.01  # of the requests turned away, from which on latencies are those of a selection
MIN_RISE = 0.15  # TPOT above the low-load one before a stall per admission is worth a word


@dataclass(frozen=True, slots=True)
class Cause:
    """One diagnosis; `share` of the mean TTFT (0 to 1), None when it cannot be said."""

    cause: str
    share: float | None
    evidence: str
    advice: str
    confirm: str

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

    def substantial(self, total_ms: float | None) -> bool:
        mean = self.mean_ttft_ms
        limit = min(max(SUBSTANTIAL_MS, SUBSTANTIAL_SHARE * mean), max(LARGE_MS, LARGE_SHARE * mean))
        return total_ms is not None and total_ms >= limit

    def of_ttft(self, part_ms: float) -> str:
        return f"{part_ms:,.0f} of {self.mean_ttft_ms:,.0f} ms TTFT"

    @property
    def queue_is_for_slots(self) -> bool:
        """Co-located: requests queue for slots when running sits near the limit."""
        running, slots = self.cell.window.send_mean("colocated", "running"), self.slots
        full = running is not None and slots.available is not None and running >= SLOTS_FULL * slots.available
        return slots.reached and (full or slots.overload())


def diagnose(cell: Measured, split: Split | None, found: Sequence[Finding], tpot0_ms: float | None) -> list[Cause]:
    """The causes that hold, the largest share first."""
    mean = cell.answers.mean(cell.answers.ttft_ms)
    if split is None or mean is None or mean <= 0:
        return []
    case = Case(cell, split, slots_of(cell), mean, found, tpot0_ms)
    causes = [cause for judge in CAUSES for cause in judge(case)]
    return sorted(causes, key=lambda cause: -(cause.share if cause.share is not None else 1.0))


def _decode_slots(case: Case) -> Iterator[Cause]:
    """Running at the limit, requests waiting for a slot, and a wait that matters or a demand beyond the slots."""
    cell, slots = case.cell, case.slots
    colocated = cell.mode == COLOCATED
    wait = case.split.parts.get("prefill_queue" if colocated else "slot_wait")
    if not slots.reached or (colocated and not case.queue_is_for_slots):
        return
    if not case.substantial(wait) and not slots.overload():
        return
    numbers = []
    if slots.demand is not None and slots.available is not None:
        numbers.append(f"the load needs {slots.wanted_text()} ({slots.source})")
    running = cell.window.send_max(cell.decoder, "running")
    waiting = cell.window.send_mean(cell.decoder, "waiting")
    if running is not None and waiting is not None:
        numbers.append(f"running reached {running:.0f} with {waiting:.1f} waiting on average")
    if wait is not None:
        numbers.append(f"waiting for a slot takes {case.of_ttft(wait)}")
    else:
        numbers.append("how much of TTFT it takes cannot be said without vllm:num_requests_kv_fetch_by_stage")
    if (stall := _stall_text(case)) is not None:
        numbers.append(stall)
    share = None if wait is None else wait / case.mean_ttft_ms
    confirm = "With more slots, waiting falls to 0 at the same rate."
    yield Cause("decode-slots", share, "; ".join(numbers) + ".", slot_advice(cell, slots, wait), confirm)


def _stall_text(case: Case) -> str | None:
    """What a risen TPOT says of each admission on the decode loop."""
    cell = case.cell
    tpot, tokens = cell.answers.mean(cell.answers.tpot_ms), cell.answers.mean(cell.answers.output_tokens)
    running = cell.window.send_mean(cell.decoder, "running")
    if tpot is None or tokens is None or running is None or case.tpot0_ms is None:
        return None
    stall = implied_stall_s(tpot, case.tpot0_ms, tokens, running)
    if stall is None or tpot < (1 + MIN_RISE) * case.tpot0_ms:
        return None
    return (
        f"TPOT rose from {case.tpot0_ms:.1f} ms at low load to {tpot:.1f} ms, which fits a stall of at most"
        f" {stall * 1000:.0f} ms an admission (what a larger batch costs included)"
    )


def _unnamed_wait(case: Case) -> Iterator[Cause]:
    """Decode's queue time without the gauges that would divide it."""
    cell, window = case.cell, case.cell.window
    if cell.mode == COLOCATED or "slot_wait" in case.split.parts or stages_of(cell) is not None:
        return
    queue = window.mean_ms("decode", "queue_s")
    spent = [window.mean_ms("prefill", "queue_s"), window.mean_ms("prefill", "prefill_s")] if cell.mode == PUSH else []
    spent.append(window.mean_ms("prefill" if cell.mode == PUSH else "decode", "nixl_xfer_s"))
    if queue is None or (case.slots.reached and case.slots.overload()):
        return
    rest = queue - sum(value for value in spent if value is not None)
    tpot = cell.answers.mean(cell.answers.tpot_ms) or 0.0
    if not case.substantial(rest) or rest <= POLL_STEPS * tpot:
        return
    yield Cause(
        "not-distinguishable",
        rest / case.mean_ttft_ms,
        f"decode's queue time holds {case.of_ttft(rest)} that may be slot wait, transfer or polling: its page lacks"
        " vllm:num_requests_kv_fetch_by_stage.",
        "Start decode with vLLM 0.32 or later, or give --max-num-seqs and compare running with it.",
        "With the gauge scraped, one of its stages holds the wait.",
    )


def _unnamed_leg(case: Case) -> Iterator[Cause]:
    """Dynamo's prefill page has the whole leg and not its parts."""
    leg = case.cell.window.mean_ms("prefill", "prefill_leg_s")
    if leg is None or "prefill" in case.split.parts or leg < max(COMPUTE_MS, COMPUTE_SHARE * case.mean_ttft_ms):
        return
    held = case.cell.window.send_mean("prefill", "inflight")
    load = "" if held is None else f"; {held:.1f} requests were in it on average"
    yield Cause(
        "not-distinguishable",
        leg / case.mean_ttft_ms,
        f"the prefill leg takes {case.of_ttft(leg)}; its page does not tell queue, compute and transfer apart{load}.",
        "Send one request alone: what its leg is shorter by is queue.",
        "The leg of a request alone is compute and transfer.",
    )


def _prefill_queue(case: Case) -> Iterator[Cause]:
    """Requests wait for prefill; co-located, where slots are known not to be what they wait for."""
    cell = case.cell
    colocated = cell.mode == COLOCATED
    queue, compute = case.split.parts.get("prefill_queue"), case.split.parts.get("prefill")
    if queue is None or not case.substantial(queue) or (colocated and case.queue_is_for_slots):
        return
    numbers = [f"waiting for prefill takes {case.of_ttft(queue)}", *_prefill_numbers(case)]
    if compute is not None:
        numbers.insert(1, f"computing the prompt takes {compute:,.0f} ms")
    waiting = cell.window.send_mean("colocated" if colocated else "prefill", "waiting")
    if waiting is not None:
        numbers.append(f"{waiting:.1f} requests waited on average")
    advice = "Add a prefill instance, or lower the rate."
    if colocated:
        advice = "Add an instance, or lower the rate."
        if case.slots.available is None:
            numbers.append("whether they wait for a slot is not distinguishable: give --max-num-seqs")
    confirm = "With one more prefill instance, its waiting falls to 0 at the same rate."
    yield Cause("prefill-queue", queue / case.mean_ttft_ms, "; ".join(numbers) + ".", advice, confirm)


def _prefill_compute(case: Case) -> Iterator[Cause]:
    compute = case.split.parts.get("prefill")
    if compute is None or compute < max(COMPUTE_MS, COMPUTE_SHARE * case.mean_ttft_ms):
        return
    numbers = [f"computing the prompt takes {case.of_ttft(compute)}", *_prefill_numbers(case)]
    yield Cause(
        "prefill-compute",
        compute / case.mean_ttft_ms,
        "; ".join(numbers) + ".",
        "Give prefill more tensor parallelism or faster GPUs; more instances help its queue only.",
        "A request sent alone has the same prefill time.",
    )


def _prefill_numbers(case: Case) -> Iterator[str]:
    """How many prompts are computed at a time, and how fast."""
    spent, time = case.cell.window.delta("prefill", "prefill_s", "sum"), case.cell.send_s
    servers = {page.server for _, page in case.cell.window.pages("prefill")}
    if spent is not None and servers and time > 0:
        yield f"each prefill server had {spent / time / len(servers):.1f} prompts in work on average"
    tokens, achieved = case.cell.answers.mean(case.cell.answers.prompt_tokens), case.cell.achieved
    if tokens is not None and achieved is not None:
        text = f"{tokens * achieved:,.0f} prompt tokens/s were served"
        hits = prefix_hits(case.cell, "colocated" if case.cell.mode == COLOCATED else "prefill")
        if hits is not None and hits > PREFIX_WARN_SHARE:
            text += f", {hits:.0%} of them from the prefix cache: this is no cold prefill"
        yield text


def _transfer(case: Case) -> Iterator[Cause]:
    """The bytes' own time against the declared link, or by its share of TTFT where none is declared."""
    cell, split = case.cell, case.split
    post, move = split.get("post"), split.get("transfer")
    moving = post + move if post >= COPIED_IN_POST * (post + move) else move
    if not case.substantial(moving):
        return
    role = "prefill" if cell.mode == PUSH else "decode"
    nbytes, time = cell.window.delta(role, "nixl_nbytes", "sum"), cell.window.delta(role, "nixl_xfer_s", "sum")
    handles = cell.window.delta(role, "nixl_nbytes", "count")
    speed = effective_gb_s(nbytes, time) if nbytes is not None and time is not None else None
    numbers = [f"moving the KV takes {case.of_ttft(moving)}"]
    if speed is not None and nbytes is not None and handles:
        numbers.append(f"{nbytes / handles / 1e6:,.1f} MB a handle at {speed:.3g} GB/s")
    loading = cell.window.send_max("decode", "kv_fetch_stage", stage="in_progress")
    if loading is not None and loading > 1:
        numbers.append(f"up to {loading:.0f} at once")
    numbers.append(_against_link(speed, cell.deployment.get("link_gb_s")))
    yield Cause(
        "transfer-bandwidth",
        moving / case.mean_ttft_ms,
        "; ".join(numbers) + ".",
        "Check the transport (UCX_TLS, RDMA devices, GPU P2P) with pdbench topo, then pdbench probe-transfer.",
        "A transfer alone on the idle pair is as slow.",
    )


def _against_link(speed: float | None, link: float | None) -> str:
    if link is None or speed is None:
        return "no link_gb_s is declared to compare with"
    text = f"{100 * speed / link:.2g}% of the declared {link:g} GB/s"
    return f"{text}: the link itself" if speed >= LINK_SHARE * link else f"{text}: another transport, or a shared link"


def _proxy(case: Case) -> Iterator[Cause]:
    """Time outside both engines: client TTFT less what prefill and decode account for."""
    outside = case.split.get("proxy")
    if case.cell.mode == COLOCATED or not case.substantial(outside):
        return
    yield Cause(
        "proxy",
        outside / case.mean_ttft_ms,
        f"{case.of_ttft(outside)} pass outside both engines: in the proxy, on the network, in the engines' front ends.",
        "Look at the proxy: its CPU, its connections to the engines, whether it buffers or retries.",
        "A request sent to the engines without the proxy lacks that time.",
    )


def _admission(case: Case) -> Iterator[Cause]:
    """Requests that the servers turned away: latencies are of the others, which wait less for it."""
    answers = case.cell.answers
    turned_away, asked = answers.count("rejected"), len(answers) - answers.count("cancelled")
    if not asked or turned_away < REJECTED_SHARE * asked:
        return
    yield Cause(
        "admission",
        None,
        f"{turned_away:,} of {asked:,} requests ({turned_away / asked:.0%}) were turned away (HTTP 429 or 503):"
        " latencies and rates are of those admitted.",
        "Raise the servers' admission limit, or lower the rate to what is admitted.",
        "With fewer requests turned away TTFT rises.",
    )


def _client(case: Case) -> Iterator[Cause]:
    ours = next((f for f in case.findings if f.code == "client-saturated" and f.severity == VOID), None)
    if ours is None:
        return
    late = case.cell.answers.mean((case.cell.answers.sent - case.cell.answers.intended) * 1000)
    share = None if late is None else min(1.0, max(0.0, late / case.mean_ttft_ms))
    yield Cause(
        "client", share, ours.evidence, "Move pdbench to a host of its own.", "Lateness falls, and TTFT with it."
    )


CAUSES: tuple[Callable[[Case], Iterator[Cause]], ...] = (
    _decode_slots,
    _unnamed_wait,
    _unnamed_leg,
    _prefill_queue,
    _prefill_compute,
    _transfer,
    _proxy,
    _admission,
    _client,
)
