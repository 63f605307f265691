"""From options and files to the mean load (one length, classes, or a trace) and the KV pool."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pdbench.errors import UsageError
from pdbench.littles_law.slots_question import number

if TYPE_CHECKING:
    from pdbench.littles_law.slots_classes import ClassLoad
    from pdbench.littles_law.slots_pool import PoolLimit
    from pdbench.traces import TracedRequest


def mean_load(
    qps: float | None,
    out_tokens: float | None,
    classes: Sequence[ClassLoad],
    trace: Sequence[TracedRequest],
) -> tuple[float, float, tuple[float, ...], tuple[float, ...]]:
    """Rate, mean length, and the lengths of a mixture with their weights (empty where there is one length).

    From one length, classes, or a trace (at its own rate, or stretched to --qps).
    """
    if classes and trace:
        raise UsageError("--class and --trace both say what the load is.", "Give one of them.")
    if classes:
        if qps is not None or out_tokens is not None:
            raise UsageError("--class has its own rate and length.", "Leave --qps and --out-tokens out.")
        total = math.fsum(one.qps for one in classes)
        mean = math.fsum(one.qps * one.out_tokens for one in classes) / total
        return (total, mean, tuple(one.out_tokens for one in classes), tuple(one.qps for one in classes))
    if trace:
        if out_tokens is not None:
            raise UsageError("--trace has its own output lengths.", "Leave --out-tokens out.")
        if trace[-1].at_s <= 0:
            raise UsageError("--trace: all requests have the same time, so it has no rate.")
        own_qps = (len(trace) - 1) / trace[-1].at_s
        from collections import Counter

        counts = Counter(request.output_tokens for request in trace)
        mean = math.fsum(tokens * count for tokens, count in counts.items()) / len(trace)
        rate = own_qps if qps is None else number(qps, "--qps")
        return (rate, mean, tuple(map(float, counts)), tuple(map(float, counts.values())))
    return (number(qps, "--qps", least=0.0), number(out_tokens, "--out-tokens"), (), ())


def traced(path: Path | None) -> tuple[TracedRequest, ...]:
    if path is None:
        return ()
    from pdbench.traces import read_trace

    return read_trace(path).requests


def classed(texts: Sequence[str] | None) -> tuple[ClassLoad, ...]:
    if not texts:
        return ()
    from pdbench.littles_law.slots_classes import classes_of

    return classes_of(texts)


def pooled(
    out_tokens: float,
    model: str | None,
    model_config: Path | None,
    kv_dtype: str,
    tp: int,
    hbm_gib: float | None,
    kv_tokens: int | None,
    prompt_len: float | None,
    staging: int,
) -> PoolLimit | None:
    """What the KV pool holds; `None` where no option says anything of it."""
    if (model, model_config, hbm_gib, kv_tokens) == (None, None, None, None):
        return None
    from pdbench.littles_law.slots_pool import Memory, pool_limit

    return pool_limit(Memory(model, model_config, kv_dtype, tp, hbm_gib, kv_tokens, prompt_len, staging), out_tokens)
