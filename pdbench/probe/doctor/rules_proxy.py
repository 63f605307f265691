"""What stands before the pair? Example proxies and their habits, and time-outs that end answers early."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from urllib.parse import urlsplit

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


def proxy_routes(case: Case) -> list[Found] | None:
    """The servers that the proxy's command line names, and its mode, against those of the pair."""
    proxies = [patient for patient in case.of("proxy") if patient.launch.words]
    if not proxies:
        return None
    found, places, compared = [], {_place(one.server.url): one for one in case.pair}, False
    for patient in proxies:
        for role, place in _named(patient.launch.words):
            other = places.get(place)
            compared |= other is not None
            if other is not None and other.server.role != role:
                evidence = f"is told {place[0]}:{place[1]} as {role}, which is {other.name}"
                found.append(fail(patient.name, evidence, "Exchange them in the proxy's command or in the recipe."))
        mode = patient.launch.flags.get("mode") or ("push" if PUSH_EXAMPLE in _examples(patient) else None)
        compared |= {mode, case.mode} <= {"push", "pull"}
        if {mode, case.mode} == {"push", "pull"}:
            evidence = f"is started for {mode}, prefill and decode for {case.mode}"
            found.append(fail(patient.name, evidence, f"Start the proxy for {case.mode}."))
    return found if compared else None


def _named(words: Sequence[str]) -> Iterator[tuple[str, tuple[str, int]]]:
    """(role, (host, port)) as proxies are told: --prefill URL ..., or hosts and ports in two flags."""
    given: dict[str, list[str]] = {}
    flag = ""
    for word in words:
        if word.startswith("--"):
            flag, _, value = word[2:].replace("_", "-").partition("=")
            word = value
        if flag and word:
            given.setdefault(flag, []).extend(word.split(","))
    for role, server in (("prefill", "prefiller"), ("decode", "decoder")):
        for flag in (role, f"{role}-url", f"{role}-urls"):
            for text in given.get(flag, []):
                if (place := _place(text))[1]:
                    yield role, place
        ports = given.get(f"{server}-ports") or given.get(f"{server}-port") or []
        hosts = given.get(f"{server}-hosts") or given.get(f"{server}-host") or ["localhost"] * len(ports)
        for host, port in zip(hosts, ports, strict=False):
            if port.isdigit():
                yield role, _place(f"{host}:{port}")


def _place(url: str) -> tuple[str, int]:
    """Host and port; one name for this machine. (url, 0) where it is no address."""
    try:
        parts = urlsplit(url if "//" in url else f"//{url}")
        host, port = parts.hostname or "", parts.port or {"http": 80, "https": 443}.get(parts.scheme, 0)
    except ValueError:
        return url, 0
    return ("localhost" if host in ("127.0.0.1", "0.0.0.0", "::1") else host), port


def proxy_timeouts(case: Case) -> list[Found] | None:
    """Time-outs of the proxy's command line and environment against the longest answer of the plan."""
    proxies = [patient for patient in case.of("proxy") if any(_timeouts(patient))]
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
    "proxy-routes": proxy_routes,
    "proxy-timeout": proxy_timeouts,
}
