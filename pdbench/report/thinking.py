"""Sessions whose thinking is not part of the history: what was generated is then no beginning of the next prompt."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from pdbench.report.answers import Answers
from pdbench.report.cell import Measured
from pdbench.report.finding import WARN, Finding
from pdbench.report.statistics import Floats, needed_for, percentile

DROPPED_SHARE = 0.5  # of the thinking tokens that the next prompt lacks: from here on the template dropped them
LEAST_TOKENS = 8.0  # a turn, on average: less is what templates and tokenizers differ by


def thinking_dropped(cell: Measured) -> Iterator[Finding]:
    """The chat template leaves the thinking trace out of the next turn's prompt."""
    thought, missing = _thought_and_missing(cell)
    if len(thought) == 0 or thought.mean() < LEAST_TOKENS:
        return
    if missing.mean() < DROPPED_SHARE * thought.mean():
        return
    yield Finding(
        "thinking-dropped",
        WARN,
        f"answers think for {thought.mean():,.0f} tokens and the next turn's prompt lacks {missing.mean():,.0f} of them"
        " (mean of a turn): the chat template drops the thinking trace. What was generated is then no beginning of the"
        " next prompt: caches help up to the last question only, and with bidirectional KV transfer decode's blocks are"
        " those of other tokens, so answers can be wrong, not just late. Turn bidirectional_kv_xfer off for this model,"
        " or keep the thinking in the template.",
    )


def thought_before(answers: Answers) -> Floats:
    """For each request, the thinking tokens of the answer before it in its session; 0 where there is none.

    Of one repeat: sessions of several have the same numbers.
    """
    if not np.any(answers.reasoning_tokens > 0):
        return np.zeros(len(answers))
    told = zip(answers.session, answers.turn, answers.reasoning_tokens, strict=True)
    known = {(session, turn): tokens for session, turn, tokens in told if tokens > 0}
    return np.array(
        [known.get((session, turn - 1), 0.0) for session, turn in zip(answers.session, answers.turn, strict=True)]
    )


def content_latency(answers: Answers) -> dict[str, float]:
    """mean, median and p99 of the time to the first piece of the answer itself, where answers begin with thinking.

    From the intended send, over the answered requests that have such a piece.
    """
    kept = answers.ok & np.isfinite(answers.first_content)
    if not np.any(kept & (answers.first_reasoning < answers.first_content)):
        return {}
    ordered = np.sort((answers.first_content - answers.intended)[kept] * 1000)
    found = {"mean_content_ttft_ms": float(ordered.mean())}
    for name, q in (("median", 0.5), ("p99", 0.99)):
        if len(ordered) >= needed_for(q) and (value := percentile(ordered, q, ordered=True)) is not None:
            found[f"{name}_content_ttft_ms"] = value
    return found


def behind_the_thinking(answers: Answers) -> Iterator[str]:
    """A remark where TTFT is not what a reader waits for."""
    thinks = answers.ok & np.isfinite(answers.first_reasoning) & ~(answers.first_content <= answers.first_reasoning)
    thinking, reached = int(thinks.sum()), thinks & np.isfinite(answers.first_content)
    if not thinking:
        return
    text = (
        f"{thinking:,} of {int(answers.ok.sum()):,} answers think first, and their TTFT is that of the thinking trace: "
    )
    if not np.any(reached):
        yield f"{text}the answer itself began in none of them. Ask for more output tokens."
        return
    mean_ms = float((answers.first_content - answers.intended)[reached].mean() * 1000)
    of = "" if reached.sum() == thinking else f" of the {int(reached.sum()):,} that came to it"
    yield f"{text}the answer itself began after {mean_ms:,.0f} ms (mean{of})."


def _thought_and_missing(cell: Measured) -> tuple[Floats, Floats]:
    """For each turn after an answer that thought: how long, and how much shorter the prompt is than the history."""
    answers = cell.answers
    before = thought_before(answers)
    after = answers.ok & (before > 0) & np.isfinite(answers.prompt_tokens)
    return before[after], (answers.prompt_len - answers.prompt_tokens)[after]
