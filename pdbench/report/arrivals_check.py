"""Was what was sent the named arrival process? Tests with the right null distribution at this number of requests.

The gaps are compared with the named law at the asked rate (Kolmogorov-Smirnov), and the counts in equal stretches of
time with its index of dispersion, which sees ramps, pauses and too even a spacing. Each test has a false-alarm rate of
`ALPHA`; timer jitter up to `JITTER_S` is forgiven.
"""

from __future__ import annotations

import math

import numpy as np

from pdbench.report.statistics import Floats, chi_square_tails, gamma_cdf, kolmogorov_p, ks_distance

ALPHA = 5e-4
JITTER_S = 0.003
MIN_REQUESTS = 10
COUNTS_PER_STRETCH = 8
MIN_STRETCHES = 5
CONSTANT_SPREAD = 0.1  # standard deviation of gaps over their mean, beyond jitter, that still counts as constant


def departure(sent: Floats, start: float, kind: str, rate: float, burstiness: float = 1.0) -> str | None:
    """A sentence on how the sends depart from the named process; `None` when they do not, or are too few to tell."""
    stamps = np.sort(sent[np.isfinite(sent)])
    if len(stamps) < MIN_REQUESTS or rate <= 0:
        return None
    gaps = np.diff(stamps, prepend=start)
    cv = float(gaps[1:].std(ddof=1) / gaps[1:].mean()) if gaps[1:].mean() > 0 else 0.0
    seen = f"{len(stamps)} sends at {rate:g} req/s with a gap CV of {cv:.2f}"
    if kind == "constant":
        spread = float(gaps[1:].std())
        if spread > max(JITTER_S, CONSTANT_SPREAD / rate) or abs(float(gaps[1:].mean()) * rate - 1) > CONSTANT_SPREAD:
            return f"{seen}, mean gap {gaps[1:].mean() * 1000:.1f} ms, are not constant arrivals"
        return None
    shape = burstiness if kind == "gamma" else 1.0
    name = f"gamma arrivals of burstiness {shape:g}" if kind == "gamma" else "Poisson arrivals"
    law = gamma_cdf(shape)
    # The first gap also holds what passes between the cell's start and its schedule.
    distance = ks_distance(gaps[1:], lambda x: law(np.asarray(x) * rate * shape), JITTER_S)
    if (p := kolmogorov_p(distance, len(gaps) - 1)) < ALPHA:
        return f"{seen} are not {name}: the gaps' distribution is {distance:.2f} away (p {p:.1g}, limit {ALPHA:g})"
    return _uneven(stamps, rate, shape, seen, name)


def _uneven(stamps: Floats, rate: float, shape: float, seen: str, name: str) -> str | None:
    """Counts in equal stretches of time against the process's index of dispersion (1/shape)."""
    stretches = int(len(stamps) / (COUNTS_PER_STRETCH * max(1.0, 1 / shape)))
    if stretches < MIN_STRETCHES:
        return None
    counts, _ = np.histogram(stamps, bins=stretches, range=(stamps[0], stamps[-1]))
    value = float(((counts - counts.mean()) ** 2).sum() / counts.mean())
    below, above = chi_square_tails(value * shape, stretches - 1)
    if min(below, above) < ALPHA / 2 and abs(math.log(max(value * shape / (stretches - 1), 1e-9))) > math.log(1.5):
        dispersion = value / (stretches - 1)
        return f"{seen} are not {name}: counts have a dispersion of {dispersion:.2f}, not {1 / shape:.2f}"
    return None
