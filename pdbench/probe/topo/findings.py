"""All findings on a machine."""

from __future__ import annotations

from collections.abc import Sequence

from pdbench.probe.topo import gpu_findings, host_findings
from pdbench.probe.topo.finding import SEVERITIES, Finding
from pdbench.probe.topo.machine import Machine
from pdbench.probe.topo.pairs import Pair

CHECKS = (*gpu_findings.CHECKS, *host_findings.CHECKS)


def findings(machine: Machine, pairs: Sequence[Pair]) -> list[Finding]:
    """The grave ones first."""
    found = [finding for check in CHECKS for finding in check(machine, pairs)]
    return sorted(found, key=lambda finding: SEVERITIES.index(finding.severity))
