"""How often the gate of `pdbench compare` is wrong, and what it sees: A/A campaigns and power curves.

A campaign is what one CI run does: N repeats of four cells on two deployments with the same arrivals, judged by the
code of `compare`. Each repeat is a queue of 200 requests at 30, 50, 70 or 90 % of capacity: one prefill server, 20
decode slots, steps that grow with the batch, posts that hold the decode loop up, noise on every request, a speed that
drifts from cell to cell (AR(1)), and now and then a slow second. A campaign takes consecutive repeats of a long series,
so drift stays what it is.

Usage: python benchmarks/gate_errors.py [CAMPAIGNS]   simulated queues
       python benchmarks/gate_errors.py RUN...        A/A from runs of two equal targets with many repeats
"""

from __future__ import annotations

import heapq
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from pdbench.report.answers import Answers, Load, rates
from pdbench.report.compare.comparison import CellChange, status_of
from pdbench.report.compare.gate import Change, Rules, changes, validity_change
from pdbench.report.compare.pairs import PairedCell, paired_cells
from pdbench.report.compare.said import loss
from pdbench.report.compare.sides import BASE, read_side, two_targets
from pdbench.report.events import of_offsets
from pdbench.report.steady_state import judge

LOADS = (0.3, 0.5, 0.7, 0.9)
REQUESTS = 200
REPEATS = (5, 6, 8, 10, 12)
HEAD = "repeats   failed passed undecided   called worse"


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
    memory: float = 0.8  # of the drift, from one cell to the next
    session: float = 0.0  # SD of the speed of a whole session
    disturbed: float = 0.05  # share of cells with a slow second


CALM, NOISY = Noise(), Noise(request=0.15, drift=0.03, disturbed=0.2)
PLANTED = {
    "TTFT": lambda s, e: replace(s, proxy_s=s.proxy_s * (1 + e), prefill_s=s.prefill_s * (1 + e)),
    "TPOT": lambda s, e: replace(s, step_s=s.step_s * (1 + e), per_stream_s=s.per_stream_s * (1 + e)),
    "post time": lambda s, e: replace(s, post_s=s.post_s * (1 + e)),
    "capacity": lambda s, e: replace(s, slots=round(s.slots * (1 - e))),
}


def answered(server: Server, arrivals: np.ndarray, speed: float, noise: Noise, rng: np.random.Generator) -> Answers:
    """One cell of one server whose every time is `speed` times as long."""
    n = len(arrivals)
    jitter = rng.lognormal(0, noise.request, (2, n)) * speed
    slow_at = rng.uniform(0, arrivals[-1]) if rng.random() < noise.disturbed else np.inf
    first, last = np.empty(n), np.empty(n)
    free, running = 0.0, []
    for i, sent in enumerate(arrivals):
        free = max(free, sent + server.proxy_s * speed) + server.prefill_s * jitter[0, i]
        at = free + server.post_s * speed
        while running and running[0] <= at:
            heapq.heappop(running)
        if len(running) >= server.slots:
            at = heapq.heappop(running)
        batch = len(running) + 1
        step = (server.step_s + server.per_stream_s * batch) * jitter[1, i]
        first[i] = at + step
        last[i] = at + server.tokens * step + (batch - 1) * server.post_s * speed
        last[i] += 1.0 if at <= slow_at < last[i] else 0.0
        heapq.heappush(running, last[i])
    known = dict.fromkeys(Answers.__slots__, np.full(n, np.nan))
    lengths = ("prompt_len", "output_len", "prompt_tokens", "output_tokens", "chunks")
    known |= dict.fromkeys(lengths, np.full(n, float(server.tokens)))
    known |= {"status": np.full(n, "ok"), "request_class": np.full(n, "default"), "events": of_offsets([""] * n, {})}
    return Answers(**known | {"intended": arrivals, "sent": arrivals, "first": first, "last": last, "done": last})


def repeat_of(answers: Answers, rate: float, number: int, post_ms: float) -> dict[str, object]:
    """A repeat as summary.json has it."""
    end = float(answers.sent[-1])
    steady = judge(answers, 0.0, end, rate).steady
    ttft = answers.ttft_ms
    return {
        "repeat": number,
        "seed": number,
        "valid": steady,
        "validity": [] if steady else [{"code": "not-steady-state", "severity": "void"}],
        "mean_ttft_ms": float(ttft.mean()),
        "median_ttft_ms": float(np.median(ttft)),
        "mean_tpot_ms": float(answers.tpot_ms.mean()),
        "ttft_split_ms": {"post": post_ms},
        **rates([Load(answers, 0.0, end)], {}),
    }


def drifting(noise: Noise, count: int, rng: np.random.Generator) -> np.ndarray:
    """A speed for each cell of a session, in time order."""
    state, found = rng.normal(), np.empty(count)
    for i in range(count):
        state = noise.memory * state + np.sqrt(1 - noise.memory**2) * rng.normal()
        found[i] = state
    return np.exp(noise.drift * found + noise.session * rng.normal())


def series(base: Server, new: Server, noise: Noise, repeats: int, together: bool, seed: int) -> list[list[tuple]]:
    """For each cell its pairs in time order. `together`: the targets take turns in one session; else two sessions."""
    rng, cells = np.random.default_rng(seed), len(LOADS)
    if together:
        speeds = drifting(noise, repeats * cells * 2, rng).reshape(repeats, cells, 2)
    else:
        speeds = np.stack([drifting(noise, repeats * cells, rng).reshape(repeats, cells) for _ in range(2)], axis=-1)
    found: list[list[tuple]] = [[] for _ in LOADS]
    for number in range(repeats):
        for cell, load in enumerate(LOADS):
            rate = load * base.slots / base.full_s()
            arrivals = np.cumsum(np.random.default_rng([seed, number, cell]).exponential(1 / rate, REQUESTS))
            pair = []
            for server, speed in zip((base, new), speeds[number, cell], strict=True):
                post_ms = server.post_s * speed * rng.lognormal(0, noise.request / 2) * 1000
                pair.append(repeat_of(answered(server, arrivals, speed, noise, rng), rate, number, post_ms))
            found[cell].append(tuple(pair))
    return found


def campaign(of_cells: Sequence[Sequence[tuple]], rules: Rules) -> tuple[str, bool]:
    """Status of the gate, and whether any change was called worse."""
    cells = []
    for number, pairs in enumerate(of_cells):
        valid = tuple(pair for pair in pairs if pair[0]["valid"] and pair[1]["valid"])
        void = [sum(not pair[side]["valid"] for pair in pairs) for side in (0, 1)]
        codes = tuple(("not-steady-state",) if count else () for count in void)
        cells.append(PairedCell(f"{number}", {}, {}, valid, *void, len(pairs), codes, ("a", "b")))
    found = []
    for cell, gates in zip(cells, changes(cells, rules.gates, rules, gated=True), strict=True):
        lost = validity_change(cell, len(cells), rules)
        found.append(CellChange(cell, (*([lost] if lost else []), *gates), (), (), ()))
    return status_of(found), any(called_worse(change) for cell in found for change in cell.gates)


def called_worse(change: Change) -> bool:
    """For sure, large or small."""
    return change.evidence == "worse" or (change.evidence == "small" and loss(change) > 0)


def row(outcomes: Sequence[tuple[str, bool]]) -> str:
    count = len(outcomes) / 100
    failed, passed = (sum(status == wanted for status, _ in outcomes) / count for wanted in ("failed", "passed"))
    worse = sum(called for _, called in outcomes) / count
    return f"{failed:6.1f} {passed:6.1f} {100 - failed - passed:9.1f}   {worse:12.1f}"


def consecutive(found: list[list[tuple]], repeats: int, campaigns: int, rules: Rules) -> list[tuple[str, bool]]:
    starts = np.linspace(0, len(found[0]) - repeats, campaigns).astype(int)
    return [campaign([cell[start : start + repeats] for cell in found], rules) for start in starts]


def simulated(campaigns: int) -> None:
    server, rules = Server(), Rules()
    print(f"A/A: the same server twice, 4 cells x 4 metrics; % of {campaigns} campaigns")
    print(f"noise  {'order':<22} {HEAD}")
    for name, noise in (("calm", CALM), ("noisy", NOISY)):
        found = series(server, server, noise, 2 * campaigns, together=True, seed=1)
        for repeats in REPEATS:
            print(f"{name:<6} {'taking turns':<22} {repeats:>7}   {row(consecutive(found, repeats, campaigns, rules))}")
        apart = replace(noise, session=0.01)
        for repeats in (5, 8, 12):
            outcomes = []
            for number in range(campaigns):
                pairs = series(server, server, apart, repeats, together=False, seed=1000 + number)
                outcomes.append(campaign(pairs, rules))
            print(f"{name:<6} {'two sessions, SD 1 %':<22} {repeats:>7}   {row(outcomes)}", flush=True)
    half = max(campaigns // 2, 20)
    print(f"\npower: one thing is slower (smaller) by so much, targets taking turns; % of {half} campaigns")
    print(f"noise  {'planted':<22} {HEAD}")
    with_post = replace(rules, gates=(*rules.gates, "ttft_split_ms.post"))
    for name, noise in (("calm", CALM), ("noisy", NOISY)):
        for what, plant in PLANTED.items():
            for effect in (0.05, 0.10, 0.20):
                found = series(server, plant(server, effect), noise, half + 12, together=True, seed=3)
                for repeats in (5, 8, 12):
                    chosen = with_post if what == "post time" else rules
                    outcomes = consecutive(found, repeats, half, chosen)
                    print(f"{name:<6} {f'{what} {effect:.0%}':<22} {repeats:>7}   {row(outcomes)}", flush=True)


def real(paths: list[Path]) -> None:
    """Campaigns from real A/A runs: pairs drawn without repetition, each side as likely to be called new."""
    cells: list[list[tuple]] = []
    for path in paths:
        paired, _ = paired_cells(*two_targets(read_side(path, BASE), []))
        cells = cells or [[] for _ in paired]
        for place, cell in enumerate(paired):
            cells[place] += cell.pairs
    size = min(len(cell) for cell in cells)
    print(f"A/A from {len(paths)} run(s): {len(cells)} cells, {size} valid pairs each; % of 1,000 campaigns\n{HEAD}")
    rng = np.random.default_rng(1)
    for repeats in (count for count in REPEATS if 3 * count <= size):
        outcomes = []
        for _ in range(1000):
            chosen = [[cell[i] for i in rng.permutation(len(cell))[:repeats]] for cell in cells]
            turned = [[pair[:: rng.choice([1, -1])] for pair in cell] for cell in chosen]
            numbered = [[tuple({**one, "repeat": i} for one in p) for i, p in enumerate(cell)] for cell in turned]
            outcomes.append(campaign(numbered, Rules()))
        print(f"{repeats:>7}   {row(outcomes)}", flush=True)


if __name__ == "__main__":
    if len(sys.argv) > 1 and not sys.argv[1].isdigit():
        real([Path(word) for word in sys.argv[1:]])
    else:
        simulated(int(sys.argv[1]) if len(sys.argv) > 1 else 400)
