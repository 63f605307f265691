"""The two sides of a comparison: run directories, committed summary.json files, or two targets of one run."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from pdbench.errors import UsageError
from pdbench.report import wording
from pdbench.report.compare import transfers
from pdbench.report.summary import SCHEMA, summarise
from pdbench.report.wording import CellSummary, Summary, clean
from pdbench.run import Run

BASE, NEW = "BASE", "NEW"
LONGEST_WORDS = 120  # of what is wrong with a file


@dataclass(frozen=True, slots=True)
class Side:
    """One measurement, or one target of it. `document` is run.json, empty where only a summary was kept."""

    role: str  # BASE or NEW, or the target's name where both sides are targets of one run
    path: Path
    summary: Summary
    document: Mapping[str, Any]
    target: str | None = None  # only this target's cells; None takes all

    @property
    def cells(self) -> list[CellSummary]:
        if transfers.is_transfer(self.summary):
            return transfers.cells_of(self.summary)
        found: Sequence[CellSummary] = self.summary.get("cells") or []
        return [cell for cell in found if self.target is None or cell.get("target") == self.target]

    @property
    def targets(self) -> list[str]:
        return list(dict.fromkeys(str(cell.get("target", "")) for cell in self.cells))

    @property
    def simulated(self) -> bool:
        return bool(self.summary.get("simulated"))

    @property
    def plan(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.summary.get("plan") or self.document.get("plan") or {}
        return found


def read_side(path: Path, role: str) -> Side:
    """A run directory or a summary file. Raises UsageError with the file and what is wrong with it."""
    file = path / "summary.json" if path.is_dir() else path
    if path.is_dir() and not file.exists():
        run = Run.open(path)
        return Side(role, path, summarise(run), run.document)
    try:
        summary = json.loads(file.read_text(encoding="utf-8"), parse_constant=_no_number)
    except OSError as error:
        raise UsageError(
            f"{role} {path} cannot be read: {error.strerror}.", "Give a run directory or a summary.json."
        ) from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{role} {file} is not JSON: {error}.") from None
    _refuse_what_is_no_summary(summary, role, file)
    _refuse_what_breaks_the_schema(summary, role, file)
    beside = file.parent / "run.json"
    document = Run.open(file.parent).document if path.is_dir() and beside.exists() else {}
    return Side(role, path, summary, document)


def _refuse_what_is_no_summary(summary: Any, role: str, file: Path) -> None:
    if isinstance(summary, list):
        raise UsageError(f"{role} {file} holds {len(summary)} summaries.", "Compare one run's summary.json at a time.")
    key = "results" if isinstance(summary, dict) and transfers.is_transfer(summary) else "cells"
    cells = summary.get(key) if isinstance(summary, dict) else None
    if not isinstance(cells, list) or not all(isinstance(cell, dict) for cell in cells):
        raise UsageError(
            f"{role} {file} is not a summary.json: it has no list of {key}.",
            "Results of other tools become run directories with pdbench import.",
        )
    schema = summary.get("schema")
    if not isinstance(schema, int) or isinstance(schema, bool):
        raise UsageError(f"{role} {file} does not say its schema.", "Judge the run again: pdbench report RUN")
    if schema > SCHEMA:
        raise UsageError(
            f"{role} {file} has schema {schema}, this pdbench reads up to {SCHEMA}.",
            "Update pdbench: pip install -U pdbench",
        )


def two_targets(side: Side, between: Sequence[str]) -> tuple[Side, Side]:
    """The two targets of one run as sides. Raises UsageError when the run hasn't exactly two and none are named."""
    known = [str(name) for name in wording.targets(side.summary)]
    shown = ", ".join(clean(name, 60) for name in known) or "none"
    chosen = list(between) or known
    if unknown := [name for name in chosen if name not in known]:
        raise UsageError(f"{side.path} has no target {clean(unknown[0], 60)}; it has: {shown}.")
    if len(chosen) == 1 and not between:
        raise UsageError(
            f"{side.path} alone compares nothing: it has one target.",
            "Give a second run; or measure two targets in one sweep: --target a=... --target b=...",
        )
    if len(chosen) != 2 or chosen[0] == chosen[1]:
        raise UsageError(f"two targets are compared, {side.path} has: {shown}.", "Name them: --between A,B")
    first, second = (Side(clean(name, 40), side.path, side.summary, side.document, name) for name in chosen)
    return first, second


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is no number")


def _refuse_what_breaks_the_schema(summary: Any, role: str, file: Path) -> None:
    """A file that was edited or made by something else may hold a text where a number belongs, or a TTFT of 0."""
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import best_match

    schema = json.loads(resources.files("pdbench.report").joinpath("summary.schema.json").read_bytes())
    found = best_match(Draft202012Validator(schema).iter_errors(summary))
    if found is not None:
        said = clean(found.message if len(found.message) <= LONGEST_WORDS else found.message[:LONGEST_WORDS] + "...")
        place = clean(found.json_path)
        raise UsageError(f"{role} {file} is damaged: {place}: {said}.", "Judge the run again: pdbench report RUN")
