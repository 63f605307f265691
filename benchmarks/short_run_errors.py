"""What a mean TTFT is worth with and without the warning of a short run, by simulated P/D cells.

    python benchmarks/short_run_errors.py [CELLS] [SEED]

Each cell has 2 to 64 decode slots, 30 to 93 % of them used by answers of one length, and 40 to 1,200 requests at
Poisson arrivals. Its steady mean TTFT is its own with the wait for a slot replaced by that of M/D/c (Spitzer's
identity). Prints the mean that was measured over it, for cells that are silent, told and void; beside it what the cells
that are told say the steady wait is, over that of M/D/c; and the wait of the split beside the simulation's own.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from pdbench.littles_law.fixed_length import fixed_length_waits
from pdbench.report.summary import summarise
from tests.report.queue_simulation import World, make_run, simulate, truth

PREFILL_S = 0.004
BUSY_PREFILL = 0.5  # beyond, its queue is another subject


def drawn(rng):
    """A cell and the share of its slots that it uses; `None` where prefill would be short too."""
    slots, tokens, step_s = int(rng.choice([2, 4, 8, 16, 32, 64])), int(rng.choice([16, 64, 128, 256])), 0.01
    used = float(rng.uniform(0.3, 0.93))
    rate = used * slots / (tokens * step_s)
    if rate * PREFILL_S > BUSY_PREFILL:
        return None
    return used, World(
        rate=rate, n=int(rng.choice([40, 80, 150, 300, 600, 1200])), slots=slots, tokens=tokens, step_s=step_s,
        prefill_s=PREFILL_S, transfer_s=0.004, post_s=0.0, mode=str(rng.choice(["pull", "push"])),
        seed=int(rng.integers(1 << 31)), sample_s=float(rng.choice([0.25, 0.5, 1.0])),
    )  # fmt: skip


def main(cells: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    found, steady_told, split_off = {}, [], []
    while sum(map(len, found.values())) < cells:
        if (one := drawn(rng)) is None:
            continue
        used, world = one
        with tempfile.TemporaryDirectory() as folder:
            cell = summarise(make_run(Path(folder) / "run", [[world]]))["cells"][0]
        wait_ms = truth(world, simulate(world))["slot_wait"]
        steady_ms = 1000 * world.tokens * world.step_s * fixed_length_waits(used * world.slots, world.slots, 1).mean_s
        void = any(flag["severity"] == "void" for flag in cell["validity"])
        short = cell.get("short_run")
        kind = "void" if void else "silent" if short is None else "told"
        found.setdefault(kind, []).append(cell["mean_ttft_ms"] / (cell["mean_ttft_ms"] - wait_ms + steady_ms))
        if kind == "told" and "steady_slot_wait_ms" in short:
            steady_told.append(short["steady_slot_wait_ms"] / steady_ms)
        if (split_ms := cell["ttft_split_ms"].get("slot_wait")) is not None:
            split_off.append((split_ms - wait_ms) / cell["mean_ttft_ms"])
    shares = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)
    print(f"{'':34s}" + "".join(f"{f'p{100 * q:.0f}':>8s}" for q in shares))
    for name, values in (
        *((f"mean TTFT / steady one, {kind} ({len(found[kind])})", found[kind]) for kind in sorted(found)),
        ("steady wait told / M/D/c", steady_told),
        ("split's slot wait off, of TTFT", split_off),
    ):
        print(f"{name:34s}" + "".join(f"{value:8.2f}" for value in np.quantile(values, shares)))


if __name__ == "__main__":
    main(*(int(word) for word in [*sys.argv[1:], *("300", "0")[len(sys.argv) - 1 :]]))
