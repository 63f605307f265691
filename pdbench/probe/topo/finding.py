"""Something that a person who runs this machine should know or change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pdbench.probe.topo.gpu import Gpu
from pdbench.probe.topo.pairs import Pair

FAIL, WARN, NOTE = "fail", "warn", "note"
SEVERITIES = (FAIL, WARN, NOTE)


@dataclass(frozen=True, slots=True)
class Finding:
    """`fail`: cannot work until it is changed. `warn`: works, but not as it should. `note`: good to know."""

    code: str
    severity: str
    text: str
    advice: str = ""


def names(gpus: Sequence[Gpu]) -> str:
    return f"GPU{s(gpus)} {', '.join(str(gpu.index) for gpu in gpus)}"


def listed_pairs(pairs: Sequence[Pair], of: int) -> str:
    if len(pairs) == of > 1:
        return f"all {of} pairs"
    shown = ", ".join(f"{pair.a.index}-{pair.b.index}" for pair in pairs[:6])
    return f"{len(pairs)} of {of} pairs ({shown}{', ...' if len(pairs) > 6 else ''})" if of > 1 else f"pair {shown}"


def s(many: Sequence[object]) -> str:
    return "" if len(many) == 1 else "s"


def gib(nbytes: int | None) -> str:
    return "-" if nbytes is None else f"{nbytes / 2**30:,.3g} GiB"


def capital(text: str) -> str:
    return text[:1].upper() + text[1:]
