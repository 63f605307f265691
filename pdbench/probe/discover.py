"""What is this deployment? Every server is asked a few GETs at once; the answers fill in what else one would type.

A server that the user named must take connections: else Unreachable. What is plainly no inference server, refuses the
credentials or does not serve the model is a UsageError. Everything else that is odd becomes a note.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import aiohttp

from pdbench.deployment import DEFAULT_PORTS, Deployment, Server
from pdbench.errors import PdbenchError, Unreachable, UsageError
from pdbench.probe.agreement import (
    agreed_mode,
    agreed_model,
    refuse_exchanged_roles,
    with_doubts,
    with_slots_of_frontend,
)
from pdbench.probe.pages import Answer, clean, get, session
from pdbench.probe.server_facts import json_of, learn, models_of, moved_kv
from pdbench.probe.vocabulary import ENGINES, family_names, guess_engine
from pdbench.route import http_proxy, proxy_name

DEADLINE_S = 3.0
PATHS = {
    "/version": "/version",
    "/v1/models": "/v1/models",
    "/server_info": "/server_info?config_format=json",
    "/health": "/health",
}
TRTLLM_PAGE = "/prometheus/metrics"  # trtllm-serve's /metrics are JSON statistics
_FLAGS = {"colocated": "--server"}

Answers = Mapping[str, Answer]


async def discover(deployment: Deployment, *, all_there: bool = True) -> Deployment:
    """The deployment with facts, engine, model, mode and `simulated` filled in. Raises UsageError and Unreachable.

    Without `all_there` one server that can be reached is enough: nothing is learnt of the others.
    """
    try:
        return await _discover(deployment, all_there=all_there)
    except PdbenchError as error:
        message, hint = (deployment.credentials.redact(text) for text in (str(error), error.hint))
        raise type(error)(message, hint) from None


async def _discover(deployment: Deployment, *, all_there: bool) -> Deployment:
    if deployment.engine is not None and deployment.engine not in ENGINES:
        raise UsageError(f"--engine {clean(deployment.engine)} is not known.", f"Known are: {', '.join(ENGINES)}.")
    async with session() as client:
        asked = await asyncio.gather(*(ask(client, deployment, server) for server in deployment.servers))
        every = [answers for _, answers in asked]
        deployment = replace(deployment, servers=tuple(server for server, _ in asked))
        nobody = not any(answer.answered for answers in every for answer in answers.values())
        for server, answers in asked:
            if all_there or nobody or any(answer.answered for answer in answers.values()):
                await _refuse_what_cannot_serve(client, deployment, server, answers)
    engine = deployment.engine or _engine(every)
    servers = tuple(
        _described(deployment, server, answers, engine)
        for server, answers in zip(deployment.servers, every, strict=True)
    )
    found = replace(deployment, servers=servers, engine=engine)
    served = {server.name: models_of(answers.get("/v1/models")) for server, answers in zip(servers, every, strict=True)}
    moved = {
        server.name: moved_kv(answers.get("metrics"), engine) for server, answers in zip(servers, every, strict=True)
    }
    found = replace(
        found,
        model=agreed_model(found, {name: models for name, models in served.items() if models}),
        mode=agreed_mode(found, {name for name, yes in moved.items() if yes}),
        simulated=found.simulated or any(server.facts.simulated for server in servers if server.facts),
    )
    refuse_exchanged_roles(found)
    return with_slots_of_frontend(with_doubts(found, given_mode=deployment.mode))


def notes(deployment: Deployment) -> list[str]:
    """What discovery found odd, each with the server's name, and the proxies on the way."""
    ways = {server.url: proxy_name(server.url) for server in deployment.servers}
    found = [f"{url} is reached through the proxy {way} of the environment" for url, way in ways.items() if way]
    odd = [f"{server.name}: {note}" for server in deployment.servers if server.facts for note in server.facts.notes]
    return found + odd


async def ask(
    client: aiohttp.ClientSession, deployment: Deployment, server: Server
) -> tuple[Server, dict[str, Answer]]:
    """What a server answers to the paths of PATHS and, as `metrics`, to its metrics URL; and the server, with the URL
    at which its page was found."""
    urls = {name: server.url + path for name, path in PATHS.items()}
    if server.metrics_url is not None:
        urls["metrics"] = server.metrics_url
    headers = deployment.credentials.headers
    found = await asyncio.gather(*(get(client, url, headers(url), DEADLINE_S) for url in urls.values()))
    answers = dict(zip(urls, found, strict=True))
    page = answers.get("metrics")
    if page is not None and page.answered and server.metrics_url == f"{server.url}/metrics" and not _is_page(page):
        url = server.url + TRTLLM_PAGE
        if _is_page(other := await get(client, url, headers(url), DEADLINE_S)):
            return replace(server, metrics_url=url), {**answers, "metrics": other}
    return server, answers


def _is_page(answer: Answer) -> bool:
    """Whether it holds at least one sample of an engine."""
    return answer.ok and not answer.html and guess_engine(family_names(answer.body)) is not None


async def _refuse_what_cannot_serve(
    client: aiohttp.ClientSession, deployment: Deployment, server: Server, answers: Answers
) -> None:
    """Raise for a server that is not there, is not one of ours, or does not let us in."""
    where = f"{server.name} at {clean(server.url)}"
    own = [
        answer for name, answer in answers.items() if name != "metrics" or server.metrics_url == f"{server.url}/metrics"
    ]
    flags = _FLAGS.get(server.role, f"--{server.role}")
    if deployment.source == DEFAULT_PORTS:
        flags = "--proxy, that of the others with --prefill and --decode"  # the proxy alone is too little for `watch`
    error = _trouble(flags, where, own, answers["/v1/models"])
    if error is None and all(answer.html for answer in own if answer.answered) and any(a.answered for a in own):
        # A gateway may let only the completions path through and show its own error page elsewhere: ask that path.
        error = None if await _completes(client, deployment, server) else _not_inference(where, "it answers HTML")
    if error is not None:
        raise error


def _trouble(flags: str, where: str, own: Sequence[Answer], models: Answer) -> PdbenchError | None:
    failures = [answer for answer in own if not answer.answered]
    if len(failures) == len(own):
        kinds = {answer.kind for answer in failures}
        if "not-http" in kinds:
            return _not_inference(where, failures[[a.kind for a in failures].index("not-http")].failure or "")
        if kinds == {"timeout"}:
            return None  # it takes connections and answers nothing in time: the warm-up's completion will tell
        first = next(answer for answer in failures if answer.kind != "timeout")
        hint = f"Start it, or give its URL with {flags}; or practise without a deployment: pdbench sweep --testbed pull"
        if first.kind == "tls":
            hint = "Check the URL's scheme and the certificate."
        return Unreachable(f"{where} cannot be reached: {first.failure}.", hint)
    if models.status in (401, 403):
        return UsageError(
            f"{where}: credentials refused (HTTP {models.status}).",
            "Set PDBENCH_API_KEY, or use --api-key-env NAME or --api-key-file FILE.",
        )
    if models.ok and models.html:
        return _not_inference(where, "it answers HTML")
    if 300 <= models.status < 400:
        return _not_inference(where, f"it redirects (HTTP {models.status})")
    return None


def _not_inference(where: str, why: str) -> UsageError:
    return UsageError(
        f"{where}: this is not an inference server (wrong port?): {why}.",
        "Give the port that answers /v1/completions: vLLM's --port, not a side channel or a dashboard.",
    )


async def _completes(client: aiohttp.ClientSession, deployment: Deployment, server: Server) -> bool:
    """Whether a POST to the completions path meets something that speaks JSON; the empty body starts no work."""
    url = f"{server.url}/v1/completions"
    try:
        headers = deployment.credentials.headers(url)
        async with (
            asyncio.timeout(DEADLINE_S),
            client.post(url, json={}, headers=headers, allow_redirects=False, proxy=http_proxy(url)) as response,
        ):
            return "json" in response.headers.get("Content-Type", "")
    except (aiohttp.ClientError, OSError, TimeoutError):
        return False


def _engine(every: Iterable[Answers]) -> str | None:
    """The engine of the deployment, from the names on all its metrics pages and from what else answers."""
    names: set[str] = set()
    for answers in every:
        page = answers.get("metrics")
        if page is not None and page.ok and not page.html:
            names |= family_names(page.body)
    if (engine := guess_engine(names)) is not None:
        return engine
    return "vllm" if any(json_of(answers.get("/version")) for answers in every) else None


def _described(deployment: Deployment, server: Server, answers: Answers, engine: str | None) -> Server:
    redact = deployment.credentials.redact
    facts = learn(server, answers, engine)
    facts = replace(
        facts,
        version=redact(facts.version) if facts.version else None,
        notes=tuple(redact(note) for note in facts.notes),
    )
    silent = all(not answer.answered for answer in answers.values())
    if silent:
        facts = replace(facts, notes=(*facts.notes, f"takes connections but answered nothing within {DEADLINE_S:g} s"))
    # A proxy without a page is ordinary: the sampler need not ask it again and again.
    return replace(
        server,
        facts=facts,
        metrics_url=None if server.role == "proxy" and not facts.has_metrics else server.metrics_url,
    )
