"""Speed of the slot simulator: requests/s beside a plain heap loop, ciw and simpy, and a 400-request x 200-seed study.

    python benchmarks/simulator.py        (pip install ciw simpy, to compare with them)

All of them simulate M/M/c at 80 % use, one core, in this one run; ciw and simpy with fewer requests, since they are
slower. Prints medians of five.
"""

from __future__ import annotations

import importlib.util
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

from pdbench.littles_law.lengths import Lengths
from pdbench.littles_law.replay import replay
from pdbench.littles_law.simulate import finite_run

USE = 0.8
ROUNDS = 5
Simulator = Callable[[int, int], float]  # slots, requests -> mean wait


def vectorised(slots: int, requests: int) -> float:
    return finite_run(slots * USE, slots, 1.0, Lengths(1.0), 400, runs=requests // 400).waits.mean_s


def plain_heap(slots: int, requests: int) -> float:
    rng, arrivals, at = random.Random(1), [], 0.0
    for _ in range(requests):
        at += rng.expovariate(slots * USE)
        arrivals.append(at)
    waits = replay(arrivals, [rng.expovariate(1.0) for _ in arrivals], slots)
    return sum(waits) / requests


def with_simpy(slots: int, requests: int) -> float:
    import simpy

    rng, waits = random.Random(1), []
    env = simpy.Environment()
    pool = simpy.Resource(env, capacity=slots)

    def request():
        arrived = env.now
        with pool.request() as slot:
            yield slot
            waits.append(env.now - arrived)
            yield env.timeout(rng.expovariate(1.0))

    def source():
        for _ in range(requests):
            yield env.timeout(rng.expovariate(slots * USE))
            env.process(request())

    env.process(source())
    env.run()
    return sum(waits) / requests


def with_ciw(slots: int, requests: int) -> float:
    import ciw

    network = ciw.create_network(
        arrival_distributions=[ciw.dists.Exponential(rate=slots * USE)],
        service_distributions=[ciw.dists.Exponential(rate=1.0)],
        number_of_servers=[slots],
    )
    ciw.seed(1)
    simulation = ciw.Simulation(network)
    simulation.simulate_until_max_customers(requests, method="Finish")
    waits = [record.waiting_time for record in simulation.get_all_records()]
    return sum(waits) / len(waits)


SIMULATORS: dict[str, tuple[Simulator, int]] = {
    "pdbench": (vectorised, 800_000),
    "plain heap loop": (plain_heap, 200_000),
    "simpy": (with_simpy, 10_000),
    "ciw": (with_ciw, 3_000),
}


def seconds(function: Callable[[], object]) -> float:
    found = []
    for _ in range(ROUNDS):
        start = time.process_time()
        function()
        found.append(time.process_time() - start)
    return statistics.median(found)


def main() -> None:
    for slots in (8, 64):
        rates = {}
        for name, (simulate, requests) in SIMULATORS.items():
            if name in ("simpy", "ciw") and importlib.util.find_spec(name) is None:
                print(f"c = {slots:<3} {name:<16} not installed")
                continue
            taken = seconds(lambda simulate=simulate, requests=requests, slots=slots: simulate(slots, requests))
            rates[name] = requests / taken
            print(f"c = {slots:<3} {name:<16}{rates[name]:>12,.0f} requests/s   x{rates[name] / rates['pdbench']:.4f}")
    study = "from pdbench.littles_law.lengths import Lengths; from pdbench.littles_law.simulate import finite_run; "
    study += "finite_run(8.0, 8, 1.0, Lengths(1.0, 'lognormal'), 400, runs=200)"
    alone = seconds(lambda: finite_run(8.0, 8, 1.0, Lengths(1.0, "lognormal"), 400, runs=200))
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", study], check=True)
    whole = time.perf_counter() - start
    print(f"400 requests x 200 seeds, 8 slots: {alone * 1000:.0f} ms, as a new process {whole * 1000:.0f} ms")


if __name__ == "__main__":
    main()
