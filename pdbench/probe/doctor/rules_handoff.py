"""Can prefill and decode hand KV over at all? What vLLM accepts at start-up and refuses at the first request."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any
from urllib.parse import urlsplit

from pdbench.probe.doctor.case import MODE_OF, Case, Patient, connector, connectors_named
from pdbench.probe.doctor.finding import GIVE_COMMAND, Found, Rule, fail, unknown, warn
from pdbench.probe.doctor.shell import is_open

ASK_FOR_CONFIG = "Start the servers with VLLM_SERVER_DEV_MODE=1, or give --recipe FILE with `launch`."
_KV_ROLES = {"prefill": "kv_producer", "decode": "kv_consumer"}
_KNOWN_KEYS = {
    "kv_connector", "engine_id", "kv_role", "kv_buffer_device", "kv_buffer_size", "kv_port",
    "kv_connector_extra_config", "kv_connector_module_path", "enable_permute_local_kv", "kv_load_failure_policy",
}  # fmt: skip
# What vLLM 0.32 can load by name alone (kv_connector/factory.py).
_CONNECTORS = (
    *(name for name in MODE_OF if name), "MultiConnector", "MooncakeConnector", "MooncakeStoreConnector",
    "MoRIIOConnector", "LMCacheConnectorV1", "LMCacheMPConnector", "FlexKVConnectorV1", "OffloadingConnector",
    "SimpleCPUOffloadConnector", "HF3FSKVConnector", "HiSparseConnector", "ExampleConnector",
    "ExampleHiddenStatesConnector", "DecodeBenchConnector", "P2pNcclConnector",
)  # fmt: skip
VLLM_PORT = 8000
REFUSED_SINCE = (0, 32)  # unknown keys of --kv-transfer-config stop the start (vLLM 0.32, config/kv_transfer.py)


def mixed_modes(case: Case) -> list[Found] | None:
    """Push on one side and pull on the other starts without complaint and fails at the first request."""
    said = {patient.name: mode for patient in case.pair if (mode := mode_of(patient))}
    given = case.deployment.mode
    if len(set(said.values())) > 1:
        each = ", ".join(f"{name} {mode}" for name, mode in said.items())
        fix = "Start prefill and decode with the same connector: NixlConnector (pull) or NixlPushConnector on both."
        return [fail("", f"push and pull are mixed ({each}): the first request fails in the handshake", fix)]
    if not said and any(connector(patient) for patient in case.pair):
        return None  # a connector that has no modes, or none that is known: `connector` says so
    if not said:
        return [] if any(patient.transfer is None for patient in case.pair) else None
    mode = next(iter(said.values()))
    if given in ("push", "pull") and given != mode:
        fix = f"Correct it to {mode}, in the recipe or with --mode."
        return [fail("", f"the mode given is wrong: {given} was given, {' and '.join(said)}: {mode}", fix)]
    return [] if given or len(said) > 1 else None


def hands_over(case: Case) -> bool:
    """Whether the small request's KV came from prefill: then both sides are of one mode."""
    return case.sent is not None and case.sent.moved.get("external_kv_transfer", 0.0) > 0


def mode_of(patient: Patient) -> str | None:
    told = (patient.handoff or {}).get("transfer_mode")
    return patient.facts.transfer_mode or (told if told in ("push", "pull") else MODE_OF.get(connector(patient)))


def connectors(case: Case) -> list[Found]:
    """Every server of a P/D pair needs a connector, and the same one."""
    found = []
    names = {patient.name: connector(patient) for patient, _ in case.handoffs()}
    for name, one in names.items():
        if one is None:
            fix = "Add --kv-transfer-config with the same kv_connector as on the other side."
            found.append(fail(name, "starts without a KV connector: decode would compute every prompt itself", fix))
    found += [
        one for patient, transfer in case.handoffs() if not patient.answers for one in _unheard(patient, transfer)
    ]
    kinds = {one for one in names.values() if one is not None}
    families = {"Nixl" if one in MODE_OF else one for one in kinds}
    if len(families) > 1:
        found.append(fail("", f"different connectors: {', '.join(sorted(kinds))}", "Use one connector on both sides."))
    return found


def _unheard(patient: Patient, transfer: Mapping[str, Any]) -> Iterator[Found]:
    """Connectors that vLLM does not know by name: misspelt, or a plugin's."""
    if transfer.get("kv_connector_module_path"):
        return
    for name in connectors_named(transfer):
        near = get_close_matches(name, _CONNECTORS, n=1, cutoff=0.85)
        if name in _CONNECTORS:
            continue
        if near and not name.startswith(near[0]):
            evidence = f"kv_connector {name} is none that vLLM knows: it stops at start"
            yield fail(patient.name, evidence, f"Is {near[0]} meant?")
        else:
            own = ", ".join(_CONNECTORS[:3])
            fix = f"Set kv_connector_module_path or install the plugin; vLLM's own for NIXL: {own}."
            yield warn(patient.name, f"kv_connector {name} is none that vLLM 0.32 knows by itself", fix)


def engine_ids(case: Case) -> list[Found]:
    """Both sides keep each other's KV addresses by engine_id: two servers with one are taken for each other."""
    every = {patient.name: table.get("engine_id") for patient, table in case.handoffs()}
    own = {name: str(given) for name, given in every.items() if given and not is_open(given)}
    return [
        fail(
            " and ".join(name for name, given in own.items() if given == shared),
            f"have the same engine_id {shared}: the KV of one is taken for the other's",
            "Give each an engine_id of its own, or leave it out: vLLM then makes one up.",
        )
        for shared, times in Counter(own.values()).items()
        if times > 1
    ]


def kv_roles(case: Case) -> list[Found]:
    """kv_role against the role that the server was given as."""
    found = []
    for patient, transfer in case.handoffs():
        role, wanted = transfer.get("kv_role"), _KV_ROLES[patient.server.role]
        if transfer.get("kv_connector") and role is None:
            found.append(
                fail(patient.name, "kv_connector without kv_role is refused at start", f"Set kv_role {wanted}.")
            )
        elif role == "kv_both" and transfer.get("kv_connector") != "MultiConnector":
            found.append(warn(patient.name, "kv_role kv_both is deprecated", f"Set kv_role {wanted}."))
        elif role is not None and role not in (*_KV_ROLES.values(), "kv_both"):
            evidence = f"kv_role {role} is none that vLLM knows: it stops at start"
            found.append(fail(patient.name, evidence, f"Set kv_role {wanted}."))
        elif role in _KV_ROLES.values() and role != wanted:
            fix = f"Set kv_role {wanted}, or exchange the URLs of prefill and decode."
            found.append(fail(patient.name, f"is a {role} but was given as {patient.server.role}", fix))
    return found


def unknown_keys(case: Case) -> list[Found]:
    """Keys of --kv-transfer-config that vLLM refuses."""
    found = []
    for patient, transfer in case.handoffs():
        keys = sorted(set(transfer) - _KNOWN_KEYS)
        if not keys or patient.answers:  # a server that runs has taken its own configuration
            continue
        names = ", ".join(keys)
        fix = "Remove them: kv_role and the connector say all that is needed."
        evidence = f"--kv-transfer-config has {names}, which vLLM 0.32 refuses at start"
        old = _version(patient.facts.version) is not None and (_version(patient.facts.version) or ()) < REFUSED_SINCE
        found.append((warn if old else fail)(patient.name, evidence, fix))
    return found


def _version(text: str | None) -> tuple[int, ...] | None:
    match = re.match(r"(\d+)\.(\d+)", text or "")
    return (int(match[1]), int(match[2])) if match else None


def unread_launch(case: Case) -> list[Found] | None:
    """A command line that the shell or vLLM could not read either."""
    given = [one for one in case.patients if one.launch.given]
    if not given:
        return None
    mend = "Mend the command: quote the JSON in single quotes."
    return [
        *(fail(one.name, one.launch.broken, mend) for one in given if one.launch.broken),
        *(unknown(f"its launch {one.launch.unread}", GIVE_COMMAND, one.name) for one in given if one.launch.unread),
    ]


def launch_ports(case: Case) -> list[Found] | None:
    """The port of the command line against the port of the URL."""
    if not any(patient.launch.given for patient in case.patients):
        return None
    found = []
    for patient in case.patients:
        flags, told = patient.launch.flags, port_of(patient.server.url)
        told = patient.launch.published.get(told, told)
        port, launch = flags.get("port"), patient.launch
        if "port" in launch.unsaid:
            found.append(unknown("the port of its launch is not known", GIVE_COMMAND, patient.name))
        elif port is None and patient.launch.given and patient.untold and patient.server.role != "proxy":
            found.append(unknown(patient.untold, GIVE_COMMAND, patient.name))
        elif launch.in_pod and port is not None and str(port) != str(told):
            evidence = f"is launched on port {port}, its url says {told}: right only where its Service maps them"
            found.append(unknown(evidence, "Look at targetPort of the Service.", patient.name))
        elif isinstance(port, str) and port.isdigit() and int(port) != told:
            fix = "Make the url and --port agree."
            found.append(fail(patient.name, f"is launched on port {port}, its url says {told}", fix))
        elif launch.leaves("port") and told != VLLM_PORT and not {"uds", "headless"} & set(flags):
            evidence = f"is launched without --port, so on vLLM's {VLLM_PORT}; its url says {told}"
            found.append(fail(patient.name, evidence, f"Add --port {told}, or correct the url."))
    return found


def port_of(url: str) -> int:
    parts = urlsplit(url)
    return parts.port or (443 if parts.scheme == "https" else 80)


def versions(case: Case) -> list[Found] | None:
    """The version is part of the hash that both sides compare."""
    seen = [patient for patient in case.pair if not patient.unseen]
    if len({patient.server.role for patient in seen}) < 2:
        return None
    said = {patient.name: patient.facts.version for patient in seen if patient.facts.version}
    if len(said) < len(seen):
        silent = ", ".join(patient.name for patient in seen if patient.name not in said)
        return [unknown("does not say its version", "", silent)]
    if len(set(said.values())) > 1:
        each = ", ".join(f"{name} {version}" for name, version in said.items())
        return [fail("", f"different versions ({each}): the handshake is refused", "Run one version on both sides.")]
    return []


def push_limits(case: Case) -> list[Found] | None:
    """What push does not do."""
    if case.mode != "push":
        return None
    found = []
    for patient in case.pair:
        if patient.extra.get("bidirectional_kv_xfer"):
            found.append(fail(patient.name, "push and bidirectional_kv_xfer exclude each other", "Use pull for it."))
        if (patient.number("decode-context-parallel-size") or 1) > 1:
            found.append(fail(patient.name, "push does not work with decode context parallelism", "Use pull."))
    for patient in case.of("decode"):
        if (patient.number("pipeline-parallel-size") or 1) > 1:
            found.append(fail(patient.name, "push does not write to a decode pipeline", "Use pull, or TP on decode."))
    return [*found, *_engine_ids(case)]


def _engine_ids(case: Case) -> Iterator[Found]:
    """A push proxy tells decode who will write; some are told it when they are started."""
    proxies = [patient.launch for patient in case.of("proxy") if patient.launch.words]
    told = {str(name) for launch in proxies if (name := launch.flags.get("prefill-engine-id")) is not None}
    fix = "Set engine_id in prefill's --kv-transfer-config and give the proxy the same."
    for patient in case.of("prefill"):
        own = (patient.transfer or {}).get("engine_id")
        if told and patient.transfer is not None and own not in told:
            evidence = f"engine_id is {own or 'new at every start'}, the proxy is told {', '.join(sorted(told))}"
            yield fail(patient.name, f"{evidence}: decode waits for a writer that there is not", fix)
        elif not proxies and patient.launch.transfer is not None and not own:
            yield warn(patient.name, "has no fixed engine_id: a push proxy may have to know it beforehand", fix)


def bidirectional(case: Case) -> list[Found]:
    """Bidirectional transfer needs both sides."""
    on = {patient.name for patient, _ in case.handoffs() if patient.extra.get("bidirectional_kv_xfer")}
    known = {patient.name for patient, _ in case.handoffs()}
    if on and on != known:
        off = ", ".join(sorted(known - on))
        return [fail(off, "bidirectional_kv_xfer is on at the other side only", "Set it on prefill and on decode.")]
    return [
        warn(
            patient.name,
            "bidirectional_kv_xfer with a reasoning parser: where turn two drops the thinking of turn one, its KV"
            " fits no longer, and the text is wrong, not late",
            "Keep the thinking in the chat template, or switch bidirectional_kv_xfer off.",
        )
        for patient in case.pair
        if patient.name in on and _reasons(patient)
    ]


def _reasons(patient: Patient) -> bool:
    outputs = patient.config.get("structured_outputs_config")
    told = outputs.get("reasoning_parser") if isinstance(outputs, Mapping) else None
    return bool(told or patient.launch.flags.get("reasoning-parser"))


NEEDS_CONFIG = {
    "connector", "engine-id", "kv-role", "unknown-keys", "bidirectional",
}  # fmt: skip
RULES: dict[str, Rule] = {
    "launch-unreadable": unread_launch,
    "launch-port": launch_ports,
    "mixed-modes": mixed_modes,
    "connector": connectors,
    "engine-id": engine_ids,
    "kv-role": kv_roles,
    "unknown-keys": unknown_keys,
    "versions": versions,
    "push-limits": push_limits,
    "bidirectional": bidirectional,
}
