"""The sampler's own process: `python -m pdbench.probe.sampling`, spoken to in JSON lines over stdin and stdout.

It scrapes every server's page in a loop of its own, so that a slow page delays no other. A cell has exact edges:
`begin` and `end` scrape all pages at once and are answered when that is done. It ends when stdin ends or its parent is
gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import uvloop

from pdbench.probe.kept import Kept, is_plain
from pdbench.probe.pages import Answer, get, session
from pdbench.probe.scrape import BadPage, Page, Reader, Row, scrape_of
from pdbench.probe.tailing import SUFFIX, Tailed

PAGE_TIMEOUT_S = 5.0
RETRY_AFTER_S = 0.25
OWN_SHARE = 5.0  # a page is asked for at most this many times less often than it takes to answer
CPU_SHARE = 0.1  # of one core, for all pages together
COST_S = 0.0004  # of CPU a scrape, until it has been measured
WEIGHED = 20  # scrapes between edges after which it is
LONGEST_PAUSE_S = 15.0
SPREAD = (0.5, 1.5)  # of a pause: chance puts each scrape anywhere in what repeats at the interval, or a part of it
TELL_EVERY_S = 0.25
LOGS_EVERY_S = 0.25


@dataclass(slots=True)
class Watched:
    """One page. `lock` keeps two scrapes of it from overlapping."""

    target: str
    server: str
    role: str
    url: str
    headers: dict[str, str]
    engine: str | None
    model: str | None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    reader: Reader = field(init=False)  # of pages between edges
    kept: Kept | None = field(init=False)  # where the way to the server is a plain one

    def __post_init__(self) -> None:
        self.reader = Reader(self.engine, self.model)
        self.kept = Kept(self.url, self.headers) if is_plain(self.url) else None

    def record(self, answer: Answer, origin_ns: int, edge: str | None) -> dict[str, Any]:
        """The line for metrics: what `pdbench.run.metric_rows` reads, and `edge` or `error` where there is one."""
        rows: list[Row] = []
        page: Page | None = None
        error = answer.failure
        if error is None and answer.status != 200:
            error = f"HTTP {answer.status}"
        elif error is None and answer.html:
            error = "HTML, not a metrics page"
        if error is None:
            try:
                if edge is None:
                    page = self.reader.read(answer.body)
                else:
                    page = scrape_of(self.engine)(answer.body, model=self.model, edge=True)
                rows = [*page.rows, _own("scrape_dropped", page.dropped)]
            except BadPage as bad:
                error = str(bad)
        rows += [_own("up", 0.0 if error else 1.0), _own("scrape_s", answer.took_s)]
        record: dict[str, Any] = {"t": (answer.t_ns - origin_ns) / 1e9, "target": self.target, "server": self.server}
        record |= {"role": self.role, "rows": rows} | ({"page": page} if page is not None else {})
        return record | ({"edge": edge} if edge else {}) | ({"error": error} if error else {})


def line_of(record: dict[str, Any]) -> bytes:
    """A record as JSON. The rows of its page are JSON already: `page` is not written."""
    page = record.get("page")
    if page is None:
        return _json(record).encode() + b"\n"
    ours = {**record, "rows": record["rows"][len(page.rows) :]}
    del ours["page"]
    return _json(ours).replace('"rows":[', f'"rows":[{page.rows_json}{"," * bool(page.rows)}', 1).encode() + b"\n"


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def _own(name: str, value: float) -> Row:
    return (name, name, "gauge", "", "{}", float(value))


class Lines:
    """A file of JSON lines that stays whole: what a full disk cut short is taken back."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def append(self, line: bytes) -> None:
        whole = os.fstat(self.fd).st_size
        try:
            while line:
                line = line[os.write(self.fd, line) :]
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self.fd, whole)
            raise

    def close(self) -> None:
        os.close(self.fd)


class Sampling:
    """All pages, the file of the cell that runs, and the way back to the parent."""

    def __init__(self, client: aiohttp.ClientSession, config: dict[str, Any]) -> None:
        self.client = client
        self.interval_s = float(config["interval_s"])
        self.origin_ns = int(config["origin_ns"])
        self.watched = [Watched(**server) for server in config["servers"]]
        self.logs = [Tailed(**log) for log in config.get("logs", ())]
        self.file: Lines | None = None
        self.no_edge = asyncio.Event()
        self.no_edge.set()
        self.untold: dict[tuple[str, str], dict[str, Any]] = {}
        self.cost_s, self.scrapes, self.cpu_s = COST_S, 0, time.process_time()

    async def watch(self, page: Watched, after_s: float) -> None:
        """Scrape one page for ever, at the interval or as seldom as its own slowness and our share of CPU ask.

        That is the mean. At equal intervals a load that is even too would be met at the same point each time.
        """
        await asyncio.sleep(after_s)
        while True:
            await self.no_edge.wait()
            begun = time.monotonic()
            async with page.lock:
                self.keep(page.record(await self.fetch(page), self.origin_ns, None))
            took_s = time.monotonic() - begun
            share_s = self.weigh() * len(self.watched) / CPU_SHARE
            pause_s = max(self.interval_s, min(LONGEST_PAUSE_S, max(OWN_SHARE * took_s, share_s)))
            await asyncio.sleep(max(0.0, random.uniform(*SPREAD) * pause_s - took_s))

    def weigh(self) -> float:
        """What a scrape between edges costs us of CPU, with all that belongs to it."""
        self.scrapes += 1
        if self.scrapes >= WEIGHED:
            now_s = time.process_time()
            self.cost_s, self.scrapes, self.cpu_s = (now_s - self.cpu_s) / self.scrapes, 0, now_s
        return self.cost_s

    async def follow(self) -> None:
        """Read the logs for ever; what they say of KV transfers is kept as it comes."""
        while True:
            for log in self.logs:
                if log.read():
                    self.keep(log.record(self.origin_ns, None))
            await asyncio.sleep(LOGS_EVERY_S)

    def log_records(self, which: str) -> list[dict[str, Any]]:
        """What the logs have said up to an edge."""
        for log in self.logs:
            log.read()
        return [log.record(self.origin_ns, which) for log in self.logs]

    async def fetch(self, page: Watched) -> Answer:
        if page.kept is not None:
            return await page.kept.get(PAGE_TIMEOUT_S)
        return await get(self.client, page.url, page.headers, PAGE_TIMEOUT_S)

    async def edge(self, which: str, path: str | None) -> list[str]:
        """Scrape every page at once, once more where that failed. Says which pages are missing, and why.

        Pages are read only when all have come, so that reading one does not delay the stamp of another.
        """
        self.no_edge.clear()
        try:
            records = await self.scrape_all(self.watched, which)
            lost = [page for page in self.watched if "error" in records[page.target, page.server]]
            if lost:
                await asyncio.sleep(RETRY_AFTER_S)
                records |= await self.scrape_all(lost, which)
            if path is not None:
                self.open(Path(path))
            for record in (*records.values(), *self.log_records(which)):
                self.keep(record)
            if which == "end":
                self.close()
        finally:
            self.scrapes, self.cpu_s = 0, time.process_time()  # an edge reads more of each page
            self.no_edge.set()
        return [f"{record['server']}: {record['error']}" for record in records.values() if "error" in record]

    async def scrape_all(self, pages: Iterable[Watched], which: str) -> dict[tuple[str, str], dict[str, Any]]:
        async def alone(page: Watched) -> Answer:
            async with page.lock:
                return await self.fetch(page)

        pages = list(pages)
        answers = await asyncio.gather(*(alone(page) for page in pages))
        return {
            (page.target, page.server): page.record(answer, self.origin_ns, which)
            for page, answer in zip(pages, answers, strict=True)
        }

    def keep(self, record: dict[str, Any]) -> None:
        """Write a record to the cell's file, if a cell runs, and remember its gauges for the parent."""
        if not record["server"].endswith(SUFFIX):
            self.untold[record["target"], record["server"]] = gauges(record)
        if self.file is not None:
            try:
                self.file.append(line_of(record))
            except OSError as error:
                self.disk(self.file.path, error)
                self.close()

    def open(self, path: Path) -> None:
        self.close()
        try:
            self.file = Lines(path)
        except OSError as error:
            self.disk(path, error)

    def close(self) -> None:
        if self.file is not None:
            self.file.close()
            self.file = None

    def disk(self, path: Path, error: OSError) -> None:
        tell({"disk": {"path": str(path), "errno": error.errno, "text": error.strerror or str(error)}})

    def tell_latest(self) -> None:
        if self.untold:
            tell({"latest": list(self.untold.values())})
            self.untold.clear()

    async def keep_telling(self, parent: int) -> None:
        """The newest gauges in few messages, however many servers there are; ends us when the parent is gone."""
        while os.getppid() == parent:
            self.tell_latest()
            await asyncio.sleep(TELL_EVERY_S)
        os._exit(0)

    async def obey(self, order: dict[str, Any]) -> None:
        missing = await self.edge(order["do"], order.get("path"))
        self.tell_latest()
        tell({"id": order["id"], "missing": missing})


def gauges(record: dict[str, Any]) -> dict[str, Any]:
    """A record's figures for a live view: sums over ranks, the highest KV use; None where the page has none."""
    found: dict[str, list[float]] = {}
    for _, canonical, kind, _, labels, value in record["rows"]:
        if kind == "gauge":
            name = "waiting_to_start" if canonical == "kv_fetch_stage" and "waiting_to_start" in labels else canonical
            found.setdefault(name, []).append(value)
    sums = ("running", "waiting", "waiting_to_start", "inflight", "frontend_queued", "frontend_inflight")
    told: dict[str, Any] = {name: record[name] for name in ("t", "target", "server", "role")}
    told |= {name: sum(found[name]) if name in found else None for name in sums}
    told["kv_cache_usage"] = max(found["kv_cache_usage"]) if "kv_cache_usage" in found else None
    return told | {"up": "error" not in record, "error": record.get("error")}


def tell(message: dict[str, Any]) -> None:
    sys.stdout.write(_json(message) + "\n")
    sys.stdout.flush()


async def main() -> None:
    loop = asyncio.get_running_loop()
    orders = asyncio.StreamReader(limit=2**24)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), sys.stdin)
    config = json.loads(await orders.readline())
    async with session() as client:
        sampling = Sampling(client, config)
        spread_s = sampling.interval_s / max(1, len(sampling.watched))
        tasks = [loop.create_task(sampling.watch(page, i * spread_s)) for i, page in enumerate(sampling.watched)]
        tasks.append(loop.create_task(sampling.follow()))
        tasks.append(loop.create_task(sampling.keep_telling(config["parent"])))
        for task in tasks:
            task.add_done_callback(_none_may_end)
        while line := await orders.readline():
            await sampling.obey(json.loads(line))
        for task in tasks:
            task.remove_done_callback(_none_may_end)
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        sampling.close()


def _none_may_end(task: asyncio.Task[None]) -> None:
    """A page that silently is no longer scraped would read as a quiet server: rather the whole sampler ends, loudly."""
    tell({"crash": repr(task.exception())})
    os._exit(1)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(main())
    except BrokenPipeError:
        os._exit(0)
    except Exception as failure:  # noqa: BLE001 - the parent is told instead of a traceback on the user's terminal
        tell({"crash": f"{type(failure).__name__}: {failure}"})
        sys.exit(1)
