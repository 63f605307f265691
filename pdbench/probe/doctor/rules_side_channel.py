"""Can the servers find each other? The side channel over which NIXL's peers shake hands."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from pdbench.probe.doctor.case import MODE_OF, Case, Patient, connector
from pdbench.probe.doctor.finding import Found, Rule, fail, unknown
from pdbench.probe.doctor.rules_handoff import port_of
from pdbench.probe.doctor.shell import is_open

DEFAULT_PORT = 5600
PORT, HOST = "VLLM_NIXL_SIDE_CHANNEL_PORT", "VLLM_NIXL_SIDE_CHANNEL_HOST"
_NOWHERE = re.compile(r"^(localhost|127\..*|::1|0\.0\.0\.0|::)$")
_OWN = re.compile(r"POD_?IP|HOST_?(?:NAME|IP)|NODE_?(?:NAME|IP)|hostname", re.IGNORECASE)  # a host's word for itself


class _Taken(NamedTuple):
    """Who advertises a place, and whether it is sure that it is this place."""

    name: str
    sure: bool = True


def side_channel_ports(case: Case) -> list[Found] | None:
    """Two servers on one host that advertise one side channel do not fail, they hang."""
    if len(list(_nixl(case))) < 2:
        return None
    found: list[Found] = []
    taken: dict[tuple[str, int], list[_Taken]] = defaultdict(list)
    for patient in _nixl(case):
        text, host = _port_text(patient), _machine_advertised(patient)
        if text is None or is_open(text):
            found.append(_not_known(patient, PORT, text))
        elif not text.isdigit() or not 0 < int(text) < 65536:
            found.append(fail(patient.name, f"{PORT} is {text!r}, not a port", "Give a port number."))
        elif host is None:
            found.append(_not_known(patient, HOST, _host_text(patient)))
        else:
            sure = not is_open(_host_text(patient))
            for rank in range(patient.number("data-parallel-size") or 1):
                taken[host, int(text) + rank].append(_Taken(patient.name, sure))
    for one in case.patients:  # a side channel on the port of some server's own API
        place = _machine(one), port_of(one.server.url)
        if place in taken and not one.launch.own_network:
            taken[place].append(_Taken(f"the API of {one.name}"))
    return [*found, *(_clash(place, every) for place, every in taken.items() if len(every) > 1)]


def _clash(place: tuple[str, int], every: list[_Taken]) -> Found:
    where = " and ".join(dict.fromkeys(one.name for one in every))
    fix = f"Give each server on a host its own {PORT}, as many apart as it has DP ranks."
    if all(one.sure for one in every):
        evidence = f"advertise the same side channel {place[0]}:{place[1]}: transfers hang without an error"
        return fail(where, evidence, fix)
    return unknown(f"advertise side channel port {place[1]} on hosts that may be one", fix, where)


def side_channel_hosts(case: Case) -> list[Found] | None:
    """The default side channel host is localhost: another machine cannot reach it."""
    if not any(True for _ in _nixl(case)):
        return None
    found = []
    for patient in _nixl(case):
        told, own = _host_text(patient), _machine(patient)
        others = [other for other in case.pair if other.server.role != patient.server.role]
        apart = sorted({other.host for other in others if _machine(other) != own})
        if not apart or patient.server.role != ("decode" if case.mode == "push" else "prefill"):
            continue
        if told is None or (is_open(told) and not _OWN.search(told)):
            found.append(_not_known(patient, HOST, told))
        elif _NOWHERE.match(told):
            whose = "only its own container" if patient.launch.own_network else "only it"
            fix = f"Set {HOST} to an address that {', '.join(apart)} can reach."
            found.append(fail(patient.name, f"advertises its side channel on {told}, which {whose} can reach", fix))
    return found


def _not_known(patient: Patient, name: str, text: str | None) -> Found:
    stands = patient.launch.elsewhere
    evidence = f"its {name} is not known: " + (f"it is {text}" if text else f"it may stand in {stands}")
    return unknown(evidence, "Write it into the recipe's `env`.", patient.name)


def _nixl(case: Case) -> Iterator[Patient]:
    """Servers with a NIXL connector that say where their side channel is, or whose start shows it."""
    for patient, _ in case.handoffs():
        told = patient.handoff or patient.launch.words or patient.variable(PORT)
        if connector(patient) in MODE_OF and told:
            yield patient


def _port_text(patient: Patient) -> str | None:
    """As it says itself, else as it was started; None where neither tells."""
    told = (patient.handoff or {}).get("remote_port")
    text = str(told) if told is not None else patient.variable(PORT)
    return str(DEFAULT_PORT) if text is None and patient.lacks(PORT) else text


def _host_text(patient: Patient) -> str | None:
    told = (patient.handoff or {}).get("remote_host")
    text = str(told) if told else patient.variable(HOST) or None
    return "localhost" if text is None and (patient.lacks(HOST) or patient.variable(HOST) == "") else text


def _machine_advertised(patient: Patient) -> str | None:
    """The machine behind the side channel: localhost, and a host's word for itself, is the server's own."""
    told = _host_text(patient)
    if told is None or (is_open(told) and not _OWN.search(told)):
        return None
    return _machine(patient) if _NOWHERE.match(told) or is_open(told) else told


def _machine(patient: Patient) -> str:
    """The machine that the server's URL names; a container with a network of its own is one."""
    if patient.launch.own_network:
        return f"the container of {patient.name}"
    return "this host" if _NOWHERE.match(patient.host) else patient.host


NEEDS_CONFIG = {"side-channel-port", "side-channel-host"}
RULES: dict[str, Rule] = {
    "side-channel-port": side_channel_ports,
    "side-channel-host": side_channel_hosts,
}
