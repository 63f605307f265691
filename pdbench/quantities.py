"""Quantities as people type them: `100ms`, `2s`, `64MiB`, `1,2,4`."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from typing import TypeVar

from pdbench.errors import UsageError

T = TypeVar("T")

_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_NBYTES = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
_NBYTES |= {"kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}


def seconds(text: str, option: str) -> float:
    """`100ms`, `2s`, `1.5m`; a bare number is seconds."""
    return _scaled(text, option, _SECONDS, "a time such as 100ms, 2s or 1m")


def milliseconds(text: str, option: str) -> float:
    """A limit in ms: `500ms`, `2s`; a bare number is ms, as in vllm bench serve's --goodput. Finite and above 0."""
    bare = re.fullmatch(r"\s*\d*\.?\d+(?:[eE][+-]?\d+)?\s*", text)
    found = float(text) if bare else round(seconds(text, option) * 1000, 6)
    if not 0 < found < math.inf:
        raise UsageError(f"{option}: the limit is a number above 0 or a time such as 500ms, not {text!r}.")
    return found


def nbytes(text: str, option: str) -> int:
    """`64MiB`, `1GB`; a bare number is bytes."""
    return round(_scaled(text, option, _NBYTES, "a size such as 64MiB or 1GB"))


def _scaled(text: str, option: str, units: dict[str, float] | dict[str, int], wanted: str) -> float:
    match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+(?:[eE][+-]?[0-9]+)?)\s*([A-Za-z]*)\s*", text)
    if match is None or match[2].lower() not in units:
        raise UsageError(f"{option} wants {wanted}, not {text!r}.")
    return float(match[1]) * units[match[2].lower()]


def several(values: Iterable[str], option: str, kind: Callable[[str], T]) -> list[T]:
    """A list-valued option, repeated or comma-separated, in order and without repetition."""
    words = [word.strip() for value in values for word in value.split(",") if word.strip()]
    try:
        return list(dict.fromkeys(kind(word) for word in words))
    except ValueError:
        raise UsageError(f"{option} wants {_WANTED.get(kind.__name__, 'values')}, not {', '.join(words)!r}.") from None


_WANTED = {"positive": "numbers above 0", "count": "whole numbers above 0, such as 1024,16384"}


def positive(text: str) -> float:
    """A finite number above 0."""
    value = float(text)
    if not math.isfinite(value) or value <= 0:
        raise ValueError(text)
    return value


def count(text: str) -> int:
    """A whole number above 0."""
    value = int(text)
    if value <= 0:
        raise ValueError(text)
    return value
