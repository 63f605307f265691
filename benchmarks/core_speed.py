"""How fast was a core meanwhile, and what did a process take while it was at its fastest?

A core of a virtual machine is often one thread of a physical core: what the other thread does for somebody else makes
it slower by half and more, for a fraction of a second or for hours, and so does a pause of 50 ms, after which the host
may have given the place to somebody. No counter of the guest tells (steal time stays 0). A short loop of Python does,
run again and again on the same core at idle priority.

    python benchmarks/core_speed.py PID CORE    # samples until the process has ended, as JSON; `watched` runs this
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

PAUSE_S = 0.05
LOOPS = 8000  # some 0.35 ms
FREE = 1.15  # times the shortest loop: below, the core is taken to be undisturbed
FEWEST_SLICES = 20
EDGE_NS = 300_000_000  # of the load: not its usual work yet, or no more

Samples = NDArray[np.float64]  # a row each: when, the CPU time of the process by then, what the loop took; in ns


def loop_ns() -> int:
    """CPU time of the loop: that others are let in before it ends does not count."""
    begun_ns = time.thread_time_ns()
    total = 0
    for i in range(LOOPS):
        total += i * i % 7
    return time.thread_time_ns() - begun_ns


def sample(pid: int, core: int) -> list[tuple[int, int, int]]:
    os.sched_setaffinity(0, {core})
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    clock = ~pid << 3 | 2  # of all threads of another process: what clock_getcpuclockid(3) makes
    found = []
    while True:
        took_ns = loop_ns()
        try:
            found.append((time.monotonic_ns(), time.clock_gettime_ns(clock), took_ns))
        except OSError:  # it has ended
            return found
        time.sleep(PAUSE_S)


@contextmanager
def watched(process: subprocess.Popen[bytes], core: int) -> Iterator[list[Samples]]:
    """Sample while the process runs; it must have ended, and have been waited for, at the end of the block."""
    with subprocess.Popen([sys.executable, __file__, str(process.pid), str(core)], stdout=subprocess.PIPE) as sampler:
        found: list[Samples] = []
        yield found
        found.append(np.array(json.loads(sampler.communicate()[0]), float).reshape(-1, 3))


def fastest_ns(core: int, seconds: float) -> float:
    """The shortest loop on this core in some seconds."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    until = time.monotonic() + seconds
    shortest = float(loop_ns())
    while time.monotonic() < until:
        shortest = min(shortest, loop_ns())
        time.sleep(0.002)
    os.sched_setaffinity(0, before)
    return shortest


def slower_by(samples: Samples, shortest_ns: float) -> float | None:
    """How many times as long as the shortest the loop took on average."""
    return float(samples[:, 2].mean()) / shortest_ns if len(samples) else None


def undisturbed_us(samples: Samples, shortest_ns: float, events_ns: Samples) -> float | None:
    """CPU time an event (sorted times) in the slices at both ends of which the core was undisturbed; `None`: too few
    such slices."""
    at_ns, cpu_ns, took_ns = samples.T
    inside = (at_ns[:-1] > events_ns[0] + EDGE_NS) & (at_ns[1:] < events_ns[-1] - EDGE_NS)
    free = inside & (np.maximum(took_ns[:-1], took_ns[1:]) < FREE * shortest_ns)
    counts = np.diff(np.searchsorted(events_ns, at_ns))
    if free.sum() < FEWEST_SLICES or not counts[free].sum():
        return None
    return float(np.diff(cpu_ns)[free].sum() / counts[free].sum() / 1000)


if __name__ == "__main__":
    print(json.dumps(sample(int(sys.argv[1]), int(sys.argv[2]))))
