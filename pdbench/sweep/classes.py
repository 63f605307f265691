"""Classes of traffic mixed in one run, as `--class NAME:[PROMPT/]OUT@RATE` names them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from pdbench.errors import UsageError
from pdbench.quantities import count, positive
from pdbench.sweep.lengths import law

_FORM = re.compile(r"(?P<name>[\w.-]{1,40}):(?:(?P<prompt>\d+)/)?(?P<out>.+)@(?P<rate>[^@]+)")
_EXAMPLE = "For example --class chat:128@7 --class agent:4096/lognormal:2000:1@0.5"


@dataclass(frozen=True, slots=True)
class TrafficClass:
    """Requests of one kind. `rate` is in requests/s, or a share of the whole where --rates or a ramp gives that."""

    name: str
    rate: float
    output_law: str  # as in --output-len
    prompt_len: int | None = None  # None: the cell's


def classes_of(texts: Sequence[str]) -> tuple[TrafficClass, ...]:
    """The classes that the command line names. Raises UsageError."""
    words = [part.strip() for text in texts for part in text.split(",") if part.strip()]
    found = [_class_of(word) for word in words]
    names = [each.name for each in found]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise UsageError(f"--class {twice} is given twice.", "Each class has a name of its own.")
    return tuple(found)


def _class_of(text: str) -> TrafficClass:
    match = _FORM.fullmatch(text)
    try:
        if match is None:
            raise ValueError(text)
        rate = positive(match["rate"])
        prompt = count(match["prompt"]) if match["prompt"] else None
    except ValueError:
        raise UsageError(f"--class wants NAME:[PROMPT/]OUT@RATE, not {text!r}.", _EXAMPLE) from None
    option = f"--class {match['name']}"
    return TrafficClass(match["name"], rate, law(match["out"], option).text or match["out"].strip(), prompt)
