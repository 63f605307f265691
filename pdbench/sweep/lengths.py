"""How long are answers? Fixed, lognormal, or as a trace had them: the law that `--output-len` names.

128                   every answer
lognormal:128:0.5     mean 128 tokens, coefficient of variation 0.5
trace:FILE            drawn from the answers of a trace
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pdbench.errors import UsageError
from pdbench.quantities import count, positive
from pdbench.traces import Trace, read_trace

_WANTED = "Give whole tokens (128), lognormal:MEAN:CV (lognormal:128:0.5) or trace:FILE."


@dataclass(frozen=True, slots=True)
class Law:
    """Lengths in tokens; `text` is the law as it was named, empty for one fixed length."""

    mean: int
    text: str = ""
    cv: float = 0.0
    values: tuple[int, ...] = ()

    def drawn(self, n: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """`n` lengths of at least one token; more from the same generator begin with the same ones."""
        if self.values:
            return np.array(self.values, dtype=np.int64)[rng.integers(0, len(self.values), n)]
        if self.cv == 0:
            return np.full(n, self.mean, dtype=np.int64)
        spread = math.log1p(self.cv**2)
        lengths = np.exp(math.log(self.mean) - spread / 2 + math.sqrt(spread) * rng.standard_normal(n))
        return np.maximum(1, np.rint(lengths)).astype(np.int64)


def law(text: str, option: str = "--output-len") -> Law:
    """The law that a text names. Raises UsageError."""
    text = text.strip()
    kind, colon, rest = text.partition(":")
    try:
        if kind == "lognormal":
            mean, cv = rest.split(":")
            return Law(count(mean), text, positive(cv))
        if kind == "trace" and rest:
            path = Path(rest).absolute()
            values = tuple(request.output_tokens for request in the_trace(path, option).requests)
            return Law(round(sum(values) / len(values)), f"trace:{path}", 0.0, values)
        if not colon:
            return Law(count(text))
    except ValueError:
        pass
    raise UsageError(f"{option} does not know the length {text!r}.", _WANTED)


def laws(texts: Sequence[str], option: str = "--output-len") -> list[Law]:
    """A list-valued option, repeated or comma-separated, in order and without repetition."""
    words = [word for text in texts for word in text.split(",") if word.strip()]
    return list(dict.fromkeys(law(word, option) for word in words))


@functools.lru_cache(maxsize=4)
def the_trace(path: Path, option: str = "--trace") -> Trace:
    """A trace that is read once in a process."""
    return read_trace(path, option)
