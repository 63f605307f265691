"""What a rule says of one place: its level, the evidence, and the fix."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pdbench.probe.doctor.case import Case

GIVE_COMMAND = "Give the server's own command line as `launch`, with its variables in `env`."
LEVELS = ("fail", "warn", "unknown", "pass")


class Found(NamedTuple):
    """`level`: fail (what is measured would be wrong, or nothing works), warn, unknown (nothing here tells), pass."""

    level: str
    where: str
    evidence: str
    fix: str = ""


class Check(NamedTuple):
    """One finding under its rule's code."""

    rule: str
    level: str
    where: str
    evidence: str
    fix: str


Rule = Callable[["Case"], Sequence[Found] | None]  # [] the rule holds; None it has nothing to look at


def fail(where: str, evidence: str, fix: str) -> Found:
    return Found("fail", where, evidence, fix)


def warn(where: str, evidence: str, fix: str) -> Found:
    return Found("warn", where, evidence, fix)


def unknown(evidence: str, fix: str = "", where: str = "") -> Found:
    return Found("unknown", where, evidence, fix)
