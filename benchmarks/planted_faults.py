"""Planted faults against what pdbench names: recall at mild and strong doses, pairs, and false alarms of healthy runs.

    python benchmarks/planted_faults.py [--seeds 5] [--first-seed 1] [--only proxy,client] [--scale 1.0] [--jobs 2]

Runs are in virtual time (tests/planted/virtual.py): each is a whole sweep of one cell on the testbed, from its seed.
`--scale` multiplies every dose. docs/diagnosis.md keeps the table that this prints.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections import Counter, defaultdict
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.planted.faults import FAULTS, GEOMETRIES, MILD, PAIRS, STRONG, Dose, Geometry, Plant, healthy, named, planted

NONE = "(none)"


def timed(plant: Plant, seed: int) -> tuple[list[str], float]:
    """The causes that the report names, and what the run took."""
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        return named(Path(folder), plant, seed), time.monotonic() - begun


def scaled(dose: Dose, scale: float) -> Dose:
    """A dose that is so many times as large; loads and shares move towards 1."""
    odds = dose.share / (1 - dose.share) * scale
    return replace(dose, share=odds / (1 + odds), load=dose.load * scale**0.5, loop=min(0.8, dose.loop * scale))


def cases(only: set[str], scale: float) -> list[tuple[str, str, Plant]]:
    """(row, dose, plant) for everything that is planted."""
    found: list[tuple[str, str, Plant]] = []
    for geometry in GEOMETRIES:
        for mode in ("pull", "push"):
            for dose in (MILD, STRONG):
                for causes in [*((name,) for name in FAULTS), *PAIRS]:
                    if not only or only & {*causes, "pairs" if len(causes) > 1 else "alone"}:
                        found.append(
                            (" + ".join(causes), dose.name, planted(geometry, mode, causes, scaled(dose, scale)))
                        )
        if not only or "healthy" in only:
            for mode in ("pull", "push", "colocated"):
                for use in (0.1, 0.2, 0.4):
                    calm: Geometry = replace(geometry, use=use)
                    found.append(("healthy", mode, healthy(calm, mode)))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--only", default="")
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--missed", action="store_true", help="say of every miss and surplus where it was")
    asked = parser.parse_args()
    work = [
        (row, dose, plant, seed)
        for row, dose, plant in cases(set(filter(None, asked.only.split(","))), asked.scale)
        for seed in range(asked.first_seed, asked.first_seed + asked.seeds)
    ]
    counts: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    spent = 0.0
    with ProcessPoolExecutor(asked.jobs) as pool:
        answers = pool.map(timed, [plant for _, _, plant, _ in work], [seed for *_, seed in work], chunksize=4)
        for (row, dose, plant, seed), (causes, took) in zip(work, answers, strict=True):
            spent += took
            count = counts[row, dose]
            count["runs"] += 1
            count["all named"] += set(plant.causes) <= set(causes)
            count["first"] += bool(plant.causes) and causes[:1] != [] and causes[0] in plant.causes
            surplus = set(causes) - set(plant.causes) - set(plant.implied)
            count["surplus"] += bool(surplus)
            for cause in causes or [NONE]:
                count[cause] += 1
            if asked.missed and (surplus or not set(plant.causes) <= set(causes)):
                where = f"{plant.geometry.name}, {plant.mode}, seed {seed}, {plant.rate:.2f} req/s"
                print(f"{row} {dose}: named {', '.join(causes) or 'nothing'} ({where}) {plant.settings}", flush=True)
    show(counts)
    print(f"\n{len(work):,} runs, {spent:,.0f} s of CPU")


def show(counts: dict[tuple[str, str], Counter[str]]) -> None:
    names = [*(name for name in FAULTS if name != "slow-post"), "not-distinguishable", NONE]
    head = "".join(f"{short(name):>7}" for name in names)
    print(f"{'planted':<44}{'dose':<8}{'runs':>5}{'recall':>8}{'surplus':>9}  {head}")
    for (row, dose), count in sorted(counts.items(), key=lambda pair: (pair[0][0] == "healthy", "+" in pair[0][0])):
        runs = count["runs"]
        recall = "" if row == "healthy" else f"{count['all named'] / runs:.2f}"
        cells = "".join(f"{count[name] / runs:>7.2f}" if count[name] else f"{'.':>7}" for name in names)
        print(f"{row:<44}{dose:<8}{runs:>5}{recall:>8}{count['surplus'] / runs:>9.2f}  {cells}")
    for label, keep in (("mild", "mild"), ("strong", "strong")):
        for kind, joined in (("alone", False), ("pairs", True)):
            some = [
                c for (row, dose), c in counts.items() if dose == keep and row != "healthy" and ("+" in row) == joined
            ]
            if runs := sum(c["runs"] for c in some):
                print(f"{label}, {kind}: recall {sum(c['all named'] for c in some) / runs:.3f} of {runs}", end="")
                print(f", another cause named beside in {sum(c['surplus'] for c in some) / runs:.3f}")
    calm = [c for (row, _), c in counts.items() if row == "healthy"]
    if runs := sum(c["runs"] for c in calm):
        print(f"healthy: a cause named in {sum(c['surplus'] for c in calm) / runs:.3f} of {runs}")


def short(name: str) -> str:
    return {
        "decode-slots": "slots",
        "decode-kv-pool": "pool",
        "prefill-queue": "p-queue",
        "prefill-compute": "p-comp",
        "transfer-bandwidth": "bandw",
        "transfer-fragmentation": "fragm",
        "engine-loop-blocking": "loop",
        "completion-polling": "poll",
        "admission": "admit",
        "not-distinguishable": "notdist",
    }.get(name, name)


if __name__ == "__main__":
    main()
