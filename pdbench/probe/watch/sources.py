"""Where the pages come from: the servers themselves, or a Prometheus server that scrapes them."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any
from urllib.parse import urlencode, urlsplit

import aiohttp

from pdbench.deployment import Deployment, Server
from pdbench.errors import PdbenchError, Unreachable, UsageError
from pdbench.probe.discover import discover
from pdbench.probe.kept import Kept, is_plain
from pdbench.probe.pages import Answer, get, session
from pdbench.probe.scrape import BadPage, Page, Reader, scrape_of
from pdbench.probe.vocabulary import UNKNOWN
from pdbench.probe.watch.frame import Watch
from pdbench.probe.watch.totals import Watched

PAGE_S = 4.0

Look = Callable[[], Awaitable[Any]]  # one look at every server


@contextlib.asynccontextmanager
async def from_servers(deployment: Deployment, watched: Sequence[Watched]) -> AsyncIterator[Look]:
    """Ask every server for its page, over a connection to each that is kept where the way there is a plain one."""
    urls = {server.name: server.metrics_url or server.url for server in deployment.servers}
    headers = {name: deployment.credentials.headers(url) for name, url in urls.items()}
    kept = {one.name: Kept(urls[one.name], headers[one.name]) for one in watched if is_plain(urls[one.name])}
    readers = {one.name: Reader(deployment.engine, deployment.model) for one in watched}

    async def one(client: aiohttp.ClientSession, seen: Watched) -> None:
        name = seen.name
        if name in kept:
            answer = await kept[name].get(PAGE_S)
        else:
            answer = await get(client, urls[name], headers[name], PAGE_S)
        _take(seen, answer, readers[name].read, deployment)

    async with session() as client:
        try:
            yield lambda: asyncio.gather(*(one(client, seen) for seen in watched))
        finally:
            for page in kept.values():
                page.close()


def learning(look: Look, view: Watch) -> Look:
    """The same look; servers that come later than the view are asked what they are."""

    async def looked() -> None:
        await look()
        if view.strangers:
            with contextlib.suppress(PdbenchError):  # it may be gone again: the next look tells
                view.learn(await discover(view.deployment, all_there=False))

    return looked


def _take(seen: Watched, answer: Answer, read: Callable[[bytes], Page], deployment: Deployment) -> None:
    t_s = answer.t_ns / 1e9
    trouble = answer.failure or ("" if answer.status == 200 else f"HTTP {answer.status}")
    if not trouble and answer.html:
        trouble = "HTML, not a metrics page"
    if trouble:
        seen.lost(t_s, deployment.credentials.redact(trouble))
        return
    try:
        page = read(answer.body)
    except BadPage as bad:
        seen.lost(t_s, str(bad))
        return
    if any(row[1] != "process_start_s" for row in page.rows):
        seen.take(t_s, page.rows)
    elif page.dropped:
        seen.lost(t_s, f"no number on its page: {page.dropped} are NaN or infinite")
    else:
        seen.lost(t_s, "an empty page" if not answer.body.strip() else "no series that pdbench knows")


def from_prometheus(
    client: aiohttp.ClientSession, url: str, deployment: Deployment, watched: Sequence[Watched]
) -> Look:
    """Ask a Prometheus server for the newest samples; its `instance` label must be a server's HOST:PORT."""
    names = "|".join(sorted({mark for vocabulary in UNKNOWN for mark in vocabulary.marks}))
    query = urlencode({"query": f'{{__name__=~"({names}|process_start_time).*",__name__!~".*(_bucket|_created)"}}'})
    place = {instance_of(server): server.name for server in deployment.servers}
    by_name = {seen.name: seen for seen in watched}
    read = partial(scrape_of(deployment.engine), model=deployment.model)
    reached = False

    async def look() -> None:
        nonlocal reached
        answer = await get(client, f"{url}/api/v1/query?{query}", deployment.credentials.headers(url), PAGE_S)
        try:
            pages = _pages(answer, url)
        except PdbenchError as trouble:
            if not reached:
                raise
            for one in watched:  # it may be started anew: the view goes on
                one.lost(one.t_s, str(trouble))
            return
        reached = True
        unknown = set(pages) - set(place)
        for instance, (t_s, text) in pages.items():
            if (seen := by_name.get(place.get(instance, ""))) is not None and t_s > seen.t_s:
                fake = Answer(None, status=200, body=text.encode(), t_ns=int(t_s * 1e9))
                _take(seen, fake, read, deployment)
        for instance, name in place.items():
            if instance not in pages and name in by_name:
                others = f"; it has {', '.join(sorted(unknown)[:4])}" if unknown else ""
                by_name[name].lost(by_name[name].t_s, f"Prometheus has no instance {instance}{others}")

    return look


def instance_of(server: Server) -> str:
    """Prometheus' `instance` of a server: host and port of its metrics page."""
    parts = urlsplit(server.metrics_url or server.url)
    return parts.netloc if parts.port is not None else f"{parts.netloc}:{443 if parts.scheme == 'https' else 80}"


def _pages(answer: Answer, url: str) -> dict[str, tuple[float, str]]:
    """The answer as a metrics page for each instance, with the time of its samples (of the epoch)."""
    if not answer.answered:
        raise Unreachable(f"--prometheus {url} cannot be reached: {answer.failure}.", "Is it up? Give its base URL.")
    if answer.status in (401, 403):
        raise UsageError(
            f"--prometheus {url}: credentials refused (HTTP {answer.status}).", "Set PDBENCH_API_KEY for it."
        )
    try:
        return _by_instance(json.loads(answer.body)["data"]["result"])
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UsageError(
            f"--prometheus {url}: no Prometheus API there (HTTP {answer.status}).", "Give its base URL."
        ) from None


def _by_instance(result: Sequence[Mapping[str, Any]]) -> dict[str, tuple[float, str]]:
    pages: dict[str, tuple[float, list[str]]] = {}
    for sample in result:
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
