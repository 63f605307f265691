"""Result files as they lie on disk: JSON, JSON objects one after another, JSON lines, or a folder of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pdbench.errors import UsageError
from pdbench.report.wording import clean

MAX_FILE_BYTES = 2_000_000_000


@dataclass(frozen=True, slots=True)
class Source:
    """The JSON documents of a path by file name."""

    path: Path
    files: dict[str, list[Any]]

    def documents(self) -> Iterator[Any]:
        for found in self.files.values():
            yield from found

    def first(self) -> Any:
        """The first document, which tells the format."""
        return next(self.documents(), None)

    def place_of(self, value: Any) -> str:
        """The field that holds this very object, such as `itls[3][1]`."""
        found = (place for document in self.documents() for place in _places(document, value, ""))
        return clean(next(found, "a field"), 120)


def _places(document: Any, value: Any, place: str) -> Iterator[str]:
    if document is value:
        yield place.removeprefix(".")
    elif isinstance(document, dict):
        for name, inner in document.items():
            yield from _places(inner, value, f"{place}.{name}")
    elif isinstance(document, list):
        for index, inner in enumerate(document):
            yield from _places(inner, value, f"{place}[{index}]")


def read_source(path: Path) -> Source:
    """Read a file, or the JSON files that lie in a folder. Raises UsageError when there is nothing to read."""
    if not path.exists():
        raise UsageError(f"{path} does not exist.")
    if path.is_file():
        return Source(path, {path.name: _documents(path)})
    files = {}
    for file in sorted(path.iterdir()):
        # Raw payloads and prompts are large and private: they are no results.
        if file.suffix in (".json", ".jsonl") and not file.name.startswith((".", "inputs", "profile_export_raw")):
            files[file.name] = _documents(file)
    if not files:
        raise UsageError(f"{path} has no .json or .jsonl file.", "Give the result file, or the folder that has it.")
    return Source(path, files)


def _documents(path: Path) -> list[Any]:
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise UsageError(f"{path} is larger than {MAX_FILE_BYTES / 1e9:g} GB.")
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}.") from None
    decoder = json.JSONDecoder()
    found, place = [], 0
    try:
        while (place := _next(text, place)) < len(text):
            document, place = decoder.raw_decode(text, place)
            found.append(document)
    except (ValueError, RecursionError) as error:
        line = text.count("\n", 0, place) + 1
        raise UsageError(f"{path} is not JSON: line {line}: {error}.", "Is the file complete?") from None
    if not found:
        raise UsageError(f"{path} is empty.")
    return found


def _next(text: str, place: int) -> int:
    while place < len(text) and text[place] in " \t\r\n":
        place += 1
    return place
