"""Engines as data: which vocabularies an engine's pages are read with, and how a page betrays its engine."""

from __future__ import annotations

import re
from collections.abc import Iterable

from pdbench.probe.vocabulary.dynamo import DYNAMO
from pdbench.probe.vocabulary.series import Series, Vocabulary, gauge
from pdbench.probe.vocabulary.sglang import SGLANG
from pdbench.probe.vocabulary.trtllm import TRTLLM
from pdbench.probe.vocabulary.vllm import VLLM

# Every prometheus_client process shows this one (not in multi-process mode): a restart between two scrapes changes it.
PROCESS = Vocabulary("process", (), (gauge("process_start_s", "process_start_time_seconds"),))

ENGINES: dict[str, tuple[Vocabulary, ...]] = {
    "vllm": (VLLM, PROCESS),
    "dynamo": (DYNAMO, VLLM, SGLANG, TRTLLM, PROCESS),
    "sglang": (SGLANG, PROCESS),
    "trtllm": (TRTLLM, PROCESS),
}
UNKNOWN = (VLLM, DYNAMO, SGLANG, TRTLLM, PROCESS)

_GUESSES = (DYNAMO, VLLM, SGLANG, TRTLLM)  # Dynamo first: its workers also show their engine's names
_USEFUL = re.compile(r"waiting|running|queue|ttft|first_token|inflight|kv_cache", re.IGNORECASE)


def vocabularies(engine: str | None) -> tuple[Vocabulary, ...]:
    """The vocabularies for an engine's pages; all of them when the engine is not known."""
    return ENGINES.get(engine or "", UNKNOWN)


def family_names(page: bytes) -> set[str]:
    """The names of the samples of a page (with their suffixes)."""
    names = set()
    for line in page.splitlines():
        if line and not line.startswith(b"#"):
            name = line.partition(b"{")[0].split(None, 1)
            if name:
                names.add(name[0].decode("utf-8", "replace"))
    return names


def guess_engine(names: Iterable[str]) -> str | None:
    """The engine that a page's names betray, or None."""
    known = tuple(names)
    for vocabulary in _GUESSES:
        if any(name.startswith(vocabulary.marks) for name in known):
            return vocabulary.name
    return None


def useful_looking(names: Iterable[str], limit: int = 8) -> list[str]:
    """Names that look worth a table of their own, on a page whose engine is not known."""
    bare = {re.sub(r"_(bucket|sum|count|created)$", "", name) for name in names}
    return sorted(name for name in bare if _USEFUL.search(name) and name.isprintable())[:limit]


__all__ = [
    "ENGINES",
    "UNKNOWN",
    "Series",
    "Vocabulary",
    "family_names",
    "guess_engine",
    "useful_looking",
    "vocabularies",
]
