"""From a deployment to the list of checks: look, then ask every rule."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from pdbench.deployment import Deployment
from pdbench.probe.doctor import (
    rules_handoff,
    rules_layout,
    rules_live,
    rules_load,
    rules_proxy,
    rules_side_channel,
)
from pdbench.probe.doctor.case import Case, Patient
from pdbench.probe.doctor.finding import GIVE_COMMAND, LEVELS, Check, Found, Rule, unknown
from pdbench.probe.doctor.launch import Launch, launch_of
from pdbench.probe.doctor.look import look

NO_CONFIG = "no server and no recipe shows a --kv-transfer-config"
RULES: Mapping[str, Rule] = {
    **rules_live.RULES,
    **rules_handoff.RULES,
    **rules_side_channel.RULES,
    **rules_layout.RULES,
    **rules_load.RULES,
    **rules_proxy.RULES,
}
OF_A_PAIR = {**rules_handoff.RULES, **rules_side_channel.RULES, **rules_layout.RULES}
NEEDS_CONFIG = rules_handoff.NEEDS_CONFIG | rules_side_channel.NEEDS_CONFIG | rules_layout.NEEDS_CONFIG
# What rests on the kv_transfer_config of each server, and on each server's command line.
NEEDS_EVERY_CONFIG = NEEDS_CONFIG | {"mixed-modes", "backends", "failure-policy", "push-limits", "lease"}
NEEDS_EVERY_LAUNCH = {"layout", *rules_load.NEEDS_LAUNCH}
SPEAKS_OF_SOME = {"push-limits", "lease", *rules_load.NEEDS_LAUNCH}  # left out where it has nothing to look at
LOOKS_AT = {"lease": ("prefill",), **dict.fromkeys(rules_load.NEEDS_LAUNCH, ("prefill", "decode", "colocated"))}
OF_VLLM = {"failure-policy", *rules_load.NEEDS_LAUNCH}
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
    folder: Path | None = None,
) -> Examined:
    """Look and judge. A recipe none of whose servers is up is judged by what it says alone."""
    launches = launches_of(entries, folder)
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
    untold = any(one.untold or (one.launch.given and one.transfer is None) for one in case.pair)
    vllm = case.deployment.engine in (None, "vllm")
    handed_over = any(not one.unseen for one in case.pair) and vllm
    checks = []
    for name, rule in RULES.items():
        if (
            (name in rules_live.RULES and not live)
            or (name in OF_A_PAIR and not handed_over)
            or (name in OF_VLLM and not vllm)
            or (name in NEEDS_PLAN and not case.sweep)
        ):
            continue
        if name in NEEDS_CONFIG and not configured and not untold:
            checks.append(Check(name, "unknown", "", NO_CONFIG, rules_handoff.ASK_FOR_CONFIG))
            continue
        found, dark = rule(case), _dark(name, case)
        if found is None and (not dark or not untold or name in SPEAKS_OF_SOME):
            continue
        checks += [Check(name, one.level, one.where, one.evidence, one.fix) for one in (*(found or ()), *dark)]
        if not found and not dark:
            checks.append(Check(name, "pass", "", (rule.__doc__ or "").partition("\n")[0], ""))
    return sorted(checks, key=lambda check: LEVELS.index(check.level))


def _dark(rule: str, case: Case) -> list[Found]:
    """Who keeps a rule from passing: servers that do not tell what it looks at, nor does what starts them."""
    reasons: dict[str, list[Patient]] = defaultdict(list)
    for patient in case.of(*LOOKS_AT.get(rule, ("prefill", "decode"))):
        if reason := _why_dark(rule, patient, case):
            reasons[reason].append(patient)
    return [
        unknown(
            reason,
            GIVE_COMMAND if silent[0].launch.given else rules_handoff.ASK_FOR_CONFIG,
            ", ".join(patient.name for patient in silent),
        )
        for reason, silent in reasons.items()
    ]


def _why_dark(rule: str, patient: Patient, case: Case) -> str:
    if rule in NEEDS_EVERY_LAUNCH:
        return patient.untold
    if rule not in NEEDS_EVERY_CONFIG or patient.transfer is not None or patient.unseen:
        return ""
    told = rule == "mixed-modes" and (rules_handoff.hands_over(case) or rules_handoff.mode_of(patient) is not None)
    return "" if told else patient.transfer_untold


def launches_of(entries: Sequence[Mapping[str, Any]], folder: Path | None = None) -> dict[str, Launch]:
    """By server name, as the deployment numbers them. `folder`: where files that a command names are looked for."""
    seen: dict[str, int] = {}
    launches = {}
    for entry in entries:
        role = entry["role"]
        launches[f"{role}-{seen.setdefault(role, 0)}"] = launch_of(entry.get("launch"), entry.get("env"), folder)
        seen[role] += 1
    return launches
