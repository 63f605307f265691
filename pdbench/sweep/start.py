"""Where a sweep starts: a testbed, a new run directory, or an unfinished run."""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
import re
import shlex
import sys
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pdbench import __version__
from pdbench.deployment import DEFAULT_TARGET, Credentials, Deployment, api_key, build, from_document
from pdbench.errors import PdbenchError, Unreachable, UsageError
from pdbench.probe.discover import notes
from pdbench.quantities import seconds
from pdbench.recipe import TargetFlags, chosen
from pdbench.run import Run
from pdbench.sweep.origin import origin
from pdbench.sweep.plan import Plan, plan_of
from pdbench.testbed.launch import TestbedError, running
from pdbench.testbed.settings import MODES, Settings

MORE = ("repeats", "max_duration")  # what a run may get more of
TESTBED = "--testbed "  # how a deployment's source says that it is one of ours


def practice(stack: contextlib.ExitStack, mode: str, flags: TargetFlags) -> Deployment:
    """Start the testbed; what the flags say of a deployment is what it then simulates."""
    if flags.urls or flags.target or flags.recipe:
        raise UsageError("--testbed brings its own servers: it excludes --proxy, --server, --target and --recipe.")
    if mode not in MODES:
        raise UsageError(f"--testbed is one of {', '.join(MODES)}, not {mode!r}.")
    api_key(flags.api_key_env, flags.api_key_file)  # these servers want none, but one that is not there is a mistake
    settings = Settings(mode=mode)
    settings = replace(
        settings,
        max_num_seqs=flags.max_num_seqs or settings.max_num_seqs,
        prefill_max_num_seqs=flags.prefill_max_num_seqs or settings.prefill_max_num_seqs,
        link_gb_s=flags.link_gb_s or settings.link_gb_s,
        model=flags.model or settings.model,
    )
    try:
        testbed = stack.enter_context(running(settings.on_free_ports()))
    except TestbedError as error:
        raise Unreachable(f"{error}.") from None
    urls = [("proxy", testbed.proxy_url)] if testbed.proxy_url else []
    urls += [("prefill", url) for url in testbed.prefill_urls] + [("decode", url) for url in testbed.decode_urls]
    urls += [("colocated", url) for url in testbed.server_urls]
    return build(DEFAULT_TARGET, urls, mode=mode, link_gb_s=settings.link_gb_s, simulated=True, source=TESTBED + mode)


@contextlib.asynccontextmanager
async def sending(workers: int | None, ray: str | None, deployments: list[Deployment]) -> AsyncIterator[Any]:
    """Who sends: this process, `workers` others, or those of a Ray cluster.

    Yields what to await for them; they come up meanwhile. Raises Unreachable when Ray is wanted and not installed.
    """
    start: Any
    if ray is not None:
        if find_spec("ray") is None:
            raise Unreachable("--ray needs Ray, which is not installed.", "pip install 'pdbench[ray]'")
        from pdbench.sweep.ray_workers import start_on_ray

        start = start_on_ray(ray, workers, [deployment.entry.url for deployment in deployments])
    elif workers is not None:
        from pdbench.sweep.workers import Crew

        start = Crew.start(workers)
    else:
        from pdbench.sweep.cell import Alone

        start = Alone.start()
    starting = asyncio.ensure_future(start)
    try:
        yield starting
    finally:
        starting.cancel()
        with contextlib.suppress(asyncio.CancelledError, PdbenchError):
            await (await starting).close()


def new_run(out: Path | None, deployments: list[Deployment], plan: Plan) -> Run:
    """The run directory, made when everything that can be refused has been."""
    return Run.create(
        out or Path("runs") / time.strftime("%Y%m%d-%H%M%S"),
        {
            "pdbench": __version__,
            "created_unix_s": time.time(),
            "command": _command_line(),
            "simulated": any(deployment.simulated for deployment in deployments),
            "host": {"python": platform.python_version(), "platform": platform.platform(), "cpus": os.cpu_count()},
            **origin(),
            "deployments": [deployment.document() for deployment in deployments],
            "plan": plan.document(),
            "notes": [note for deployment in deployments for note in notes(deployment)],
        },
    )


def resumed(
    stack: contextlib.ExitStack, path: Path, flags: TargetFlags, load: Mapping[str, Any], out: Path | None
) -> tuple[Run, list[Deployment], Plan]:
    """An unfinished run, one that gets more repeats, or a search that gets more time: plan and servers from run.json,
    credentials from the flags; a testbed is started anew."""
    if out is not None or any(value not in (None, []) for name, value in load.items() if name not in MORE):
        raise UsageError(
            "--resume goes on with the plan of the run: it takes --repeats, or --max-duration of a search, but no "
            "--out and no other flag of the load."
        )
    run = Run.open(path)
    if about := run.document.get("imported"):
        raise UsageError(f"{path} was measured by {about['tool']} and imported: there is no plan to go on with.")
    if load["repeats"] is not None:
        if load["repeats"] < (planned := run.document["plan"].get("repeats", 1)):
            raise UsageError(f"{path} has {planned} repeats already: --repeats can only add some.")
        run.document["plan"]["repeats"] = load["repeats"]
    if load["max_duration"] is not None:
        given_more_time(run, seconds(load["max_duration"], "--max-duration"))
    deployments = [from_document(document) for document in run.document["deployments"]]
    practised = next((d for d in deployments if d.source.startswith(TESTBED)), None)
    if practised is not None:
        known = replace(
            flags, max_num_seqs=practised.decode_slots, link_gb_s=practised.link_gb_s, model=practised.model
        )
        deployments = [practice(stack, practised.source.removeprefix(TESTBED), known)]
    named = {d.target: d.credentials for d in chosen(flags, None)} if flags.urls or flags.target else {}
    key = Credentials(api_key(flags.api_key_env, flags.api_key_file))
    deployments = [replace(d, credentials=named.get(d.target, key)) for d in deployments]
    return run, deployments, plan_of(run.document["plan"])


def given_more_time(run: Run, limit_s: float) -> None:
    """A search may take `limit_s` in all from now on."""
    search = run.document["plan"].get("search")
    if not search:
        raise UsageError(f"{run.path} is no search: --max-duration goes with --find-capacity and --find-knee.")
    if limit_s <= search["max_duration_s"]:
        said = f"{run.path} has {search['max_duration_s']:g} s already: --max-duration can only give it more."
        raise UsageError(said, "It is the time of the whole search, what was measured before included.")
    search["max_duration_s"] = limit_s
    plan = run.document["plan"]  # what was said of the old limit no longer holds
    plan["notes"] = [note for note in plan.get("notes") or [] if not note.startswith("--max-duration")]


def _command_line() -> str:
    """The command as typed, without the user information of URLs."""
    words = (re.sub(r"(?<=//)[^/@\s]*@", "***@", word) for word in sys.argv[1:])
    return shlex.join(["pdbench", *words])
