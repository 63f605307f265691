"""The prompt's own part: waiting for prefill, and computing it."""

from __future__ import annotations

from collections.abc import Iterator

from pdbench.report.causes.case import Case, Cause, Taken
from pdbench.report.causes.loop import holds_others
from pdbench.report.causes.posting import posts_on_loop
from pdbench.report.cell import COLOCATED
from pdbench.report.prefix import PREFIX_WARN_SHARE, prefix_hits
from pdbench.report.split import Split
from pdbench.report.stages import prompt_share

BUSY = 2 / 3  # prompts in work: below, M/D/1's wait is shorter than the service
PINNED_SHARE = 0.5  # of the prefill servers' samples with requests waiting in which their KV pool was full


def compute(split: Split) -> float | None:
    return split.parts.get("prefill")


def prefill_queue(case: Case) -> Iterator[tuple[Cause, Taken | None]]:
    """Requests wait for prefill; co-located, where slots are known not to be what they wait for.

    A server that is busy for less than two thirds of the time, and for which they wait for less than computing the
    prompt then takes (in a steady state that is the same, M/D/1), is no bottleneck. Nor is it where streams in closed
    loop come to it together because posts on decode's loop let them go together, however long they then wait.
    """
    cell, spent = case.cell, case.split.parts.get("prefill")
    taken = case.taken("prefill queue", lambda split: split.for_prefill)
    if taken is None or not taken.is_wait():
        return
    together = cell.streams is not None and posts_on_loop(case) and holds_others(case)
    if (taken.ms < (spent or 0.0) or together) and (in_work(case) or 0.0) < BUSY:
        return
    numbers = [f"waiting for prefill takes {case.of_ttft(taken.ms)}"]
    if spent is not None:
        numbers.append(f"computing the prompt takes {spent:,.0f} ms")
    numbers += prefill_numbers(case)
    waiting = cell.window.send_mean("colocated" if case.colocated else "prefill", "waiting")
    if waiting is not None:
        numbers.append(f"{waiting:.1f} requests waited on average")
    advice = "Add a prefill instance, or lower the rate."
    if case.colocated:
        advice = "Add an instance, or lower the rate."
        if case.slots.available is None:
            numbers.append("whether they wait for a slot is not distinguishable: give --max-num-seqs")
    elif pinned(case):
        numbers.append("its KV pool was full of prompts that decode has not collected")
        advice = (
            "Find out why decode does not collect KV (its slots, its pool): prefill waits for blocks, not for compute."
        )
    confirm = "With one more prefill instance, its waiting falls to 0 at the same rate."
    yield case.named("prefill-queue", taken, numbers, advice, confirm)


def pinned(case: Case) -> bool:
    """Whether prefill's requests waited because its KV pool had no room for another prompt."""
    full = waits = 0
    for _, page in case.cell.window.pages("prefill"):
        need = prompt_share(case.cell, page.server)
        waiting = next((g for k, g in page.series.items() if k.canonical == "waiting" and k.kind == "gauge"), None)
        usage = next((g for k, g in page.series.items() if k.canonical == "kv_cache_usage"), None)
        if need is None or waiting is None or usage is None or len(waiting.t) != len(usage.t):
            continue
        waits += int((waiting.value > 0).sum())
        full += int(((waiting.value > 0) & (usage.value + need > 1.0)).sum())
    return waits > 0 and full >= PINNED_SHARE * waits


def prefill_compute(case: Case) -> Iterator[tuple[Cause, Taken | None]]:
    """Computing the prompt takes most of TTFT, and longer than a sentence of the answer."""
    taken = case.taken("prefill", compute)
    if taken is None or not taken.is_work() or not taken.is_long:
        return
    yield case.named(
        "prefill-compute",
        taken,
        [f"computing the prompt takes {case.of_ttft(taken.ms)}", *prefill_numbers(case)],
        "Give prefill more tensor parallelism or faster GPUs; more instances help its queue only.",
        "A request sent alone has the same prefill time.",
    )


def in_work(case: Case) -> float | None:
    """Prompts that each prefill server computes, on average over the time of sending."""
    spent, time = case.cell.window.delta("prefill", "prefill_s", "sum"), case.cell.send_s
    servers = case.cell.servers("prefill")
    return spent / time / servers if spent is not None and servers and time > 0 else None


def prefill_numbers(case: Case) -> Iterator[str]:
    """How many prompts are computed at a time, and how fast."""
    if (prompts := in_work(case)) is not None:
        yield f"each prefill server had {prompts:.1f} prompts in work on average"
    tokens, achieved = case.cell.answers.mean(case.cell.answers.prompt_tokens), case.cell.achieved
    if tokens is not None and achieved is not None:
        text = f"{tokens * achieved:,.0f} prompt tokens/s were served"
        hits = prefix_hits(case.cell, "colocated" if case.cell.mode == COLOCATED else "prefill")
        if hits is not None and hits > PREFIX_WARN_SHARE:
            text += f", {hits:.0%} of them from the prefix cache: this is no cold prefill"
        yield text
