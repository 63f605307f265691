"""From a deployment to the list of checks: look, then ask every rule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from pdbench.deployment import Deployment
from pdbench.probe.doctor import rules_handoff, rules_layout, rules_live, rules_load, rules_proxy
from pdbench.probe.doctor.case import Case, Patient
from pdbench.probe.doctor.finding import LEVELS, Check, Rule
from pdbench.probe.doctor.launch import Launch, launch_of
from pdbench.probe.doctor.look import look

NO_CONFIG = "no server and no recipe shows a --kv-transfer-config"
RULES: Mapping[str, Rule] = {
    **rules_live.RULES,
    **rules_handoff.RULES,
    **rules_layout.RULES,
    **rules_load.RULES,
    **rules_proxy.RULES,
}
OF_A_PAIR = {**rules_handoff.RULES, **rules_layout.RULES}
NEEDS_CONFIG = rules_handoff.NEEDS_CONFIG | rules_layout.NEEDS_CONFIG
NEEDS_PLAN = rules_load.NEEDS_PLAN | rules_proxy.NEEDS_PLAN


class Examined(NamedTuple):
    """Checks, the worst first; the servers that cannot be reached; whether a server says that it is the testbed's."""

    checks: list[Check]
    down: list[str]
    simulated: bool


async def examine(
    deployment: Deployment,
    entries: Sequence[Mapping[str, Any]],
    sweep: Mapping[str, Any],
    tpot_ms: float | None = None,
) -> Examined:
    """Look and judge. A recipe none of whose servers is up is judged by what it says alone."""
    launches = launches_of(entries)
    case = replace(await look(deployment, launches, sweep), tpot_ms=tpot_ms)
    down = [patient.name for patient in case.patients if not patient.answers]
    if entries and len(down) == len(case.patients):
        return Examined(judged(replace(on_paper(deployment, launches, sweep), tpot_ms=tpot_ms)), down, simulated=False)
    simulated = any(patient.facts.simulated for patient in case.patients)
    return Examined(judged(case), [patient.name for patient in case.patients if patient.down], simulated)


def on_paper(deployment: Deployment, launches: Mapping[str, Launch], sweep: Mapping[str, Any]) -> Case:
    """The case of a deployment that is not up."""
    bare = (Patient(replace(one, facts=None), launches.get(one.name, Launch())) for one in deployment.servers)
    return Case(deployment, tuple(bare), sweep)


def judged(case: Case) -> list[Check]:
    """Every rule's findings; one that finds nothing passes, one that has nothing to look at is left out."""
    live = any(patient.asked for patient in case.patients)
    configured = any(True for _ in case.handoffs())
    handed_over = any(not one.unseen for one in case.pair) and case.deployment.engine in (None, "vllm")
    checks = []
    for name, rule in RULES.items():
        if (
            (name in rules_live.RULES and not live)
            or (name in OF_A_PAIR and not handed_over)
            or (name in NEEDS_PLAN and not case.sweep)
        ):
            continue
        if name in NEEDS_CONFIG and not configured:
            checks.append(Check(name, "unknown", "", NO_CONFIG, rules_handoff.ASK_FOR_CONFIG))
            continue
        found = rule(case)
        if found is None:
            continue
        checks += [Check(name, one.level, one.where, one.evidence, one.fix) for one in found]
        if not found:
            checks.append(Check(name, "pass", "", (rule.__doc__ or "").partition("\n")[0], ""))
    return sorted(checks, key=lambda check: LEVELS.index(check.level))


def launches_of(entries: Sequence[Mapping[str, Any]]) -> dict[str, Launch]:
    """By server name, as the deployment numbers them."""
    seen: dict[str, int] = {}
    launches = {}
    for entry in entries:
        role = entry["role"]
        launches[f"{role}-{seen.setdefault(role, 0)}"] = launch_of(entry.get("launch"), entry.get("env"))
        seen[role] += 1
    return launches
