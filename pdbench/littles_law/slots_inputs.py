"""From options and files to a question: the mean load of classes or a trace, and the KV pool of a decoder."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pdbench.errors import UsageError
from pdbench.littles_law.slots_question import ClassLoad, PoolLimit, number, whole

if TYPE_CHECKING:
    from pdbench.littles_law.traces import TracedRequest

BLOCK_TOKENS = 16


@dataclass(frozen=True, slots=True)
class MeanLoad:
    """`values` and `weights` are the output lengths of a mixture; empty where there is one length."""

    qps: float
    out_tokens: float
    values: tuple[float, ...] = ()
    weights: tuple[float, ...] = ()


def mean_load(
    qps: float | None,
    out_tokens: float | None,
    classes: Sequence[ClassLoad],
    trace: Sequence[TracedRequest],
) -> MeanLoad:
    """The load that the options name: one length, classes, or a trace (at its own rate, or stretched to --qps)."""
    if classes and trace:
        raise UsageError("--class and --trace both say what the load is.", "Give one of them.")
    if classes:
        if qps is not None or out_tokens is not None:
            raise UsageError("--class has its own rate and length.", "Leave --qps and --out-tokens out.")
        total = math.fsum(one.qps for one in classes)
        mean = math.fsum(one.qps * one.out_tokens for one in classes) / total
        return MeanLoad(total, mean, tuple(one.out_tokens for one in classes), tuple(one.qps for one in classes))
    if trace:
        if out_tokens is not None:
            raise UsageError("--trace has its own output lengths.", "Leave --out-tokens out.")
        if trace[-1].at_s <= 0:
            raise UsageError("--trace: all requests have the same time, so it has no rate.")
        own_qps = (len(trace) - 1) / trace[-1].at_s
        counts = Counter(request.output_tokens for request in trace)
        mean = math.fsum(tokens * count for tokens, count in counts.items()) / len(trace)
        rate = own_qps if qps is None else number(qps, "--qps")
        return MeanLoad(rate, mean, tuple(map(float, counts)), tuple(map(float, counts.values())))
    return MeanLoad(number(qps, "--qps", least=0.0), number(out_tokens, "--out-tokens"))


def traced(path: Path | None) -> tuple[TracedRequest, ...]:
    if path is None:
        return ()
    from pdbench.littles_law.traces import read_trace

    return tuple(read_trace(path))


@dataclass(frozen=True, slots=True)
class Memory:
    """What the options say of the KV cache."""

    model: str | None
    model_config: Path | None
    kv_dtype: str
    tp: int
    hbm_gib: float | None
    kv_tokens: int | None
    prompt_len: float | None
    staging: int

    @property
    def given(self) -> bool:
        return any(v is not None for v in (self.model, self.model_config, self.hbm_gib, self.kv_tokens))


def pool_limit(memory: Memory, out_tokens: float) -> PoolLimit | None:
    """Sequences of a prompt and its answer that the KV pool of one decoder holds; `None` where nothing was asked."""
    if not memory.given:
        return None
    if (memory.hbm_gib is None) == (memory.kv_tokens is None):
        raise UsageError(
            "give the KV pool once: --hbm GIB (KV memory of one GPU) or --kv-tokens N.",
            "vLLM logs both at its start: 'Available KV cache memory' and 'GPU KV cache size'.",
        )
    tokens = number(memory.prompt_len, "--prompt-len") + out_tokens
    each = pool_bytes = None
    if memory.model is not None or memory.model_config is not None:
        from pdbench.littles_law.kv import KvPool
        from pdbench.littles_law.plan_options import shape_of

        shape = shape_of(memory.model, memory.model_config, memory.kv_dtype, memory.tp)
        each = KvPool(shape, 0.0, memory.tp, BLOCK_TOKENS).sequence_bytes(tokens)
        if memory.kv_tokens is not None:
            pool_bytes = memory.kv_tokens * shape.rank_bytes_per_token(memory.tp)
        else:
            pool_bytes = number(memory.hbm_gib, "--hbm") * 2**30
    if memory.kv_tokens is not None:
        blocks = math.ceil(tokens / BLOCK_TOKENS)
        sequences = (whole(memory.kv_tokens, "--kv-tokens") or 0) // (blocks * BLOCK_TOKENS)
    elif each is None or pool_bytes is None:
        raise UsageError("--hbm needs the model.", "Add --model Qwen3-32B or --model-config config.json.")
    else:
        sequences = math.floor(pool_bytes / each)
    found = PoolLimit(sequences, memory.staging, tokens, each, pool_bytes)
    if found.slots < 1:
        raise UsageError(
            f"no slot: the KV pool holds {sequences} sequences of {tokens:g} tokens, {memory.staging} in handoff.",
            "Give it more memory, shorter prompts, an FP8 KV cache, or more GPUs (--tp).",
        )
    return found
