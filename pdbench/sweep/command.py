"""`pdbench sweep`: the main job. Plan, drive beside the sampler, record, judge, render."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shlex
import signal
import sys
import time
from collections.abc import Coroutine, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pdbench import __version__
from pdbench.deployment import Credentials, Deployment, api_key, build, from_document
from pdbench.errors import Interrupted, PdbenchError, Unreachable, UsageError
from pdbench.recipe import TargetFlags, chosen, config_file

if TYPE_CHECKING:
    from pdbench.run import Run
    from pdbench.sweep.plan import Plan

Texts = list[str] | None
TARGET, LOAD, RUN = "What is measured", "What is sent", "The run"


def sweep(
    proxy: Annotated[
        Texts, typer.Option(help="URL of the proxy that takes the requests.", rich_help_panel=TARGET)
    ] = None,
    prefill: Annotated[Texts, typer.Option(help="URL of a prefill server; repeatable.", rich_help_panel=TARGET)] = None,
    decode: Annotated[Texts, typer.Option(help="URL of a decode server; repeatable.", rich_help_panel=TARGET)] = None,
    server: Annotated[Texts, typer.Option(help="URL of a co-located server.", rich_help_panel=TARGET)] = None,
    target: Annotated[
        Texts, typer.Option(help="NAME=RECIPE_OR_PROXY_URL; give two to compare them.", rich_help_panel=TARGET)
    ] = None,
    recipe: Annotated[Path | None, typer.Option(help="A deployment from a TOML file.", rich_help_panel=TARGET)] = None,
    testbed: Annotated[
        str | None, typer.Option(help="Practise on a SIMULATED pull, push or colocated one.", rich_help_panel=TARGET)
    ] = None,
    engine: Annotated[str | None, typer.Option(help="vllm, dynamo, sglang; guessed.", rich_help_panel=TARGET)] = None,
    mode: Annotated[str | None, typer.Option(help="pull, push or colocated; guessed.", rich_help_panel=TARGET)] = None,
    model: Annotated[
        str | None, typer.Option(help="Served model; asked of the server.", rich_help_panel=TARGET)
    ] = None,
    max_num_seqs: Annotated[
        int | None, typer.Option(min=1, help="Slots of each decode (or co-located) server.", rich_help_panel=TARGET)
    ] = None,
    prefill_max_num_seqs: Annotated[
        int | None, typer.Option(min=1, help="Slots of each prefill server.", rich_help_panel=TARGET)
    ] = None,
    link_gb_s: Annotated[
        float | None,
        typer.Option(min=0.001, help="GB/s between a prefill and a decode instance.", rich_help_panel=TARGET),
    ] = None,
    metrics_url: Annotated[
        Texts, typer.Option(help="SERVER=URL where a page is elsewhere: decode-0=http://...", rich_help_panel=TARGET)
    ] = None,
    api_key_env: Annotated[
        str | None, typer.Option(help="Variable that holds the API key.", rich_help_panel=TARGET)
    ] = None,
    api_key_file: Annotated[Path | None, typer.Option(help="File that holds it.", rich_help_panel=TARGET)] = None,
    rates: Annotated[
        Texts, typer.Option("--rates", "--request-rate", help="Requests/s, open loop: 1,2,4,8.", rich_help_panel=LOAD)
    ] = None,
    max_concurrency: Annotated[
        Texts, typer.Option(help="Closed loop instead: that many streams.", rich_help_panel=LOAD)
    ] = None,
    prompt_lens: Annotated[
        Texts,
        typer.Option(
            "--prompt-lens",
            "--random-input-len",
            "--input-len",
            help="Prompt tokens: 1024,16384.",
            rich_help_panel=LOAD,
        ),
    ] = None,
    output_len: Annotated[
        Texts,
        typer.Option("--output-len", "--random-output-len", help="Output tokens: 128.", rich_help_panel=LOAD),
    ] = None,
    num_prompts: Annotated[
        str | None, typer.Option(help="Requests a cell; lifts the 60 s.", rich_help_panel=LOAD)
    ] = None,
    duration: Annotated[str | None, typer.Option(help="Length of a cell: 60s.", rich_help_panel=LOAD)] = None,
    burstiness: Annotated[
        float | None, typer.Option(help="Gamma shape of the gaps; 1 is Poisson.", rich_help_panel=LOAD)
    ] = None,
    arrivals: Annotated[str | None, typer.Option(help="poisson, gamma or constant.", rich_help_panel=LOAD)] = None,
    seed: Annotated[str | None, typer.Option(help="Seed of arrivals and prompts.", rich_help_panel=LOAD)] = None,
    endpoint: Annotated[str | None, typer.Option(help="completions or chat.", rich_help_panel=LOAD)] = None,
    vocab_size: Annotated[
        int | None, typer.Option(help="Token ids go from 256 to below this: 4000.", rich_help_panel=LOAD)
    ] = None,
    ignore_eos: Annotated[
        bool | None,
        typer.Option("--ignore-eos/--no-ignore-eos", help="Full length, or real ends.", rich_help_panel=LOAD),
    ] = None,
    timeout: Annotated[str | None, typer.Option(help="Deadline of a request: 600s.", rich_help_panel=LOAD)] = None,
    goodput: Annotated[Texts, typer.Option(help="SLOs in ms: ttft:2000 tpot:30.", rich_help_panel=LOAD)] = None,
    repeats: Annotated[int | None, typer.Option(min=1, help="Measure the grid so often.", rich_help_panel=LOAD)] = None,
    out: Annotated[Path | None, typer.Option(help="Run directory: runs/DATE-TIME.", rich_help_panel=RUN)] = None,
    resume: Annotated[Path | None, typer.Option(help="Go on with a run directory.", rich_help_panel=RUN)] = None,
    sample_interval: Annotated[
        str | None, typer.Option(help="Time between scrapes: 500ms.", rich_help_panel=RUN)
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print summary.json to stdout.", rich_help_panel=RUN)] = False,
) -> None:
    """Measure request rate x prompt length against a live deployment, and say what the numbers are worth.

    Without a target: pdbench.toml, else the guide's ports (proxy 8192, prefill 8100, decode 8200) on this host.
    """
    given = locals()
    from pdbench.run import Run
    from pdbench.sweep.options import DEFAULTS, merged, plan_from

    flags = TargetFlags(**{name: given[name] or () if name in LISTS else given[name] for name in TARGET_FLAGS})
    load = {name: given[name] for name in DEFAULTS}
    if out is not None:
        Run.refuse_existing(out)
    with contextlib.ExitStack() as stack:
        if resume is not None:
            run, deployments, plan = _resumed(stack, resume, flags, load, out)
        else:
            run, file = None, None if testbed else config_file(recipe)
            deployments = [_practice(stack, testbed, flags)] if testbed else chosen(flags, file)
            options = merged(load, file.sweep if file else {}, str(file.path) if file else "")
            plan = plan_from(options, [deployment.target for deployment in deployments])
        run, failure = _in_event_loop(_carry_out(run, deployments, plan, out))
    _tell(run, failure, as_json=json)


LISTS = ("proxy", "prefill", "decode", "server", "target", "metrics_url")
TARGET_FLAGS = tuple(TargetFlags.__dataclass_fields__)


def _practice(stack: contextlib.ExitStack, mode: str, flags: TargetFlags) -> Deployment:
    """Start the testbed; what the flags say of a deployment is what it then simulates."""
    if flags.urls or flags.target or flags.recipe:
        raise UsageError("--testbed brings its own servers: it excludes --proxy, --server, --target and --recipe.")
    from pdbench.testbed.launch import TestbedError, running
    from pdbench.testbed.settings import MODES, Settings

    if mode not in MODES:
        raise UsageError(f"--testbed is one of {', '.join(MODES)}, not {mode!r}.")
    wanted = {"max_num_seqs": flags.max_num_seqs, "prefill_max_num_seqs": flags.prefill_max_num_seqs}
    wanted |= {"link_gb_s": flags.link_gb_s, "model": flags.model}
    settings = Settings(mode=mode, **{k: v for k, v in wanted.items() if v is not None}).on_free_ports()
    try:
        testbed = stack.enter_context(running(settings))
    except TestbedError as error:
        raise Unreachable(f"{error}.") from None
    roles = {"proxy": [testbed.proxy_url], "prefill": testbed.prefill_urls, "decode": testbed.decode_urls}
    if mode == "colocated":
        roles = {"colocated": testbed.server_urls}
    urls = [(role, url) for role, several in roles.items() for url in several if url]
    return build("default", urls, mode=mode, link_gb_s=settings.link_gb_s, simulated=True, source=f"--testbed {mode}")


def _new_run(out: Path | None, deployments: list[Deployment], plan: Plan) -> Run:
    """The run directory, made when everything that can be refused has been."""
    import platform

    from pdbench.probe.discover import notes
    from pdbench.run import Run

    path = out or Path("runs") / time.strftime("%Y%m%d-%H%M%S")
    return Run.create(
        path,
        {
            "pdbench": __version__,
            "created_unix_s": time.time(),
            "command": _command_line(),
            "simulated": any(deployment.simulated for deployment in deployments),
            "host": {"python": platform.python_version(), "platform": platform.platform(), "cpus": os.cpu_count()},
            "deployments": [deployment.document() for deployment in deployments],
            "plan": plan.document(),
            "notes": [note for deployment in deployments for note in notes(deployment)],
        },
    )


def _resumed(
    stack: contextlib.ExitStack, path: Path, flags: TargetFlags, load: Mapping[str, Any], out: Path | None
) -> tuple[Run, list[Deployment], Plan]:
    """An unfinished run: plan and servers from run.json, credentials from the flags; a testbed is started anew."""
    from pdbench.run import Run
    from pdbench.sweep.plan import plan_of

    if out is not None or any(value not in (None, []) for value in load.values()):
        raise UsageError("--resume goes on with the plan of the run: it takes no --out and no flags of the load.")
    run = Run.open(path)
    deployments = [from_document(document) for document in run.document["deployments"]]
    practised = next((d for d in deployments if d.source.startswith("--testbed ")), None)
    if practised is not None:
        known = replace(
            flags, max_num_seqs=practised.decode_slots, link_gb_s=practised.link_gb_s, model=practised.model
        )
        deployments = [_practice(stack, practised.source.split()[1], known)]
    named = {d.target: d.credentials for d in chosen(flags, None)} if flags.urls or flags.target else {}
    key = Credentials(api_key(flags.api_key_env, flags.api_key_file))
    deployments = [replace(d, credentials=named.get(d.target, key)) for d in deployments]
    run.reopen()
    return run, deployments, plan_of(run.document["plan"])


async def _carry_out(
    run: Run | None, deployments: list[Deployment], plan: Plan, out: Path | None
) -> tuple[Run, PdbenchError | None]:
    """Discover, warm up, measure. Returns what was measured and what ended it early, if anything did."""
    from pdbench.probe.discover import discover
    from pdbench.sweep.live import Live
    from pdbench.sweep.measure import measure
    from pdbench.sweep.plan import refuse_what_does_not_fit
    from pdbench.sweep.warmup import warm_up

    known = {deployment.target: await discover(deployment) for deployment in deployments}
    for deployment in known.values():
        refuse_what_does_not_fit(plan, deployment)
    chat = {target: await warm_up(deployment, plan) for target, deployment in known.items()}
    run = run or _new_run(out, list(known.values()), plan)
    stop = asyncio.Event()
    try:
        with _stopping_on_ctrl_c(stop), Live(plan, known) as live:
            await measure(run, plan, known, chat, live, stop)
        if stop.is_set():
            raise Interrupted("interrupted; what was measured is saved.", f"Go on: pdbench sweep --resume {run.path}")
    except PdbenchError as error:
        return run, error
    return run, None


@contextlib.contextmanager
def _stopping_on_ctrl_c(stop: asyncio.Event) -> Iterator[None]:
    """The first Ctrl-C (or SIGTERM) sets `stop`; the second one gives up at once."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()

    def on_signal() -> None:
        if stop.is_set() and task is not None:
            task.cancel()
            return
        stop.set()
        print("stopping: saving what was measured (once more to give up the report)", file=sys.stderr)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal)
    try:
        yield
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)


def _in_event_loop(work: Coroutine[Any, Any, tuple[Run, PdbenchError | None]]) -> tuple[Run, PdbenchError | None]:
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            return runner.run(work)
        except asyncio.CancelledError:
            raise Interrupted("interrupted; what was measured is saved, without a report.") from None


def _tell(run: Run, failure: PdbenchError | None, *, as_json: bool) -> None:
    """Join the tables, judge, show, and end with the exit code that the run deserves."""
    from pdbench.report.command import conclude, refuse_invalid, show

    try:
        run.finish()
        if run.document["cell_runs"]:
            summary = conclude(run)
            show([(run, summary)], as_json=as_json)
    except PdbenchError:
        if failure is None:
            raise
    if failure is not None:
        raise failure
    refuse_invalid(run, summary)


def _command_line() -> str:
    """The command as typed, without the user information of URLs."""
    words = (re.sub(r"(?<=//)[^/@\s]*@", "***@", word) for word in sys.argv[1:])
    return shlex.join(["pdbench", *words])
