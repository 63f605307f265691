"""What requests wait for on decode, or on a co-located server: a slot, KV blocks, or the engine's next look."""

from __future__ import annotations

from collections.abc import Iterator

from pdbench.report.advice import closed_cell, expected_wait_s, slot_advice
from pdbench.report.causes.case import BUSY, WAIT_SHARE, Case, Cause, Part, Taken
from pdbench.report.causes.idle_slots import waits_for_a_look, waits_for_a_slot
from pdbench.report.causes.loop import beside_prompts, held_loop, only_for_stalls, stall_text
from pdbench.report.causes.posting import turn_met_ms, wait_to_post
from pdbench.report.causes.prefill import PREFILL_QUEUE
from pdbench.report.cell import PUSH
from pdbench.report.demand import fewer_than_said
from pdbench.report.slow_server import slow_server
from pdbench.report.split import Split
from pdbench.report.stages import prompt_share
from pdbench.report.wording import two_digits

NEXT_WAIT = WAIT_SHARE / (1 - WAIT_SHARE)  # of the rest of TTFT: then it is a quarter of both


def decode_slots(case: Case) -> Iterator[tuple[Cause, Taken | None]]:
    """Running at the limit, requests waiting for a slot, and a wait that matters or a demand beyond the slots."""
    cell, slots = case.cell, case.slots
    if not slots.reached:
        yield from slots_are_next(case)
        return
    taken, closed = case.taken("slots", waits_for_a_slot(case)), cell.streams is not None
    beyond = slots.overload() and not (closed and taken is not None)  # closed, the rate is what the slots let through
    if not (taken is not None and taken.is_wait()) and not beyond:
        return
    if only_for_stalls(case):
        return
    numbers = []
    if closed and slots.held is not None and slots.available is not None:
        numbers.append(
            f"{cell.streams} streams in closed loop hold {slots.held:.1f} of {slots.available} slots on average"
        )
    elif slots.demand is not None and slots.available is not None:
        numbers.append(f"the load needs {slots.wanted_text()} ({slots.source})")
    running = cell.window.send_max(cell.decoder, "running")
    waiting = cell.window.send_mean(cell.decoder, "waiting")
    if running is not None and waiting is not None:
        numbers.append(f"running reached {running:.0f} with {waiting:.1f} waiting on average")
    if taken is not None:
        numbers.append(f"waiting for a slot takes {case.of_ttft(taken.ms)}")
    else:
        unknown_for = "vllm:num_requests_kv_fetch_by_stage"
        if cell.mode == PUSH and "prefill" in cell.unread:
            unknown_for = "prefill's page, since decode's queue time also holds the prefill leg"
        numbers.append(f"how much of TTFT it takes cannot be said without {unknown_for}")
    if (stall := stall_text(case)) is not None:
        numbers.append(stall)
    numbers += list(fewer_slots(case))
    advice = slot_advice(cell, slots, None if taken is None else taken.ms, held_loop(case), beside_prompts(case))
    confirm = "With more slots, waiting falls to 0 at the same rate."
    if closed:
        confirm = "With more slots the same streams wait for none, and their rate rises."
        if taken is not None and (then := closed_cell(cell, slots, taken.ms, cell.streams or 0, cell.streams or 0)):
            confirm = (
                f"With a slot for each of the {cell.streams} streams none waits, and they make about"
                f" {two_digits(then.rate)} instead of {two_digits(cell.achieved or 0.0)} req/s."
            )
    if (slow := slow_server(cell)) is not None:
        numbers.append(slow.text())
        advice, confirm = slow.advice(), slow.confirm()
    yield case.named("decode-slots", taken, numbers, advice, confirm)


def fewer_slots(case: Case) -> Iterator[str]:
    """Servers that run fewer requests than the slots that they are said to have."""
    found = {page.server: fewer_than_said(case.cell, page) for _, page in case.cell.window.pages("decode")}
    for name, known in found.items():
        if known is not None:
            runs, said = known
            yield (
                f"{name} runs {runs} of the {said} that it is said to have while requests stand in waiting_to_start:"
                " its limit is lower than was said"
            )


def slots_are_next(case: Case) -> Iterator[tuple[Cause, Taken | None]]:
    """Prefill's queue keeps so many requests from decode that nobody waits there yet, but at the rate that is asked the
    wait for a slot would be a cause: who mends prefill alone meets the next queue."""
    cell, slots = case.cell, case.slots
    queue = case.removed.get(PREFILL_QUEUE)
    steady = cell.streams is None and not cell.stages
    if queue is None or case.colocated or not steady or not slots.demand or not slots.available:
        return
    held_s = slots.demand / cell.offered if cell.offered else 0.0
    wait_s = expected_wait_s(cell, slots.demand, held_s)
    queue_ms = queue(case.split) or 0.0
    rest_s = (case.mean_ttft_ms - queue_ms) / 1000
    if wait_s is not None and (slots.demand < BUSY * slots.available or wait_s < NEXT_WAIT * rest_s):
        return
    grows = "a wait that grows without end" if wait_s is None else f"a mean wait of about {1000 * wait_s:,.0f} ms"
    numbers = [
        "takes nothing of TTFT yet: prefill lets"
        f" {two_digits(cell.achieved or 0.0)} of {two_digits(cell.offered or 0.0)} req/s through",
        f"the rate that is asked needs {slots.wanted_text()} ({slots.source}), with {grows}",
    ]
    advice = f"Once prefill keeps up: {slot_advice(cell, slots, queue_ms, held_loop(case))}"
    yield (
        Cause("decode-slots", 0.0, "; ".join(numbers) + ".", advice, "With prefill mended alone, requests wait there."),
        None,
    )


def decode_kv_pool(case: Case) -> Iterator[tuple[Cause, Taken | None]]:
    """Requests wait while slots are free: the pool has no blocks for one more prompt."""
    cell = case.cell
    taken = case.taken("pool", lambda split: split.for_blocks)
    if taken is None or not taken.expected(cell.window.send_mean(cell.decoder, "kv_cache_usage", True)).is_wait():
        return
    numbers = [f"waiting for KV blocks with slots free takes {case.of_ttft(taken.ms)}"]
    usage = cell.window.send_max(cell.decoder, "kv_cache_usage", average=True)
    if usage is not None:
        numbers.append(f"KV use reached {usage:.0%}")
    shares = [prompt_share(cell, str(s.get("name"))) for s in cell.deployment.get("servers", [])]
    needs = max((share for share in shares if share is not None), default=None)
    if needs is not None:
        numbers.append(f"one prompt takes {needs:.1%} of the pool, before its first token too")
    running = cell.window.send_max(cell.decoder, "running")
    if running is not None and case.slots.available is not None:
        numbers.append(f"running never passed {running:.0f} of {case.slots.available} slots")
    loading = cell.window.send_mean("decode", "kv_fetch_stage", stage="in_progress")
    loaded = cell.window.send_mean("decode", "kv_fetch_stage", stage="completed_waiting")
    if loading is not None and loaded is not None:
        numbers.append(f"{loading + loaded:.1f} handoffs held blocks without a slot on average")
    if (put_back := cell.window.delta(cell.decoder, "preemptions")) is not None and put_back > 0:
        numbers.append(f"{put_back:.0f} requests were preempted")
    yield case.named(
        "decode-kv-pool",
        taken,
        numbers,
        f"Give {case.slots.where} more KV memory (--gpu-memory-utilization, fp8 KV, more GPUs), or shorter prompts;"
        " more slots would not help.",
        "With a larger pool the same load has no request in waiting_to_start.",
    )


def noticed_late(case: Case) -> Part:
    """What KV that has arrived waits beyond a turn of the loop and the posts that others make first, and what others
    wait behind it for slots that stand empty meanwhile."""
    expected, thread, behind = turn_met_ms(case), wait_to_post(case), waits_for_a_look(case)

    def late(split: Split) -> float | None:
        poll = split.parts.get("poll")
        if poll is None or case.expired:
            return None
        return max(0.0, poll - expected - thread(split)) + (behind(split) or 0.0)

    return late


def completion_polling(case: Case) -> Iterator[tuple[Cause, Taken | None]]:
    """KV that has arrived is noticed late: later than the turn of the loop that was under way."""
    expected, taken = turn_met_ms(case), case.taken("poll", noticed_late(case))
    if case.colocated or taken is None or not taken.is_wait() or not expected:
        return
    if "prefill" in case.cell.unread and taken.ms <= (case.cell.streams or 0) * case.split.get("post"):
        return  # streams that come together wait for each other's posts, and only prefill's page says when they come
    numbers = [
        f"KV that has arrived waits {case.split.get('poll'):,.0f} ms to be noticed, where the loop's turns explain"
        f" {expected:,.1f} ms",
        f"the rest takes {case.of_ttft(taken.ms)} while slots are free",
    ]
    if (behind := waits_for_a_look(case)(case.split)) is not None and behind > 0:
        numbers.append(f"{behind:,.0f} ms of it in the queue for slots, some of which are empty until the next look")
    yield case.named(
        "completion-polling",
        taken,
        numbers,
        "Make decode look for finished transfers more often: it does so between its forward steps only, so shorter"
        " steps (smaller batches, no chunked prefill beside) or a connector that is notified.",
        "Decode alone at a low rate notices as late: the wait does not come from load.",
    )
