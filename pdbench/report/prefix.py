"""Prompt tokens that a server had in its prefix cache already: with random prompts nothing should be, and with prompts
that share their beginnings no more than they share."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from pdbench.report.cell import COLOCATED, Measured
from pdbench.report.finding import VOID, WARN, Finding

PREFIX_VOID_SHARE = 0.05
PREFIX_WARN_SHARE = 0.01
COMPUTERS = ("prefill", COLOCATED)  # roles that compute prompts
FEWER = 0.5  # of the expected hits: below, a reader should know that the caches did not hold what was shared
FEWER_LEAST = 0.05  # expected share from which on that is worth a word


def prefix_hits(cell: Measured, role: str | None = None, server: str = "") -> float | None:
    """Share of the prompt tokens looked up that were cached; `None` when no counter tells."""
    queries = cell.window.delta(role, "prefix_cache_queries", server=server)
    hits = cell.window.delta(role, "prefix_cache_hits", server=server)
    if queries is None or hits is None:
        hits = cell.window.delta(role, "prompt_tokens_by_source", server=server, source="local_cache_hit")
        queries = cell.window.delta(role, "prompt_tokens", server=server)
    if hits is None and (role or server).partition("-")[0] in COMPUTERS:  # on SGLang's decode they are prefill's
        hits = cell.window.delta(role, "cached_tokens", server=server)
    return None if hits is None or not queries else hits / queries


def expected_share(cell: Measured) -> float:
    """Share of the prompt tokens that an earlier request of the cell began with: what a cache that forgets nothing
    and starts empty would have."""
    answers = cell.answers
    asked = np.isfinite(answers.sent) & np.isfinite(answers.shared_len) & (answers.prompt_len > 0)
    return float(answers.shared_len[asked].sum() / answers.prompt_len[asked].sum()) if asked.any() else 0.0


def served_from_cache(cell: Measured) -> Iterator[Finding]:
    """The worst server, and what of the prompt tokens served was computed at all."""
    expected = expected_share(cell)
    worst = max(_shares(cell, expected), default=None)
    if worst is None or worst[0] - expected <= PREFIX_WARN_SHARE:
        return
    share, who = worst
    severity = VOID if share - expected > PREFIX_VOID_SHARE else WARN
    text = f"{who} had {share:.1%} of {'its' if expected == 0 else 'their'} prompt tokens in the prefix cache already"
    if expected:
        text += f", where the load's own shared beginnings make at most {expected:.1%}"
    beyond = "above" if expected == 0 else "beyond that above"
    text += f" (warn {beyond} {PREFIX_WARN_SHARE:.0%}, void above {PREFIX_VOID_SHARE:.0%})"
    tokens = cell.answers.mean(cell.answers.prompt_tokens)
    if severity == VOID and tokens is not None and cell.achieved is not None:
        served = tokens * cell.achieved
        text += (
            f": of {served:,.0f} prompt tokens/s served it computed at most {served * (1 - share):,.0f},"
            " so neither the rate nor the TTFT is that of fresh prompts"
        )
        text += _beyond_compute(cell, tokens, share)
    yield Finding(
        "prefix-cache-hits", severity, text + ". Give another --seed, or start servers with --no-enable-prefix-caching."
    )


def _beyond_compute(cell: Measured, tokens: float, share: float) -> str:
    """Where more is asked than prefill can compute, by what it did compute in the time that it worked.

    Nothing where its prompts overlapped: their times then add up to more than the servers worked.
    """
    spent, servers = cell.window.delta("prefill", "prefill_s", "sum"), cell.servers("prefill")
    if not spent or not servers or cell.rate is None or spent > servers * cell.window.duration_s:
        return ""
    computed = tokens * cell.answers.count("ok") * (1 - share)
    possible, asked = servers * computed / spent, tokens * cell.rate
    if asked <= possible:
        return ""
    return (
        f"; {asked:,.0f} prompt tokens/s are asked for, {asked / possible:.1f} times the {possible:,.0f} that prefill"
        " computes when it works: without the cache this load is impossible"
    )


def _shares(cell: Measured, expected: float) -> Iterator[tuple[float, str]]:
    """Share of cached tokens with whose it is: of each server, where nothing should be cached at all.

    Requests that share beginnings may be dealt out so that one server has more of them than another; all servers of a
    role together never have more than one cache that sees everything.
    """
    found = False
    for name in sorted({page.role if expected else page.server for _, page in cell.window.pages()}):
        share = prefix_hits(cell, name) if expected else prefix_hits(cell, server=name)
        if share is not None:
            found = True
            yield share, f"the {name} servers" if expected else name
    if not found and cell.mode == COLOCATED:
        known = cell.answers.ok & np.isfinite(cell.answers.cached_tokens) & (cell.answers.prompt_tokens > 0)
        if known.any():
            share = float(cell.answers.cached_tokens[known].sum() / cell.answers.prompt_tokens[known].sum())
            yield share, "the server (usage.cached_tokens)"


def prefix_cache(cell: Measured) -> dict[str, float]:
    """For a load whose prompts share beginnings: the expected share of cached tokens, and that of each role."""
    expected = expected_share(cell)
    if not expected:
        return {}
    roles = {role: share for role in cell.window.roles() if (share := prefix_hits(cell, role)) is not None}
    return {"expected_share": expected, **{f"{role}_share": share for role, share in roles.items()}}


def fewer_hits(cell: Measured) -> Iterator[str]:
    """A remark where the caches had far less than the load shares."""
    expected = expected_share(cell)
    best = max((share for role in cell.window.roles() if (share := prefix_hits(cell, role)) is not None), default=None)
    if best is not None and expected >= FEWER_LEAST and best < FEWER * expected:
        yield (
            f"prompts share {expected:.0%} of their tokens with earlier ones, {best:.0%} came from a prefix cache:"
            " it is off or too small, or requests that share a beginning go to different servers."
        )
