"""The prompt's own part: waiting for prefill, and computing it."""

from __future__ import annotations

import math
from collections.abc import Iterator

from pdbench.report.causes.case import BUSY, Case, Cause, Taken
from pdbench.report.causes.loop import holds_others
from pdbench.report.causes.posting import posts_on_loop
from pdbench.report.cell import COLOCATED
from pdbench.report.prefix import PREFIX_WARN_SHARE, prefix_hits
from pdbench.report.split import Split
from pdbench.report.stages import prompt_share
from pdbench.report.uneven_prefill import one_prefill_overloaded, slow_prefill
from pdbench.report.wording import two_digits

PREFILL_QUEUE = "prefill queue"  # the time that it takes, as `Case.removed` has it
PLANNED = 0.6  # of an instance's time to plan for: a little below
SPARE = 1.5  # times the asked rate that the instances compute together: their number is not what is short
PINNED_SHARE = 0.5  # of the prefill servers' samples with requests waiting in which their KV pool was full


def compute(split: Split) -> float | None:
    return split.parts.get("prefill")


def prefill_queue(case: Case) -> Iterator[tuple[Cause, Taken | None]]:
    """Requests wait for prefill; co-located, where slots are known not to be what they wait for.

    A server that is busy for less than two thirds of the time, and for which they wait for less than computing the
    prompt then takes (in a steady state that is the same, M/D/1), is no bottleneck. Nor is it where streams in closed
    loop come to it together because posts on decode's loop let them go together, however long they then wait; whether
    they do, decode's page says.
    """
    cell, spent = case.cell, case.split.parts.get("prefill")
    taken = case.taken(PREFILL_QUEUE, lambda split: split.for_prefill)
    if taken is None or not taken.is_wait():
        return
    let_go = "decode" in cell.unread or (posts_on_loop(case) and holds_others(case))
    together = cell.streams is not None and let_go
    if (taken.ms < (spent or 0.0) or together) and (in_work(case) or 0.0) < BUSY:
        return
    numbers = [f"waiting for prefill takes {case.of_ttft(taken.ms)}"]
    if spent is not None:
        numbers.append(f"computing the prompt takes {spent:,.0f} ms")
    numbers += prefill_numbers(case)
    waiting = cell.window.send_mean("colocated" if case.colocated else "prefill", "waiting")
    if waiting is not None:
        numbers.append(f"{waiting:.1f} requests waited on average")
    advice, confirm = _instances(case, taken.ms, spent)
    if case.colocated:
        if case.slots.available is None:
            numbers.append("whether they wait for a slot is not distinguishable: give --max-num-seqs")
    elif pinned(case):
        numbers.append("its KV pool was full of prompts that decode has not collected")
        advice = (
            "Find out why decode does not collect KV (its slots, its pool): prefill waits for blocks, not for compute."
        )
        confirm = "Once decode collects KV as fast as it comes, prefill's waiting falls to 0."
    elif (slow := slow_prefill(cell)) is not None:
        numbers.append(slow.text())
        advice, confirm = slow.advice(), slow.confirm()
    elif cell.rate is not None and (alone := one_prefill_overloaded(cell)) is not None:
        numbers.append(alone)
        advice = "Spread the requests evenly over the prefill instances: the others have time to spare."
        confirm = "With as many requests at each instance none waits for longer than at the others."
    yield case.named("prefill-queue", taken, numbers, advice, confirm)


def _instances(case: Case, wait_ms: float, spent_ms: float | None) -> tuple[str, str]:
    """How many prefill instances the load needs, or which load these carry: each busy for `PLANNED` of the time.

    In closed loop the load is that of streams which no longer wait here: their rate rises as the wait falls.
    """
    cell, one = case.cell, "another instance" if case.colocated else "another prefill instance"
    lower = "fewer streams" if cell.streams is not None else "a lower rate"
    unknown = (f"Add {one}, or send {lower}.", "The wait for prefill falls with each instance that is added.")
    servers, e2el = cell.servers("prefill"), cell.answers.mean(cell.answers.e2el_ms)
    if case.colocated or not spent_ms or not servers or not e2el or not cell.offered:
        return unknown
    running = (cell.window.send_mean("prefill", "running") or 0.0) / servers
    each_ms = spent_ms / max(1.0, running)  # prompts that are computed together share its time
    rate = 1000 * cell.streams / (e2el - wait_ms) if cell.streams is not None else cell.offered
    load = rate * each_ms / 1000
    needed = max(servers + 1, math.ceil(load / PLANNED))
    if cell.streams is not None:
        needed = max(servers + 1, min(needed, cell.streams))  # no stream ever waits for another then
        fewer = int(cell.streams * PLANNED * servers / load)
        lower = f" or send at most {fewer} streams" if 0 < fewer < cell.streams else ""
        load_text = f"{cell.streams} streams that do not wait for it make {two_digits(rate)} req/s"
        same = f"the same streams make up to {two_digits(rate)} instead of {two_digits(cell.achieved or 0.0)} req/s"
    else:
        most = float(f"{PLANNED * servers * 1000 / each_ms:.2g}")
        lower = f" or lower the rate to {most:g} req/s (limit: prefill)" if most < cell.offered else ""
        load_text = f"{rate:.3g} req/s are asked"
        same = "at the same rate the wait is no longer than computing a prompt"
    carried = 1000 * servers / each_ms
    if cell.rate is not None and not cell.stages and servers > 1 and carried >= SPARE * rate:
        return (
            f"Look at how requests are spread over the {servers} prefill instances, and at bursts of arrivals: together"
            f" they compute {two_digits(carried)} req/s where {rate:.3g} are asked; another shortens only what bursts"
            " wait.",
            "Spread evenly, the same load waits less.",
        )
    advice = (
        f"Use {needed} prefill instances instead of {servers}{',' + lower if lower else ''}: {load_text},"
        f" {servers} of them {'computes' if servers == 1 else 'compute'} {two_digits(carried)}."
    )
    return advice, f"With {needed} prefill instances each is busy for {load / needed:.0%} of the time, and {same}."


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
    """Computing the prompt takes most of TTFT, and longer than a sentence of the answer; or what one slow server takes
    beyond the others is a quarter of it, unless it is named already with those who wait for that server."""
    slow = slow_prefill(case.cell)
    if slow is not None and PREFILL_QUEUE not in case.removed:
        taken = case.taken("prefill", lambda split: split.get("prefill") * slow.excess)
        if taken is not None and taken.is_wait():
            numbers = [f"what it takes longer is {case.of_ttft(taken.ms)}", *prefill_numbers(case)]
            yield case.named("prefill-compute", taken, [slow.text(), *numbers], slow.advice(), slow.confirm())
            return
    excess = 0.0 if slow is None else slow.excess
    taken = case.taken("prefill", lambda split: None if (ms := compute(split)) is None else ms * (1 - excess))
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
