"""The KV pool of a decoder as a second limit of its slots: handoffs hold KV before they hold a slot."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from pdbench.errors import UsageError
from pdbench.littles_law.slots_question import number, whole

BLOCK_TOKENS = 16


@dataclass(frozen=True, slots=True)
class PoolLimit:
    """What the KV pool of one decoder holds. `bytes_per_slot` (one GPU) is None where the model was not given."""

    sequences: int
    staging: int
    tokens_per_sequence: float
    bytes_per_slot: float | None
    pool_bytes: float | None

    @property
    def slots(self) -> int:
        return self.sequences - self.staging


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


def pool_limit(memory: Memory, out_tokens: float) -> PoolLimit:
    """Sequences of a prompt and its answer that the KV pool of one decoder holds."""
    if (memory.hbm_gib is None) == (memory.kv_tokens is None):
        raise UsageError(
            "give the KV pool once: --hbm GIB (KV memory of one GPU) or --kv-tokens N.",
            "vLLM logs both at its start: 'Available KV cache memory' and 'GPU KV cache size'.",
        )
    if memory.prompt_len is None:
        raise UsageError(
            "--prompt-len is missing: a sequence fills the KV pool with its prompt and its answer.",
            "Add --prompt-len TOKENS.",
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
