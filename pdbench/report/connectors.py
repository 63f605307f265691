"""What did each server's KV connectors move, of which kind, and how fast?

One entry a server and direction, from what vLLM's connectors and SGLang's prefill show; a figure whose series a
connector lacks is not measured. Only a handoff brings KV from prefill to decode: what an offload or a store loads and
keeps is no part of the TTFT split.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pdbench.report.cell import Measured
from pdbench.report.handoffs import BYTES, NIXL, SGLANG, TIME, doubts
from pdbench.report.link_use import together_gb_s

OK = {"status": "ok"}


@dataclass(frozen=True, slots=True)
class Way:
    """One direction of one connector: its series as `canonical:kind`, empty where it has none.

    `where`: labels of the samples. `moved`: further labels of those that moved their KV; Mooncake's store counts the
    bytes of operations that failed as well. `post_s`: the part of `time_s` in which an operation is only asked for.
    """

    connector: str
    direction: str
    operations: str = ""
    nbytes: str = ""
    time_s: str = ""
    failed: str = ""
    failed_what: str = ""
    hits: str = ""
    queries: str = ""
    misses: str = ""  # where there is no series of all queries
    hits_of: str = ""
    post_s: str = ""
    where: Mapping[str, str] = field(default_factory=dict)
    moved: Mapping[str, str] = field(default_factory=dict)


def _store(direction: str, operation: str) -> Way:
    names = ("store_operation_s:count", "store_nbytes:counter", "store_operation_s:sum", "store_failed_keys:counter")
    return Way("Mooncake store", direction, *names, "keys", where={"operation": operation}, moved=OK)


_HANDOFF = ("nixl_xfer_s:count", "nixl_nbytes:sum", "nixl_xfer_s:sum", "nixl_failed_transfers:counter")
_LOADS = ("offload_load_each_nbytes:count", "offload_load_nbytes:counter", "offload_load_s:counter")
_SAVES = ("offload_store_each_nbytes:count", "offload_store_nbytes:counter", "offload_store_s:counter")
_LMCACHE_HITS = ("lmcache_hit_tokens:counter", "lmcache_requested_tokens:counter", "", "tokens")
_HISPARSE_HITS = ("hisparse_hits:counter", "", "hisparse_misses:counter", "rows")
_TIER_HITS = ("offload_tier_hits:counter", "offload_tier_queries:counter", "", "chunks")
_SGLANG = ("kv_transfer_nbytes:count", "kv_transfer_nbytes:sum", "kv_transfer_s:sum", "failed_transfers:counter")
HANDOFFS = (
    Way(NIXL, "handoff", *_HANDOFF, "transfers", post_s="nixl_post_s"),
    Way(SGLANG, "handoff", *_SGLANG, "requests"),
)
UNSURE = {BYTES: ("nbytes", "gb_s"), TIME: ("time_s", "mean_ms", "gb_s")}
OFFLOAD = (
    Way("offload", "load", *_LOADS),
    Way("offload", "save", *_SAVES, "offload_no_room:counter", "without room"),
)
STORES = (
    _store("load", "load_get"),
    _store("save", "save_put"),
    Way("HF3FS", "load", "hf3fs_load_s:count", "", "hf3fs_load_s:sum", "hf3fs_failed_loads:counter", "loads"),
    Way("HF3FS", "save", "hf3fs_save_s:count", "", "hf3fs_save_s:sum", "hf3fs_failed_saves:counter", "saves"),
    Way("LMCache", "load", "lmcache_retrieve_s:count", "", "lmcache_retrieve_s:sum", "", "", *_LMCACHE_HITS),
    Way("LMCache", "save", "lmcache_store_s:count", "", "lmcache_store_s:sum"),
    Way("HiSparse", "load", "", "hisparse_load_nbytes:counter", "", "", "", *_HISPARSE_HITS),
)


def connectors(cell: Measured) -> list[dict[str, Any]]:
    """An entry for each server and direction whose series are there; of handoffs where one was made or failed."""
    return [entry for server in _servers(cell) for entry in _of_server(cell, *server)]


def _servers(cell: Measured) -> list[tuple[str, str]]:
    return sorted({(page.server, page.role) for _, page in cell.window.pages()})


def _of_server(cell: Measured, server: str, role: str) -> Iterator[dict[str, Any]]:
    ways = (*OFFLOAD, *_tiers(cell, server), *STORES)
    stores = [entry for way in ways if (entry := _entry(cell, server, role, way)) is not None]
    moved = [entry for way in HANDOFFS if (entry := _entry(cell, server, role, way)) is not None]
    handoff = next((entry for entry in moved if entry["operations"] or entry["failed"]), None)
    if handoff is not None:
        handoff["together_gb_s"], handoff["together_is_least"] = together_gb_s(cell, server) or (None, None)
        yield _certain(cell, handoff) if handoff["connector"] == SGLANG else handoff
    alone = len({entry["connector"].partition(" tier")[0] for entry in stores}) == 1
    if alone and not moved and role != "decode":  # whose prompts come by connectors without series too
        _add_share_of_prompts(cell, server, stores)
    yield from stores


def _tiers(cell: Measured, server: str) -> Iterator[Way]:
    """Disks and the like behind host memory, each under the name that vLLM gives it."""
    keys = [k for _, page in cell.window.pages() if page.server == server for k in page.deltas]
    for tier in sorted({dict(k.labels).get("tier", "") for k in keys if k.canonical.startswith("offload_tier_")}):
        for direction, verb, hits in (("load", "read", _TIER_HITS), ("save", "write", ("", "", "", ""))):
            moved = (f"offload_tier_{verb}_nbytes:counter", f"offload_tier_{verb}_s:counter")
            failed = (f"offload_tier_{verb}_failures:counter", "jobs")
            yield Way(f"offload tier {tier}", direction, "", *moved, *failed, *hits, where={"tier": tier})


def _entry(cell: Measured, server: str, role: str, way: Way) -> dict[str, Any] | None:
    def read(series: str, **labels: str) -> float | None:
        canonical, _, kind = series.partition(":")
        return cell.window.delta(None, canonical, kind, server, **way.where, **labels)

    def moved(series: str) -> float | None:
        """Of what moved; 0 where there is a sample of others only."""
        return None if read(series) is None else read(series, **way.moved) or 0.0

    operations, nbytes, time_s = moved(way.operations), moved(way.nbytes), moved(way.time_s)
    posts, posted_s = read(f"{way.post_s}:count"), read(f"{way.post_s}:sum")
    failed, hits, queries, misses = (read(series) for series in (way.failed, way.hits, way.queries, way.misses))
    if queries is None and hits is not None and misses is not None:
        queries = hits + misses
    if all(value is None for value in (operations, nbytes, time_s, failed, queries)):
        return None
    mean_ms = 1000 * time_s / operations if time_s is not None and operations else None
    post_ms = 1000 * posted_s / posts if posted_s is not None and posts else None
    return {
        "server": server,
        "role": role,
        "connector": way.connector,
        "direction": way.direction,
        "operations": operations,
        "nbytes": nbytes,
        "time_s": time_s,
        "mean_ms": mean_ms,
        "gb_s": nbytes / time_s / 1e9 if nbytes is not None and time_s else None,
        **_after_post(mean_ms, post_ms, None if nbytes is None or not operations else nbytes / operations),
        "hit_share": hits / queries if hits is not None and queries else None,
        "hits_of": way.hits_of or None,
        "failed": failed,
        "failed_what": way.failed_what or None,
    }


def _certain(cell: Measured, handoff: dict[str, Any]) -> dict[str, Any]:
    """Without what is not certain in SGLang's own words, and why it is not."""
    unsure = doubts(cell) if handoff["operations"] else {}
    gone = [name for figure in unsure for name in UNSURE[figure]]
    return {**handoff, **dict.fromkeys(gone), **({"unsure": unsure} if unsure else {})}


def _after_post(mean_ms: float | None, post_ms: float | None, nbytes_each: float | None) -> dict[str, float | None]:
    """What is left of an operation once it was posted, as the TTFT split has it (`split._nixl`)."""
    if mean_ms is None or post_ms is None:
        return {}
    transfer_ms = mean_ms - post_ms
    speed = nbytes_each / transfer_ms / 1e6 if nbytes_each is not None and transfer_ms > 0 else None
    return {"post_ms": post_ms, "transfer_ms": transfer_ms, "transfer_gb_s": speed}


def _add_share_of_prompts(cell: Measured, server: str, stores: list[dict[str, Any]]) -> None:
    """vLLM's own count of what its connectors had, where one connector alone can be meant."""
    hits = cell.window.delta(None, "external_prefix_cache_hits", server=server)
    queries = cell.window.delta(None, "external_prefix_cache_queries", server=server)
    load = next((entry for entry in stores if entry["direction"] == "load"), None)
    if load is not None and load["hit_share"] is None and hits is not None and queries:
        load |= {"hit_share": hits / queries, "hits_of": "tokens"}
