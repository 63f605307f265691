"""What makes a comparison mean nothing, each with why and the next step. One refusal is enough."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pdbench.report import wording
from pdbench.report.compare.pairs import PairedCell, figure, name_of
from pdbench.report.compare.sides import Side
from pdbench.report.compare.transfers import is_transfer
from pdbench.report.wording import CellSummary, clean

# Parts of a plan that change no load. Whatever else two plans both state must be equal.
HARMLESS = {"cells", "repeats", "seed", "prompt_seed", "sample_interval_s", "timeout_s", "goodput_ms", "max_model_len"}
FLAGS = {
    "arrivals": "--arrivals",
    "burstiness": "--burstiness",
    "num_prompts": "--num-prompts",
    "duration_s": "--duration",
    "endpoint": "--endpoint",
    "vocab_size": "--vocab-size",
}
WHY = {
    "num_prompts": "a queue needs time to build, so a shorter run looks faster",
    "duration_s": "a queue needs time to build, so a shorter run looks faster",
    "arrivals": "other arrivals make other queues",
    "burstiness": "other arrivals make other queues",
    "ignore_eos": "answers of other lengths are other work",
    "endpoint": "chat adds a template and its tokenising",
}


@dataclass(frozen=True, slots=True)
class Refusal:
    """One sentence with the cause, and what to do next."""

    why: str
    next_step: str


def refusals(base: Side, new: Side, cells: Sequence[PairedCell], gates: Sequence[str]) -> list[Refusal]:
    """Everything that forbids comparing these two; empty where nothing does."""
    if unlike := _of_two_kinds(base, new):
        return [unlike]
    found = [*_plans(base, new, ([], []) if cells else _unlike_grids(base, new)), *_definitions(base, new)]
    if not cells:
        return found or [_no_common_cell(base, new)]
    if not found and not any(cell.planned for cell in cells):
        return [_seeds(base, new)]
    if (
        not found
        and any(cell.pairs for cell in cells)
        and not any(_has(cell, gate) for cell in cells for gate in gates)
    ):
        names = ", ".join(gates)
        return [
            Refusal(
                f"none of the gated metrics ({names}) was measured, with requests enough to carry it, on both sides.",
                "Gate metrics that both summaries hold: --gate",
            )
        ]
    return found


def refusals_of_searches(base: Side, new: Side, cells: Sequence[PairedCell]) -> list[Refusal]:
    """The same of two searches. Their seeds may differ: each interval holds what arrivals do."""
    if unlike := _of_two_kinds(base, new):
        return [unlike]
    found = [*_plans(base, new), *_definitions(base, new)]
    if cells or found:
        return found
    told = [", ".join(f"{length:,}" for length in _prompt_lens(side)) or "none" for side in (base, new)]
    why = f"no search in common: prompt tokens {told[0]} in {base.role}, {told[1]} in {new.role}, or other outputs."
    return [Refusal(why, f"Measure {new.role} with the command of {base.role}.")]


def _prompt_lens(side: Side) -> list[int]:
    return sorted({int(answer["prompt_len"]) for answer in side.summary["capacity"]["answers"]})


def _of_two_kinds(base: Side, new: Side) -> Refusal | None:
    """Transfers against loads, searches against given rates, simulated against real."""
    if is_transfer(base.summary) != is_transfer(new.summary):
        moved, load = (base, new) if is_transfer(base.summary) else (new, base)
        why = f"{moved.role} is a run of probe-transfer, {load.role} one of sweep: they measure different things."
        return Refusal(why, "Compare transfers with transfers, sweeps with sweeps.")
    if bool(base.summary.get("capacity")) != bool(new.summary.get("capacity")):
        search, given = (base, new) if base.summary.get("capacity") else (new, base)
        why = f"{search.role} searched for a rate, {given.role} was asked given ones: they answer different questions."
        return Refusal(why, "Compare searches with searches: pdbench sweep --find-capacity --slo ...")
    if base.simulated != new.simulated:
        real, bed = (new, base) if base.simulated else (base, new)
        why = (
            f"{bed.role} is SIMULATED and {real.role} is a real deployment: the testbed's figures are no one's hardware"
        )
        return Refusal(f"{why}.", "Compare simulated runs with simulated ones, real ones with real ones.")
    return None


def _plans(base: Side, new: Side, grids: tuple[list[str], list[str]] = ([], [])) -> Iterator[Refusal]:
    """What was asked of the servers differs, with what their grids do not share. Transfers say it in each cell."""
    if is_transfer(base.summary):
        return
    differing = [
        key for key in base.plan if key in new.plan and key not in HARMLESS and _asked(base, key) != _asked(new, key)
    ]
    if differing:
        said = "; ".join([*grids[0], *(_differs(key, base, new) for key in differing)])
        known = [f"{FLAGS[key]} {_flag(base.plan[key])}" for key in differing if key in FLAGS and base.plan[key]]
        flags = " ".join([*grids[1], *known])
        yield Refusal(
            f"the two were not asked the same: {said}.",
            f"Measure {new.role} as {base.role} was{': ' + flags if flags else ''}.",
        )
    elif base.summary.get("capacity"):
        return
    elif base.plan.get("seed") is not None and base.plan.get("seed") != new.plan.get("seed", base.plan["seed"]):
        yield _seeds(base, new)


def _asked(side: Side, key: str) -> Any:
    """How long a search may take changes how sure it is, and not what it looks for."""
    value = side.plan[key] or None
    return {k: v for k, v in value.items() if k != "max_duration_s"} if key == "search" and value else value


def _differs(key: str, base: Side, new: Side) -> str:
    if key == "search":
        return f"{_sought(base.plan[key])} in {base.role}, {_sought(new.plan[key])} in {new.role}"
    values = f"{key} {_shown(base.plan[key])} in {base.role}, {_shown(new.plan[key])} in {new.role}"
    return f"{values} ({WHY[key]})" if key in WHY else values


def _sought(search: Mapping[str, Any]) -> str:
    """`--find-capacity --slo ttft:p99:500ms`."""
    slos = [
        f"--slo {slo.get('metric')}:{slo.get('statistic') or ''}:{slo.get('limit'):g}"
        for slo in search.get("slos") or []
    ]
    return clean(" ".join([f"--find-{search.get('find')}", *slos]), 200)


def _seeds(base: Side, new: Side) -> Refusal:
    seeds = [clean(side.plan.get("seed", "unknown"), 30) for side in (base, new)]
    told = f"seed {seeds[0]} in {base.role}, {seeds[1]} in {new.role}" if seeds[0] != seeds[1] else "no seed in common"
    flag = f" --seed {seeds[0]}" if seeds[0] not in ("0", "unknown") else ""
    return Refusal(
        f"the arrivals differ ({told}): the wait for a slot depends on them more than on most regressions.",
        f"Measure {new.role} with the arrivals of {base.role}: pdbench sweep{flag or ' without --seed'}",
    )


def _definitions(base: Side, new: Side) -> Iterator[Refusal]:
    """Figures of other tools, and figures whose meaning is another one."""
    tools = [clean(side.summary.get("imported_from") or "pdbench", 60) for side in (base, new)]
    if tools[0] != tools[1]:
        yield Refusal(
            f"{base.role} was measured by {tools[0]}, {new.role} by {tools[1]}: they define TTFT, TPOT and ITL in "
            "their own ways.",
            "Measure both sides with one tool.",
        )


def _no_common_cell(base: Side, new: Side) -> Refusal:
    if is_transfer(base.summary):
        shapes = [clean(", ".join(name_of(cell) for cell in side.cells[:2]), 200) or "none" for side in (base, new)]
        told = f"no transfer in common: {shapes[0]} in {base.role}, {shapes[1]} in {new.role}."
        return Refusal(told, f"Measure {new.role} with the command of {base.role}.")
    loops = [{wording.loop(cell) for cell in side.cells} for side in (base, new)]
    if not (loops[0] & loops[1]) and all(loops):
        kinds = [
            f"{'closed' if kind == {'closed'} else 'open'} loop in {side.role}"
            for kind, side in zip(loops, (base, new), strict=True)
        ]
        return Refusal(
            f"{kinds[0]}, {kinds[1]}: a closed loop sends less where servers slow down, so the two answer different "
            "questions.",
            f"Measure {new.role} as {base.role} was: {'--max-concurrency' if loops[0] == {'closed'} else '--rates'}",
        )
    said, flags = _unlike_grids(base, new)
    if not said and not set(base.targets) & set(new.targets):
        named = [f"{', '.join(side.targets) or 'none'} in {side.role}" for side in (base, new)]
        said = [f"targets {', '.join(named)}"]
    return Refusal(
        f"no cell in common: {clean('; '.join(said) or 'each place of the grid is in one of them only', 400)}.",
        f"Measure {new.role} as {base.role} was{': ' + ' '.join(flags) if flags else ''}.",
    )


def _unlike_grids(base: Side, new: Side) -> tuple[list[str], list[str]]:
    """What the grids of cells share no value of, and the flags that would give NEW those of BASE."""
    asked = [
        ("requests/s asked", "request_rate", "--rates"),
        ("streams", "max_concurrency", "--max-concurrency"),
        ("prompt tokens", "prompt_len", "--prompt-lens"),
        ("output tokens", "output_len", "--output-len"),
    ]
    said, flags = [], []
    for name, key, flag in asked:
        olds, news = _values(base.cells, key), _values(new.cells, key)
        if olds and news and not set(olds) & set(news):
            said.append(f"{name} {_list(olds)} in {base.role}, {_list(news)} in {new.role}")
            flags.append(f"{flag} {','.join(f'{value:g}' for value in olds)}")
    return said, flags


def _values(cells: Sequence[CellSummary], key: str) -> list[float]:
    return sorted({float(cell[key]) for cell in cells if isinstance(cell.get(key), int | float)})


def _list(values: Sequence[float]) -> str:
    return ", ".join(wording.short(value) for value in values)


def _has(cell: PairedCell, gate: str) -> bool:
    return any(figure(a, gate) is not None and figure(b, gate) is not None for a, b in cell.pairs)


def _shown(value: Any) -> str:
    if value is None or value in ([], (), {}):
        return "none"
    if isinstance(value, Mapping | list | tuple):
        return clean(value, 80)
    return clean(f"{value:g}" if isinstance(value, float) else value, 80)


def _flag(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else clean(value, 40)
