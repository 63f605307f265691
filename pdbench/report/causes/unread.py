"""What can be said of a role whose metrics page nobody read: that its time is unknown, and what the client saw of it.

The client sees TTFT, how it moves during the cell, and when streams stand still. None of it tells a wait for decode's
slots from one for prefill, for the transfer or in the proxy: each makes the same first tokens late. Nor do streams that
stand still while others begin tell a handoff on decode's loop from a prompt that is computed beside them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from pdbench.deployment import DEFAULT_TARGET, flags_for
from pdbench.report.causes.case import NOTICED_TURNS, SENTENCE_TURNS, Case, Cause, Taken
from pdbench.report.causes.loop import held_as_seen, lost_turns, much_held
from pdbench.report.causes.prefill import PREFILL_QUEUE
from pdbench.report.cell import COLOCATED
from pdbench.report.split import Split

UNMEASURED = ("decode queue", "prefill leg", "client")  # what causes take and the split has in `unexplained`
HIDDEN = {
    "slot_wait": "a wait for decode's slots or KV blocks",
    "prefill": "prefill's queue and compute",
    "transfer": "the transfer",
    "poll": "its late notice",
    "proxy": "the proxy",
}
HIDDEN_COLOCATED = "the server's queue (for a slot, KV blocks or its turn) and its compute, or the network"


def unread_roles(case: Case, named: Mapping[str, Cause]) -> Iterator[tuple[Cause, Taken | None]]:
    """A long or growing TTFT where a role's page was not read: what of it hides there."""
    cell = case.cell
    if not cell.unread or _not_looked_for(case):
        return
    if "decode-slots" in named and named["decode-slots"].share is None:
        return  # it says that its share is not known
    taken, tpot, slots = _unseen(case), cell.answers.mean(cell.answers.tpot_ms), case.slots
    if taken is None:
        return
    numbers = [_passes_unseen(case, taken), *_as_seen(case)]
    held = _held_text(case)
    if held is not None:
        numbers.append(held)
    elif tpot is not None:
        numbers.append(f"TPOT is {tpot:.1f} ms")
    if slots.demand is not None:
        known = f" of {slots.available} ({slots.source})" if slots.available is not None else ""
        numbers.append(f"at that TPOT the load needs {slots.demand:.1f} slots{known}")
    confirm = "With the pages read, one part of the split of TTFT holds it."
    yield case.named("not-distinguishable", taken, numbers, _advice(case), confirm)


def _not_looked_for(case: Case) -> bool:
    """Whether nobody meant to read pages: no engine had a part in it, or another tool measured."""
    return case.cell.renders_only or bool(case.cell.deployment.get("imported"))


def _unseen(case: Case) -> Taken | None:
    """What of TTFT no page accounts for, where it is long or TTFT grows; else `None`."""

    def unseen(split: Split) -> float:
        known = (case.removed[key](split) for key in UNMEASURED if key in case.removed)
        return split.get("unexplained") - sum(ms or 0.0 for ms in known) + _come_together_ms(case, split)

    taken = case.taken("unseen", unseen)
    grows = _growth_ms(case) is not None and not case.removed  # else what was named may be what grows
    if taken is None or not ((taken.is_work() and taken.is_long) or (grows and taken.is_wait())):
        return None
    return taken


def _come_together_ms(case: Case, split: Split) -> float:
    """In closed loop, what streams wait for a prefill that is often free: if decode lets them go together, they come to
    it together, and that is not read."""
    closed = case.cell.streams is not None and "decode" in case.cell.unread and PREFILL_QUEUE not in case.removed
    return split.for_prefill or 0.0 if closed else 0.0


def held_unseen(case: Case | None, causes: Sequence[Cause]) -> Iterator[str]:
    """A note on streams that stand still where decode's page was not read and TTFT gives no cause to say so."""
    said = any(cause.cause == "not-distinguishable" for cause in causes)
    if case is not None and not said and not _not_looked_for(case) and (text := _held_text(case)) is not None:
        yield f"{text}."


def _held_text(case: Case) -> str | None:
    """Streams that lose much when others begin, on a decode whose page would say to what."""
    turns = case.turns
    if turns is None or "decode" not in case.cell.unread or lost_turns(case, turns) < NOTICED_TURNS:
        return None
    loop = held_as_seen(turns)
    if loop is None or not much_held(loop):
        return None
    return (
        f"{loop.value:.0%} of the streams' time ({loop.low:.0%} to {loop.high:.0%}) is lost when others begin: TPOT"
        f" is {turns.mean_ms:.1f} ms, {turns.quiet_ms:.1f} ms in the turns between; without decode's page"
        " handoffs on its loop, prompts that are computed there and preemptions look the same"
    )


def _growth_ms(case: Case) -> float | None:
    """Growth of TTFT a request, where a repeat was called growing: the steepest of them."""
    seen = () if case.cell.stages else case.cell.steadiness
    return max((judged.growth_ms for judged in seen if judged.growth_ms is not None), default=None)


def _passes_unseen(case: Case, taken: Taken) -> str:
    """How much of TTFT it is, and where it may pass."""
    hidden = HIDDEN_COLOCATED
    if not case.colocated:
        known = {*case.split.parts, *(["proxy"] if case.cell.cell.get("drive", "proxy") != "proxy" else [])}
        *others, last = (text for part, text in HIDDEN.items() if part not in known)
        hidden = f"{', '.join(others)} and {last}" if others else last
    roles = " and ".join(case.cell.unread)
    nobody = "no page tells of the cell" if case.cell.doubts else "no metrics page was read"
    text = f"{case.of_ttft(taken.ms)} pass where {nobody} ({roles})"
    return f"{text}: {hidden} look the same to a client"


def _as_seen(case: Case) -> Iterator[str]:
    """How TTFT moves during the cell and what the reader has of it; the legs, where pdbench handed over itself."""
    if (together := _come_together_ms(case, case.split)) > 0:
        yield f"{together:,.0f} ms of it wait for prefill, where streams come together if decode lets them go together"
    growth, answers = _growth_ms(case), case.cell.answers
    if growth is not None:
        yield f"TTFT grows {growth:,.1f} ms a request, as where something is full"
    elif any(judged.ttft is not None for judged in case.cell.steadiness) and not case.cell.stages:
        yield "TTFT does not grow during the cell"
    if case.pace_ms:
        tokens = case.mean_ttft_ms / case.pace_ms
        yield f"a stream makes {tokens:,.0f} tokens in that time ({SENTENCE_TURNS:.0f} are a sentence)"
    prefill_s, decode_s = answers.prefill_done - answers.prefill_sent, answers.first - answers.decode_sent
    prefill, decode = answers.mean(prefill_s * 1000), answers.mean(decode_s * 1000)
    if prefill is not None and decode is not None:
        yield f"the prefill leg takes {prefill:,.0f} ms, the decode leg {decode:,.0f} ms"


def _advice(case: Case) -> str:
    """Give the roles that were not given; let the pages of those that were be read."""
    cell = case.cell
    absent = [role for role in cell.unread if not cell.has_role(role)]
    silent = [role for role in cell.unread if cell.has_role(role) and role not in cell.doubts]
    pages = " and ".join("the server" if role == COLOCATED else role for role in silent)
    texts = [f"Give {flags_for(absent, str(cell.deployment.get('target') or DEFAULT_TARGET))}"] if absent else []
    texts += [f"{'let' if texts else 'Let'} pdbench read the metrics page of {pages}"] if silent else []
    doubted = " and ".join(dict.fromkeys(doubt.advice for doubt in cell.doubts.values()))
    texts += [doubted if texts else doubted[:1].upper() + doubted[1:]] if doubted else []
    return f"{' and '.join(texts)}, then measure again: what TTFT is made of, and what is full, stands on those pages."
