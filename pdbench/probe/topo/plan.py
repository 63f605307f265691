"""`--role prefill=0-3 --role decode=4-7`: can this plan work on this machine, and over which paths does its KV go?"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pdbench.errors import UsageError
from pdbench.probe.topo.gpu import Gpu
from pdbench.probe.topo.machine import Machine
from pdbench.probe.topo.outlets import outlets
from pdbench.probe.topo.pairs import Pair, rank

ROLES = ("prefill", "decode")
MAX_GPU = 1023

Instances = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Better:
    """The same GPUs in other roles, rank by rank: the slowest pair across the roles, and inside them, in GB/s."""

    prefill: tuple[int, ...]
    decode: tuple[int, ...]
    across_gb_s: float
    inside_gb_s: float | None
    inside_now_gb_s: float | None


@dataclass(frozen=True, slots=True)
class Shared:
    """A PCIe switch whose way to the host several rank pairs take at once, and what that leaves each of them."""

    switch: str
    gpus: tuple[int, ...]
    uplink_gb_s: float
    each_gb_s: float


@dataclass(frozen=True, slots=True)
class Plan:
    """`aligned` are the (prefill, decode) pairs that KV takes when rank i hands over to rank i, `across` all of them.

    `problems` say why it cannot work; without any it works. One role alone: the other is on another host.
    """

    prefill: Instances
    decode: Instances
    problems: tuple[str, ...]
    aligned: tuple[tuple[int, int], ...]
    across: tuple[Pair, ...]
    verdict: str
    better: Better | None = None
    shared: tuple[Shared, ...] = ()

    @property
    def works(self) -> bool:
        return not self.problems


def roles_of(values: Iterable[str]) -> dict[str, Instances]:
    """`prefill=0-3`, `decode=4,6`; a role that is given again is one more instance."""
    found: list[tuple[str, list[int]]] = []
    for word in (word.strip() for value in values for word in value.split(",")):
        name, equals, span = (part.strip() for part in word.rpartition("="))
        match = re.fullmatch(r"([0-9]{1,4})(?:-([0-9]{1,4}))?", span)
        if match is None or (equals and name not in ROLES) or not (equals or found):
            raise UsageError(
                f"--role wants a role and GPU numbers, such as prefill=0-3 or decode=4,6, not {word!r}.",
                "Roles are prefill and decode; numbers are those of nvidia-smi.",
            )
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first or last > MAX_GPU:
            raise UsageError(f"--role {word}: {span} is no span of GPU numbers.", "Write the lower one first.")
        if equals:
            found.append((name, []))
        found[-1][1].extend(range(first, last + 1))
    return {role: tuple(tuple(gpus) for name, gpus in found if name == role) for role in ROLES}


def judge(machine: Machine, pairs: Sequence[Pair], roles: dict[str, Instances]) -> Plan:
    prefill, decode = roles["prefill"], roles["decode"]
    problems = tuple(_problems(machine, prefill, decode))
    by_gpus = {frozenset((pair.a.index, pair.b.index)): pair for pair in pairs}
    aligned = tuple(ranks for p in prefill for d in decode for ranks in rank_pairs(p, d))
    both = {frozenset(ends) for ends in itertools.product(itertools.chain(*prefill), itertools.chain(*decode))}
    across = () if problems else tuple(pair for key, pair in by_gpus.items() if key in both)
    return Plan(
        prefill,
        decode,
        problems,
        aligned,
        across,
        _verdict(machine, by_gpus, aligned, across, problems, bool(prefill and decode)),
        None if problems else _better(by_gpus, pairs, prefill, decode),
        () if problems else tuple(_shared(machine, by_gpus, aligned)),
    )


def rank_pairs(prefill: Sequence[int], decode: Sequence[int]) -> list[tuple[int, int]]:
    """Which ranks hand over to each other when each instance is one engine with tensor parallelism.

    With unequal TP a rank of the smaller one serves several of the larger. Where neither divides the other, all.
    """
    most, least = max(len(prefill), len(decode)), min(len(prefill), len(decode))
    if most % least:
        return list(itertools.product(prefill, decode))
    return [(prefill[i * len(prefill) // most], decode[i * len(decode) // most]) for i in range(most)]


def _problems(machine: Machine, prefill: Instances, decode: Instances) -> Iterable[str]:
    if machine.nvml.trouble is not None:
        yield f"this machine has no GPU that can be used ({machine.nvml.trouble.message.rstrip('.')})"
        return
    named = [gpu for instance in (*prefill, *decode) for gpu in instance]
    there: dict[int, Gpu] = {gpu.index: gpu for gpu in machine.gpus}
    missing = sorted(set(named) - there.keys())
    if missing:
        have = f"GPUs 0 to {len(there) - 1}" if len(there) > 1 else "GPU 0 alone" if there else "no GPU"
        yield f"{_gpus(missing)} {'does' if len(missing) == 1 else 'do'} not exist: this machine has {have}"
    for index in sorted(set(named) & there.keys()):
        if why := there[index].unusable:
            yield f"GPU {index} cannot be used: {why}"
    twice = sorted({index for index in named if named.count(index) > 1})
    if twice:
        yield f"{_gpus(twice)} in two places: two engines would share one GPU's memory, and disturb each other's steps"


def _verdict(
    machine: Machine,
    by_gpus: dict[frozenset[int], Pair],
    aligned: Sequence[tuple[int, int]],
    across: Sequence[Pair],
    problems: Sequence[str],
    both: bool,
) -> str:
    if machine.nvml.trouble is not None:
        return f"This plan cannot be judged here: {'; '.join(problems)}."
    if problems:
        return f"This plan cannot work: {'; '.join(problems)}."
    if not both:
        return _one_sided(machine)
    ranked = sorted((by_gpus[frozenset(ranks)] for ranks in aligned), key=rank)
    worst = ranked[-1]
    where = f"between GPU {worst.a.index} and GPU {worst.b.index}"
    if worst.path == "host":
        bad = sum(pair.path == "host" for pair in ranked)
        which = where if len(ranked) == 1 else f"on {bad} of its {len(ranked)} rank pairs"
        why = "MIG" if worst.a.mig or worst.b.mig else f"P2P read {worst.read}"
        return f"This plan works, but KV will bounce through host memory {which} ({why})."
    if worst.path == "unknown":
        return f"This plan cannot be judged: the driver does not say whether P2P is allowed {where}."
    over = {"nvswitch": "NVSwitch", "nvlink": "NVLink", "pcie": f"PCIe ({worst.ancestor or 'distance not reported'})"}
    speed = f"at most {worst.gb_s:.3g} GB/s one way" if worst.gb_s is not None else "at a rate that is not reported"
    if len(ranked) == 1:
        said = f"KV goes directly {where} over {over[worst.path]}, {speed}"
    elif rank(ranked[0])[:2] == rank(worst)[:2]:
        said = f"KV goes directly over {over[worst.path]} on all {len(ranked)} rank pairs, {speed} each"
    else:
        last = f"{where} over {over[worst.path]}"
        named = f"the slowest, {last}," if worst.gb_s is not None else last
        said = f"KV goes directly on all {len(ranked)} rank pairs; {named} {speed}"
    tail = ""
    if any(pair.path == "host" for pair in across):
        tail = " Other pairs across the roles bounce through host memory: keep ranks aligned."
    return f"This plan works: {said}.{tail}"


def _shared(
    machine: Machine, by_gpus: dict[frozenset[int], Pair], aligned: Sequence[tuple[int, int]]
) -> Iterable[Shared]:
    """Every rank sends at the same time, so what leaves a PCIe switch divides its uplink."""
    leaving: dict[str, list[tuple[int, Pair]]] = {}
    for ranks in aligned:
        pair = by_gpus[frozenset(ranks)]
        ports = [machine.switches.get(gpu.pci or "") for gpu in (pair.a, pair.b)]
        if pair.over_nvlink or ports[0] == ports[1]:
            continue
        for gpu, port in zip((pair.a, pair.b), ports, strict=True):
            if port is not None:
                leaving.setdefault(port, []).append((gpu.index, pair))
    for port, gone in leaving.items():
        uplink = machine.uplinks.get(port)
        rates = [pair.gb_s for _, pair in gone if pair.gb_s is not None]
        if uplink is not None and rates and uplink / len(gone) < min(rates):
            gpus = tuple(sorted({index for index, _ in gone}))
            yield Shared(port, gpus, uplink, uplink / len(gone))


def _one_sided(machine: Machine) -> str:
    ways = outlets(machine)
    rates = [way.gb_s for way in ways if way.gb_s is not None]
    if not ways or not ways[0].rdma:
        return "This side can be used, but no RDMA port is up here: KV leaves this host over TCP."
    speed = f"{min(rates):.3g} GB/s" if rates else "a rate that is not reported"
    return f"This side can be used: KV leaves this host over RDMA, at most {speed} a GPU one way."


def _better(
    by_gpus: dict[frozenset[int], Pair], pairs: Sequence[Pair], prefill: Instances, decode: Instances
) -> Better | None:
    """The best pairs first, each GPU once: offered where its slowest pair beats the plan's."""
    if len(prefill) != 1 or len(decode) != 1 or len(prefill[0]) != len(decode[0]):
        return None
    free = {*prefill[0], *decode[0]}
    chosen = []
    for pair in pairs:
        if {pair.a.index, pair.b.index} <= free:
            chosen.append(pair)
            free -= {pair.a.index, pair.b.index}
    now = max((by_gpus[frozenset(ranks)] for ranks in zip(prefill[0], decode[0], strict=True)), key=rank)
    worst = max(chosen, key=rank)
    if rank(worst)[:2] >= rank(now)[:2] or worst.gb_s is None or not worst.direct:
        return None
    chosen.sort(key=lambda pair: pair.a.index)
    ours, theirs = tuple(pair.a.index for pair in chosen), tuple(pair.b.index for pair in chosen)
    return Better(ours, theirs, worst.gb_s, _inside(by_gpus, ours, theirs), _inside(by_gpus, prefill[0], decode[0]))


def _inside(by_gpus: dict[frozenset[int], Pair], *roles: Sequence[int]) -> float | None:
    """The slowest pair inside a role: what tensor parallelism there has to do with."""
    inside = [by_gpus[frozenset(two)] for role in roles for two in itertools.combinations(role, 2)]
    return max(inside, key=rank).gb_s if inside else None


def _gpus(indices: Sequence[int]) -> str:
    return f"GPU {indices[0]}" if len(indices) == 1 else f"GPUs {', '.join(map(str, indices))}"
