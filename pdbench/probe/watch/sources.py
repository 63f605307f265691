"""Where the pages come from: the servers themselves, or a Prometheus server that scrapes them."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any
from urllib.parse import urlencode, urlsplit

import aiohttp

from pdbench.deployment import Deployment, Server
from pdbench.errors import Unreachable, UsageError
from pdbench.probe.pages import Answer, get
from pdbench.probe.scrape import BadPage, scrape_of
from pdbench.probe.vocabulary import UNKNOWN
from pdbench.probe.watch.totals import Watched

PAGE_S = 4.0

Look = Callable[[], Awaitable[None]]  # one look at every server


def from_servers(client: aiohttp.ClientSession, deployment: Deployment, watched: Sequence[Watched]) -> Look:
    """Ask every server for its page."""
    servers = {server.name: server for server in deployment.servers}

    async def one(seen: Watched) -> None:
        server = servers[seen.name]
        assert server.metrics_url is not None
        url = server.metrics_url
        answer = await get(client, url, deployment.credentials.headers(url), PAGE_S)
        _take(seen, answer, deployment)

    async def look() -> None:
        await asyncio.gather(*(one(seen) for seen in watched))

    return look


def _take(seen: Watched, answer: Answer, deployment: Deployment) -> None:
    t_s = answer.t_ns / 1e9
    trouble = answer.failure or ("" if answer.status == 200 else f"HTTP {answer.status}")
    if not trouble and answer.html:
        trouble = "HTML, not a metrics page"
    if trouble:
        seen.lost(t_s, deployment.credentials.redact(trouble))
        return
    try:
        seen.take(t_s, scrape_of(deployment.engine)(answer.body, model=deployment.model).rows)
    except BadPage as bad:
        seen.lost(t_s, str(bad))


def from_prometheus(
    client: aiohttp.ClientSession, url: str, deployment: Deployment, watched: Sequence[Watched]
) -> Look:
    """Ask a Prometheus server for the newest samples; its `instance` label must be a server's HOST:PORT."""
    names = "|".join(sorted({mark for vocabulary in UNKNOWN for mark in vocabulary.marks}))
    query = urlencode({"query": f'{{__name__=~"({names}|process_start_time).*",__name__!~".*(_bucket|_created)"}}'})
    place = {instance_of(server): server.name for server in deployment.servers}
    by_name = {seen.name: seen for seen in watched}

    async def look() -> None:
        answer = await get(client, f"{url}/api/v1/query?{query}", deployment.credentials.headers(url), PAGE_S)
        pages = _pages(answer, url)
        unknown = set(pages) - set(place)
        for instance, (t_s, text) in pages.items():
            if (seen := by_name.get(place.get(instance, ""))) is not None and t_s > seen.t_s:
                fake = Answer(None, status=200, body=text.encode(), t_ns=int(t_s * 1e9))
                _take(seen, fake, deployment)
        for instance, name in place.items():
            if instance not in pages and name in by_name:
                others = f"; it has {', '.join(sorted(unknown)[:4])}" if unknown else ""
                by_name[name].lost(time.time(), f"Prometheus has no instance {instance}{others}")

    return look


def instance_of(server: Server) -> str:
    """Prometheus' `instance` of a server: host and port of its metrics page."""
    return urlsplit(server.metrics_url or server.url).netloc


def _pages(answer: Answer, url: str) -> dict[str, tuple[float, str]]:
    """The answer as a metrics page for each instance, with the time of its samples (of the epoch)."""
    if not answer.answered:
        raise Unreachable(f"--prometheus {url} cannot be reached: {answer.failure}.", "Is it up? Give its base URL.")
    try:
        document = json.loads(answer.body)
        result = document["data"]["result"]
    except (ValueError, KeyError, TypeError):
        raise UsageError(
            f"--prometheus {url}: no Prometheus API there (HTTP {answer.status}).", "Give its base URL."
        ) from None
    pages: dict[str, tuple[float, list[str]]] = {}
    for sample in result if isinstance(result, list) else []:
        labels = dict(sample["metric"])
        name, instance = labels.pop("__name__", ""), labels.pop("instance", "")
        t_s, value = sample["value"]
        newest, lines = pages.setdefault(instance, (0.0, []))
        lines.append(f"{name}{_labels(labels)} {value}")
        pages[instance] = (max(newest, float(t_s)), lines)
    return {instance: (t_s, "\n".join(lines) + "\n") for instance, (t_s, lines) in pages.items()}


def _labels(labels: Mapping[str, Any]) -> str:
    def quoted(text: Any) -> str:
        return str(text).replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")

    kept = {name: value for name, value in labels.items() if name != "job"}
    return "{" + ",".join(f'{name}="{quoted(value)}"' for name, value in kept.items()) + "}" if kept else ""
