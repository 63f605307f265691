"""The rounds of a run as figures: a result for each shape that was asked for, and the shapes that a fit rests on."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pdbench.report.statistics import percentile, quantile_interval
from pdbench.report.transfer.carrier import carrier_keys
from pdbench.report.transfer.fit import Shape
from pdbench.run import Run

Found = Mapping[str, Any]  # one pass over one cell, as the workers told it
Floats = npt.NDArray[np.float64]

FILE = "transfers.jsonl"
_PHASES = ("make", "post", "move", "nixl_post", "nixl_xfer")
_IDENTITY = ("op", "backend", "memory", "ids", "in_flight", "nbytes", "descriptors")


def passes(run: Run) -> list[Found]:
    """What the run directory holds, in the order in which it was measured; a last line that a crash cut is left out."""
    found = []
    try:
        lines = (run.path / FILE).read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return []
    for line in lines:
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found


def by_cell(found: Sequence[Found]) -> list[list[Found]]:
    """The passes of each cell, cells in the plan's order."""
    cells: dict[int, list[Found]] = {}
    for each in found:
        cells.setdefault(int(each["cell"]), []).append(each)
    return [sorted(cells[cell], key=lambda each: int(each["repeat"])) for cell in sorted(cells)]


def result(
    cell: Sequence[Found],
    sides: Mapping[str, Any],
    poll_interval_s: float | None,
    perftests: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """One asked shape, over all its passes. Times are of all transfers in flight together; GB are 1e9 bytes.

    `perftests` are what ucx_perftest found beside the run, by operation and bytes of a descriptor.
    """
    first = cell[0]
    totals = totals_s(cell)
    moved = first["nbytes"] * first["in_flight"]
    document = {
        **{name: first[name] for name in _IDENTITY},
        **{name: first["pattern"][name] for name in ("tokens", "block_tokens")},
        "name": first["pattern"]["name"],
        "descriptors_merged": _known(cell, "descriptors_merged"),
        "gb_s": moved / float(np.median(totals)) / 1e9,
        "prep_ms": spread([each["prep_s"] for each in cell]),
        **{f"{phase}_ms": spread(_phase(cell, phase)) for phase in _PHASES},
        "total_ms": spread(totals),
        "rounds": len(totals),
        "verified": _known(cell, "verified"),
        "first_ms": _ms(_known(cell, "first_s")),
        **references(cell, _perftest(cell, perftests)),
        **carrier_keys(cell, sides),
        "repeats": [_repeat(each) for each in cell],
    }
    return document | _polling(cell, totals, poll_interval_s)


def _repeat(one: Found) -> dict[str, Any]:
    """The figures of one pass, under the same names: what `compare` pairs."""
    totals = totals_s([one])
    moved = one["nbytes"] * one["in_flight"]
    figures = {f"{phase}_ms": spread(_phase([one], phase)) for phase in _PHASES[:3]}
    return {
        "repeat": one["repeat"],
        "gb_s": moved / float(np.median(totals)) / 1e9,
        "prep_ms": spread([one["prep_s"]]),
        **figures,
        "total_ms": spread(totals),
        **references([one]),
    }


def totals_s(cell: Sequence[Found], contestant: str = "nixl") -> Floats:
    """Make + post + move of every round."""
    rounds = [times for each in cell for times in each["rounds"].get(contestant, [])]
    return np.array([sum(times[:3]) for times in rounds], dtype=float)


def _phase(cell: Sequence[Found], phase: str, contestant: str = "nixl") -> list[float]:
    place = _PHASES.index(phase)
    return [times[place] for each in cell for times in each["rounds"].get(contestant, [])]


def spread(seconds: Sequence[float] | Floats) -> dict[str, Any]:
    """{"p50", "p99", "p50_interval"} in ms. p99 is the smallest value that 99% do not exceed: below 100 rounds the
    slowest one. The interval of the median needs 6 rounds."""
    values = np.sort(np.asarray(seconds, dtype=float)) * 1000
    p99 = values[int(np.ceil(0.99 * len(values))) - 1]
    low, high = quantile_interval(values, 0.5)
    interval = [low, high] if low is not None and high is not None else None
    return {"p50": percentile(values, 0.5), "p99": float(p99), "p50_interval": interval}


def references(cell: Sequence[Found], perftest: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """What else moved the same bytes in the same rounds, in GB/s, NIXL's share of it, and why others are missing."""
    moved = cell[0]["nbytes"] * cell[0]["in_flight"]
    ours = float(np.median(totals_s(cell)))
    speeds, shares = {}, {}
    for name in ("memcpy", "process_vm", "tcp"):
        seconds = [times[0] for each in cell for times in each["rounds"].get(name, [])]
        if seconds:
            speeds[name] = moved / float(np.median(seconds)) / 1e9
            shares[name] = float(np.median(seconds)) / ours
    missing = dict(_known(cell, "missing") or {})
    if perftest and perftest.get("gb_s"):
        speeds["ucx_perftest"] = perftest["gb_s"]
        shares["ucx_perftest"] = moved / ours / 1e9 / perftest["gb_s"]
    elif perftest:
        missing["ucx_perftest"] = perftest["why"]
    return {"reference_gb_s": speeds, "of_reference": shares, "reference_missing": missing}


def _perftest(cell: Sequence[Found], perftests: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    first, merged = cell[0], _known(cell, "descriptors_merged")
    if not merged or (first["backend"], first["memory"]) != ("UCX", "DRAM"):
        return None
    same = [each for each in perftests if (each["op"], each["nbytes"]) == (first["op"], first["nbytes"] // merged)]
    return same[0] if same else None


def _polling(cell: Sequence[Found], totals: Floats, interval_s: float | None) -> dict[str, Any]:
    """What it costs to look only once an interval."""
    seen = totals_s(cell, "poll")
    if interval_s is None or not len(seen):
        return {}
    added = (float(np.median(seen)) - float(np.median(totals))) * 1000
    return {
        "poll": {
            "interval_ms": interval_s * 1000,
            "seen_ms": spread(seen),
            "added_ms": added,
            "nixl_xfer_ms": spread(_phase(cell, "nixl_xfer", "poll")),
        }
    }


def shapes(cells: Sequence[Sequence[Found]]) -> Iterator[tuple[tuple[str, str, str], list[Shape]]]:
    """For each operation, backend and memory the shapes that were moved one at a time."""
    grouped: dict[tuple[str, str, str], list[Shape]] = {}
    for cell in cells:
        first, merged = cell[0], _known(cell, "descriptors_merged")
        if first["in_flight"] == 1 and merged:
            key = (first["op"], first["backend"], first["memory"])
            grouped.setdefault(key, []).append(Shape(int(first["nbytes"]), int(merged), totals_s(cell)))
    yield from grouped.items()


def _known(cell: Sequence[Found], key: str) -> Any:
    """What one of the passes told; only the first one verifies and proves."""
    return next((each[key] for each in cell if each.get(key) is not None), None)


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1000
