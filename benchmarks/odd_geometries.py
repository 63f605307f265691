"""Planted faults on geometries that nobody chose: judged by name, and by what TTFT is once a fault is taken away.

    python benchmarks/odd_geometries.py --seed 1 [--runs 60] [--jobs 2]

Steps, slots, prompts, answers, links, servers, arrivals and doses are drawn from the seed; runs are in virtual time
(tests/planted/virtual.py). A fault that was not named is missed by effect only if the same run without it has a mean
TTFT that is a tenth shorter, and so it has if what was named is gone too. What is named beside is surplus by effect
only if TTFT is not a tenth shorter without that. docs/diagnosis.md keeps the figures.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Collection
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from pdbench.report.summary import summarise
from tests.planted.faults import FAULTS, MILD, PAIRS, STRONG, Geometry, Plant, healthy, planted
from tests.planted.virtual import Sabotage, sweep

SHORTER = 0.9  # of TTFT, without a fault that has an effect
MOST_REQUESTS, MOST_TOKENS = 1_500, 150_000  # of a run that is worth its time
POSTS: dict[str, Any] = {
    "handoff_stall_ms": 0.0,
    "post_fixed_ms": 0.0,
    "post_ms_per_token": 0.0,
    "us_per_descriptor": 0,
}
CURES: dict[str, dict[str, Any]] = {
    "decode-slots": {"max_num_seqs": 1024},
    "decode-kv-pool": {"decode_blocks": 10**6},
    "admission": {"max_num_seqs": 1024, "max_num_queued_reqs": 0},
    "prefill-queue": {"prefills": 24},
    "prefill-compute": {"prefill_ms_per_token": 0.0},
    "transfer-bandwidth": {"link_gb_s": 1000.0},
    "transfer-fragmentation": POSTS,
    "engine-loop-blocking": POSTS,
    "not-distinguishable": POSTS,
    "completion-polling": {"poll_ms": 0.0},
    "proxy": {"proxy_ms": 0.0},
    "kv-expired": {"lease_s": 3600.0},
    "client": {},  # its sabotage
}


@dataclass(frozen=True)
class Odd:
    """A drawn run; `dose` is `healthy` where nothing is planted."""

    plant: Plant
    dose: str
    load: dict[str, Any]

    def without(self, causes: Collection[str]) -> Odd:
        plant = self.plant
        for cause in causes:
            sabotage = Sabotage() if cause == "client" else plant.sabotage
            plant = replace(plant, settings={**plant.settings, **CURES[cause]}, sabotage=sabotage)
        return replace(self, plant=plant)

    def run(self) -> tuple[list[str], float]:
        """The causes that the report names, and the mean TTFT in ms."""
        plant, bed = self.plant, self.plant.geometry.bed(self.plant.mode, **self.plant.settings)
        with tempfile.TemporaryDirectory() as folder:
            done = sweep(
                Path(folder) / "run", {"bed": bed}, sabotage=plant.sabotage, output_len=plant.output, **self.load
            )
            (cell,) = summarise(done.run)["cells"]
        return [cause["cause"] for cause in cell["diagnosis"]], float(cell["mean_ttft_ms"] or 0.0)


def geometry(draw: random.Random) -> Geometry:
    """Healthy by itself: compute, link and posts take 30, 30 and 6 % of their servers' time at most."""
    step, slots = draw.choice([5, 8, 12, 18, 25, 35, 45, 60]), draw.choice([4, 6, 8, 12, 16, 24, 48, 64, 128, 256])
    prompt, output = int(128 * (60_000 / 128) ** draw.random()), int(4 * (2000 / 4) ** draw.random())
    output = max(4, min(output, int(draw.choice([3000, 6000, 10000]) / step)))
    kv = draw.choice([57344, 131072, 262144, 327680])
    settings = {
        "step_base_ms": float(step),
        "step_per_seq_ms": draw.choice([0.0, 0.01, 0.02]) * step * 8 / max(8, slots),
        "max_num_seqs": slots,
        "prefill_ms_per_token": draw.uniform(1, 10) * step / prompt,
        "kv_bytes_per_token": kv,
        "link_gb_s": prompt * kv / (draw.uniform(0.05, 1.5) * step * 1e6),
        "post_fixed_ms": draw.uniform(0.02, 0.3) * step,
        "post_ms_per_token": draw.uniform(0, 0.2) * step / prompt,
        "max_model_len": 70_000,
    }
    about = f"{step} ms, {slots} slots, prompts of {prompt:,}, answers of {output:,}"
    found = Geometry(about, prompt, output, draw.choice([0.05, 0.1, 0.2, 0.3]), settings)
    post_s = (settings["post_fixed_ms"] + settings["post_ms_per_token"] * prompt) / 1000
    rate = min(0.3 / found.compute_s, 0.3 * settings["link_gb_s"] * 1e9 / found.nbytes, 0.06 / post_s)
    return replace(found, use=min(found.use, rate * found.hold_s / slots))


def drawn(draw: random.Random) -> Odd | None:
    """One run; `None` where the draw makes none that can be planted, or one that is too long."""
    place, mode = geometry(draw), draw.choice(["pull", "push"])
    dose = draw.choice([MILD, STRONG])
    dose = replace(dose, share=dose.share * draw.uniform(0.92, 1.12), load=dose.load * draw.uniform(0.98, 1.15))
    causes = draw.choice([(), (draw.choice(list(FAULTS)),), (draw.choice(list(FAULTS)),), *[draw.choice(PAIRS)] * 2])
    mode = mode if causes else draw.choice([mode, "colocated"])
    plant = planted(place, mode, causes, dose) if causes else healthy(place, mode)
    servers = 1 if mode == "colocated" or "client" in causes else draw.choice([1, 1, 2, 3])
    rate, seed = plant.rate * servers, draw.randrange(1000, 10_000)
    if mode != "colocated":
        several = {"decodes": servers, "prefills": servers * plant.settings.get("prefills", 1)}
        plant = replace(plant, settings={**plant.settings, **several})
    duration_s = min(600.0, max(draw.choice([60, 100, 200]) * servers / rate, 30.0, 6 * place.hold_s))
    requests = rate * duration_s
    if not 40 <= requests <= MOST_REQUESTS or requests * plant.output > MOST_TOKENS:
        return None
    load: dict[str, Any] = {"prompt_lens": [place.prompt], "seed": seed, "prompt_seed": seed, "duration_s": duration_s}
    if not causes and draw.random() < 0.4:
        load["streams"] = [max(1, round(plant.streams * servers))]
    else:
        load["rates"] = [rate]
        load |= {"arrivals": "gamma", "burstiness": draw.choice([0.5, 2.0])} if draw.random() < 0.15 else {}
    return Odd(plant, dose.name if causes else "healthy", load)


def judged(odd: Odd) -> tuple[Counter[str], list[str]]:
    """Counts by name and by effect, and a line for each miss and surplus."""
    causes, ttft_ms = odd.run()
    known = [cause for cause in causes if cause in CURES]
    missed = set(odd.plant.causes) - set(causes)
    surplus = set(causes) - set(odd.plant.causes) - set(odd.plant.implied)
    count, lines = Counter({"runs": 1, "missed": bool(missed), "surplus": bool(surplus)}), []

    def shorter(cause: str, of_ms: float, beside: Collection[str] = ()) -> float:
        return odd.without([*beside, cause]).run()[1] / max(of_ms, 1e-9)

    for cause in sorted(missed):
        left = [shorter(cause, ttft_ms), shorter(cause, odd.without(known).run()[1], known)]
        count["missed with effect"] |= max(left) < SHORTER
        lines.append(f"missed {cause}: TTFT x {left[0]:.2f} without it, x {left[1]:.2f} when what is named is gone too")
    for cause in sorted(surplus):
        left_of = shorter(cause, ttft_ms) if cause in CURES else 1.0
        count["surplus without effect"] |= left_of >= SHORTER
        lines.append(f"surplus {cause}: TTFT x {left_of:.2f} without it")
    load = {key: odd.load[key] for key in ("rates", "streams", "arrivals") if key in odd.load}
    what = (
        f"{' + '.join(odd.plant.causes) or 'healthy'} {odd.dose}, {odd.plant.mode}, {odd.plant.geometry.name}, {load}"
    )
    return count, [f"{what}: named {', '.join(causes) or 'nothing'} at {ttft_ms:,.0f} ms; {line}" for line in lines]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--runs", type=int, default=60)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    asked = parser.parse_args()
    draw, odds = random.Random(asked.seed), list[Odd]()
    while len(odds) < asked.runs:
        if (odd := drawn(draw)) is not None:
            odds.append(odd)
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    with ProcessPoolExecutor(asked.jobs) as pool:
        for odd, (count, lines) in zip(odds, pool.map(judged, odds), strict=True):
            counts[odd.dose] += count
            print(*lines, sep="\n", end="\n" if lines else "", flush=True)
    for dose, count in sorted(counts.items(), reverse=True):
        runs = count["runs"]
        for how, miss, more in (
            ("name", "missed", "surplus"),
            ("effect", "missed with effect", "surplus without effect"),
        ):
            recall = "" if dose == "healthy" else f"recall {1 - count[miss] / runs:.2f}, "
            print(f"{dose}, by {how}: {recall}another cause named in {count[more] / runs:.2f} of {runs} runs")


if __name__ == "__main__":
    main()
