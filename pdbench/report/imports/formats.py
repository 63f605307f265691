"""The tools whose files are read, each recognised by what its files hold, whatever they are called."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from pdbench.errors import UsageError
from pdbench.report.imports import aiperf, guidellm, inference_perf, sglang, vllm
from pdbench.report.imports.possible import impossible
from pdbench.report.imports.record import Imported, NoNumber
from pdbench.report.imports.source import Source, read_source

CHANGED = "Was the file changed?"
FORMATS: dict[str, tuple[Callable[[Source], bool], Callable[[Source], Imported]]] = {
    "vllm": (vllm.recognises, vllm.read),
    "sglang": (sglang.recognises, sglang.read),
    "guidellm": (guidellm.recognises, guidellm.read),
    "aiperf": (aiperf.recognises, aiperf.read),
    "inference-perf": (inference_perf.recognises, inference_perf.read),
}


def read_all(paths: Sequence[Path], format_name: str | None = None) -> Imported:
    """What several files of one tool hold, as one. Raises UsageError for what cannot be read or joined."""
    found = [read_one(path, format_name) for path in paths]
    first = found[0]
    for path, other in zip(paths[1:], found[1:], strict=True):
        if other.tool != first.tool:
            raise UsageError(
                f"{paths[0]} is of {first.tool}, {path} of {other.tool}: their definitions differ.",
                "Import each tool's files by themselves.",
            )
        if (other.arrivals, other.burstiness, other.model) != (first.arrivals, first.burstiness, first.model):
            raise UsageError(
                f"{paths[0]} and {path} are not of one run: their arrivals or models differ.", "Import each by itself."
            )
    differs = list(dict.fromkeys(said for each in found for said in each.differs))
    return replace(first, cells=[cell for each in found for cell in each.cells], differs=differs)


def read_one(path: Path, format_name: str | None = None) -> Imported:
    source = read_source(path)
    if format_name is not None and format_name not in FORMATS:
        raise UsageError(f"--format {format_name} is not known.", f"It is one of {', '.join(FORMATS)}.")
    chosen = format_name or next((name for name, (is_it, _) in FORMATS.items() if _asked(is_it, source)), None)
    if chosen is None:
        raise UsageError(
            f"{path} is of no tool that pdbench reads ({', '.join(FORMATS)}).",
            "docs/import.md says which of their files hold results.",
        )
    try:
        imported = FORMATS[chosen][1](source)
    except NoNumber as error:
        raise UsageError(f"{path}: {source.place_of(error.value)} is no number: {error}.", CHANGED) from None
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, StopIteration) as error:
        raise UsageError(
            f"{path} cannot be read as {chosen} writes it ({type(error).__name__}: {error}).",
            "docs/import.md says which versions are read.",
        ) from None
    if (found := impossible(imported)) is not None:
        raise UsageError(f"{path} holds what no run can have: {found}.", CHANGED)
    if not any(cell.requests or cell.figures.get("completed") for cell in imported.cells):
        raise UsageError(f"{path} holds no request that was answered or failed.")
    return imported


def _asked(is_it: Callable[[Source], bool], source: Source) -> bool:
    """Whether a format recognises a source; a document of another shape is none of its own."""
    try:
        return is_it(source)
    except (KeyError, TypeError, AttributeError):
        return False
