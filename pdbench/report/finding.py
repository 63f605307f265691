"""A validity code with its severity and evidence."""

from __future__ import annotations

from dataclasses import asdict, dataclass

VOID, WARN = "void", "warn"


@dataclass(frozen=True, slots=True)
class Finding:
    """One code of the validity table; the evidence holds the measured value, the limit and the next step."""

    code: str
    severity: str  # void or warn
    evidence: str

    def document(self) -> dict[str, str]:
        return asdict(self)
