"""Planted faults on geometries that nobody chose: judged by name, and by what TTFT is once a fault is taken away.

    python benchmarks/odd_geometries.py --seed 1 [--runs 60] [--jobs 2]

All that is drawn comes from the seed; runs are in virtual time (tests/planted/virtual.py). By effect a fault is missed
only if TTFT is a tenth shorter without it, in the same run and in the one without what was named; and what is named
beside is surplus only if TTFT is so in neither. docs/diagnosis.md keeps the figures.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
from collections import Counter, defaultdict
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from pdbench.report.summary import summarise
from tests.planted.faults import FAULTS, MILD, PAIRS, STRONG, Geometry, Plant, healthy, planted
from tests.planted.virtual import Sabotage, sweep

SHORTER, MOST_REQUESTS, MOST_TOKENS, MOST_SERVER_S = 0.9, 800, 60_000, 1_500.0  # of TTFT; of a run worth its time
CURES: dict[str, dict[str, Any]] = {  # what each is taken away by; a client's is its sabotage
    "decode-slots": {"max_num_seqs": 1024},
    "decode-kv-pool": {"decode_blocks": 10**6},
    "admission": {"max_num_seqs": 1024, "max_num_queued_reqs": 0},
    "prefill-queue": {"prefills": 24},
    "prefill-compute": {"prefill_ms_per_token": 0.0},
    "transfer-bandwidth": {"link_gb_s": 1000.0},
    "completion-polling": {"poll_ms": 0.0},
    "proxy": {"proxy_ms": 0.0},
    "client": {},
}
for _cause in ("transfer-fragmentation", "engine-loop-blocking", "not-distinguishable"):
    CURES[_cause] = {"handoff_stall_ms": 0.0, "post_fixed_ms": 0.0, "post_ms_per_token": 0.0, "us_per_descriptor": 0.0}


@dataclass(frozen=True)
class Odd:
    plant: Plant
    dose: str  # `healthy` where nothing is planted
    load: dict[str, Any]

    def without(self, *causes: str) -> Odd:
        plant = self.plant
        for cause in causes:
            sabotage = Sabotage() if cause == "client" else plant.sabotage
            plant = replace(plant, settings={**plant.settings, **CURES.get(cause, {})}, sabotage=sabotage)
        return replace(self, plant=plant)

    def run(self) -> tuple[list[str], float]:
        """The causes that the report names, and the mean TTFT in ms."""
        plant, bed = self.plant, self.plant.geometry.bed(self.plant.mode, **self.plant.settings)
        with tempfile.TemporaryDirectory() as folder:
            load = {"output_len": plant.output, "sabotage": plant.sabotage, **self.load}
            (cell,) = summarise(sweep(Path(folder) / "run", {"bed": bed}, **load).run)["cells"]
        return [cause["cause"] for cause in cell["diagnosis"]], float(cell["mean_ttft_ms"] or 0.0)


def geometry(draw: random.Random) -> Geometry:
    """Healthy by itself: compute, link and posts take 30, 30 and 6 % of their servers' time at most."""
    step, slots = draw.choice([5, 8, 12, 18, 25, 35, 45, 60]), draw.choice([4, 6, 8, 12, 16, 24, 48, 64, 128, 256])
    prompt, output = int(128 * (60_000 / 128) ** draw.random()), int(4 * (2000 / 4) ** draw.random())
    output = max(4, min(output, draw.choice([3000, 6000, 10000]) // step))
    kv, post_ms = draw.choice([57344, 131072, 262144, 327680]), draw.uniform(0.02, 0.3) * step
    link_gb_s = min(900.0, prompt * kv / (draw.uniform(0.05, 1.5) * step * 1e6))
    settings: dict[str, Any] = {"step_base_ms": float(step), "max_num_seqs": slots, "max_model_len": 70_000}
    settings |= {"step_per_seq_ms": draw.choice([0.0, 0.01, 0.02]) * step * 8 / max(8, slots)}
    settings |= {"prefill_ms_per_token": draw.uniform(1, 10) * step / prompt, "post_fixed_ms": post_ms}
    settings |= {"kv_bytes_per_token": kv, "link_gb_s": link_gb_s, "post_ms_per_token": post_ms / 2 / prompt}
    about, use = f"{step} ms, {slots} slots, {prompt:,} in, {output:,} out", draw.choice([0.05, 0.1, 0.2, 0.3])
    found = Geometry(about, prompt, output, use, settings)
    rate = min(0.3 / found.compute_s, 0.3 * link_gb_s * 1e9 / found.nbytes, 40 / post_ms)
    return replace(found, use=min(use, rate * found.hold_s / slots))


def drawn(draw: random.Random) -> Odd | None:
    """One run; `None` where it would be too long. `ValueError`: no testbed can be so."""
    place, mode, dose = geometry(draw), draw.choice(["pull", "push"]), draw.choice([MILD, STRONG])
    dose = replace(dose, share=dose.share * draw.uniform(0.92, 1.12), load=dose.load * draw.uniform(0.98, 1.15))
    causes = draw.choice([(), (draw.choice(list(FAULTS)),), (draw.choice(list(FAULTS)),), *[draw.choice(PAIRS)] * 2])
    mode = mode if causes else draw.choice([mode, "colocated"])
    plant = planted(place, mode, causes, dose) if causes else healthy(place, mode)
    servers = 1 if mode == "colocated" or "client" in causes else draw.choice([1, 1, 2, 3])
    rate, prefills = plant.rate * servers, servers * plant.settings.get("prefills", 1)
    several = {} if mode == "colocated" else {"decodes": servers, "prefills": prefills}
    plant = replace(plant, settings={**plant.settings, **several})
    duration_s = max(draw.choice([60, 100, 200]) * servers / rate, 30.0, 6 * place.hold_s)
    requests, too_long = rate * duration_s, duration_s * (servers + prefills) > MOST_SERVER_S
    if too_long or requests > MOST_REQUESTS or requests * plant.output > MOST_TOKENS:
        return None
    plant.geometry.bed(plant.mode, **plant.settings)
    seed = draw.randrange(1000, 10_000)
    load: dict[str, Any] = {"prompt_lens": [place.prompt], "seed": seed, "prompt_seed": seed, "duration_s": duration_s}
    gamma = {"arrivals": "gamma", "burstiness": draw.choice([0.5, 2.0])} if draw.random() < 0.15 else {}
    streams = max(1, round(plant.streams * servers))
    load |= {"streams": [streams]} if not causes and draw.random() < 0.4 else {"rates": [rate], **gamma}
    return Odd(plant, dose.name if causes else "healthy", load)


def judged(odd: Odd) -> tuple[Counter[str], list[str]]:
    """Counts by name and by effect, and a line for each miss and surplus."""
    causes, ttft_ms = odd.run()
    known, missed = CURES.keys() & set(causes), set(odd.plant.causes) - set(causes)
    surplus = set(causes) - set(odd.plant.causes) - set(odd.plant.implied) - {"kv-expired"}  # counted by prefill
    count, lines = Counter({"runs": 1, "missed": bool(missed), "surplus": bool(surplus)}), []
    for cause in sorted(missed | surplus):
        others = known - {cause}
        alone = odd.without(cause).run()[1] / ttft_ms
        beside = odd.without(*others, cause).run()[1] / odd.without(*others).run()[1]
        count["missed, by effect"] |= cause in missed and max(alone, beside) < SHORTER
        count["surplus, by effect"] |= cause in surplus and min(alone, beside) >= SHORTER
        how = f"TTFT x {alone:.2f} without it, x {beside:.2f} when the others that are named are gone"
        lines.append(f"{'missed' if cause in missed else 'surplus'} {cause}: {how}")
    what = f"{' + '.join(odd.plant.causes) or 'healthy'} {odd.dose}, {odd.plant.mode}, {odd.plant.geometry.name}"
    return count, [f"{what}: named {', '.join(causes) or 'nothing'} at {ttft_ms:,.0f} ms; {line}" for line in lines]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for option, default in (("--seed", None), ("--runs", 60), ("--jobs", os.cpu_count() or 1)):
        parser.add_argument(option, type=int, default=default, required=default is None)
    asked, odds = parser.parse_args(), list[Odd]()
    draw = random.Random(asked.seed)
    while len(odds) < asked.runs:
        with suppress(ValueError):
            odds += filter(None, [drawn(draw)])
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    with ProcessPoolExecutor(asked.jobs) as pool:
        for odd, (count, lines) in zip(odds, pool.map(judged, odds), strict=True):
            counts[odd.dose] += count
            print(*(f"{line}\n" for line in lines), sep="", end="", flush=True)
    for dose, count in sorted(counts.items(), reverse=True):
        for how in ("", ", by effect"):
            recall = "" if dose == "healthy" else f"recall {1 - count['missed' + how] / count['runs']:.2f}, "
            beside = f"another cause named in {count['surplus' + how] / count['runs']:.2f} of {count['runs']} runs"
            print(f"{dose}{how or ', by name'}: {recall}{beside}")


if __name__ == "__main__":
    main()
