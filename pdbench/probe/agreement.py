"""Do the servers agree with each other and with what the user said? Model, transfer mode, roles, versions, slots."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from pdbench.deployment import ROLES, Deployment, Server, ServerFacts
from pdbench.errors import UsageError
from pdbench.probe.pages import clean
from pdbench.probe.server_facts import Model

_KV_ROLES = {"prefill": "kv_producer", "decode": "kv_consumer"}


def agreed_model(deployment: Deployment, served: Mapping[str, Sequence[Model]]) -> str:
    """The model to ask for: as given, when it is served; else the one that is served. `served` is by server name."""
    if deployment.model is not None:
        for name, models in served.items():
            if deployment.model not in [model.id for model in models]:
                raise UsageError(
                    f"{name} does not serve {clean(deployment.model)!r}: it serves {_named(models)}.",
                    "Give one of these with --model.",
                )
        return deployment.model
    if not served:
        raise UsageError("No server says which model it serves.", "Give it with --model NAME.")
    by_role = sorted(deployment.servers, key=lambda server: ROLES.index(server.role))
    first = next(served[server.name] for server in by_role if server.name in served)
    choice = [model for model in first if all(model.id in [m.id for m in models] for models in served.values())]
    if not choice:
        each = "; ".join(f"{name} serves {_named(models)}" for name, models in served.items())
        raise UsageError(f"The servers have no model in common: {each}.", "Check that each URL is of this deployment.")
    roots = {model.root for model in choice}
    if len(choice) > 1 and (len(roots) > 1 or None in roots):
        raise UsageError(f"Several models are served: {_named(choice)}.", "Choose one with --model.")
    return choice[0].id  # several names of one model: the first is the one that vLLM's metrics carry


def _named(models: Iterable[Model]) -> str:
    return clean(", ".join(clean(model.id, 80) for model in models), 300)


def agreed_mode(deployment: Deployment, moved: Collection[str]) -> str | None:
    """Push or pull: as the servers say, else as given, else by the side that has moved KV so far (names in `moved`).

    A mixture cannot work: the first request fails in the handshake.
    """
    said = {server: server.facts.transfer_mode for server in deployment.servers if server.facts}
    modes = {mode for mode in said.values() if mode is not None}
    if len(modes) > 1:
        each = ", ".join(f"{server.name} ({server.url}) has {mode}" for server, mode in said.items() if mode)
        raise UsageError(
            f"Push and pull are mixed: {each}.",
            "Start prefill and decode with the same connector: the first request would crash one of them.",
        )
    if modes and deployment.of("decode"):
        return modes.pop()
    if deployment.mode is not None:
        return deployment.mode
    if deployment.engine == "sglang" and deployment.of("decode"):
        return "push"  # its prefill writes KV to where decode has made room
    if deployment.of("colocated"):
        return "colocated"
    sides = {server.role for server in deployment.servers if server.name in moved}
    return {"prefill": "push", "decode": "pull"}.get(sides.pop()) if len(sides) == 1 else None


def refuse_exchanged_roles(deployment: Deployment) -> None:
    """Raise UsageError when a prefill server says that it consumes KV, or a decode server that it produces it."""
    for server in _pair(deployment):
        said = server.facts.kv_role if server.facts else None
        if said in _KV_ROLES.values() and said != _KV_ROLES[server.role]:
            raise UsageError(
                f"{server.url} was given as --{server.role} but says that it is a {said}.",
                "Are --prefill and --decode exchanged?",
            )


def with_doubts(deployment: Deployment, given_mode: str | None) -> Deployment:
    """The deployment with notes from comparing servers with what they were given as, and with each other."""
    versions = {server.facts.version for server in _pair(deployment) if server.facts and server.facts.version}
    return replace(
        deployment,
        servers=tuple(
            replace(server, facts=replace(facts, notes=(*facts.notes, *_doubts(server, facts, versions, given_mode))))
            for server in deployment.servers
            for facts in [server.facts or ServerFacts()]
        ),
    )


def _pair(deployment: Deployment) -> tuple[Server, ...]:
    return (*deployment.of("prefill"), *deployment.of("decode"))


def _doubts(server: Server, facts: ServerFacts, versions: Collection[str], given_mode: str | None) -> list[str]:
    doubts = []
    wanted = _KV_ROLES.get(server.role)
    if wanted and len(versions) > 1 and facts.version:
        doubts.append(
            f"version {facts.version}: prefill and decode of different versions refuse each other's handshake"
        )
    if wanted and given_mode and facts.transfer_mode not in (None, given_mode):
        doubts.append(f"does {facts.transfer_mode}, not {given_mode} as given: {facts.transfer_mode} is taken")
    if facts.max_num_seqs and server.max_num_seqs and server.slots != facts.max_num_seqs * (facts.dp_ranks or 1):
        doubts.append(f"max_num_seqs {server.max_num_seqs} was given and is used, though it says {facts.max_num_seqs}")
    return doubts


def with_slots_of_frontend(deployment: Deployment) -> Deployment:
    """Dynamo's frontend shows one worker's limit (the last that registered): take it for workers that say nothing."""
    entries = (*deployment.of("proxy"), *deployment.of("colocated"))
    shown = next((s.facts.max_num_seqs for s in entries if s.facts and s.facts.max_num_seqs), None)
    if shown is None or deployment.engine != "dynamo":
        return deployment
    note = f"max_num_seqs {shown} is what Dynamo's frontend shows of one worker: give --max-num-seqs if they differ"
    servers = tuple(
        replace(server, facts=replace(facts, max_num_seqs=shown, notes=(*facts.notes, note)))
        if (server.role == "decode" and server.slots is None)
        or (server.role == "colocated" and server.max_num_seqs is None)
        else server
        for server in deployment.servers
        for facts in [server.facts or ServerFacts()]
    )
    return replace(deployment, servers=servers)
