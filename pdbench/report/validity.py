"""What voids or flags a cell: each finding has its measured value, the limit and what to do next.

`findings` judges one repeat. A void finding means that the cell's numbers do not say what their names promise; a
warning says what to keep in mind. The limits are constants in the modules of the checks;
docs/validity.md has the reasons and measured error rates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pdbench.report.cell import Measured
from pdbench.report.client_checks import CLIENT_CHECKS, TOO_FEW, too_few
from pdbench.report.finding import VOID, WARN, Finding
from pdbench.report.imports.told import imported
from pdbench.report.server_checks import SERVER_CHECKS

__all__ = ["VOID", "WARN", "Finding", "findings", "is_void", "merged"]


def findings(cell: Measured) -> list[Finding]:
    """All findings of one repeat, void ones first."""
    found = [finding for check in (imported, *CLIENT_CHECKS) for finding in check(cell)]
    found += [finding for check in SERVER_CHECKS for finding in check(cell.as_read)]
    return sorted(found, key=lambda finding: finding.severity != VOID)


def merged(cell: Measured, per_repeat: Sequence[tuple[int, Sequence[Finding]]]) -> list[Finding]:
    """Findings of several repeats as the cell's: each code once, its worst severity, the repeats that show it.

    Whether there are requests enough is a question to all repeats together.
    """
    if len(per_repeat) == 1:
        return list(per_repeat[0][1])
    by_code: dict[str, list[tuple[int, Finding]]] = {}
    for repeat, found in per_repeat:
        for finding in found:
            if finding.code == TOO_FEW:
                continue
            by_code.setdefault(finding.code, []).append((repeat, finding))
    joined = []
    for shown in by_code.values():
        worst = next((f for _, f in shown if f.severity == VOID), shown[0][1])
        repeats = sorted({repeat for repeat, _ in shown})
        where = "" if len(repeats) == len(per_repeat) else f" (repeat {', '.join(str(r + 1) for r in repeats)})"
        joined.append(replace(worst, evidence=worst.evidence + where))
    joined += too_few(cell)
    return sorted(joined, key=lambda finding: finding.severity != VOID)


def is_void(found: Sequence[Finding]) -> bool:
    return any(finding.severity == VOID for finding in found)
