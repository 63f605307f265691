"""What a reader of `pdbench slots` should doubt, each with what to type next."""

from __future__ import annotations

from typing import Any

from pdbench.littles_law.slots_question import Question

FEW_TRACED = 1000
BATCH_APART = 1.25  # how far the batch of the measurement may be from the one that is asked about


def warnings(question: Question, document: dict[str, Any]) -> list[dict[str, str]]:
    found = [
        *_of_loop(question),
        *_of_tpot(question, document),
        *_of_lengths(question),
        *_of_pools(question, document),
        *_of_memory(question, document),
        *_of_run(question, document),
    ]
    return [{"code": code, "text": text} for code, text in found]


def _of_loop(question: Question) -> list[tuple[str, str]]:
    if not question.loop_held:
        return []
    text = (
        f"{question.loop_held[0].upper()}{question.loop_held[1:]}: TPOT grows with the batch for it, and more slots are"
        " the smaller part of the remedy. Move posting off the loop first (push, or a thread that posts)."
    )
    return [("held-loop", text)]


def _of_tpot(question: Question, document: dict[str, Any]) -> list[tuple[str, str]]:
    tpot, batch = question.demand.tpot, question.tpot_at_batch
    slots = question.slots
    if tpot.slope_ms > 0:
        if document["slots_needed"] is None or document["slots_for_slo"] is None:
            return [
                ("batch-too-slow", "The batch slows down faster than it grows: no number of slots carries this rate.")
            ]
        return []
    running = slots if slots is not None else document["slots_needed"]
    if batch is not None and running and max(batch, running) > BATCH_APART * min(batch, running):
        lower = "so it will be longer and waits too" if batch < running else "so it may be shorter"
        text = f"TPOT was measured at batch {batch:g}, a full pool runs {running:g}: {lower}. Give --tpot-slope."
        return [("tpot-batch", text)]
    wanted, seen = document["slots_for_slo"], batch or slots or (document["slots_needed"] or 0) / question.decoders
    if wanted is not None and wanted > seen:
        text = (
            f"TPOT is taken for {tpot.alone_ms:.3g} ms at any batch. It grows with the batch, above all where handoffs"
            f" are posted on decode's loop, and {wanted} slots may then be too few. Give its slope (--tpot-slope;"
            " --from-run takes it from a run that shows it), or measure with so many."
        )
        return [("tpot-constant", text)]
    return []


def _of_lengths(question: Question) -> list[tuple[str, str]]:
    if question.trace or question.demand.lengths.total_cv > 0:
        return []
    text = (
        "Assumes every answer has this length (--ignore-eos). If it is a mean of a mixed population, waits are longer: "
        "give --out-cv, --class or --trace."
    )
    return [("mean-length", text)]


def _of_pools(question: Question, document: dict[str, Any]) -> list[tuple[str, str]]:
    if question.decoders == 1:
        return []
    pools = document.get("pools", {})
    separate, one = pools.get("separate_wait_p99_ms"), pools.get("one_pool_wait_p99_ms")
    shown = f" p99 {separate:.0f} ms against {one:.0f} ms." if separate is not None and one is not None else ""
    text = (
        f"{question.decoders} decoders are {question.decoders} pools, not one of all slots:{shown} Routing at random."
    )
    return [("separate-pools", text)]


def _of_memory(question: Question, document: dict[str, Any]) -> list[tuple[str, str]]:
    pool, found = question.pool, []
    if pool is None:
        return []
    if question.max_num_seqs is not None and pool.slots < question.max_num_seqs:
        held = f"{pool.sequences} sequences of {pool.tokens_per_sequence:g} tokens, less {pool.staging} for handoffs"
        text = f"The KV pool holds {held}: only {pool.slots} of {question.max_num_seqs} slots can be filled."
        found.append(("kv-pool", text))
    wanted = document["slots_for_slo"]
    if wanted is not None and wanted > pool.slots:
        needs = "a larger KV pool"
        if pool.bytes_per_slot is not None and pool.pool_bytes is not None:
            asked_gib = (wanted + pool.staging) * pool.bytes_per_slot / 2**30
            needs = f"{asked_gib:.1f} GiB of KV on each GPU, there are {pool.pool_bytes / 2**30:.1f}"
        text = f"Raising max-num-seqs to {wanted} needs {needs}: does not fit. Add decoders."
        found.append(("kv-does-not-fit", text))
    return found


def _of_run(question: Question, document: dict[str, Any]) -> list[tuple[str, str]]:
    found = []
    if question.trace and len(question.trace) < FEW_TRACED:
        text = f"{len(question.trace)} traced requests carry no p99 wait: waits come in clusters."
        found.append(("short-trace", text))
    peak = document.get("trace", {}).get("peak_minute_slots_needed")
    if peak is not None and document["slots_available"] and peak > document["slots_available"]:
        text = f"The fullest minute needs {peak:.1f} slots: overload while it lasts, whatever the mean says."
        found.append(("peak-overload", text))
    if document.get("rule_80", {}).get("verdict") == "too loose" and document["max_qps"] == 0:
        found.append(("slo-unreachable", "No rate keeps this SLO on these slots."))
    return found
