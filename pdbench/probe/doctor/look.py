"""Look at a deployment: ask every server, send one small request to each prefill server and one through the entry."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import secrets
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import aiohttp

from pdbench.deployment import Deployment, Server
from pdbench.probe.discover import ask
from pdbench.probe.doctor.case import Case, Patient, Sent
from pdbench.probe.doctor.launch import Launch
from pdbench.probe.pages import Answer, clean, get, session
from pdbench.probe.scrape import BadPage, Row, scrape_of
from pdbench.probe.server_facts import json_of, learn, models_of
from pdbench.probe.vocabulary import family_names, guess_engine

REQUEST_S = 60.0  # a first request may compile kernels and shake hands
PAGE_S = 3.0
FETCH_S = 10.0
PROMPT_TOKENS, OUTPUT_TOKENS = 192, 8  # several KV blocks, and a stream long enough to see whether it is collected
EXTERNAL = "external_kv_transfer"  # the source of prompt tokens whose KV another server computed
_LOWEST_ID, _IDS = 256, 3000


async def look(deployment: Deployment, launches: Mapping[str, Launch], sweep: Mapping[str, Any]) -> Case:
    """The case of a deployment; `launches` by server name, `sweep` is the recipe's table. Never raises for a server."""
    async with session() as client:
        pairs = await asyncio.gather(*(ask(client, deployment, server) for server in deployment.servers))
        engine = deployment.engine or _engine([answers for _, answers in pairs])
        patients = tuple(_patient(deployment, server, launches, answers, engine) for server, answers in pairs)
        model = deployment.model or next((one.facts.models[0] for one in patients if one.facts.models), None)
        deployment = replace(deployment, model=model, engine=engine)
        case = Case(deployment, patients, sweep)
        if model is None or not _entry_answers(case):
            return case
        handoffs = await asyncio.gather(*(_handoff(client, case, patient) for patient in patients))
        patients = tuple(replace(p, handoff=told) for p, told in zip(patients, handoffs, strict=True))
        case = replace(case, patients=patients)
        return replace(case, sent=await _send(client, case))


def _entry_answers(case: Case) -> bool:
    return any(patient.answers for patient in case.of("proxy", "colocated"))


def _engine(every: list[dict[str, Answer]]) -> str | None:
    names: set[str] = set()
    for answers in every:
        page = answers.get("metrics")
        if page is not None and page.ok and not page.html:
            names |= family_names(page.body)
    return guess_engine(names)


def _patient(
    deployment: Deployment,
    server: Server,
    launches: Mapping[str, Launch],
    answers: dict[str, Answer],
    engine: str | None,
) -> Patient:
    redact = deployment.credentials.redact
    facts = learn(server, answers, engine)
    rows, page_trouble = _page(answers.get("metrics"), engine)
    info = json_of(answers.get("/server_info"))
    info = info if isinstance(info, dict) else {}
    return Patient(
        server=replace(server, facts=replace(facts, version=redact(facts.version) if facts.version else None)),
        launch=launches.get(server.name, Launch()),
        asked=True,
        trouble=redact(_trouble(answers)),
        page_trouble=redact(page_trouble),
        config=info["vllm_config"] if isinstance(info.get("vllm_config"), dict) else {},
        env=info["vllm_env"] if isinstance(info.get("vllm_env"), dict) else {},
        rows=rows,
    )


def _trouble(answers: Mapping[str, Answer]) -> str:
    """Why a server is not usable: nothing answers, credentials refused, or no inference server."""
    models = answers["/v1/models"]
    if not any(answer.answered for answer in answers.values()):
        return f"cannot be reached: {models.failure}"
    if models.status in (401, 403):
        return f"refuses the credentials (HTTP {models.status})"
    if models.ok and not models_of(models):
        return "is no inference server: /v1/models lists no model"
    return ""


def _page(answer: Answer | None, engine: str | None) -> tuple[tuple[Row, ...], str]:
    if answer is None:
        return (), "is not known"
    if answer.failure or answer.status != 200:
        return (), answer.failure or f"answers HTTP {answer.status}"
    if answer.html:
        return (), "is HTML"
    try:
        rows = scrape_of(engine)(answer.body, edge=True).rows
    except BadPage as bad:
        return (), str(bad)
    return rows, "" if rows else "has no series that pdbench knows"


async def _handoff(client: aiohttp.ClientSession, case: Case, patient: Patient) -> Mapping[str, Any] | None:
    """kv_transfer_params of a small request to a prefill server, whose KV a decode server then fetches: left alone it
    would expire, and be counted against the deployment."""
    if patient.server.role != "prefill" or not patient.answers or case.deployment.engine not in (None, "vllm"):
        return None
    params: dict[str, Any] = {"do_remote_decode": True, "do_remote_prefill": False}
    params |= dict.fromkeys(("remote_engine_id", "remote_block_ids", "remote_host", "remote_port"))
    body = _body(case, 16, 1) | {"stream": False, "kv_transfer_params": params}
    try:
        url = patient.server.url + "/v1/completions"
        headers = _headers(case, url)
        async with asyncio.timeout(REQUEST_S), client.post(url, json=body, headers=headers) as response:
            told = json.loads(await response.read()) if response.status == 200 else {}
    except (aiohttp.ClientError, OSError, TimeoutError, ValueError):
        return None
    found = told.get("kv_transfer_params") if isinstance(told, dict) else None
    if not isinstance(found, dict):
        return None
    await _fetched(client, case, {**body, "max_tokens": 1, "kv_transfer_params": found}, headers)
    return found


async def _fetched(
    client: aiohttp.ClientSession, case: Case, body: Mapping[str, Any], headers: Mapping[str, str]
) -> None:
    """Let decode have what the request to prefill left there; whether that works the entry's request tells."""
    decode = next((patient for patient in case.of("decode") if patient.answers), None)
    if decode is None:
        return
    url = decode.server.url + "/v1/completions"
    own = {**headers, **case.deployment.credentials.headers(url)}
    with contextlib.suppress(aiohttp.ClientError, OSError, TimeoutError):
        async with asyncio.timeout(FETCH_S), client.post(url, json=body, headers=own) as response:
            await response.read()


async def _send(client: aiohttp.ClientSession, case: Case) -> Sent:
    """One streamed request through the entry, with decode's counters before and after it."""
    url = case.deployment.entry.url + "/v1/completions"
    body = _body(case, PROMPT_TOKENS, OUTPUT_TOKENS) | {"stream": True, "stream_options": {"include_usage": True}}
    old, brought = await _pages(client, case, "decode"), await _pages(client, case, "prefill")
    stamps: list[float] = []
    usage, error = None, ""
    try:
        async with asyncio.timeout(REQUEST_S), client.post(url, json=body, headers=_headers(case, url)) as response:
            if response.status != 200:
                text = (await response.content.read(2000)).decode("utf-8", "replace")
                return _refused(case, f"a small request ended in HTTP {response.status}: {_said(text)}", _is_html(text))
            async for line in response.content:
                event = _event(line)
                error = error or _error(event)
                usage = event.get("usage") or usage
                if _has_output(event):
                    stamps.append(time.monotonic())
    except TimeoutError:
        return _refused(case, f"a small request had no whole answer within {REQUEST_S:g} s")
    except (aiohttp.ClientError, OSError) as broken:
        return _refused(case, f"a small request broke off: {clean(str(broken) or type(broken).__name__, 120)}")
    if error or not stamps:
        return _refused(case, f"a small request failed: {error or 'it ended without output'}")
    new, brought_after = await _pages(client, case, "decode"), await _pages(client, case, "prefill")
    before, after = _sources(old), _sources(new)
    return Sent(
        prompt_tokens=usage.get("prompt_tokens") if isinstance(usage, dict) else None,
        events=len(stamps),
        spread_s=stamps[-1] - stamps[0],
        moved={source: value - before.get(source, 0.0) for source, value in after.items()},
        fetched_by_prefill=_sources(brought_after).get(EXTERNAL, 0.0) - _sources(brought).get(EXTERNAL, 0.0),
        still_fetching={name: _fetching_only(old.get(name, ()), rows) for name, rows in new.items()},
    )


def _is_html(text: str) -> bool:
    return text.lstrip().lower().startswith(("<!doctype html", "<html"))


def _said(text: str) -> str:
    """The answer in one line; of a web page its title."""
    if not _is_html(text):
        return clean(text, 160)
    title = re.search(r"<title[^>]*>(.*?)</title", text, re.IGNORECASE | re.DOTALL)
    return f"an HTML page, {clean(title[1].strip(), 80)!r}" if title else "an HTML page"


def _refused(case: Case, trouble: str, page: bool = False) -> Sent:
    hint = "Look at the server's log."
    if page:
        hint = (
            f"No engine says that: see what answers at {case.deployment.entry.url}, the entry or something before it."
        )
    elif "HTTP 404" in trouble:
        hint = f"Give --model with what it serves: curl {case.deployment.entry.url}/v1/models."
    elif case.of("decode") and case.deployment.engine in (None, "vllm") and "HTTP 501" not in trouble:
        hint = "Look for 'NIXL compatibility hash mismatch' in decode's log: mode, version and layout must agree."
    return Sent(trouble=case.deployment.credentials.redact(trouble), hint=hint)


def _body(case: Case, tokens: int, answer: int) -> dict[str, Any]:
    prompt = [_LOWEST_ID + secrets.randbelow(_IDS) for _ in range(tokens)]
    return {
        "model": case.deployment.model,
        "prompt": prompt,
        "max_tokens": answer,
        "temperature": 0,
        "ignore_eos": True,
    }


def _headers(case: Case, url: str) -> dict[str, str]:
    return {**case.deployment.credentials.headers(url), "X-Request-Id": f"doctor-{secrets.token_hex(8)}"}


def _event(line: bytes) -> dict[str, Any]:
    if not line.startswith(b"data:"):
        return {}
    try:
        found = json.loads(line[5:])
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _error(event: Mapping[str, Any]) -> str:
    said = event.get("error")
    if said is None and event.get("object") != "error":
        return ""
    text = said.get("message") if isinstance(said, dict) else said or event.get("message")
    return clean(str(text), 160)


def _has_output(event: Mapping[str, Any]) -> bool:
    choices = event.get("choices")
    return isinstance(choices, list) and any(isinstance(one, dict) and one.get("text") for one in choices)


async def _pages(client: aiohttp.ClientSession, case: Case, role: str) -> dict[str, tuple[Row, ...]]:
    """The rows of a role's pages as they are now, by server."""
    found = {}
    headers = case.deployment.credentials.headers
    for patient in case.of(role):
        url = patient.server.metrics_url
        if url is not None and patient.answers:
            found[patient.name], _ = _page(await get(client, url, headers(url), PAGE_S), case.deployment.engine)
    return found


def _sources(pages: Mapping[str, tuple[Row, ...]]) -> dict[str, float]:
    """Prompt tokens of all servers of a role by source."""
    totals: dict[str, float] = {}
    for rows in pages.values():
        for _, canonical, _, _, labels, value in rows:
            if canonical == "prompt_tokens_by_source":
                source = str(json.loads(labels).get("source"))
                totals[source] = totals.get(source, 0.0) + value
    return totals


def _fetching_only(*looks: tuple[Row, ...]) -> float:
    """Requests whose KV was being fetched at each of these looks, while nothing else ran or waited."""
    found = []
    for rows in looks:
        fetching = sum(row[5] for row in rows if row[1] == "kv_fetch_stage" and "in_progress" in row[4])
        busy = sum(row[5] for row in rows if row[1] in ("running", "waiting"))
        found.append(fetching if fetching >= busy else 0.0)
    return min(found, default=0.0)
