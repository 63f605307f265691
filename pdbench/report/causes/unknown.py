"""What these data cannot tell apart, and what to scrape or start differently so that they can."""

from __future__ import annotations

from collections.abc import Iterator

from pdbench.report.causes.case import Case, Cause, Taken
from pdbench.report.causes.handoff import copied_in_post, fragments_ms
from pdbench.report.causes.loop import held
from pdbench.report.causes.posting import posting
from pdbench.report.cell import PUSH
from pdbench.report.stages import POLL_STEPS, stages_of


def unnamed_wait(case: Case) -> Iterator[tuple[Cause, Taken | None]]:
    """Decode's queue time without the gauges that would divide it."""
    cell, window = case.cell, case.cell.window
    if case.colocated or "slot_wait" in case.split.parts or stages_of(cell) is not None:
        return
    queue = window.mean_ms("decode", "queue_s")
    spent = [window.mean_ms("prefill", "queue_s"), window.mean_ms("prefill", "prefill_s")] if cell.mode == PUSH else []
    spent.append(window.mean_ms("prefill" if cell.mode == PUSH else "decode", "nixl_xfer_s"))
    if queue is None or (case.slots.reached and case.slots.overload()):
        return
    rest = queue - sum(value for value in spent if value is not None)
    taken = case.taken("decode queue", lambda split: rest)
    if taken is None or not taken.is_wait() or rest <= POLL_STEPS * (case.pace_ms or 0.0):
        return
    yield case.named(
        "not-distinguishable",
        taken,
        [
            f"decode's queue time holds {case.of_ttft(rest)} that may be slot wait, transfer or polling: its page lacks"
            " vllm:num_requests_kv_fetch_by_stage"
        ],
        "Start decode with vLLM 0.32 or later, or give --max-num-seqs and compare running with it.",
        "With the gauge scraped, one of its stages holds the wait.",
    )


def unnamed_post(case: Case) -> Iterator[tuple[Cause, Taken | None]]:
    """Posting takes most of TTFT, and neither descriptors nor the loop nor a copy in it say why."""
    taken = case.taken("post", posting(case))
    if taken is None or not taken.is_work():
        return
    if held(case) is not None or fragments_ms(case) is not None or copied_in_post(case):
        return
    numbers = [f"posting the transfer takes {case.of_ttft(taken.ms)}"]
    if case.pull and case.turns is not None:
        numbers.append(f"streams lose {max(0.0, case.turns.lost.value):.0%} of their time: it does not hold their loop")
    if (descriptors := case.cell.window.mean_s(case.mover, "nixl_descriptors")) is None:
        numbers.append("vllm:nixl_num_descriptors, which would tell fragments from a slow post, was not scraped")
    else:
        numbers.append(f"{descriptors:,.0f} descriptors are too few to explain it")
    yield case.named(
        "not-distinguishable",
        taken,
        numbers,
        "Measure such a transfer with pdbench probe-transfer, and look for memory registration in the post.",
        "A transfer alone on the idle pair posts as long.",
    )


def unnamed_leg(case: Case) -> Iterator[tuple[Cause, Taken | None]]:
    """Dynamo's prefill page has the whole leg and not its parts."""
    leg = case.cell.window.mean_ms("prefill", "prefill_leg_s")
    if leg is None or "prefill" in case.split.parts:
        return
    taken = case.taken("prefill leg", lambda split: leg)
    if taken is None or not taken.is_work() or not taken.is_long:
        return
    inflight = case.cell.window.send_mean("prefill", "inflight")
    load = "" if inflight is None else f"; {inflight:.1f} requests were in it on average"
    yield case.named(
        "not-distinguishable",
        taken,
        [f"the prefill leg takes {case.of_ttft(leg)}; its page does not tell queue, compute and transfer apart{load}"],
        "Send one request alone: what its leg is shorter by is queue.",
        "The leg of a request alone is compute and transfer.",
    )
