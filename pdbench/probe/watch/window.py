"""What happened within the last seconds or minutes: differences of totals kept once a step."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from pdbench.probe.watch.totals import Totals


@dataclass(frozen=True, slots=True)
class Window:
    """Differences over `length_s`. A reading is None when no page of the role has the series, or nothing happened."""

    length_s: float
    deltas: Mapping[str, Mapping[str, float]]  # by role, then by name of the total
    steps: int = 0  # from look to look

    def delta(self, role: str, name: str) -> float | None:
        return self.deltas.get(role, {}).get(name)

    def per_s(self, role: str, name: str) -> float | None:
        value = self.delta(role, name)
        return None if value is None or self.length_s <= 0 else value / self.length_s

    def mean_ms(self, role: str, histogram: str) -> float | None:
        """Mean of a histogram's observations, whose unit is seconds."""
        total, count = self.delta(role, f"{histogram}:sum"), self.delta(role, f"{histogram}:count")
        return 1000 * total / count if total is not None and count else None

    def mean(self, role: str, gauge: str) -> float | None:
        """Mean of a gauge over time, summed over servers."""
        return self.per_s(role, f"{gauge}:area")


@dataclass(slots=True)
class History:
    """Totals by role at each step, as far back as the longest window."""

    longest_s: float
    kept: deque[tuple[float, dict[str, Totals]]] = field(default_factory=deque)

    def add(self, t_s: float, totals: dict[str, Totals]) -> None:
        self.kept.append((t_s, totals))
        while len(self.kept) > 2 and self.kept[1][0] <= t_s - self.longest_s:
            self.kept.popleft()

    def window(self, length_s: float) -> Window:
        """The last `length_s`, or as much of it as there is."""
        if len(self.kept) < 2:
            return Window(0.0, {})
        end_s, end = self.kept[-1]
        steps = next(
            (back for back, (t_s, _) in enumerate(reversed(self.kept)) if t_s <= end_s - length_s),
            len(self.kept) - 1,
        )
        start_s, start = self.kept[-1 - steps]
        deltas = {
            role: {name: value - start.get(role, {}).get(name, 0.0) for name, value in totals.items()}
            for role, totals in end.items()
        }
        return Window(end_s - start_s, deltas, steps)
