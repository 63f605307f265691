"""`pdbench watch`: the deployment as it works, one verdict first."""

from __future__ import annotations

import asyncio
import json as jsonlib
import math
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Annotated

import typer

from pdbench import target_options as options
from pdbench.errors import PdbenchError, Unreachable, UsageError
from pdbench.quantities import seconds
from pdbench.recipe import TargetFlags, chosen, config_file

if TYPE_CHECKING:
    from pdbench.deployment import Deployment
    from pdbench.probe.watch.export import Exporter
    from pdbench.probe.watch.frame import Frame, Watch

Show = Callable[["Frame"], None]
DIRECT, PROMETHEUS = "1s", "15s"
ONCE_STEPS = 10  # from look to look
ONCE_HELP = "Print one frame, of ten seconds: eleven looks, or fewer with a longer --interval."


def watch(
    proxy: options.Proxy = None,
    prefill: options.Prefill = None,
    decode: options.Decode = None,
    server: options.Colocated = None,
    recipe: options.RecipeFile = None,
    engine: options.Engine = None,
    mode: options.Mode = None,
    model: options.Model = None,
    max_num_seqs: options.MaxNumSeqs = None,
    metrics_url: options.MetricsUrl = None,
    api_key_env: options.ApiKeyEnv = None,
    api_key_file: options.ApiKeyFile = None,
    interval: Annotated[
        str | None,
        typer.Option(metavar="TIME", help=f"Time between looks, {DIRECT} (--prometheus: {PROMETHEUS})."),
    ] = None,
    prometheus: Annotated[
        str | None, typer.Option(metavar="URL", help="Read from a Prometheus server instead.")
    ] = None,
    export: Annotated[
        str | None, typer.Option(metavar="[ADDRESS:]PORT", help="Serve the derived values to Prometheus.")
    ] = None,
    once: Annotated[bool, typer.Option("--once", help=ONCE_HELP)] = False,
    json: Annotated[bool, typer.Option("--json", help="A JSON line for each look.")] = False,
) -> None:
    """Watch a deployment: running and waiting by stage, KV use, transfers, where TTFT goes, now and over 5 minutes.

    Keys: q quits, p pauses, s sorts. Means are of server counters; what only a client sees is not here (see sweep).
    """
    flags = TargetFlags(
        proxy=proxy or (),
        prefill=prefill or (),
        decode=decode or (),
        server=server or (),
        recipe=recipe,
        metrics_url=metrics_url or (),
        engine=engine,
        mode=mode,
        model=model,
        max_num_seqs=max_num_seqs,
        api_key_env=api_key_env,
        api_key_file=api_key_file,
    )
    interval_s = seconds(interval or (PROMETHEUS if prometheus else DIRECT), "--interval")
    if interval_s < 0.1:
        raise UsageError("--interval must be at least 100ms.", "Scraping costs the servers time too.")
    deployment = chosen(flags, config_file(recipe))[0]
    asyncio.run(_watch(deployment, interval_s, prometheus, export, once=once, as_json=json))


async def _watch(
    deployment: Deployment, interval_s: float, prometheus: str | None, export: str | None, *, once: bool, as_json: bool
) -> None:
    from pdbench.probe.discover import discover
    from pdbench.probe.pages import session
    from pdbench.probe.watch.frame import Watch
    from pdbench.probe.watch.sources import from_prometheus, from_servers, learning

    exporter = _exporter(export)
    try:
        deployment = await discover(deployment, all_there=False)
    except PdbenchError:
        if prometheus is None:
            raise  # else: from here the servers may be out of reach, and what they are stays unknown
    watched = Watch(deployment, interval_s)
    if not watched.servers:
        raise UsageError("no server of this deployment has a metrics page.", "Give --prefill and --decode.")
    async with AsyncExitStack() as stack:
        if prometheus is None:
            look = learning(await stack.enter_async_context(from_servers(deployment, watched.servers)), watched)
        else:
            client = await stack.enter_async_context(session())
            look = from_prometheus(client, prometheus.rstrip("/"), deployment, watched.servers)
        if once:
            _print_once(await _after(watched, look, interval_s), as_json=as_json)
            if not any(one.up for one in watched.servers):
                raise Unreachable(
                    "no metrics page could be read.", "; ".join(one.trouble for one in watched.servers[:3])
                )
        else:
            await _run(watched, look, interval_s, exporter, as_json=as_json)


async def _after(watched: Watch, look: Callable[[], Awaitable[None]], interval_s: float) -> Frame:
    """The frame of a whole window: what gauges show is known to the number of looks at them."""
    from pdbench.probe.watch.frame import NOW_S

    began = time.monotonic()
    steps = min(ONCE_STEPS, max(2, math.ceil(NOW_S / interval_s)))
    print(f"looking for {steps * interval_s:g} s, every {interval_s:g} s", file=sys.stderr)
    await look()
    frame = watched.step(time.monotonic())
    for number in range(steps):
        if any(one.up for one in watched.servers):  # else there is nothing to wait for
            await asyncio.sleep(max(0.0, began + (number + 1) * interval_s - time.monotonic()))
            await look()
            frame = watched.step(time.monotonic())
    return frame


def _exporter(where: str | None) -> Exporter | None:
    if where is None:
        return None
    from pdbench.probe.watch.export import Exporter

    exporter = Exporter()
    exporter.serve(where)
    return exporter


def _print_once(frame: Frame, *, as_json: bool) -> None:
    if as_json:
        print(jsonlib.dumps(frame.document(), allow_nan=False))
        return
    from rich.console import Console

    from pdbench.probe.watch.view import print_frame

    console = Console(highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console.width = 80
    print_frame(console, frame)


async def _run(
    watched: Watch, look: Callable[[], Awaitable[None]], interval_s: float, exporter: Exporter | None, *, as_json: bool
) -> None:
    from pdbench.probe.watch.screen import Lines, Screen

    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    with Lines() if as_json or not sys.stdout.isatty() else Screen(stop) as screen:
        due = time.monotonic()
        while not stop.is_set():
            await look()
            frame = watched.step(time.monotonic())
            if exporter is not None:
                exporter.frame = frame
            try:
                screen.show(frame, as_json=as_json)
            except BrokenPipeError:
                return
            due = max(due + interval_s, time.monotonic())
            try:
                await asyncio.wait_for(stop.wait(), max(0.01, due - time.monotonic()))
            except TimeoutError:
                continue
