"""What do SGLang's own figures of handoffs count? No page says it; version, backend and layout of its servers do.

Read from SGLang's source, 0.5.10 to 0.5.23. Its prefill counts, on every rank, the pages that it was to send times the
bytes of a page on that rank. That is what moved, but for models whose ranks hold the same KV (MLA): with fewer ranks on
decode it counts copies that nobody fetches, with more it did not count those that it sent, before 0.5.16. The time that
goes with the bytes is of all chunks of a prompt with NIXL only, since 0.5.12; else of the last chunk.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from pdbench.deployment import Deployment, Server

ALL_CHUNKS = ("nixl", (0, 5, 12))  # the backend that times a transfer from its first chunk, and since which version
COPIES = (0, 5, 16)  # the version since which every copy that a rank sends is counted


def bytes_unsure(deployment: Deployment) -> str | None:
    """Why what SGLang's prefill counts need not be the bytes that moved; `None` when it is."""
    prefill, decode = _ranks(deployment.of("prefill")), _ranks(deployment.of("decode"))
    if prefill is None or decode is None:
        return "not every SGLang server tells over how many ranks it spreads a request's KV"
    (least, most), (fewest, more) = prefill, decode
    if most > fewest:
        return (
            "prefill has more ranks than decode: of a model whose ranks hold the same KV, SGLang counts unsent copies"
        )
    if more > least and not _since(deployment.of("prefill"), COPIES):
        return "decode has more ranks than prefill: before 0.5.16 SGLang does not count every copy that it sends"
    return None


def time_unsure(deployment: Deployment) -> str | None:
    """Why the time that SGLang's prefill shows need not be that of the bytes it shows; `None` when it is."""
    prefill, (backend, version) = deployment.of("prefill"), ALL_CHUNKS
    backends = {server.facts.connector if server.facts else None for server in prefill}
    if not prefill or None in backends:
        return "not every SGLang server tells its transfer backend"
    if backends != {backend}:
        return f"SGLang times the last chunk of a prompt with {', '.join(sorted(map(str, backends)))}, and counts all"
    if not _since(prefill, version):
        return "before 0.5.12 SGLang times the last chunk of a prompt, and counts all"
    return None


def _ranks(servers: Sequence[Server]) -> tuple[int, int] | None:
    """Fewest and most ranks among these servers."""
    known = [server.facts.kv_ranks if server.facts else None for server in servers]
    ranks = [one for one in known if one is not None]
    return (min(ranks), max(ranks)) if ranks and len(ranks) == len(known) else None


def _since(servers: Sequence[Server], version: tuple[int, ...]) -> bool:
    """Whether all of these servers are of this version or a later one."""
    return all(_version(server) >= version for server in servers)


def _version(server: Server) -> tuple[int, ...]:
    numbers = re.match(r"(\d+)\.(\d+)\.(\d+)", (server.facts.version if server.facts else None) or "")
    return tuple(map(int, numbers.groups())) if numbers else ()
