"""What stands before the pair? Example proxies and their habits, and time-outs that end answers early."""

from __future__ import annotations

import re
from collections.abc import Iterator

from pdbench.errors import UsageError
from pdbench.probe.doctor.case import Case, Patient
from pdbench.probe.doctor.finding import Found, Rule, fail, warn
from pdbench.probe.doctor.rules_load import longest_answer_s
from pdbench.quantities import seconds

# Proxies that vLLM ships to show the protocol, by the name of their script.
EXAMPLES = re.compile(
    r"(?:^|/)(toy_proxy_server|disagg_proxy_(?:demo|pushconnector_demo|multiturn|p2p_nccl_xpyd)|mini_lb)(?:\.py)?$"
)
PUSH_EXAMPLE = "disagg_proxy_pushconnector_demo"
AT_ONCE = "concurrent-prefill-decode"
LEAST_NEEDED_S = 60.0
_TIMEOUT = re.compile(r"time[-_]?out", re.IGNORECASE)
_OTHER_TIMEOUT = re.compile(r"keep[-_]?alive|connect|graceful|shutdown", re.IGNORECASE)


def example_proxies(case: Case) -> list[Found] | None:
    """An example proxy shows the protocol; what is measured through one is also the example."""
    named = [(patient, name) for patient in case.of("proxy") if patient.launch.words for name in _examples(patient)]
    if not any(patient.launch.words for patient in case.of("proxy")):
        return None
    found = []
    for patient, name in named:
        if name == PUSH_EXAMPLE and len(case.of("prefill")) > 1:
            evidence = f"{name} knows one prefill server and there are {len(case.of('prefill'))}"
            found.append(fail(patient.name, evidence, "Decode would wait for KV that another server has: use a router"))
        elif name == PUSH_EXAMPLE:
            evidence = f"{name} passes answers on in pieces of 1,024 bytes: inter-token latencies are the pieces'"
            found.append(warn(patient.name, evidence, "Measure --drive two-hop, or behind a proxy that streams."))
        else:
            evidence = f"{name} is an example: a fresh connection or one process may cost more than the handoff"
            found.append(warn(patient.name, evidence, "Measure --drive proxy,two-hop, or what serves: llm-d, Dynamo."))
    return found


def push_together(case: Case) -> list[Found] | None:
    """Push pays where decode is asked while prefill still runs."""
    named = [(patient, name) for patient in case.of("proxy") for name in _examples(patient)]
    if case.mode != "push" or not named:
        return None
    return [
        warn(
            patient.name,
            f"{name} asks decode only when prefill has answered: push is then no faster than pull",
            f"Start {PUSH_EXAMPLE}.py with --{AT_ONCE}, or use a router that asks both at once.",
        )
        for patient, name in named
        if name != PUSH_EXAMPLE or patient.launch.flags.get(AT_ONCE) is not True
    ]


def _examples(patient: Patient) -> Iterator[str]:
    for word in patient.launch.words:
        if match := EXAMPLES.search(word.replace("sglang_router.", "")):
            yield match[1]


def proxy_timeouts(case: Case) -> list[Found] | None:
    """Time-outs of the proxy's command line and environment against the longest answer of the plan."""
    proxies = [patient for patient in case.of("proxy") if patient.launch.words or patient.launch.env]
    if not proxies:
        return None
    needed_s = max(longest_answer_s(case), LEAST_NEEDED_S)
    return [
        warn(
            patient.name,
            f"{name} {value_s:g} s cuts requests that the plan may need {needed_s:.0f} s for",
            "Raise it above the longest answer, queueing included.",
        )
        for patient in proxies
        for name, value_s in _timeouts(patient)
        if value_s < needed_s
    ]


def _timeouts(patient: Patient) -> Iterator[tuple[str, float]]:
    """Of a request or a read; 0 is none. A name that ends in ms is in milliseconds."""
    given = {f"--{name}": text for name, text in patient.launch.flags.items()} | dict(patient.launch.env)
    for name, text in given.items():
        if _TIMEOUT.search(name) and not _OTHER_TIMEOUT.search(name):
            unit = "ms" if re.search(r"[-_]ms$", name, re.IGNORECASE) and str(text).isdigit() else ""
            try:
                value_s = seconds(f"{text}{unit}", name)
            except UsageError:
                continue
            if value_s > 0:
                yield name, value_s


NEEDS_PLAN = {"proxy-timeout"}
RULES: dict[str, Rule] = {
    "example-proxy": example_proxies,
    "push-together": push_together,
    "proxy-timeout": proxy_timeouts,
}
