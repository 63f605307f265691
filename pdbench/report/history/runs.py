"""Which runs make the history: run directories and summary files, in the order in which they were measured."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from pdbench.errors import UsageError
from pdbench.report.compare.capacities import is_search
from pdbench.report.compare.refusals import HARMLESS
from pdbench.report.compare.sides import Side, read_side
from pdbench.report.compare.transfers import is_transfer
from pdbench.report.wording import clean


def read_runs(places: Sequence[str]) -> tuple[list[Side], list[str]]:
    """The runs at these places, oldest first, and what was left out and why.

    A place is a run directory, a summary file, a folder of either, or a glob. Runs that were not asked the same as most
    others make no history with them. Raises UsageError when nothing is left.
    """
    found: list[Side] = []
    without: list[str] = []
    for path in dict.fromkeys(path for place in places for path in _paths(place)):
        try:
            found.append(read_side(path, path.name))
        except UsageError as error:
            without.append(str(error))
    kept = []
    for side in found:
        if why := _unusable(side):
            without.append(f"{side.path}: {why}")
        else:
            kept.append(side)
    kept, others = _most_common(kept)
    without += others
    if not kept:
        told = f" {without[0]}" if without else ""
        raise UsageError(
            f"no run in {', '.join(places)}.{told}", "Give a folder of run directories or of summary.json files."
        )
    return sorted(kept, key=lambda side: (float(side.summary["created_unix_s"]), str(side.path))), without


def _paths(place: str) -> Iterator[Path]:
    """Runs at one place; a folder without a run of its own is looked into."""
    given = Path(place)
    pattern = str(given.relative_to(given.anchor)) if place else "*"
    matched = [given] if given.exists() else sorted(Path(given.anchor or ".").glob(pattern))
    for path in matched:
        if path.is_file() or _is_run(path):
            yield path
        else:
            inside = sorted(path.iterdir())
            yield from (one for one in inside if one.suffix == ".json" or (one.is_dir() and _is_run(one)))


def _is_run(path: Path) -> bool:
    return (path / "summary.json").exists() or (path / "run.json").exists()


def _unusable(side: Side) -> str:
    if is_transfer(side.summary):
        return "a run of probe-transfer"
    if is_search(side.summary):
        return "a search, whose rates are its own: pdbench compare tells the capacities of two searches apart"
    if not side.summary.get("created_unix_s"):
        return "it does not say when it was measured"
    return ""


def _most_common(sides: Sequence[Side]) -> tuple[list[Side], list[str]]:
    """The largest group of runs that asked the same of deployments of one shape, and the others. An old summary, which
    does not tell its shape, goes with any."""
    if not sides:
        return [], []
    keys = [(_asked(side), deployment_shape(side)) for side in sides]

    def together(group: tuple[str, str]) -> list[bool]:
        return [asked == group[0] and shape in (group[1], "") for asked, shape in keys]

    largest = max(keys, key=lambda key: sum(together(key)))
    belongs = together(largest)
    kept = [side for side, inside in zip(sides, belongs, strict=True) if inside]
    others = []
    for side, (asked, shape), inside in zip(sides, keys, belongs, strict=True):
        if not inside and asked == largest[0]:
            others.append(f"{side.path}: {shape}, the {len(kept)} others {largest[1]}")
        elif not inside:
            others.append(f"{side.path}: not asked the same as the {len(kept)} others")
    return kept, others


def _asked(side: Side) -> str:
    asked = sorted((key, str(value or None)) for key, value in side.plan.items() if key not in HARMLESS)
    return str([side.simulated, side.summary.get("imported_from"), side.plan.get("seed"), asked])


def deployment_shape(side: Side) -> str:
    """`pull (prefill, decode)`: the mode and what there is of servers; how many of each may change. Empty where the
    summary doesn't tell."""
    deployments = side.summary.get("deployments") or []
    told = []
    for deployment in deployments:
        roles = {str(server.get("role")) for server in deployment.get("servers") or []}
        servers = ", ".join(role for role in ("prefill", "decode", "colocated") if role in roles)
        front = f"{deployment.get('target')}: " if len(deployments) > 1 else ""
        told.append(f"{front}{deployment.get('mode') or 'mode not known'} ({servers or 'its proxy alone'})")
    return clean("; ".join(sorted(told)), 200)
