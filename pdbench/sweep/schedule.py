"""What does a cell send, and when? All of it, drawn before the first request leaves.

A schedule is plain arrays, one entry a request, and a function of plan, cell and repeat alone: whoever draws it, in
whichever process, draws the same one, so that several senders can each take their share of its indexes. Every random
part has a generator of its own, seeded from the cell's seed, so that a change of one leaves the others as they were.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pdbench.errors import UsageError
from pdbench.sweep.arrivals import Offsets, schedule
from pdbench.sweep.classes import TrafficClass
from pdbench.sweep.lengths import law, the_trace
from pdbench.sweep.plan import Cell, Plan
from pdbench.sweep.stages import bent, expected
from pdbench.traces import BLOCK_TOKENS, Trace, TracedRequest

Ints = NDArray[np.int64]

ARRIVALS, LENGTHS, PREFIXES, THINKING = 1, 2, 3, 4  # what a generator is for
_CLOSED_KNOWN = 1 << 16  # a closed loop may send more than anybody knows: what is asked repeats after so many


@dataclass(frozen=True, slots=True)
class Ask:
    """What one request asks for.

    Its prompt begins with `pieces` of `piece_len` tokens each, which other requests may begin with too, and goes on
    with tokens of its own; `shared_len` is how many of its tokens an earlier request of the cell began with.
    """

    prompt_len: int
    output_len: int
    request_class: str = "default"
    pieces: tuple[int, ...] = ()
    piece_len: int = 0
    shared_len: int = 0
    session: int | None = None
    turn: int | None = None  # from 1
    tell_session: bool = True  # name the session to the server


@dataclass(frozen=True, slots=True, eq=False)
class Schedule:
    """The requests of one cell and repeat in order of time; arrays have one entry a request."""

    offset_s: Offsets | None  # from the cell's start; None in a closed loop, where answers set the pace
    class_of: Ints  # index in `classes`
    classes: tuple[str, ...]
    prompt_len: Ints
    output_len: Ints
    prefix_of: Ints  # which shared beginning a prompt has; -1: none
    prefix_len: int
    blocks: tuple[tuple[int, ...], ...]  # of a trace that names its prompts block by block; else empty
    shared_len: Ints
    complete: bool = False  # ends with its last request: nothing would follow it, however long the cell lasts

    def __len__(self) -> int:
        return len(self.prompt_len)

    def ask(self, index: int) -> Ask:
        """What the request with this index asks for."""
        at = index % len(self)
        prefix = int(self.prefix_of[at])
        pieces = self.blocks[at] if self.blocks else (prefix,) if prefix >= 0 else ()
        return Ask(
            prompt_len=int(self.prompt_len[at]),
            output_len=int(self.output_len[at]),
            request_class=self.classes[self.class_of[at]],
            pieces=pieces,
            piece_len=BLOCK_TOKENS if self.blocks else self.prefix_len,
            shared_len=int(self.shared_len[at]) if index < len(self) or prefix < 0 else self.prefix_len,
        )


def cell_schedule(plan: Plan, cell: Cell, repeat: int) -> Schedule:
    """The schedule of one cell and repeat. Raises UsageError when a trace of the plan is another file now."""
    plan = plan.of(cell)
    for path, digest in plan.digests.items():
        if the_trace(Path(path)).digest != digest:
            raise UsageError(f"{path} is not the trace that the run began with.", "Bring the old file back.")
    if plan.trace is not None:
        return _replayed(plan, cell)
    seed = plan.cell_seed(cell, repeat)
    classes = plan.classes or (TrafficClass("default", 1.0, cell.output_law or str(cell.output_len)),)
    if cell.request_rate is None:
        n = _CLOSED_KNOWN if plan.num_prompts is None else plan.num_prompts
        offsets, class_of = None, np.zeros(n, dtype=np.int64)
    else:
        offsets, class_of = _arrivals(plan, cell.request_rate, classes, seed)
        n = len(offsets)
    prompt_len, output_len = np.empty(n, dtype=np.int64), np.empty(n, dtype=np.int64)
    prefix_of = np.full(n, -1, dtype=np.int64)
    for number, each in enumerate(classes):
        of = np.flatnonzero(class_of == number)
        prompt_len[of] = each.prompt_len or cell.prompt_len
        output_len[of] = law(each.output_law).drawn(len(of), generator(seed, LENGTHS, number))
        if plan.prefix_len:
            drawn = generator(seed, PREFIXES, number).integers(0, plan.num_prefixes, len(of))
            prefix_of[of] = number * plan.num_prefixes + drawn
    names = tuple(each.name for each in classes)
    if plan.max_model_len is not None:
        output_len = np.clip(output_len, 1, np.maximum(plan.max_model_len - prompt_len, 1))
    shared = np.where(_seen_before(prefix_of), plan.prefix_len, 0)
    complete = plan.num_prompts is not None and n >= plan.num_prompts
    return Schedule(offsets, class_of, names, prompt_len, output_len, prefix_of, plan.prefix_len, (), shared, complete)


def generator(seed: int, purpose: int, number: int) -> np.random.Generator:
    """The random numbers of one part of a cell."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, purpose, number])))


def _arrivals(plan: Plan, rate: float, classes: Sequence[TrafficClass], seed: int) -> tuple[Offsets, Ints]:
    """When each request leaves, and its class: every class is a process of its own, and all together are the whole."""
    if len(classes) == 1:
        rngs = [np.random.Generator(np.random.PCG64(seed))]
    else:
        rngs = [generator(seed, ARRIVALS, number) for number in range(len(classes))]
    whole = sum(each.rate for each in classes)
    streams = [_offsets(plan, rate, each.rate / whole, rng) for each, rng in zip(classes, rngs, strict=True)]
    offsets = np.concatenate(streams)
    class_of = np.repeat(np.arange(len(classes)), [len(stream) for stream in streams])
    order = np.argsort(offsets, kind="stable")[: plan.num_prompts]
    return offsets[order], class_of[order]


def _offsets(plan: Plan, rate: float, share: float, rng: np.random.Generator) -> Offsets:
    """The arrivals of a class that has `share` of the rate."""
    if not plan.stages:
        return schedule(plan.arrivals, rate * share, plan.burstiness, plan.num_prompts, plan.duration_s, rng)
    own = expected(plan.stages) * share
    counts = schedule(plan.arrivals, 1.0, plan.burstiness, plan.num_prompts, own, rng)
    return bent(counts / share, plan.stages)


def _seen_before(ids: Ints) -> NDArray[np.bool_]:
    """Whether an id other than -1 stands for the second time or a later one."""
    again = np.ones(len(ids), dtype=bool)
    again[np.unique(ids, return_index=True)[1]] = False
    return again & (ids >= 0)


def _replayed(plan: Plan, cell: Cell) -> Schedule:
    """A trace at the cell's speed: its times, its lengths, and the beginnings that its prompts share."""
    trace = the_trace(Path(plan.trace or ""))
    requests = _replayed_requests(trace, plan, cell.speed or 1.0)
    n = len(requests)
    offsets = np.array([request.at_s for request in requests]) / (cell.speed or 1.0)
    prompt_len, output_len = fitted(
        np.array([request.prompt_tokens for request in requests], dtype=np.int64),
        np.array([request.output_tokens for request in requests], dtype=np.int64),
        plan.max_model_len,
    )
    blocks = tuple(request.blocks for request in requests) if any(request.blocks for request in requests) else ()
    shared = _known_tokens(blocks, prompt_len) if blocks else np.zeros(n, dtype=np.int64)
    one_class, no_prefix = np.zeros(n, dtype=np.int64), np.full(n, -1, dtype=np.int64)
    complete = n in (len(trace.requests), plan.num_prompts)
    return Schedule(offsets, one_class, ("default",), prompt_len, output_len, no_prefix, 0, blocks, shared, complete)


def _replayed_requests(trace: Trace, plan: Plan, speed: float) -> tuple[TracedRequest, ...]:
    """The requests of the trace that the plan's limits leave."""
    end_s = None if plan.duration_s is None else plan.duration_s * speed
    kept = [request for request in trace.requests[: plan.num_prompts] if end_s is None or request.at_s < end_s]
    for place, request in enumerate(kept):
        if request.blocks and len(request.blocks) != -(-request.prompt_tokens // BLOCK_TOKENS):
            raise UsageError(
                f"--trace {plan.trace}: request {place + 1} has {len(request.blocks)} hash_ids for"
                f" {request.prompt_tokens:,} tokens; Mooncake's blocks have {BLOCK_TOKENS}."
            )
    return tuple(kept)


def fitted(prompt_len: Ints, output_len: Ints, longest: int | None) -> tuple[Ints, Ints]:
    """Lengths cut to a context of `longest` tokens: the answer first, to no less than one token, then the prompt."""
    if longest is None:
        return prompt_len, output_len
    prompt_len = np.minimum(prompt_len, longest - 1)
    return prompt_len, np.minimum(output_len, longest - prompt_len)


def _known_tokens(blocks: Sequence[Sequence[int]], prompt_len: Ints) -> Ints:
    """For each prompt, the tokens that it begins with and an earlier prompt began with too."""
    known: dict[int, int] = {}  # block -> tokens of it that were in some prompt: the last block may be cut
    found = np.zeros(len(blocks), dtype=np.int64)
    for place, ids in enumerate(blocks):
        leading = True
        for number, block in enumerate(ids):
            own = max(0, min(BLOCK_TOKENS, int(prompt_len[place]) - number * BLOCK_TOKENS))
            before = known.get(block, 0)
            found[place] += min(own, before) if leading else 0
            leading = leading and before == BLOCK_TOKENS
            known[block] = max(own, before)
    return found
