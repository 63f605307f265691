"""What the figures say about this path, each with its evidence and the variable to change."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pdbench.littles_law.plan_text import ms, percent
from pdbench.report.transfer.carrier import GPU_DIRECT, WITHIN_HOST, is_rdma
from pdbench.report.transfer.sound import named

Result = Mapping[str, Any]
Cause = dict[str, Any]

FRAGMENTED = 1.25  # times as long as the same bytes in one piece a region
FAR_BELOW, SMELLS_OF_TCP = 0.5, 0.1  # of the link's theory
POSTS_LONG_MS = 1.0
WORTH_SAYING = 0.1  # of the transfer itself
_TURNED_ON = "UCX_CUDA_IPC_ENABLE_GET_ZCOPY=on"


def causes(results: Sequence[Result], sides: Mapping[str, Any], *, times_count: bool) -> list[Cause]:
    """In the order in which to act on them; each of a kind once, on the first result that shows it. Where a verdict is
    refused, times tell nothing, and only what carried the bytes is judged."""
    found: list[Cause] = []
    for judge in (*_BY_CARRIER, *(_BY_TIME if times_count else ())):
        found += list(judge(results, sides))[:1]
    return found


def cause(name: str, evidence: str, advice: str) -> Cause:
    return {"cause": name, "share": None, "evidence": evidence, "advice": advice}


def transports(result: Result) -> set[str]:
    """The transports that UCX named; empty where it named none."""
    return {word.partition("/")[0] for word in str(result["transport"]).split() if "/" in word}


def _environment(sides: Mapping[str, Any], name: str) -> str | None:
    """A variable as a side has it; decode's counts, since it starts the run."""
    for role in ("decode", "prefill"):
        value = (sides.get(role) or {}).get("environment", {}).get(name)
        if value is not None:
            return str(value)
    return None


def _one_host(sides: Mapping[str, Any]) -> bool:
    boots = [(sides.get(role) or {}).get("boot_id") for role in ("decode", "prefill")]
    return boots[0] is not None and boots[0] == boots[1]


def _rdma_ports(sides: Mapping[str, Any]) -> list[str]:
    """RDMA ports that are up on both sides; their names are those of decode."""
    ports = [
        [name for name in (sides.get(role) or {}).get("nic_gb_s", {}) if ":" in name] for role in ("decode", "prefill")
    ]
    return ports[0] if all(ports) else []


def _disagreement(results: Sequence[Result], sides: Mapping[str, Any]) -> Iterator[Cause]:
    for each in results:
        proof = each["transport_proof"]
        if proof["agree"] is False:
            yield cause(
                "transport-unproven",
                f"{named(each)}: {proof['says']}",
                "Trust neither until they agree: stop what else uses these interfaces, then measure again.",
            )


def _cuda_ipc_get(results: Sequence[Result], sides: Mapping[str, Any]) -> Iterator[Cause]:
    """UCX leaves cuda_ipc's GET out where GPU 0 shows no NVLink, so that reads go around and writes do not."""
    if not _one_host(sides):
        return
    writes = [
        each
        for each in results
        if each["op"] == "WRITE" and each["memory"] == "VRAM" and "cuda_ipc" in transports(each)
    ]
    for each in results:
        reads_around = each["op"] == "READ" and each["memory"] == "VRAM" and not transports(each) & GPU_DIRECT
        if reads_around and writes and transports(each):
            ratio = writes[0]["gb_s"] / each["gb_s"]
            yield cause(
                "cuda-ipc-get-off",
                f"reads go by {each['transport_proof']['ucx']}, writes by {writes[0]['transport_proof']['ucx']} "
                f"and are {ratio:.2g} times as fast: UCX turns cuda_ipc's GET off where GPU 0 has no NVLink",
                f"Set {_TURNED_ON} on decode, or push (writes) instead of pull (reads).",
            )


def _host_bounce(results: Sequence[Result], sides: Mapping[str, Any]) -> Iterator[Cause]:
    for each in results:
        told = str(each["transport_proof"]["ucx"] or "")
        if each["memory"] != "VRAM" or not told:
            continue
        ways = transports(each)
        staged = any(word in told for word in ("copy-in", "copy-out", "fragment", "cuda_copy", "rocm_copy"))
        if not staged and not ways & {"tcp", "cma", "posix", "sysv", "knem", "xpmem"}:
            continue
        ports = _rdma_ports(sides)
        advice = (
            "Let the GPUs see each other: one PID and IPC namespace, CUDA_VISIBLE_DEVICES with both, NVLink or P2P."
        )
        if not _one_host(sides):
            advice = (
                "GPUDirect RDMA is off: load nvidia_peermem (or dma-buf), and set UCX_NET_DEVICES to the GPU's own NIC."
            )
            advice = advice if ports else "No RDMA port is up on both hosts: only TCP is left, through host memory."
        yield cause("host-bounce", f"{named(each)}: {told}: GPU memory goes through host memory", advice)


def _silent_tcp(results: Sequence[Result], sides: Mapping[str, Any]) -> Iterator[Cause]:
    """TCP carries the data although nobody asked for it, and something better joins both sides."""
    over_tcp = next((each for each in results if "tcp" in transports(each)), None)
    if over_tcp is None:
        return
    told = f"{named(over_tcp)}: {over_tcp['transport_proof']['says']}"
    asked, devices, ports = _environment(sides, "UCX_TLS"), _environment(sides, "UCX_NET_DEVICES"), _rdma_ports(sides)
    if asked is not None and not asked.startswith("^") and "all" not in asked.split(","):
        yield cause("tcp", f"{told}, as UCX_TLS={asked} asks", "Leave UCX_TLS unset to let UCX choose.")
    elif _one_host(sides):
        yield cause(
            "silent-tcp", f"{told}, within one host{_parted(over_tcp, sides)}", _how_to_join(over_tcp, sides, asked)
        )
    elif ports:
        left_out = devices is not None and not any(port in devices.split(",") for port in ports)
        why = f"; UCX_NET_DEVICES={devices} leaves out {ports[0]}" if left_out else ""
        advice = (
            f"Set UCX_NET_DEVICES={ports[0]} on both sides"
            if left_out
            else "Look for UCX's ib module (UCX_LOG_LEVEL=info)"
        )
        yield cause("silent-tcp", f"{told}, although RDMA ports are up on both hosts{why}", f"{advice}; measure again.")
    else:
        yield cause("tcp", f"{told}; no RDMA port is up on both hosts", "TCP is all that joins them.")


def _parted(result: Result, sides: Mapping[str, Any]) -> str:
    """Why UCX could not copy within the host, as far as it shows."""
    if len({sides[role].get("pid_namespace") for role in ("prefill", "decode")}) > 1:
        return ": the sides are in two PID namespaces, so that UCX rules out cma and cuda_ipc"
    forbidden = result["reference_missing"].get("process_vm")
    return f": the kernel forbids a copy between the processes (process_vm_readv: {forbidden})" if forbidden else ""


def _how_to_join(result: Result, sides: Mapping[str, Any], asked: str | None) -> str:
    if "PID namespaces" in _parted(result, sides):
        return "Share the PID namespace: --pid=container:OTHER, or hostPID / shareProcessNamespace in Kubernetes."
    if asked is not None:
        return f"UCX_TLS={asked} leaves out what could copy within the host: unset it."
    if _parted(result, sides):
        return "Run both as one user with the same capabilities, with CAP_SYS_PTRACE or kernel.yama.ptrace_scope=0."
    return "Look for what UCX misses: UCX_LOG_LEVEL=info; NVLink or P2P for cuda_ipc (pdbench topo)."


def beside_link(result: Result) -> bool:
    """Whether so little of the link's theory is no wonder: the bytes stayed in one host's memory, beside the link."""
    ways = transports(result)
    return bool(ways) and ways <= WITHIN_HOST - GPU_DIRECT and result["theory_fraction"] < FAR_BELOW


def _below_link(results: Sequence[Result], sides: Mapping[str, Any]) -> Iterator[Cause]:
    rated = [each for each in results if each.get("theory_fraction") is not None]
    known = [each for each in rated if not beside_link(each)]
    if rated and not known:
        one = rated[0]
        told = f"{named(one)}: {' '.join(sorted(transports(one)))} within this host carried it, and no NIC"
        yield cause(
            "not-the-link",
            f"{told}: the path measured is not {one['theory']}, whose share says nothing",
            "Measure that link between its two hosts (--listen there, --connect here), or leave --link out.",
        )
    best = max(known, key=lambda each: each["theory_fraction"], default=None)
    if best is None or best["theory_fraction"] >= FAR_BELOW:
        return
    told = f"{named(best)}: {best['gb_s']:.3g} of {best['theory_gb_s']:.3g} GB/s ({percent(best['theory_fraction'])})"
    advice = "Check the PCIe slot and the NIC's NUMA node (pdbench topo), then more in flight and larger blocks."
    if best["theory_fraction"] < SMELLS_OF_TCP and any(is_rdma(name) for name in transports(best)):
        advice = "So little smells of TCP or of a wrong NIC: pin one with UCX_NET_DEVICES and measure again."
    yield cause("below-link", f"{told} at best", advice)


def _fragmentation(results: Sequence[Result], sides: Mapping[str, Any]) -> Iterator[Cause]:
    slower = [
        (one["total_ms"]["p50"] / other["total_ms"]["p50"], one, other)
        for one, other in pairs(results)
        if surely_longer(one["total_ms"], other["total_ms"])
    ]
    ratio, scattered, joined = max(slower, key=lambda each: each[0], default=(0.0, {}, {}))
    if ratio < FRAGMENTED:
        return
    many, few = scattered["descriptors_merged"], joined["descriptors_merged"]
    long_ms, short_ms = scattered["total_ms"]["p50"], joined["total_ms"]["p50"]
    told = f"{scattered['op']} of {many:,} scattered descriptors takes {ms(long_ms)}, of {few:,} merged {ms(short_ms)}"
    yield cause(
        "transfer-fragmentation",
        f"{told} ({ratio:.2g}x, {(long_ms - short_ms) * 1000 / (many - few):.2g} us for each one more)",
        "Larger blocks (--block-size of the engine) make fewer; so does a layout that keeps a block's layers together.",
    )


def surely_longer(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether the intervals of two medians do not meet; without intervals (below 6 rounds) nothing is sure."""
    if one["p50_interval"] is None or other["p50_interval"] is None:
        return False
    return bool(one["p50_interval"][0] > other["p50_interval"][1])


def pairs(results: Sequence[Result]) -> Iterator[tuple[Result, Result]]:
    """The same bytes scattered and contiguous."""
    same = ("op", "backend", "memory", "in_flight", "nbytes", "descriptors", "name")
    known = [each for each in results if each["descriptors_merged"]]
    for one in known:
        for other in known:
            alike = all(one[key] == other[key] for key in same)
            if alike and (one["ids"], other["ids"]) == ("scattered", "contiguous"):
                yield one, other


def _posting(results: Sequence[Result], sides: Mapping[str, Any]) -> Iterator[Cause]:
    """The thread that posts does nothing else meanwhile; with pull, which reads, that is decode's engine loop."""
    reads = [each for each in results if each["op"] == "READ"]
    long = max(reads, key=lambda each: float(each["post_ms"]["p50"]), default=None)
    if long is None or long["post_ms"]["p50"] < POSTS_LONG_MS:
        return
    copies = transports(long) & {"cma", "knem", "posix", "sysv"}
    inside = f"; {next(iter(copies))} copies inside the call, so this is no mere overhead" if copies else ""
    told = f"posting holds its thread for {ms(long['post_ms']['p50'])} of {ms(long['total_ms']['p50'])}"
    yield cause(
        "engine-loop-blocking",
        f"{named(long)}: {told}{inside}",
        "With pull that thread is decode's engine loop, and every stream waits: push posts on prefill; more of NIXL's "
        "threads (--nixl-threads) share it.",
    )


def _polling(results: Sequence[Result], sides: Mapping[str, Any]) -> Iterator[Cause]:
    seen = [each for each in results if "poll" in each and surely_longer(each["poll"]["seen_ms"], each["total_ms"])]
    most = max(seen, key=lambda each: float(each["poll"]["added_ms"]), default=None)
    if most is None or most["poll"]["added_ms"] < WORTH_SAYING * most["total_ms"]["p50"]:
        return
    poll = most["poll"]
    told = f"done after {ms(most['total_ms']['p50'])}, seen after {ms(poll['seen_ms']['p50'])}"
    yield cause(
        "completion-polling",
        f"{named(most)}: {told} when looked at every {ms(poll['interval_ms'])}; vllm:nixl_xfer_time_seconds would say "
        f"{ms(poll['nixl_xfer_ms']['p50'])}",
        "Shorter decode steps see it sooner; do not read the metric as the link's speed.",
    )


_BY_CARRIER = (_disagreement, _cuda_ipc_get, _host_bounce, _silent_tcp)
_BY_TIME = (_below_link, _fragmentation, _posting, _polling)
