"""A whole sweep on the testbed in virtual time: an ordinary run directory in a second or two.

`sweep(path, {"default": Settings(...)}, rates=[4], ...)` drives `run_cell` with the ordinary plan, prompts, rows and
report; in memory are only the connections (`in_memory`), the recorder and the sampler, which otherwise are processes.
Every run is exactly repeatable from its settings and seed.
"""

from __future__ import annotations

import asyncio
import json
from array import array
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest import mock

from pdbench.deployment import Deployment, build
from pdbench.probe.agreement import agreed_mode
from pdbench.probe.pages import Answer
from pdbench.probe.sampling import Watched, line_of
from pdbench.probe.server_facts import learn
from pdbench.run import RequestRow, Run
from pdbench.sweep.cell import Alone, Job, run_tag
from pdbench.sweep.client import Opening, RawAnswer, Request, answer_to
from pdbench.sweep.command import _grown
from pdbench.sweep.plan import Cell, Plan, grid
from pdbench.sweep.recorder_process import CellFiles
from pdbench.sweep.search_options import FIRST_RATE, FIRST_REQUESTS
from pdbench.testbed.settings import Settings
from tests.planted.in_memory import BrokenOff, Net
from tests.planted.virtual_time import Clock, run_virtually, virtual_time

SETTLE_S = 0.5
SETTLE_LIMIT_S = 120.0


@dataclass
class Done:
    """A finished run and what its servers wrote down (truth rows by target)."""

    run: Run
    truth: dict[str, list[dict[str, Any]]]


@dataclass
class Sabotage:
    """What goes wrong outside the servers. `late_ms`: the client needs so long for each send, one after the other.
    `dies_s`: these servers (`decode-0`, or `decode-0 proxy-0`) are gone so long after the first cell began."""

    late_ms: float = 0.0
    dies: str = ""
    dies_s: float = 0.0


@dataclass
class _Client:
    """A client whose connections are in memory and whose stamps are exact."""

    net: Net
    sabotage: Sabotage
    clock: Clock
    lead_ns: int = 0
    free_ns: int = 0
    tasks: set[asyncio.Task[RawAnswer]] = field(default_factory=set)
    reads: int = 0

    def open(self, request: Request) -> Opening | None:
        return None

    def start(
        self, request: Request, intended_ns: int, timeout_s: float, opening: Opening | None = None
    ) -> asyncio.Future[RawAnswer]:
        task = asyncio.get_running_loop().create_task(self._send(request, intended_ns, timeout_s))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    def end_all(self) -> None:
        for task in self.tasks:
            task.cancel()

    def health(self) -> dict[str, Any]:
        return {"stamps": {"kernel": self.reads, "user": 0}, "kernel_to_user_p99_ms": 0.0}

    async def _send(self, request: Request, intended_ns: int, timeout_s: float) -> RawAnswer:
        if self.sabotage.late_ms:
            self.free_ns = max(self.free_ns, self.clock.now_ns) + int(self.sabotage.late_ms * 1e6)
            await asyncio.sleep((self.free_ns - self.clock.now_ns) / 1e9)
        raw = answer_to(request, intended_ns, self.clock.now_ns)
        raw.opened_ns = raw.connected_ns = raw.sent_ns
        raw.stamp = "kernel"

        def write(event: bytes) -> None:
            now = self.clock.now_ns
            raw.first_byte_ns, raw.http_status = raw.first_byte_ns or now, 200
            raw.content_type = "text/event-stream"
            if event:
                raw.reads.append((now, event))

        base, _, path = request.url.partition("/v1")
        if base in self.net.dead:
            raw.end, raw.end_text, raw.done_ns = "connect", "Connection refused", self.clock.now_ns
            return raw
        try:
            async with asyncio.timeout(timeout_s):
                status, content = await self.net.ask(
                    request.url, f"/v1{path}", dict(request.headers), request.body, write
                )
            raw.http_status = status
            if content:
                raw.reads.append((self.clock.now_ns, content))
                raw.content_type = "application/json"
        except TimeoutError:
            raw.end, raw.end_text = "timeout", f"no end of the answer within {timeout_s:g} s"
        except asyncio.CancelledError:
            raw.end, raw.end_text = "cancelled", "the run was interrupted"
        except BrokenOff:
            raw.end, raw.end_text = "reset", "the connection was closed"
        raw.done_ns = self.clock.now_ns
        raw.lags_ns = array("q", [0] * len(raw.reads))
        self.reads += len(raw.reads)
        return raw


class _Recorder:
    """The recorder's work without its process."""

    backlog_max = 0

    def __init__(self) -> None:
        self.failed: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._files: CellFiles | None = None
        self._on_row: Any = None

    async def begin(self, context: Any, requests: Path, chunks: Path, on_row: Any) -> None:
        self._files, self._on_row = CellFiles(context, requests, chunks), on_row

    def record(self, raw: RawAnswer) -> None:
        assert self._files is not None
        row, problem, _ = self._files.take(raw)
        assert problem is None, problem
        self._on_row(row)

    async def end(self) -> None:
        assert self._files is not None
        self._files.close()

    def check(self) -> None:
        pass


class _Sampler:
    """Scrapes of all pages at the interval and at the edges, read by the ordinary code."""

    def __init__(self, targets: Mapping[str, tuple[Net, Deployment]], interval_s: float, clock: Clock, origin: int):
        self._pages = [
            (net, Watched(name, server.name, server.role, server.url, {}, deployment.engine, deployment.model))
            for name, (net, deployment) in targets.items()
            for server in deployment.servers
            if server.role != "proxy"
        ]
        self._interval_s, self._clock, self._origin = interval_s, clock, origin
        self._file: Any = None

    def scrape(self, edge: str | None) -> None:
        for net, page in self._pages:
            failure = "refused" if page.url in net.dead else None
            text = "" if failure else net.servers[page.url].page.text()
            answer = Answer(failure, "", 0 if failure else 200, "", text.encode(), self._clock.now_ns, 0.001)
            self._file.write(line_of(page.record(answer, self._origin, edge)).decode())

    async def watch(self) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            self.scrape(None)

    @asynccontextmanager
    async def over(self, path: Path) -> AsyncIterator[None]:
        with path.open("w") as self._file:
            self.scrape("begin")
            task = asyncio.create_task(self.watch())
            try:
                yield
            finally:
                task.cancel()
                self.scrape("end")


def discovered(name: str, net: Net, link_gb_s: float | None) -> Deployment:
    """The deployment as discovery would describe it."""
    pages = net.pages()

    def answer(document: Any) -> Answer:
        return Answer(None, "", 200 if document else 404, "application/json", json.dumps(document).encode())

    deployment = build(name, net.roles(), link_gb_s=link_gb_s, simulated=True, source="testbed in virtual time")
    servers = []
    for server in deployment.servers:
        if server.role != "proxy":
            answers = {path: answer(document) for path, document in pages[server.url].items()}
            answers["metrics"] = Answer(None, "", 200, "text/plain", net.servers[server.url].page.text().encode())
            server = replace(server, facts=learn(server, answers, "vllm"))
        servers.append(server)
    found = replace(deployment, servers=tuple(servers), engine="vllm", model=net.settings.model)
    return replace(found, mode=agreed_mode(found, set()))


def sweep(
    path: Path,
    targets: Mapping[str, Settings],
    *,
    rates: list[float] | None = None,
    streams: list[int] | None = None,
    prompt_lens: list[int] | None = None,
    output_len: int = 64,
    link_gb_s: float | None = None,
    sabotage: Sabotage | None = None,
    before_cell: Any = None,
    search: Mapping[str, Any] | None = None,
    probe_requests: int = FIRST_REQUESTS,
    **plan: Any,
) -> Done:
    """Run the grid, or a search, on every target in virtual time and leave a finished run directory at `path`."""
    cells = grid(
        list(targets),
        list(rates or ([FIRST_RATE] if search else [])),
        list(streams or []),
        list(prompt_lens or [1024]),
        [output_len],
    )
    if search is not None:
        cells = tuple(replace(cell, requests=probe_requests) for cell in cells)
    asked = Plan(cells=cells, **{"seed": 1, "prompt_seed": 1, "search": search, **plan})
    done: list[Done] = []

    async def go(clock: Clock) -> None:
        nets = {name: Net(settings, 9000 + 100 * i) for i, (name, settings) in enumerate(targets.items())}
        listening = {port: net for net in nets.values() for port in range(net.first_port, net.first_port + 100)}

        async def connect(host: str, port: int, limit: int = 2**16) -> Any:
            return await listening[port].open_connection(host, port, limit)

        with mock.patch.object(asyncio, "open_connection", connect):
            for net in nets.values():
                await net.start()
            known = {name: (net, discovered(name, net, link_gb_s)) for name, net in nets.items()}
            run = Run.create(path, _document(asked, [deployment for _, deployment in known.values()]))
            await _measure(run, asked, known, clock, sabotage or Sabotage(), before_cell, _grown)
            for net in nets.values():
                await net.stop()
        done.append(Done(run, {name: net.truth for name, net in nets.items()}))

    with virtual_time() as clock:
        run_virtually(clock, go(clock))
    done[0].run.save()
    done[0].run.finish()
    return Done(Run.open(path), done[0].truth)


def _document(plan: Plan, deployments: list[Deployment]) -> dict[str, Any]:
    return {
        "pdbench": "virtual",
        "created_unix_s": 0.0,
        "simulated": True,
        "deployments": [deployment.document() for deployment in deployments],
        "plan": plan.document(),
        "notes": [],
    }


async def _measure(
    run: Run,
    plan: Plan,
    known: Mapping[str, tuple[Net, Deployment]],
    clock: Clock,
    sabotage: Sabotage,
    before_cell: Any,
    grow: Any = None,
) -> None:
    sampler = _Sampler(known, plan.sample_interval_s, clock, run.origin_ns)
    recorder: Any = _Recorder()
    done: list[tuple[int, int]] = []
    while (turn := _next_turn(run, plan, done, grow)) is not None:
        plan, cell, repeat = turn
        net, deployment = known[cell.target]
        await _settle(net)
        if before_cell is not None:
            before_cell(net, cell)

        @asynccontextmanager
        async def open_client(url: str, connections: str = "fresh", net: Net = net) -> AsyncIterator[_Client]:
            client = _Client(net, sabotage, clock)
            yield client
            client.end_all()

        if sabotage.dies:
            named = {server.place.name: url for url, server in net.servers.items()} | {"proxy-0": net.proxy_url or ""}
            dead = {named[name] for name in sabotage.dies.split()}
            asyncio.get_running_loop().call_later(sabotage.dies_s, net.dead.update, dead)
        with mock.patch("pdbench.sweep.drive.open_client", open_client):
            async with sampler.over(run.live_path("metrics", cell.cell, repeat)):
                rows: list[RequestRow] = []
                job = Job(deployment, plan.of(cell), cell, repeat, run_tag(run))
                entry = await Alone(recorder).run_cell(job, run, asyncio.Event(), rows.append)
        run.document["cell_runs"].append(entry)
        run.seal(cell.cell, repeat)
        done.append((cell.cell, repeat))


def _next_turn(run: Run, plan: Plan, done: list[tuple[int, int]], grow: Any) -> tuple[Plan, Cell, int] | None:
    """As in `pdbench.sweep.measure`."""
    if len(done) == len(list(plan.turns())):
        if grow is None or (grown := grow(run, plan)) is None:
            return None
        plan = grown
        run.document["plan"] = plan.document()
    return next(((plan, cell, repeat) for cell, repeat in plan.turns() if (cell.cell, repeat) not in done), None)


async def _settle(net: Net) -> None:
    waited = SETTLE_S
    await asyncio.sleep(SETTLE_S)
    while not net.idle() and waited < SETTLE_LIMIT_S:
        await asyncio.sleep(0.1)
        waited += 0.1
