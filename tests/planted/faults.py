"""Planted faults: for each cause, how the testbed is made to have it, at a dose, in any geometry.

A dose says how bad the fault is in the terms of what it does, not in those of how it is found: `share` is the part of
TTFT that it takes, `load` the utilisation of what is short (slots, prefill, KV blocks), `loop` the part of decode's
time for which handoffs hold its loop. Faults that keep the rate low are planted first: what is short is sized last.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pdbench.report.summary import summarise
from pdbench.testbed.settings import Settings
from tests.planted.virtual import Sabotage, sweep


@dataclass(frozen=True)
class Dose:
    name: str
    share: float
    at_least_turns: float  # what takes a share of a short TTFT must still be noticed
    load: float
    loop: float


MILD = Dose("mild", share=0.40, at_least_turns=8, load=0.92, loop=0.18)
STRONG = Dose("strong", share=0.75, at_least_turns=30, load=1.3, loop=0.45)


@dataclass(frozen=True)
class Geometry:
    """A deployment and its load, healthy by itself."""

    name: str
    prompt: int
    output: int
    use: float  # of the slots, at the healthy rate
    settings: dict[str, Any] = field(default_factory=dict)

    def bed(self, mode: str, **changes: Any) -> Settings:
        return Settings(mode=mode, **{**self.settings, **changes})

    @property
    def plain(self) -> Settings:
        return self.bed("pull")

    def turn_s(self, streams: float) -> float:
        return (self.plain.step_base_ms + self.plain.step_per_seq_ms * streams) / 1000

    @property
    def rate(self) -> float:
        """Requests/s at which `use` of the slots is taken."""
        return self.use * self.plain.max_num_seqs / self.hold_s

    @property
    def hold_s(self) -> float:
        """For how long a request then holds its slot, by the turns alone."""
        return self.output * self.turn_s(self.use * self.plain.max_num_seqs)

    @property
    def compute_s(self) -> float:
        return (self.prompt * self.plain.prefill_ms_per_token + self.plain.prefill_fixed_ms) / 1000

    @property
    def nbytes(self) -> float:
        return self.prompt * self.plain.kv_bytes_per_token

    @property
    def ttft_s(self) -> float:
        """About what a request takes to its first token here when nothing is wrong."""
        s = self.plain
        post = (s.post_fixed_ms + s.post_ms_per_token * self.prompt) / 1000
        return self.compute_s + post + self.nbytes / s.link_gb_s / 1e9 + 1.5 * self.turn_s(2)


@dataclass(frozen=True)
class Plant:
    """One planted run: what is simulated, how it is loaded, what is sabotaged."""

    geometry: Geometry
    mode: str
    causes: tuple[str, ...]
    rate: float
    output: int
    settings: dict[str, Any] = field(default_factory=dict)
    sabotage: Sabotage = field(default_factory=Sabotage)
    duration_s: float = 45.0
    implied: tuple[str, ...] = ()  # what the fault is also the cause of

    def taking(self, dose: Dose) -> float:
        """Seconds that make the dose's share of TTFT."""
        return max(self.geometry.ttft_s * dose.share / (1 - dose.share), dose.at_least_turns * self.geometry.turn_s(2))

    def with_rate(self, rate: float) -> Plant:
        return replace(self, rate=rate)

    def hold_s(self, streams: float) -> float:
        """For how long a request holds a slot beside so many others, what handoffs hold the loop included."""
        bed = self.geometry.bed(self.mode, **self.settings)
        stall = bed.handoff_stall_ms + (bed.post_fixed_ms + bed.post_ms_per_token * self.geometry.prompt) * (
            self.mode == "pull"
        )
        return self.output * self.geometry.turn_s(streams) + max(0.0, streams - 1) * stall / 1000

    @property
    def streams(self) -> float:
        """About how many run at this rate."""
        return self.rate * self.hold_s(self.rate * self.hold_s(1))

    def and_also(self, *causes: str, **settings: Any) -> Plant:
        return replace(self, causes=(*self.causes, *causes), settings={**self.settings, **settings})


Planting = Callable[[Plant, Dose], Plant]


def decode_slots(plant: Plant, dose: Dose) -> Plant:
    """So few slots that the load takes `load` of them."""
    if set(plant.causes) & {"transfer-bandwidth", "transfer-fragmentation", "prefill-compute"}:  # these keep the rate
        output = round(2 * dose.load / (plant.rate * plant.geometry.turn_s(2)))
        return replace(plant.and_also("decode-slots", max_num_seqs=2), output=output)
    if "prefill-queue" in plant.causes:
        return plant.and_also("decode-slots", max_num_seqs=max(1, int(plant.streams / dose.load)))
    slots = max(4, round(plant.streams / dose.load))
    return plant.and_also("decode-slots", max_num_seqs=slots).with_rate(dose.load * slots / plant.hold_s(slots))


def decode_kv_pool(plant: Plant, dose: Dose) -> Plant:
    """A pool for so few sequences that the load takes `load` of it, with slots for twice as many."""
    geometry = plant.geometry
    held = plant.hold_s(plant.streams) + geometry.ttft_s - geometry.compute_s
    fit = max(2, round(plant.rate * held / dose.load))
    each = math.ceil((geometry.prompt + plant.output) / geometry.plain.block_size)
    longest = max(geometry.prompt + plant.output + 64, 1024)
    settings = {"decode_blocks": fit * each + each // 2, "max_num_seqs": 2 * fit + 4, "max_model_len": longest}
    settings["decode_prefix_caching"] = False
    return plant.and_also("decode-kv-pool", **settings).with_rate(dose.load * fit / held)


def prefill_queue(plant: Plant, dose: Dose) -> Plant:
    """Prompts that keep prefill busy for `load` of the time: many that take little each."""
    geometry = plant.geometry
    rate = max(plant.rate, dose.load / (15 * geometry.turn_s(2)))
    if "transfer-bandwidth" in plant.causes:
        rate, plant = plant.rate, replace(plant, implied=(*plant.implied, "prefill-compute"))
    plant = replace(plant, output=min(plant.output, 64))
    settings = {"prefill_ms_per_token": (dose.load / rate * 1000) / geometry.prompt}
    return roomy(plant.and_also("prefill-queue", **settings).with_rate(rate))


def roomy(plant: Plant) -> Plant:
    """With slots enough, whatever the faults made of rate and turns."""
    slots = max(plant.geometry.plain.max_num_seqs, math.ceil(3 * plant.streams))
    return replace(plant, settings={**plant.settings, "max_num_seqs": slots})


def prefill_compute(plant: Plant, dose: Dose) -> Plant:
    """Prompts that take most of TTFT to compute, with prefill busy for a tenth of the time at most."""
    geometry = plant.geometry
    rest = geometry.ttft_s - geometry.compute_s
    share = 0.5 + dose.share / 2
    compute = max(rest * share / (1 - share), 40 * geometry.turn_s(2) * (dose.share / MILD.share))
    rate = plant.rate
    servers = max(1, math.ceil(rate * compute / 0.15))
    settings = {"prefill_ms_per_token": compute * 1000 / geometry.prompt, "prefills": min(servers, 12)}
    return plant.and_also("prefill-compute", **settings).with_rate(min(rate, 0.15 * settings["prefills"] / compute))


def transfer_bandwidth(plant: Plant, dose: Dose) -> Plant:
    """A link so slow that moving the KV takes the dose's share; busy for a third of the time at most."""
    taking = plant.taking(dose)
    moved = plant.and_also("transfer-bandwidth", link_gb_s=plant.geometry.nbytes / taking / 1e9)
    return moved.with_rate(min(plant.rate, 0.35 / taking))


def transfer_fragmentation(plant: Plant, dose: Dose) -> Plant:
    """So many descriptors that posting them takes the dose's share."""
    geometry = plant.geometry
    blocks = math.ceil(geometry.prompt / geometry.plain.block_size)
    taking_us = plant.taking(dose) * 1e6
    settings = {"us_per_descriptor": 2.4, "descriptors_per_block": taking_us / 2.4 / blocks}
    found = plant.and_also("transfer-fragmentation", **settings)
    found = found.with_rate(min(plant.rate, 0.4 / plant.taking(dose)))
    return replace(found, implied=(*found.implied, "engine-loop-blocking")) if plant.mode == "pull" else found


def slow_post(plant: Plant, dose: Dose) -> Plant:
    """Posting that takes most of TTFT by itself, whatever is posted: it holds decode's loop in pull; on a thread of its
    own, with prompts of one length, nobody can tell it from a copy."""
    geometry = plant.geometry
    share = 0.5 + dose.share / 2
    taking = max(geometry.ttft_s * share / (1 - share), dose.at_least_turns * geometry.turn_s(2))
    cause = "engine-loop-blocking" if plant.mode == "pull" else "not-distinguishable"
    found = plant.and_also(cause, post_fixed_ms=1000 * taking)
    return roomy(found.with_rate(min(plant.rate, 0.25 / taking)))


def engine_loop_blocking(plant: Plant, dose: Dose) -> Plant:
    """Each handoff holds decode's loop for so long that handoffs take `loop` of its time: posting in pull, another
    thing in push."""
    stall_ms = dose.loop / plant.rate * 1000
    if plant.mode == "push":
        return roomy(plant.and_also("engine-loop-blocking", handoff_stall_ms=stall_ms))
    own = plant.geometry.plain.post_ms_per_token * plant.geometry.prompt
    return roomy(plant.and_also("engine-loop-blocking", post_fixed_ms=max(0.0, stall_ms - own)))


def completion_polling(plant: Plant, dose: Dose) -> Plant:
    """Decode looks for finished transfers so seldom that the wait takes the dose's share, of what others left too."""
    beside = plant.settings.get("handoff_stall_ms", 0.0) + plant.settings.get("post_fixed_ms", 0.0)
    taking = max(plant.taking(dose), beside / 1000 * dose.share / (1 - dose.share))
    return plant.and_also("completion-polling", poll_ms=2000 * taking)


def proxy(plant: Plant, dose: Dose) -> Plant:
    return plant.and_also("proxy", proxy_ms=1000 * plant.taking(dose))


def admission(plant: Plant, dose: Dose) -> Plant:
    """Servers that turn away what would have to wait: few slots, and a limit on the requests that may wait."""
    full = decode_slots(plant, replace(dose, load=dose.load))
    allowed = 2 if dose.name == "mild" else 1
    causes = tuple("admission" if cause == "decode-slots" else cause for cause in full.causes)
    settings = {**full.settings, "max_num_queued_reqs": allowed}
    return replace(full, causes=causes, settings=settings, implied=(*full.implied, "decode-slots"))


def client(plant: Plant, dose: Dose) -> Plant:
    """A client that needs long for each send: sends queue in it."""
    taking_ms = 1000 * plant.taking(dose)
    late = min(taking_ms, 0.85 / plant.rate * 1000)
    return replace(plant.and_also("client"), sabotage=Sabotage(late_ms=late))


FAULTS: dict[str, Planting] = {
    "transfer-bandwidth": transfer_bandwidth,
    "transfer-fragmentation": transfer_fragmentation,
    "prefill-compute": prefill_compute,
    "prefill-queue": prefill_queue,
    "proxy": proxy,
    "engine-loop-blocking": engine_loop_blocking,
    "slow-post": slow_post,
    "completion-polling": completion_polling,
    "decode-slots": decode_slots,
    "decode-kv-pool": decode_kv_pool,
    "admission": admission,
    "client": client,
}

PAIRS = (
    ("decode-slots", "proxy"),
    ("decode-slots", "transfer-bandwidth"),
    ("decode-slots", "transfer-fragmentation"),
    ("decode-slots", "engine-loop-blocking"),
    ("decode-slots", "prefill-compute"),
    ("prefill-queue", "decode-slots"),
    ("prefill-queue", "transfer-bandwidth"),
    ("prefill-queue", "proxy"),
    ("decode-kv-pool", "proxy"),
    ("prefill-compute", "completion-polling"),
    ("transfer-bandwidth", "proxy"),
    ("transfer-bandwidth", "engine-loop-blocking"),
    ("completion-polling", "proxy"),
    ("completion-polling", "engine-loop-blocking"),
    ("completion-polling", "slow-post"),
    ("admission", "proxy"),
)

GEOMETRIES = (
    Geometry("reference, short prompts", prompt=1024, output=96, use=0.2, settings={"post_fixed_ms": 3.0}),
    Geometry(
        "small model, many slots",
        prompt=512,
        output=150,
        use=0.08,
        settings={
            "step_base_ms": 4.0,
            "step_per_seq_ms": 0.05,
            "max_num_seqs": 32,
            "prefill_ms_per_token": 0.01,
            "kv_bytes_per_token": 57344,
            "link_gb_s": 25.0,
            "post_fixed_ms": 1.0,
            "post_ms_per_token": 0.0005,
        },
    ),
    Geometry(
        "large model, slow steps",
        prompt=4096,
        output=80,
        use=0.25,
        settings={
            "step_base_ms": 22.0,
            "step_per_seq_ms": 0.4,
            "max_num_seqs": 16,
            "prefill_ms_per_token": 0.03,
            "kv_bytes_per_token": 327680,
            "link_gb_s": 50.0,
            "post_fixed_ms": 3.0,
            "post_ms_per_token": 0.001,
        },
    ),
)


QUEUES = {"decode-slots", "decode-kv-pool", "prefill-queue"}
BESIDE = QUEUES | {"engine-loop-blocking", "slow-post"}
BESIDE_TURNS = 30  # beside a queue or a held loop, which may be nearly all of TTFT, a fault must be worth a word


def planted(geometry: Geometry, mode: str, causes: tuple[str, ...], dose: Dose) -> Plant:
    """The faults one after the other, each at the rate that those before it left."""
    plant = healthy(geometry, mode)
    if len(causes) > 1 and BESIDE & set(causes):
        dose = replace(dose, at_least_turns=max(BESIDE_TURNS, dose.at_least_turns))
    for cause in sorted(causes, key=list(FAULTS).index):
        plant = FAULTS[cause](plant, dose)
    return plant


def healthy(geometry: Geometry, mode: str) -> Plant:
    """Nothing planted. Co-located, computing prompts takes its part of the loop too: the rate at which `use` of the
    slots is taken is the lower for it."""
    rate = geometry.rate
    if mode == "colocated":
        rate /= 1 + geometry.use * geometry.plain.max_num_seqs * geometry.compute_s / geometry.hold_s
    return Plant(geometry, mode, (), rate, geometry.output)


def named(path: Path, plant: Plant, seed: int) -> list[str]:
    """The causes that the report of a run with this plant names."""
    geometry = plant.geometry
    done = sweep(
        path / "run",
        {"bed": geometry.bed(plant.mode, **plant.settings)},
        rates=[plant.rate],
        prompt_lens=[geometry.prompt],
        output_len=plant.output,
        duration_s=plant.duration_s,
        seed=seed,
        prompt_seed=seed,
        sabotage=plant.sabotage,
    )
    (cell,) = summarise(done.run)["cells"]
    return [cause["cause"] for cause in cell["diagnosis"]]
