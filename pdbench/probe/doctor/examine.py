"""From a deployment to the list of checks: look, then ask every rule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pdbench.deployment import Deployment
from pdbench.probe.doctor import rules_handoff, rules_live, rules_load
from pdbench.probe.doctor.case import Case, Patient
from pdbench.probe.doctor.finding import LEVELS, Check, Rule
from pdbench.probe.doctor.launch import Launch, launch_of
from pdbench.probe.doctor.look import look

NO_CONFIG = "no server and no recipe shows a --kv-transfer-config"
ASK_FOR_CONFIG = "Add `launch` to the recipe, or start the servers with VLLM_SERVER_DEV_MODE=1."
RULES: Mapping[str, Rule] = {**rules_live.RULES, **rules_handoff.RULES, **rules_load.RULES}


async def examine(
    deployment: Deployment,
    entries: Sequence[Mapping[str, Any]],
    sweep: Mapping[str, Any],
    tpot_ms: float | None = None,
) -> tuple[list[Check], list[str]]:
    """Checks, the worst first, and the servers that cannot be reached.

    A recipe none of whose servers is up is judged by what it says alone.
    """
    launches = launches_of(entries)
    case = replace(await look(deployment, launches, sweep), tpot_ms=tpot_ms)
    down = [patient.name for patient in case.patients if not patient.answers]
    if entries and len(down) == len(case.patients):
        return judged(replace(on_paper(deployment, launches, sweep), tpot_ms=tpot_ms)), down
    return judged(case), [patient.name for patient in case.patients if patient.trouble.startswith("cannot be reached")]


def on_paper(deployment: Deployment, launches: Mapping[str, Launch], sweep: Mapping[str, Any]) -> Case:
    """The case of a deployment that is not up."""
    bare = (Patient(replace(one, facts=None), launches.get(one.name, Launch())) for one in deployment.servers)
    return Case(deployment, tuple(bare), sweep)


def judged(case: Case) -> list[Check]:
    """Every rule's findings; one that finds nothing passes, one that has nothing to look at is left out."""
    live = any(patient.asked for patient in case.patients)
    configured = any(True for _ in case.handoffs())
    checks = []
    for name, rule in RULES.items():
        if (
            (name in rules_live.RULES and not live)
            or (name in rules_handoff.RULES and not (case.pair and case.deployment.engine in (None, "vllm")))
            or (name in rules_load.NEEDS_PLAN and not case.sweep)
        ):
            continue
        if name in rules_handoff.NEEDS_CONFIG and not configured:
            checks.append(Check(name, "unknown", "", NO_CONFIG, ASK_FOR_CONFIG))
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
