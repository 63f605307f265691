"""Request traces: Azure's LLM inference CSV and Mooncake's JSONL, told apart by what is in them."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import reprlib
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

from pdbench.errors import UsageError

AZURE_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
MOONCAKE_KEYS = ("timestamp", "input_length", "output_length")
BLOCK_TOKENS = 512  # what each of Mooncake's hash_ids stands for
MOST_TOKENS = 10**9  # of a prompt or an answer: a larger number is damage
MOST_S = 1e11  # three thousand years from 1970: a time beyond is damage, or has another unit


@dataclass(frozen=True, slots=True)
class TracedRequest:
    """One request of a trace; `at_s` counts from its first one.

    `blocks` names the prompt block by block (Mooncake's hash_ids): equal ids are equal tokens, with all before them.
    """

    at_s: float
    prompt_tokens: int
    output_tokens: int
    blocks: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Trace:
    """The requests of a trace in order of arrival; `left_out` had no prompt or no answer."""

    kind: str  # azure, mooncake
    requests: tuple[TracedRequest, ...]
    left_out: int = 0
    digest: str = ""  # SHA-256 of the file

    @property
    def span_s(self) -> float:
        """From the first request to the last."""
        return self.requests[-1].at_s


def read_trace(path: Path, option: str = "--trace") -> Trace:
    """Read a trace. UsageError says which line is not what it should be."""
    wanted = f"Azure's CSV ({', '.join(AZURE_COLUMNS)}) and Mooncake's JSONL ({', '.join(MOONCAKE_KEYS)}) are read."
    try:
        raw = path.read_bytes()
        text = _decoded(raw)
        kind, read = ("mooncake", _mooncake) if text.startswith("{") else ("azure", _azure)
        found = list(read(io.StringIO(text, newline=None)))
    except OSError as error:
        raise UsageError(f"{option} {path}: {error.strerror}.", wanted) from None
    except ValueError as error:
        raise UsageError(f"{option} {path} cannot be read: {error}.", wanted) from None
    kept = sorted((each for each in found if each.prompt_tokens > 0 and each.output_tokens > 0), key=lambda r: r.at_s)
    if len(kept) < 2:
        raise UsageError(f"{option} {path}: {len(kept)} requests with tokens; a rate needs two.", wanted)
    first_s = kept[0].at_s
    requests = tuple(replace(each, at_s=each.at_s - first_s) for each in kept)
    return Trace(kind, requests, len(found) - len(kept), sha256(raw).hexdigest())


def _decoded(raw: bytes) -> str:
    """The text of a file, without the byte order mark that spreadsheets put before it."""
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        number = error.object[: error.start].count(b"\n") + 1
        raise ValueError(f"line {number}: byte 0x{error.object[error.start]:02x} is no UTF-8") from None


def _mooncake(lines: Iterable[str]) -> Iterator[TracedRequest]:
    for number, line in enumerate(lines, 1):
        if line.strip():
            with _naming(number):
                row = json.loads(line)
                if not isinstance(row, dict):
                    raise ValueError("it is no JSON object")
                _refuse_missing(row, MOONCAKE_KEYS, "key")
                at_s = _seconds(row, "timestamp")
                blocks = tuple(int(block) for block in row.get("hash_ids") or ())
                yield TracedRequest(at_s, _tokens(row, "input_length"), _tokens(row, "output_length"), blocks)


def _azure(lines: Iterable[str]) -> Iterator[TracedRequest]:
    rows = csv.DictReader(lines)
    with _naming(1):
        _refuse_missing(rows.fieldnames or (), AZURE_COLUMNS, "column")
    while True:
        with _naming(rows.line_num + 1):
            if (row := next(rows, None)) is None:
                return
            if any("\n" in (row[name] or "") for name in AZURE_COLUMNS):
                raise csv.Error
        with _naming(rows.line_num):
            # Seven digits of a second, one more than Python reads; in one zone, so that no clock change is in between.
            stamp = datetime.fromisoformat((row["TIMESTAMP"] or "").strip()[:26]).replace(tzinfo=UTC)
            yield TracedRequest(stamp.timestamp(), _tokens(row, "ContextTokens"), _tokens(row, "GeneratedTokens"))


def _tokens(row: Mapping[str, Any], key: str) -> int:
    with contextlib.suppress(ValueError, TypeError, OverflowError):
        if abs(tokens := int(row[key])) <= MOST_TOKENS:
            return tokens
    raise ValueError(f"{key} {reprlib.repr(row[key])} is no number of tokens")


def _seconds(row: Mapping[str, Any], key: str) -> float:
    """From milliseconds."""
    with contextlib.suppress(ValueError, TypeError, OverflowError):
        if abs(seconds := float(row[key]) / 1000) <= MOST_S:
            return seconds
    raise ValueError(f"{key} {reprlib.repr(row[key])} is no time in ms")


def _refuse_missing(found: Container[str], wanted: Sequence[str], what: str) -> None:
    if missing := [name for name in wanted if name not in found]:
        raise ValueError(f"it has no {what} {', '.join(missing)}")


@contextlib.contextmanager
def _naming(line: int) -> Iterator[None]:
    """Give whatever is wrong with a line its number."""
    try:
        yield
    except csv.Error:
        raise ValueError(f"line {line}: a quotation mark is not closed") from None
    except RecursionError:
        raise ValueError(f"line {line}: its brackets are nested too deeply") from None
    except (ValueError, TypeError, OverflowError) as error:
        raise ValueError(f"line {line}: {error}") from None
