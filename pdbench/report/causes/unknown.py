"""What these data cannot tell apart, and what to scrape or start differently so that they can."""

from __future__ import annotations

from collections.abc import Container, Iterator

from pdbench.report.causes.case import WAIT_SHARE, WORK_SHARE, Case, Cause, Part, Taken
from pdbench.report.causes.decode import noticed_late
from pdbench.report.causes.handoff import copied_in_post, fragments_ms, speed_after_post_gb_s
from pdbench.report.causes.idle_slots import waits_for_a_slot
from pdbench.report.causes.loop import own_stall
from pdbench.report.causes.posting import posting, posts_on_loop
from pdbench.report.cell import PULL, PUSH
from pdbench.report.finding import VOID
from pdbench.report.split import Split
from pdbench.report.stages import POLL_STEPS, stages_of

ODD_SHARE = 0.1  # of what is unnamed: a smaller part of it is not worth a word
ENOUGH_REQUESTS = 300


def unnamed_wait(case: Case) -> Iterator[tuple[Cause, Taken | None]]:
    """Decode's queue time without the gauges that would divide it."""
    cell, window = case.cell, case.cell.window
    if case.colocated or "slot_wait" in case.split.parts or stages_of(cell) is not None:
        return
    if cell.mode != PULL and "prefill" in cell.unread:
        return  # in push it also holds the prefill leg
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


def unnamed_slots(case: Case) -> Iterator[tuple[Cause, Taken | None]]:
    """Requests wait to start on decode, and no server was seen with all its slots in use."""
    cell, slots = case.cell, case.slots
    if case.colocated or slots.reached or "slots" in case.removed:
        return
    taken = case.taken("slots", waits_for_a_slot(case))
    if taken is None or not taken.is_wait():
        return
    running = cell.window.send_max("decode", "running")
    ran = "" if running is None else f", with {running:.0f} running at most"
    known = (
        f"{slots.available} slots are said to be there" if slots.available else "how many slots there are is unknown"
    )
    yield case.named(
        "not-distinguishable",
        taken,
        [
            f"requests wait on decode before their KV is fetched for {case.of_ttft(taken.ms)}, and no server was seen"
            f" with all its slots in use{ran}: {known}"
        ],
        "Compare --max-num-seqs of each decode server with what it runs at most (pdbench watch), and look at what else"
        " keeps a request from being scheduled there: LoRA limits, priorities, KV blocks.",
        "Once the server's real limit is given, decode-slots holds the wait or a server with fewer slots is named.",
    )


def unnamed_post(case: Case) -> Iterator[tuple[Cause, Taken | None]]:
    """Posting takes most of TTFT, and neither descriptors nor the loop nor a copy in it say why."""
    taken = case.taken("post", posting(case))
    if taken is None or not taken.is_work():
        return
    if posts_on_loop(case) or fragments_ms(case) is not None or copied_in_post(case):
        return
    numbers = [f"posting the transfer takes {case.of_ttft(taken.ms)}"]
    if case.pull and case.turns is not None:
        numbers.append(f"streams lose {max(0.0, case.turns.lost.value):.0%} of their time: it does not hold their loop")
    numbers.append(_descriptors(case))
    nbytes, posted = case.cell.window.mean_s(case.mover, "nixl_nbytes"), case.split.get("post")
    by_bytes, rest = case.peers.post_of_bytes_ms(), speed_after_post_gb_s(case)
    if by_bytes is not None:
        numbers.append(f"over this run's prompt lengths {by_bytes:,.0f} ms of it grow with the bytes: it is no copy")
    elif nbytes is not None and posted > 0 and rest is not None:
        numbers.append(
            f"with prompts of one length a copy of the {nbytes / 1e6:,.1f} MB in the post, at"
            f" {nbytes / posted / 1e6:.3g} GB/s, looks the same as a post that is slow in itself (memory registration,"
            f" the driver), after which the bytes move at {rest:.3g} GB/s"
        )
    yield case.named(
        "not-distinguishable",
        taken,
        numbers,
        "Measure such a transfer with pdbench probe-transfer, and look for memory registration in the post."
        if by_bytes is not None
        else "Sweep two prompt lengths, one twice the other (--prompt-lens): a post that grows with the bytes copies"
        " them, one that doesn't is slow in itself; pdbench probe-transfer measures one alone.",
        "A transfer alone on the idle pair posts as long.",
    )


def _descriptors(case: Case) -> str:
    descriptors = case.cell.window.mean_s(case.mover, "nixl_descriptors")
    if descriptors is None:
        return "vllm:nixl_num_descriptors, which would tell fragments from a slow post, was not scraped"
    return f"{descriptors:,.0f} descriptors are too few to explain it"


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


def unnamed_rest(case: Case, named: Container[str]) -> Iterator[tuple[Cause, Taken | None]]:
    """What is left when every other cause has been looked for: parts of the handoff that are no work and no queue for
    a slot or for prefill, a quarter of TTFT and more, and too unsure by themselves to say what they are.
    """
    if case.colocated or case.cell.mode is None or case.cell.dynamo:
        return
    parts = {key: part for key, part in _odd_parts(case).items() if key not in case.removed}
    if "engine-loop-blocking" in named:  # it says what the first step is held by
        parts.pop("first step", None)

    def together(split: Split) -> float:
        return sum(max(0.0, part(split) or 0.0) for part in parts.values())

    taken = case.taken("handoff", together)
    sizes = {key: max(0.0, part(case.split) or 0.0) for key, part in parts.items()}
    late = sizes.get("poll", 0.0) + sizes.get("first step", 0.0)  # what holds a loop is in both
    if taken is None or not taken.is_noticed or max(late, *sizes.values()) < WAIT_SHARE * case.mean_ttft_ms:
        return  # a real engine has something of each
    if not (taken.of_ttft.reaches(WAIT_SHARE) or taken.of_ttft.value >= WORK_SHARE):
        return
    texts = [_odd_text(case, key, ms) for key, ms in sizes.items() if ms >= ODD_SHARE * taken.ms]
    requests = case.cell.answers.count("ok")
    yield case.named(
        "not-distinguishable",
        taken,
        [
            f"{case.of_ttft(taken.ms)} pass in the handoff and neither in work nor in a queue",
            *texts,
            f"which of completion-polling, engine-loop-blocking and slow posting it is cannot be told from {requests:,}"
            " requests",
        ],
        f"To tell which, repeat with --num-prompts {max(ENOUGH_REQUESTS, 4 * requests):,} and long answers, so that"
        " streams run beside the handoffs: the gaps between their tokens say whether handoffs hold the loop.",
        "Decode alone at a low rate is as late (completion-polling), or is not (engine-loop-blocking).",
    )


def _odd_parts(case: Case) -> dict[str, Part]:
    """Parts that a healthy handoff lacks, beyond what is healthy of them; by the key under which a cause takes them."""
    found: dict[str, Part] = {"poll": noticed_late(case)}
    if case.turns is not None:
        found["first step"] = own_stall(case.turns)
    elif case.pull and not posts_on_loop(case):  # no gaps say how long a step is that nothing holds
        found["first step"] = lambda split: split.parts.get("first_step")
    ours = any(finding.code == "client-saturated" and finding.severity == VOID for finding in case.findings)
    known = {"prefill_queue", "prefill", "first_step"} <= set(case.split.parts)
    if known and not ours:  # else a server was not looked at, or sends were late
        found["unexplained"] = lambda split: case.split.get("unexplained")
    return found


def _odd_text(case: Case, key: str, ms: float) -> str:
    if key == "poll":
        return f"KV that has arrived is noticed {ms:,.0f} ms later than a turn of the loop explains"
    if key == "first step" and case.turns is not None:
        return f"decode's first step takes {ms:,.0f} ms more than the {case.turns.quiet_ms:.1f} ms of another turn"
    if key == "first step":
        return f"decode's first step takes {ms:,.0f} ms, and answers so short do not tell how long another step is"
    return f"{ms:,.0f} ms show in no series that was scraped"
