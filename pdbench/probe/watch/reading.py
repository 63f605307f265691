"""What a window means: throughput, the parts of TTFT that servers show, slots by Little's law, flags, one verdict.

The parts have the meaning that the report gives them; what only a client can see (proxy, unexplained) is not here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pdbench.probe.watch.sampled import Between, Looks, in_words
from pdbench.probe.watch.totals import Watched
from pdbench.probe.watch.window import Window

PARTS = ("prefill_queue", "prefill", "slot_wait", "post", "transfer", "poll", "first_step")
FEW_REQUESTS = 5  # below it a mean says nothing of the deployment
HALF = 0.5
SURE = 0.1  # of TTFT, that a named part takes at least, as in the report
# As in the report: with fewer of the slots in use a wait for one is an accident, with more it comes and goes; a part
# shorter than this and than so many tokens makes no TTFT bad.
BUSY = 2 / 3
NOTICED_MS, NOTICED_TOKENS = 50.0, 4.0
CHANCE = 2.0  # standard deviations of a count
NAMED = 3  # servers that a flag names
SLOTS_FULL = 0.95  # mean use of the slots from which a wait for one is no accident
RECOMPUTED_TOKENS = 2.0  # per request: the step that computes the last token of a prompt needs one
KV_FULL = 0.95
# The same time in the words of vLLM, SGLang and TensorRT-LLM.
MOVES = ("nixl_xfer_s", "stage_s.prefill_transfer_kv_cache", "kv_transfer_s")
BYTES = ("nixl_nbytes:sum", "kv_transfer_nbytes:sum")
COMPUTES = ("prefill_s", "stage_s.prefill_forward")
# What moves KV to and from host memory or a store: no handoffs, so apart from them. Operations, bytes.
STORES = {
    "offload load": ("offload_load_each_nbytes:count", "offload_load_nbytes:counter"),
    "offload save": ("offload_store_each_nbytes:count", "offload_store_nbytes:counter"),
    "Mooncake store load": ("store_operation_s.load_get:count", "store_nbytes.load_get:counter"),
    "Mooncake store save": ("store_operation_s.save_put:count", "store_nbytes.save_put:counter"),
    "HF3FS load": ("hf3fs_load_s:count", ""),
    "HF3FS save": ("hf3fs_save_s:count", ""),
    "LMCache load": ("lmcache_retrieve_s:count", ""),
    "LMCache save": ("lmcache_store_s:count", ""),
    "HiSparse load": ("", "hisparse_load_nbytes:counter"),
}
UNKNOWN = "not-distinguishable"
CAUSES = {
    "slot_wait": "decode-slots",
    "prefill_queue": "prefill-queue",
    "prefill": "prefill-compute",
    "post": "engine-loop-blocking",
    "transfer": "transfer-bandwidth",
    "poll": "completion-polling",
}
# The first change in the words of the report, which judges the same states by more than the last seconds.
ADVICE = {
    "decode-slots": "raise --max-num-seqs on {where} (check KV memory first), or lower the load",
    "decode-kv-pool": "give {where} more KV memory (--gpu-memory-utilization, fp8 KV, more GPUs), or shorter prompts",
    "prefill-queue": "add another prefill instance, or send a lower rate",
    "prefill-compute": "give prefill more tensor parallelism or faster GPUs",
    "engine-loop-blocking": "move posting off decode's loop: push, or a connector that posts on a thread",
    "transfer-bandwidth": "check the transport with pdbench topo, then pdbench probe-transfer",
    "completion-polling": "make decode look for finished transfers more often: shorter steps",
    UNKNOWN: "posting on prefill's thread is slow: look for many descriptors (larger blocks) or memory registration",
}
# A server that does both has no prefill servers beside it.
COLOCATED = {
    "prefill-queue": "add another instance of the co-located server, or send a lower rate; --max-num-seqs tells whether"
    " slots are short",
    "prefill-compute": "give the co-located server more tensor parallelism or faster GPUs",
}


@dataclass(frozen=True, slots=True)
class Reading:
    """One window, understood. None is not measured."""

    length_s: float
    requests_per_s: float | None
    prompt_tokens_per_s: float | None
    output_tokens_per_s: float | None
    transfers_per_s: float | None
    transfer_nbytes_per_s: float | None
    handoff_ms: float | None  # post + transfer + poll
    tpot_ms: float | None
    parts_ms: Mapping[str, float]  # PARTS that were measured
    parts_between_ms: Mapping[str, Between]  # where those lie that are known from looks only
    slots_needed: float | None
    slots_held: float | None
    slots_available: int | None
    slots_short: bool | None  # `needed` is what they held; with what waits they have more work than they do
    expired: float | None
    failed: float | None
    stores: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # what of STORES is shown
    flags: Mapping[str, str] = field(default_factory=dict)  # validity code -> evidence
    cause: str | None = None
    verdict: str = ""
    decided: bool = True  # whether the requests and looks of this window are enough for a verdict

    @property
    def needed_words(self) -> str:
        """`7.2`, or `>8` where slots were full and with what waits have more work than they do."""
        return f">{self.slots_available}" if self.slots_short else f"{self.slots_needed:.1f}"

    @property
    def words(self) -> str:
        """Of its length: `10 s`, `5 min`."""
        seconds = round(self.length_s)
        return f"{seconds // 60} min" if seconds >= 120 else f"{seconds} s"


def mode_of(window: Window, said: str | None) -> str | None:
    """Push or pull: as the deployment says, else by the side whose NIXL series move."""
    if said is not None:
        return said
    sides = {"decode": "pull", "prefill": "push"}
    return next((mode for role, mode in sides.items() if window.delta(role, "nixl_xfer_s:count")), None)


def read(window: Window, servers: Sequence[Watched], mode: str | None, *, certain: bool = True) -> Reading:
    """The reading of a window over these servers. `certain`: whether SGLang's bytes are known to be what moved."""
    mode = mode_of(window, mode)
    maker = "colocated" if any(server.role == "colocated" for server in servers) else "decode"
    mover = "prefill" if mode == "push" else "decode"
    parts = _colocated(window) if maker == "colocated" else _disaggregated(window, mode, mover)
    available = _available(servers, maker)
    done = window.per_s(maker, "e2e_s:count")
    tokens = window.per_s(maker, "generation_tokens:counter")
    tpot_ms = window.mean_ms(maker, "itl_s")
    held = None if tokens is None or tpot_ms is None else tokens * tpot_ms / 1000
    needed = _needed(window, maker, done, held)
    handoff = [parts[name] for name in ("post", "transfer", "poll") if name in parts]
    found = Reading(
        length_s=window.length_s,
        requests_per_s=done,
        prompt_tokens_per_s=window.per_s("prefill" if maker == "decode" else maker, "prompt_tokens:counter"),
        output_tokens_per_s=tokens,
        transfers_per_s=_rate(window, mover, [f"{name}:count" for name in MOVES]),
        transfer_nbytes_per_s=_rate(window, mover, BYTES if certain else BYTES[:1]),
        handoff_ms=sum(handoff) if handoff else None,
        tpot_ms=tpot_ms,
        parts_ms=parts,
        parts_between_ms={} if maker == "colocated" else _between(window, parts, mode),
        slots_needed=needed,
        slots_held=held,
        slots_available=available,
        slots_short=_short(window, maker, needed, available),
        expired=_sum(window, "nixl_kv_expired:counter"),
        failed=_sum(window, "nixl_failed_transfers:counter"),
        stores=_stores(window),
    )
    return _judged(found, window, servers, maker, mode)


def _stores(window: Window) -> dict[str, dict[str, float]]:
    """What each store was given and gave, all servers together, in operations and bytes a second."""
    found: dict[str, dict[str, float]] = {}
    for way, series in STORES.items():
        for unit, name in zip(("operations_per_s", "nbytes_per_s"), series, strict=True):
            rates = [rate for role in window.deltas if (rate := window.per_s(role, name)) is not None]
            if rates:
                found.setdefault(way, {})[unit] = sum(rates)
    return found


def _sum(window: Window, name: str) -> float | None:
    values = [value for role in ("prefill", "decode") if (value := window.delta(role, name)) is not None]
    return sum(values) if values else None


def _available(servers: Iterable[Watched], role: str) -> int | None:
    slots = [server.slots for server in servers if server.role == role]
    return sum(one for one in slots if one is not None) if slots and None not in slots else None


def _disaggregated(window: Window, mode: str | None, mover: str) -> dict[str, float]:
    """Decode's queue time holds slot wait, transfer and poll (pull), and the prefill leg too (push)."""
    requests = _decoded(window)
    post, xfer = window.mean_ms(mover, "nixl_post_s"), _first(window, mover, MOVES)
    found = {
        "prefill_queue": window.mean_ms("prefill", "queue_s"),
        "prefill": _first(window, "prefill", COMPUTES),
        "post": post,
        "transfer": None if xfer is None else xfer - (post or 0.0),
        "first_step": window.mean_ms("decode", "prefill_s"),
    }
    area, queue = window.delta("decode", "slot_wait:area"), window.mean_ms("decode", "queue_s")
    staged = window.delta("decode", "stage.waiting_to_start:area") is not None
    if area is not None and staged and requests:
        found["slot_wait"] = 1000 * area / requests
        if queue is not None and xfer is not None and mode == "pull":
            found["poll"] = _poll_ms(window, queue - 1000 * area / requests, xfer, requests)
    return {name: value for name in PARTS if (value := found.get(name)) is not None}


def _decoded(window: Window) -> float | None:
    """Requests of the window by which decode's means are taken."""
    return window.delta("decode", "queue_s:count") or window.delta("decode", "e2e_s:count")


def _between(window: Window, parts: Mapping[str, float], mode: str | None) -> dict[str, Between]:
    """Slot wait and poll are sampled. Decode's queue time, which is counted, bounds from above what looks may have
    missed: both are in it, with the transfer. Shorter than what was surely seen it tells of earlier requests."""
    requests = _decoded(window)
    if not requests or not window.steps or "slot_wait" not in parts:
        return {}
    looks = Looks(1000 * window.length_s / window.steps / requests, requests)
    moved_ms = parts.get("post", 0.0) + parts.get("transfer", 0.0)
    found = {"slot_wait": looks.between(parts["slot_wait"])}
    if "poll" in parts:
        low, high = looks.between(1000 * (window.delta("decode", "fetching:area") or 0.0) / requests)
        found["poll"] = max(0.0, low - moved_ms), max(parts["poll"], high - moved_ms)
    queue_ms = window.mean_ms("decode", "queue_s")
    if queue_ms is None:
        return found
    leg_ms = parts.get("prefill_queue", 0.0) + parts.get("prefill", 0.0) if mode == "push" else 0.0
    least = moved_ms + leg_ms + sum(low for low, _ in found.values())
    return {name: _bounded(each, parts[name], queue_ms - least + each[0]) for name, each in found.items()}


def _bounded(between: Between, value: float, most: float) -> Between:
    low, high = between
    return (low, min(high, max(value, most))) if most >= low else between


def _rate(window: Window, role: str, names: Sequence[str]) -> float | None:
    """Of the first of these that the role's pages show."""
    return next((rate for name in names if (rate := window.per_s(role, name)) is not None), None)


def _first(window: Window, role: str, histograms: Sequence[str]) -> float | None:
    """Mean of the first of these histograms that the role's pages show."""
    means = (window.mean_ms(role, name) for name in histograms)
    return next((mean for mean in means if mean is not None), None)


def _poll_ms(window: Window, beyond_slots_ms: float, xfer_ms: float, requests: float) -> float:
    """How late transfers are noticed: what both of decode's witnesses show.

    Its queue time is counted when a request ends, so while a queue drains it tells of waits that are over; its stages
    tell of now, but of a short window in few samples only.
    """
    fetching = 1000 * (window.delta("decode", "fetching:area") or 0.0) / requests
    return max(0.0, min(beyond_slots_ms, fetching) - xfer_ms)


def _colocated(window: Window) -> dict[str, float]:
    found = {
        "prefill_queue": window.mean_ms("colocated", "queue_s"),
        "prefill": window.mean_ms("colocated", "prefill_s"),
    }
    return {name: value for name, value in found.items() if value is not None}


def _needed(window: Window, maker: str, done: float | None, held: float | None) -> float | None:
    """What the load needs: slots held, scaled by how much faster prefill sends requests than decode ends them, where
    that is more than requests which come at random make of a steady load."""
    asked = window.per_s("prefill", "e2e_s:count")
    if held is None or not done or maker == "colocated" or asked is None:
        return held
    more = (asked - done) * window.length_s
    return held * asked / done if more > CHANCE * math.sqrt(asked * window.length_s) else held


def _short(window: Window, maker: str, needed: float | None, available: int | None) -> bool | None:
    """Whether slots were full, and what they held and what waited for them is more work than they do in this time."""
    running, waited = window.mean(maker, "running"), window.mean(maker, "slot_wait")
    done = window.per_s(maker, "e2e_s:count")
    if maker == "colocated":
        waited = window.mean(maker, "waiting")
    if running is None or waited is None or needed is None or not available or not done:
        return None
    whole = needed + waited * needed / done / window.length_s
    return running >= SLOTS_FULL * available and needed <= available < whole


def _judged(found: Reading, window: Window, servers: Sequence[Watched], maker: str, mode: str | None) -> Reading:
    flags = dict(_flags(found, window, servers, maker))
    cause, verdict, decided = _verdict(found, window, servers, maker, mode)
    if "kv-expired" in flags:
        verdict = f"outputs untrusted: {flags['kv-expired']}. {verdict}"
    elif "decode-recomputed" in flags:
        verdict = f"no disaggregation: {flags['decode-recomputed']}. {verdict}"
    return replace(found, flags=flags, cause=cause, verdict=verdict, decided=decided)


def _flags(found: Reading, window: Window, servers: Sequence[Watched], maker: str) -> Iterable[tuple[str, str]]:
    late = _sum(window, "nixl_used_after_expiry:counter") or 0.0
    if late or found.expired:
        yield "kv-expired", f"KV of {found.expired or 0:.0f} requests expired, {late:.0f} used after that"
    local, requests = window.delta("decode", "source.local_compute:counter"), window.delta("decode", "queue_s:count")
    moved = window.delta("decode", "source.external_kv_transfer:counter")
    if local is not None and requests and local / requests > RECOMPUTED_TOKENS and local > (moved or 0.0):
        yield "decode-recomputed", f"decode computed {local / requests:.0f} prompt tokens a request itself"
    if found.failed:
        yield "failed-transfers", f"{found.failed:.0f} transfers, handshakes or notifications failed"
    if found.slots_needed and found.slots_available and found.slots_needed > found.slots_available:
        yield "not-steady-state", f"{found.slots_needed:.1f} slots needed, {found.slots_available} there"
    running = sum(server.now.get("running", 0.0) for server in servers if server.role == maker)
    if running and found.output_tokens_per_s == 0 and window.length_s > 5:
        yield "stall", f"{running:.0f} running, no token for {window.length_s:.0f} s"
    if restarted := [server.name for server in servers if _restarted(server, window.length_s)]:
        yield "server-restarted", _some(restarted)
    if silent := [f"{server.name}: {server.trouble}" for server in servers if not server.up]:
        yield "metrics-missing", _some(silent)


def _restarted(server: Watched, within_s: float) -> bool:
    return server.restarted_s is not None and server.t_s - server.restarted_s <= within_s


def _some(names: Sequence[str]) -> str:
    """The first few: a view of many servers has room for no more, and each has its own line."""
    more = len(names) - NAMED
    return "; ".join(names[:NAMED]) + (f"; and {more} more" if more > 0 else "")


def _verdict(
    found: Reading, window: Window, servers: Sequence[Watched], maker: str, mode: str | None
) -> tuple[str | None, str, bool]:
    """The one thing that the view leads with, and whether there was enough to judge by."""
    if not any(server.up for server in servers):
        return None, "no server answers.", True
    if found.length_s <= 0:
        return None, "gathering: rates and means need two looks.", False
    requests, total = (found.requests_per_s or 0.0) * found.length_s, sum(found.parts_ms.values())
    few = f"{_requests(requests)} and {window.steps + 1} looks in {found.length_s:.0f} s: too few for a verdict"
    if requests < FEW_REQUESTS:
        return None, f"{few}.", False
    if not total:
        return None, "no server shows where TTFT goes: see metrics-missing.", True
    part, value = max(found.parts_ms.items(), key=lambda one: one[1])
    cause = UNKNOWN if part == "post" and mode == "push" else CAUSES.get(part)  # in push no loop waits for posts
    use = window.mean(maker, "running")
    kv = max((server.now.get("kv_cache_usage", 0.0) for server in servers if server.role == maker), default=0.0)
    if part == "slot_wait" and found.slots_available and use is not None:
        if use < SLOTS_FULL * found.slots_available and kv > KV_FULL:
            cause = "decode-kv-pool"
        elif use < HALF * found.slots_available:
            cause = None
    if maker == "colocated" and part == "prefill_queue":
        cause = _colocated_queue(use, kv, found.slots_available)
    if not _sure(found, part, total):
        return None, f"{few}{_come_and_go(found)}.", False
    if cause is None or value < HALF * total or value < _noticed_ms(found):
        name = "queue" if maker == "colocated" and part == "prefill_queue" else part.replace("_", " ")
        none = f"no part of TTFT stands out: the largest is {name}, {_of(found, part, total)} ms"
        return None, f"{none}{_come_and_go(found)}.", True
    slots = ""
    if cause == "decode-slots" and found.slots_needed and found.slots_available:
        slots = f", {found.needed_words} of {found.slots_available} slots needed"
    advice = ADVICE[cause].format(where="decode")
    if maker == "colocated":
        advice = COLOCATED.get(cause, ADVICE[cause].format(where="the co-located server"))
    return cause, f"{cause}: {_of(found, part, total)} ms of TTFT on the servers{slots}; {advice}.", True


def _of(found: Reading, part: str, total: float) -> str:
    """`60 of 75`, or `~410 of ~460` of what is sampled."""
    value, between = found.parts_ms[part], found.parts_between_ms.get(part)
    if between is None or between[0] <= 0:
        return f"{value:,.0f} of {total:,.0f}"
    rest = total - value
    return f"{in_words(value, between)} of {in_words(total, (between[0] + rest, between[1] + rest))}"


def _sure(found: Reading, largest: str, total: float) -> bool:
    """Whether looks are enough: to name the largest part, or to say that none which they sample takes half of TTFT."""
    if largest in found.parts_between_ms and found.parts_ms[largest] >= HALF * total:
        return found.parts_between_ms[largest][0] >= max(SURE * total, _noticed_ms(found))
    missed = ((high, high - found.parts_ms[part]) for part, (_, high) in found.parts_between_ms.items())
    return not any(high >= max(HALF * (total + more), NOTICED_MS) for high, more in missed)


def _noticed_ms(found: Reading) -> float:
    return NOTICED_MS if found.tpot_ms is None else min(NOTICED_MS, NOTICED_TOKENS * found.tpot_ms)


def _come_and_go(found: Reading) -> str:
    needed, there = found.slots_needed, found.slots_available
    if not needed or not there or needed < BUSY * there:
        return ""
    said = f"; {found.needed_words} of {there} slots are needed"
    return said if found.slots_short else f"{said}, so that waits for one come and go"


def _requests(count: float) -> str:
    return f"{count:.0f} request{'' if round(count) == 1 else 's'}"


def _colocated_queue(running: float | None, kv: float, slots: int | None) -> str:
    """What requests wait for before a server that does both: slots that are full, KV that is, or its turn."""
    if running is not None and slots and running >= SLOTS_FULL * slots:
        return "decode-slots"
    return "decode-kv-pool" if kv > KV_FULL else "prefill-queue"
