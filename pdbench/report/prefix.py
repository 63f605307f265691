"""Prompt tokens that a server had in its prefix cache already: with random prompts nothing should be."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from pdbench.report.cell import COLOCATED, Measured
from pdbench.report.finding import VOID, WARN, Finding

PREFIX_VOID_SHARE = 0.05
PREFIX_WARN_SHARE = 0.01


def prefix_hits(cell: Measured, role: str | None = None, server: str = "") -> float | None:
    """Share of the prompt tokens looked up that were cached; `None` when no counter tells."""
    queries = cell.window.delta(role, "prefix_cache_queries", server=server)
    hits = cell.window.delta(role, "prefix_cache_hits", server=server)
    if queries is None or hits is None:
        hits = cell.window.delta(role, "prompt_tokens_by_source", server=server, source="local_cache_hit")
        queries = cell.window.delta(role, "prompt_tokens", server=server)
    return None if hits is None or not queries else hits / queries


def served_from_cache(cell: Measured) -> Iterator[Finding]:
    """The worst server, and what of the prompt tokens served was computed at all."""
    shares = [
        (share, server)
        for server in sorted({page.server for _, page in cell.window.pages()})
        if (share := prefix_hits(cell, server=server)) is not None
    ]
    worst = max(shares, default=None)
    if worst is None and cell.mode == COLOCATED:
        known = cell.answers.ok & np.isfinite(cell.answers.cached_tokens) & (cell.answers.prompt_tokens > 0)
        if known.any():
            share = float(cell.answers.cached_tokens[known].sum() / cell.answers.prompt_tokens[known].sum())
            worst = (share, "the server (usage.cached_tokens)")
    if worst is None or worst[0] <= PREFIX_WARN_SHARE:
        return
    severity = VOID if worst[0] > PREFIX_VOID_SHARE else WARN
    text = (
        f"{worst[1]} had {worst[0]:.1%} of its prompt tokens in the prefix cache already"
        f" (warn above {PREFIX_WARN_SHARE:.0%}, void above {PREFIX_VOID_SHARE:.0%})"
    )
    tokens = cell.answers.mean(cell.answers.prompt_tokens)
    if severity == VOID and tokens is not None and cell.achieved is not None:
        served = tokens * cell.achieved
        text += (
            f": of {served:,.0f} prompt tokens/s served it computed at most {served * (1 - worst[0]):,.0f},"
            " so neither the rate nor the TTFT is that of fresh prompts"
        )
    yield Finding(
        "prefix-cache-hits", severity, text + ". Give another --seed, or start servers with --no-enable-prefix-caching."
    )
