"""Is a verdict allowed? Bytes that were not verified, others that kept the machine busy, figures above what can be."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pdbench.report.finding import VOID, WARN, Finding
from pdbench.report.transfer.carrier import WITHIN_HOST

Result = Mapping[str, Any]

LEAST_ALLOWED_CORES = 0.25  # that others may use on a small machine, and the share of a large one's
ROUNDING = 1.02
ROUNDS_FOR_P99 = 100


def doubts(found: Sequence[Mapping[str, Any]], results: Sequence[Result], sides: Mapping[str, Any]) -> list[Finding]:
    """What forbids a verdict (void: the figures mean nothing; warn: they mean less than they seem to)."""
    return [*_unverified(results), *_too_fast(results), *_loaded(found, sides), *_few_rounds(results)]


def forbids_verdict(validity: Sequence[Mapping[str, Any]]) -> bool:
    return any(each["severity"] == VOID or each["code"] == "machine-loaded" for each in validity)


def _unverified(results: Sequence[Result]) -> Iterator[Finding]:
    wrong = [each for each in results if each["verified"] is False]
    unknown = [each for each in results if each["verified"] is None]
    if wrong:
        evidence = f"{named(wrong[0])}: the bytes that arrived are not those that were sent"
        yield Finding("bytes-differ", VOID, f"{evidence} ({len(wrong)} of {len(results)} shapes). Report it to NIXL.")
    if unknown:
        yield Finding(
            "not-verified", WARN, f"{named(unknown[0])}: measured, but not verified before the run was cut off."
        )


def _too_fast(results: Sequence[Result]) -> Iterator[Finding]:
    """A figure above the link's theory: the link is not the one that was named, or the figure is wrong."""
    for each in results:
        theory = each.get("theory_gb_s")
        if theory is None:
            continue
        rivals = {"NIXL itself": each["gb_s"], **_on_the_same_way(each)}
        name, fastest = max(rivals.items(), key=lambda pair: pair[1])
        if fastest > theory * ROUNDING:
            told = f"{name} reaches {fastest:.3g} GB/s where {each['theory']} allows {theory:.3g}"
            yield Finding(
                "above-theory", VOID, f"{told} ({named(each)}): the bytes went another way. Name the link they take."
            )
            return


def _on_the_same_way(result: Result) -> dict[str, float]:
    """The references that take the data's way: within the host all do, over a NIC only its own sockets."""
    speeds: dict[str, float] = result["reference_gb_s"]
    transports = {word.partition("/")[0] for word in str(result["transport"]).split()}
    if result["memory"] == "DRAM" and transports <= WITHIN_HOST:
        return speeds
    return {name: speed for name, speed in speeds.items() if name == "tcp" and "tcp" in transports}


def _loaded(found: Sequence[Mapping[str, Any]], sides: Mapping[str, Any]) -> Iterator[Finding]:
    for where, cores, allowed in others(found, sides):
        if cores > allowed:
            evidence = f"other processes kept {cores:.2g} of {where} busy (allowed: {allowed:.2g})"
            yield Finding("machine-loaded", WARN, f"{evidence}. Close what else runs, then measure again.")


def others(found: Sequence[Mapping[str, Any]], sides: Mapping[str, Any]) -> list[tuple[str, float, float]]:
    """(which processors, how many of them others kept busy while transfers were timed, how many are allowed)."""
    measured = [each for each in found if each.get("busy")]
    if not measured or not sides:
        return []
    one_host = sides["decode"]["boot_id"] is not None and sides["decode"]["boot_id"] == sides["prefill"]["boot_id"]
    seconds = sum(each["busy"][0]["at_s"] for each in measured)
    told = []
    for role in ("decode",) if one_host else ("decode", "prefill"):
        ends = [_end(each, role) for each in measured]
        own = sum(end["own_s"] for each in measured for end in (each["busy"] if one_host else [_end(each, role)]))
        cpus = int(sides[role]["cpus"])
        where = f"{cpus} processors" + ("" if one_host else f" of the {role} host")
        busy = sum(end["busy_s"] for end in ends)
        told.append((where, max(0.0, (busy - own) / seconds), LEAST_ALLOWED_CORES * max(1, cpus - 2)))
    return told


def _end(each: Mapping[str, Any], role: str) -> Mapping[str, float]:
    """A pass tells of the side that initiates first: decode reads, prefill writes."""
    end: Mapping[str, float] = each["busy"][0 if (role == "decode") == (each["op"] == "READ") else 1]
    return end


def _few_rounds(results: Sequence[Result]) -> Iterator[Finding]:
    few = [each["rounds"] for each in results if each["rounds"] < ROUNDS_FOR_P99]
    if few:
        evidence = f"{min(few)} rounds of some shape: below {ROUNDS_FOR_P99} its p99 is its slowest round"
        yield Finding("too-few-rounds", WARN, f"{evidence}. A longer --duration gives more.")


def named(result: Result) -> str:
    """`READ scattered 67.1 MB` and so on: which shape is meant."""
    flying = f" x{result['in_flight']}" if result["in_flight"] > 1 else ""
    return f"{result['op']} {result['ids']} {result['descriptors']:,} descriptors of {result['memory']}{flying}"
