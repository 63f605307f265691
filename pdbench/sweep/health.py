"""How well does the client itself do? Numbers only; what they mean is judged in the report."""

from __future__ import annotations

import asyncio
import gc
import time
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from pdbench.run import RequestRow

_PROBE_S = 0.01


class Health:
    """Lateness of sends, lag of the event loop, CPU and concurrency over the send window."""

    def __init__(self) -> None:
        self._lateness_ns = array("q")  # 8 bytes a request, not 40
        self._lag_ns = array("q")
        self._flying = 0
        self._flown_ns = 0  # integral of the requests in flight
        self._since_ns = 0
        self._start_ns = 0
        self._start_cpu_s = 0.0
        self._probe: asyncio.TimerHandle | None = None

    def open(self, start_ns: int) -> None:
        """The send window begins (a little before the first request)."""
        self._start_ns = self._since_ns = start_ns
        self._start_cpu_s = time.process_time()
        self._arm(asyncio.get_running_loop())

    def _arm(self, loop: asyncio.AbstractEventLoop) -> None:
        self._probe = loop.call_later(_PROBE_S, self._measure_lag, loop, time.monotonic_ns() + int(_PROBE_S * 1e9))

    def _measure_lag(self, loop: asyncio.AbstractEventLoop, due_ns: int) -> None:
        self._lag_ns.append(time.monotonic_ns() - due_ns)
        self._arm(loop)

    def begins(self) -> None:
        self._account()
        self._flying += 1

    def ends(self, lateness_ns: int | None = None) -> None:
        """A request has ended; without its lateness where it was given up before it was sent."""
        self._account()
        self._flying -= 1
        if lateness_ns is not None:
            self._lateness_ns.append(lateness_ns)

    def _account(self) -> None:
        now_ns = max(time.monotonic_ns(), self._since_ns)
        self._flown_ns += self._flying * (now_ns - self._since_ns)
        self._since_ns = now_ns

    def shut(self) -> dict[str, float | None]:
        """The send window ends: what belongs to it. `lateness` follows when all answers are in."""
        self._account()
        self.close()
        wall_ns = time.monotonic_ns() - self._start_ns
        return {
            "loop_lag_p99_ms": _percentile_ms(self._lag_ns, 99),
            "loop_lag_max_ms": _percentile_ms(self._lag_ns, 100),
            "cpu_share": (time.process_time() - self._start_cpu_s) / (wall_ns / 1e9) if wall_ns > 0 else None,
            "achieved_concurrency": self._flown_ns / wall_ns if wall_ns > 0 else None,
        }

    def close(self) -> None:
        if self._probe is not None:
            self._probe.cancel()

    def lateness(self) -> dict[str, float | None]:
        return {
            "lateness_p99_ms": _percentile_ms(self._lateness_ns, 99),
            "lateness_max_ms": _percentile_ms(self._lateness_ns, 100),
        }


class SharedReads:
    """How often several token events came in one read, and so with one stamp."""

    def __init__(self) -> None:
        self._reads = self._shared = self._events = 0

    def add(self, row: RequestRow) -> None:
        self._reads += row.token_reads or 0
        self._shared += row.shared_reads or 0
        self._events += row.chunks or 0

    def figures(self) -> dict[str, float | None]:
        if not self._reads:
            return {"shared_reads_share": None, "events_per_read": None}
        return {"shared_reads_share": self._shared / self._reads, "events_per_read": self._events / self._reads}


def _percentile_ms(values_ns: array[int], percent: float) -> float | None:
    return float(np.percentile(values_ns, percent)) / 1e6 if values_ns else None


@contextmanager
def quiet_collector() -> Iterator[Any]:
    """No garbage collection meanwhile: one full pass over all that modules hold takes tens of ms."""
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()
