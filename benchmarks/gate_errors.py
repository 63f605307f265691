"""How often the gate of `pdbench compare` is wrong, and what it sees: A/A campaigns and power curves.

A campaign is what one CI run does: N repeats of four cells (30, 50, 70 and 85 % of capacity) on two deployments with the
same arrivals, judged by the very code of `compare`. Each repeat is a queue: one prefill server, 20 decode slots, steps
that grow with the batch, posts that hold the decode loop up, noise on every request, a speed that drifts from cell to
cell (AR(1)), and now and then a slow second. Repeats come from pools of several hundred in time order, and a campaign
takes consecutive ones, so drift stays what it is.

Usage: python benchmarks/gate_errors.py [CAMPAIGNS]      simulated queues
       python benchmarks/gate_errors.py RUN...           A/A from runs with two equal targets and many repeats
"""

from __future__ import annotations

import heapq
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from pdbench.report.answers import Answers, Load, rates
from pdbench.report.compare.comparison import CellChange, _status
from pdbench.report.compare.gate import Rules, changes, validity_change
from pdbench.report.compare.pairs import PairedCell, paired_cells
from pdbench.report.compare.sides import BASE, read_side, two_targets
from pdbench.report.steady_state import judge

LOADS = (0.3, 0.5, 0.7, 0.85)
REQUESTS = 200
POOL = 400
REPEATS = (5, 6, 8, 10, 12)


@dataclass(frozen=True)
class Server:
    """One deployment; times in s."""

    proxy_s: float = 0.030
    prefill_s: float = 0.030
    step_s: float = 0.0055
    per_stream_s: float = 0.0001
    post_s: float = 0.012
    slots: int = 20
    tokens: int = 64

    def full_s(self) -> float:
        """How long a slot is held when all are."""
        return self.tokens * (self.step_s + self.slots * self.per_stream_s) + self.slots * self.post_s


@dataclass(frozen=True)
class Noise:
    """What makes two runs of one server differ. Shares of time, but for the slow second."""

    request: float = 0.05
    drift: float = 0.01  # stationary SD of the speed
    drift_memory: float = 0.8  # from one cell to the next
    session: float = 0.0  # SD of the speed of a whole session
    disturbed: float = 0.05  # share of cells with a slow second


def answered(server: Server, arrivals: np.ndarray, speed: float, noise: Noise, rng: np.random.Generator) -> Answers:
    n = len(arrivals)
    jitter = rng.lognormal(0, noise.request, (2, n)) * speed
    slow_at = rng.uniform(0, arrivals[-1]) if rng.random() < noise.disturbed else np.inf
    ready = np.empty(n)
    free = 0.0
    for i, sent in enumerate(arrivals):
        free = max(free, sent + server.proxy_s * speed) + server.prefill_s * jitter[0, i]
        ready[i] = free
    first, last = np.empty(n), np.empty(n)
    running: list[float] = []
    for i in range(n):
        at = ready[i] + server.post_s * speed
        while running and running[0] <= at:
            heapq.heappop(running)
        if len(running) >= server.slots:
            at = heapq.heappop(running)
        batch = len(running) + 1
        step = (server.step_s + server.per_stream_s * batch) * jitter[1, i]
        first[i] = at + step
        last[i] = at + server.tokens * step + (batch - 1) * server.post_s * speed
        if at <= slow_at < last[i]:
            last[i] += 1.0
        heapq.heappush(running, last[i])
    full, none = np.full(n, float(server.tokens)), tuple(np.array([]) for _ in range(n))
    return Answers(
        status=np.full(n, "ok"), intended=arrivals, sent=arrivals, first=first, last=last, done=last, prompt_len=full,
        output_len=full, prompt_tokens=full, output_tokens=full, cached_tokens=full, chunks=full, gaps=none, offsets=none,
    )  # fmt: skip


def repeat_of(answers: Answers, rate: float, number: int) -> dict[str, object]:
    """A repeat as summary.json has it."""
    end = float(answers.sent[-1])
    steady = judge(answers, 0.0, end, rate).steady
    ttft = answers.ttft_ms
    return {
        "repeat": number, "seed": number, "valid": steady,
        "validity": [] if steady else [{"code": "not-steady-state", "severity": "void"}],
        "mean_ttft_ms": float(ttft.mean()), "median_ttft_ms": float(np.median(ttft)),
        "mean_tpot_ms": float(answers.tpot_ms.mean()),
        "ttft_split_ms": {"post": 1000 * POSTED[id(answers)] if id(answers) in POSTED else 1.0},
        **rates([Load(answers, 0.0, end)], {}),
    }  # fmt: skip


POSTED: dict[int, float] = {}


def speeds(noise: Noise, count: int, rng: np.random.Generator) -> np.ndarray:
    """A speed a cell in time order."""
    state, found = rng.normal(), np.empty(count)
    for i in range(count):
        state = noise.drift_memory * state + np.sqrt(1 - noise.drift_memory**2) * rng.normal()
        found[i] = state
    return np.exp(noise.drift * found + noise.session * rng.normal())


def pool(base: Server, new: Server, noise: Noise, together: bool, size: int, seed: int) -> list[list[tuple]]:
    """For each cell its pairs of repeats in time order. `together`: the targets take turns; else two sessions."""
    rng = np.random.default_rng(seed)
    cells = len(LOADS)
    if together:
        at = speeds(noise, size * cells * 2, rng).reshape(size, cells, 2)
    else:
        # Each campaign of the pool is a pair of sessions of its own.
        blocks = [[speeds(noise, max(REPEATS) * cells, rng) for _ in range(2)] for _ in range(size // max(REPEATS) + 1)]
        at = np.concatenate([np.stack(pair, axis=-1).reshape(-1, cells, 2) for pair in blocks])[:size]
    found: list[list[tuple]] = [[] for _ in LOADS]
    for number in range(size):
        for cell, load in enumerate(LOADS):
            rate = load * base.slots / base.full_s()
            arrivals = np.cumsum(np.random.default_rng([seed, number, cell]).exponential(1 / rate, REQUESTS))
            pair = []
            for side, server in enumerate((base, new)):
                answers = answered(server, arrivals, at[number, cell, side], noise, rng)
                repeat = repeat_of(answers, rate, number)
                repeat["ttft_split_ms"] = {
                    "post": server.post_s * at[number, cell, side] * rng.lognormal(0, 0.02) * 1000
                }
                pair.append(repeat)
            found[cell].append(tuple(pair))
    return found


def campaign(pairs: list[list[tuple]], rules: Rules) -> tuple[str, bool]:
    """Status of the gate, and whether any change was called worse."""
    cells = []
    for number, of_cell in enumerate(pairs):
        valid = tuple(pair for pair in of_cell if pair[0]["valid"] and pair[1]["valid"])
        void = [sum(not pair[side]["valid"] for pair in of_cell) for side in (0, 1)]
        codes = tuple(("not-steady-state",) if count else () for count in void)
        cells.append(PairedCell(f"{number}", {}, {}, valid, *void, len(of_cell), codes, ("a", "b")))
    judged = changes(cells, rules.gates, rules, gated=True)
    found = []
    for cell, gates in zip(cells, judged, strict=True):
        lost = validity_change(cell, len(cells), rules)
        found.append(CellChange(cell, (*([lost] if lost else []), *gates), (), (), ()))
    worse = any(change.evidence == "worse" for cell in found for change in cell.gates)
    return _status(found), worse


def shares(of_cells: list[list[tuple]], repeats: int, campaigns: int, rules: Rules, seed: int, aligned: bool) -> str:
    rng = np.random.default_rng(seed)
    size = len(of_cells[0])
    found = []
    for _ in range(campaigns):
        start = int(rng.integers(0, size - repeats + 1))
        if aligned:
            start -= start % max(REPEATS)
            start = min(start, size - repeats)
        found.append(campaign([cell[start : start + repeats] for cell in of_cells], rules))
    statuses = [status for status, _ in found]
    failed, passed = (100 * statuses.count(s) / campaigns for s in ("failed", "passed"))
    return f"{failed:5.1f} {passed:6.1f} {100 - failed - passed:9.1f}   {100 * np.mean([w for _, w in found]):5.1f}"


def main() -> None:
    if len(sys.argv) > 1 and not sys.argv[1].isdigit():
        return real([Path(word) for word in sys.argv[1:]])
    campaigns = int(sys.argv[1]) if len(sys.argv) > 1 else 400
    calm, noisy = Noise(), Noise(request=0.15, drift=0.03, disturbed=0.2)
    server, rules = Server(), Rules()
    print(f"A/A: the same server twice; % of {campaigns} campaigns (4 cells x 4 metrics)")
    print("noise     order          repeats   failed passed undecided  called worse")
    for name, noise in (("calm", calm), ("noisy", noisy)):
        for order, together, session in (
            ("taking turns", True, 0.0),
            ("two sessions", False, 0.0),
            ("sessions +-1%", False, 0.01),
        ):
            found = pool(server, server, replace(noise, session=session), together, POOL, 1)
            for repeats in REPEATS:
                row = shares(found, repeats, campaigns, rules, 2, not together)
                print(f"{name:<9} {order:<14} {repeats:>7}   {row}", flush=True)
    print(f"\npower: what is slower by so much, targets taking turns; % of {campaigns} campaigns")
    print("noise     planted         repeats   failed passed undecided  called worse")
    gate_post = replace(rules, gates=(*rules.gates, "ttft_split_ms.post"))
    for name, noise in (("calm", calm), ("noisy", noisy)):
        for what, plant, gates in PLANTED:
            for effect in (0.05, 0.10, 0.20):
                found = pool(server, plant(server, effect), noise, True, POOL // 2, 3)
                for repeats in (5, 8, 12):
                    row = shares(found, repeats, max(campaigns // 2, 20), gate_post if gates else rules, 4, False)
                    print(f"{name:<9} {what:<9} {effect:+.0%}  {repeats:>7}   {row}", flush=True)


PLANTED = (
    (
        "TTFT",
        lambda s, e: replace(s, proxy_s=s.proxy_s * (1 + e), prefill_s=s.prefill_s * (1 + e), post_s=s.post_s),
        False,
    ),
    ("TPOT", lambda s, e: replace(s, step_s=s.step_s * (1 + e), per_stream_s=s.per_stream_s * (1 + e)), False),
    ("post", lambda s, e: replace(s, post_s=s.post_s * (1 + e)), True),
    ("capacity", lambda s, e: replace(s, slots=round(s.slots * (1 - e))), False),
)


def real(paths: list[Path]) -> None:
    """Campaigns from real A/A runs: consecutive repeats of a run, everything shorter than half a run."""
    cells: list[list[tuple]] = []
    for path in paths:
        paired, _ = paired_cells(*two_targets(read_side(path, BASE), []))
        for place, cell in enumerate(paired):
            if len(cells) <= place:
                cells.append([])
            cells[place] += list(cell.pairs)
    size = min(len(cell) for cell in cells)
    print(f"A/A from {len(paths)} runs: {len(cells)} cells, {size} valid pairs each; % of 1,000 campaigns")
    print("repeats   failed passed undecided  called worse")
    rng = np.random.default_rng(1)
    for repeats in REPEATS:
        found = []
        for _ in range(1000):
            chosen = [[cell[i] for i in rng.choice(len(cell), repeats, replace=False)] for cell in cells]
            swapped = [[pair[::-1] if rng.random() < 0.5 else pair for pair in cell] for cell in chosen]
            found.append(campaign([[renumbered(p, i) for i, p in enumerate(cell)] for cell in swapped], Rules()))
        statuses = [status for status, _ in found]
        failed, passed = (statuses.count(s) / 10 for s in ("failed", "passed"))
        print(
            f"{repeats:>7}    {failed:5.1f} {passed:6.1f} {100 - failed - passed:9.1f}   {np.mean([w for _, w in found]):.1%}"
        )


def renumbered(pair: tuple, number: int) -> tuple:
    return tuple({**repeat, "repeat": number} for repeat in pair)


if __name__ == "__main__":
    main()
