"""Does the load fit into the servers' context? What was asked in so many words is refused; what a trace or a law drew
is cut, and told."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from pdbench.deployment import Deployment
from pdbench.errors import UsageError
from pdbench.sweep.plan import Cell, Plan
from pdbench.sweep.schedule import Schedule, cell_schedule


def fitted(plan: Plan, deployments: Iterable[Deployment]) -> Plan:
    """The plan with what is longer than the smallest context cut, and notes that say so.

    A resumed plan is not cut again: its cells are one load. Raises UsageError where a fixed length does not fit:
    servers differ in what they do then, an error, or, for the answer's part, silently fewer tokens.
    """
    limits = [
        server.facts.max_model_len
        for deployment in deployments
        for server in deployment.servers
        if server.facts and server.facts.max_model_len
    ]
    if not limits:
        return plan
    _refuse_fixed(plan, min(limits))
    if plan.max_model_len is not None:
        return plan
    cut = replace(plan, max_model_len=min(limits))
    notes = dict.fromkeys(note for cell in plan.cells for note in _told(plan, cut, cell))
    return replace(cut, notes=(*plan.notes, *notes))


def longest_prompt(plan: Plan) -> int:
    """The longest prompt that any cell sends: of a session its last turn's."""
    if plan.trace is not None:
        return max(int(cell_schedule(plan, cell, 0).prompt_len.max()) for cell in plan.cells)
    history = (plan.session_turns or 1) - 1
    longest = max(cell.prompt_len + history * (cell.prompt_len + cell.output_len) for cell in plan.cells)
    return max([longest, *(each.prompt_len or 0 for each in plan.classes)])


def _refuse_fixed(plan: Plan, limit: int) -> None:
    if plan.trace is not None:
        return
    turns = plan.session_turns or 1
    for prompt_len, output_len in _fixed(plan):
        if turns * (prompt_len + output_len) > limit:
            what = f"a prompt of {prompt_len} and an answer of {output_len} tokens do not fit"
            raise UsageError(
                f"{what if turns == 1 else f'{turns} turns, each of {what[:-11]},'} into max_model_len {limit}.",
                "Choose smaller --prompt-lens or --output-len, or start the servers with a larger --max-model-len.",
            )


def _fixed(plan: Plan) -> Iterable[tuple[int, int]]:
    """The fixed lengths of each kind of request; an answer of a law is at least one token."""
    for cell in plan.cells:
        if not plan.classes:
            yield cell.prompt_len, 1 if cell.output_law else cell.output_len
        for each in plan.classes:
            yield each.prompt_len or cell.prompt_len, int(each.output_law) if each.output_law.isdigit() else 1


def _told(plan: Plan, cut: Plan, cell: Cell) -> Iterable[str]:
    """What is cut from the cell, over all repeats."""
    answers = prompts = of = 0
    for repeat in range(1 if plan.trace else plan.repeats):
        before, after = cell_schedule(plan, cell, repeat), cell_schedule(cut, cell, repeat)
        prompts += _shorter(before, after, "prompt_len")
        answers += _shorter(before, after, "output_len")
        of += len(before)
    what = [f"{answers:,} answers"] if answers else []
    what += [f"{prompts:,} prompts"] if prompts else []
    if what:
        yield f"{' and '.join(what)} of {of:,} requests were cut to fit into max_model_len {cut.max_model_len:,}."


def _shorter(before: Schedule, after: Schedule, name: str) -> int:
    return int(np.count_nonzero(getattr(after, name) < getattr(before, name)))
