"""Classes of requests with their own output length and rate, as `--class NAME:OUT@QPS` names them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from pdbench.errors import UsageError
from pdbench.littles_law.slots_question import number


@dataclass(frozen=True, slots=True)
class ClassLoad:
    """A class of requests with its own output length and rate."""

    name: str
    out_tokens: float
    qps: float


def classes_of(texts: Sequence[str]) -> tuple[ClassLoad, ...]:
    """`NAME:OUT@QPS` as given on the command line."""
    found: list[ClassLoad] = []
    for text in (part.strip() for value in texts for part in value.split(",") if part.strip()):
        match = re.fullmatch(r"(?P<name>[^:@]+):(?P<out>[^:@]+)@(?P<qps>[^:@]+)", text)
        try:
            if match is None:
                raise ValueError(text)
            one = ClassLoad(match["name"], float(match["out"]), float(match["qps"]))
        except ValueError:
            raise UsageError(
                f"--class wants NAME:OUT@QPS, not {text!r}.", "For example --class agent:2000@0.5"
            ) from None
        if one.name in {other.name for other in found}:
            raise UsageError(f"--class {one.name} is given twice.", "Give each class a name of its own.")
        number(one.out_tokens, f"--class {one.name}: OUT")
        number(one.qps, f"--class {one.name}: QPS")
        found.append(one)
    return tuple(found)
