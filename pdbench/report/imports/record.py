"""What a foreign result file holds, in pdbench's terms: cells, with their requests or with figures only."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pdbench.report.wording import clean

ENDLESS = ("inf", "nan", "Infinity", "NaN")  # as some tools write them
METRICS = ("ttft", "tpot", "itl", "e2el")


@dataclass(frozen=True, slots=True)
class Request:
    """One request. Times are seconds on the tool's own clock; `None` means not in the file."""

    intended_s: float
    sent_s: float
    first_byte_s: float | None = None
    offsets_s: tuple[float, ...] = ()  # arrival of each event with output, from `sent_s`
    first_token_s: float | None = None
    last_token_s: float | None = None
    done_s: float | None = None
    request_id: str | None = None
    status: str = "ok"
    error: str | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    chunks: int | None = None


@dataclass(frozen=True, slots=True)
class Cell:
    """One load of a foreign run. Without a rate it is a closed loop of `streams`."""

    rate: float | None
    streams: int | None
    prompt_len: int | None
    output_len: int | None
    requests: Sequence[Request] = ()
    figures: Mapping[str, Any] = field(
        default_factory=dict
    )  # under summary.json's names, where the file has no requests
    foreign: Mapping[str, Any] = field(default_factory=dict)  # under the tool's own names: defined in another way
    # Where there are no requests to tell: what the sends took, and the run from its first send to its last answer.
    send_s: float | None = None
    took_s: float | None = None


@dataclass(frozen=True, slots=True)
class Imported:
    """What one or several files of a tool hold. `differs` says where its definitions are not pdbench's."""

    tool: str
    cells: Sequence[Cell]
    differs: Sequence[str]
    version: str | None = None
    model: str | None = None
    created_unix_s: float | None = None
    arrivals: str | None = None  # poisson, gamma, constant; `None` when the file does not name them
    burstiness: float | None = None
    goodput_ms: Mapping[str, float] = field(default_factory=dict)
    simulated: bool = False  # the file itself says that pdbench's testbed answered


class NoNumber(ValueError):
    """`value` stands in a file where a number belongs."""

    def __init__(self, value: Any) -> None:
        super().__init__(clean(repr(value), 60))
        self.value = value


def known(value: Any) -> float | None:
    """A number of a file, or `None` where it has none, NaN or an infinite one. Raises NoNumber for anything else."""
    if value is None or value in ENDLESS:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise NoNumber(value)
    return float(value) if math.isfinite(value) else None


def whole(value: Any) -> int | None:
    number = known(value)
    return None if number is None else round(number)


def measured(figures: Mapping[str, Any]) -> dict[str, Any]:
    """Without what is not known."""
    return {name: value for name, value in figures.items() if value is not None}


def lengths(requests: Iterable[Request]) -> tuple[int | None, int | None]:
    """Typical prompt and output tokens of the answered requests: the medians."""
    answered = [request for request in requests if request.status == "ok"]
    sides = ([r.prompt_tokens for r in answered], [r.output_tokens for r in answered])
    middle = [sorted(n for n in side if n is not None) for side in sides]
    prompt, output = (side[len(side) // 2] if side else None for side in middle)
    return prompt, output


def distribution(metric: str, record: Any, names: Mapping[str, str], factor: float = 1.0) -> dict[str, float]:
    """`mean_ttft_ms`, `p99_ttft_ms` and so on from a record of statistics; `names` maps our words to the tool's."""
    found: dict[str, float] = {}
    if not isinstance(record, Mapping):
        return found
    for ours, theirs in names.items():
        if (value := known(record.get(theirs))) is not None:
            found[f"{ours}_{metric}_ms"] = value * factor
    return found
