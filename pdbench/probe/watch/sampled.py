"""How sure is a part of TTFT that is known from looks at gauges only?

Looks come every d seconds, requests whenever they like: one that stands in a gauge for w seconds is seen w / d times on
average, that is floor(w / d) times and, with the probability of the rest, once more. What N requests add to all looks
has then a variance of at most min(n, N / 4): n is how often any was seen, 1 / 4 the largest p (1 - p). One sight stands
for d / N of the mean, so a part is known to that and no better.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

# Two standard deviations, shifted so that few sights have the ends of Poisson's 95 % interval (none seen: at most 2.8,
# exactly 3.0; six seen: 2.1 to 11.7, exactly 2.2 to 11.8).
REACH, FEW_ABOVE, FEW_BELOW = 2.0, 2.0, 1.0

Between = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Looks:
    """The looks of a window by what they resolve: `each_ms` of the mean of `requests` is one request seen once."""

    each_ms: float
    requests: float

    def between(self, seen_ms: float) -> Between:
        """Where the mean time of a request in a gauge lies, of which the looks gave `seen_ms`."""
        seen = seen_ms / self.each_ms
        spread = min(seen, self.requests / 4)
        low = seen - REACH * math.sqrt(spread) + (FEW_BELOW if spread == seen else 0.0) if seen >= 1 else 0.0
        high = seen + REACH * math.sqrt(spread + FEW_ABOVE)
        return self.each_ms * min(seen, max(0.0, low)), self.each_ms * high


def in_words(value: float, between: Between) -> str:
    """`~580`, to the digit that is known; `<70` where it may be nothing."""
    low, high = between
    if high <= 0:
        return "0"
    if low <= 0:
        return f"<{_rounded(high, high / 10):,.{_places(high / 10)}f}"
    digit = (high - low) / 4
    return f"~{_rounded(value, digit):,.{_places(digit)}f}"


def _rounded(value: float, digit: float) -> float:
    """To the power of ten that is not above `digit`."""
    return round(value, -math.floor(math.log10(digit))) if digit > 0 else value


def _places(digit: float) -> int:
    return min(2, max(0, -math.floor(math.log10(digit)))) if digit > 0 else 0
