"""`pdbench sweep`: the main job. Plan, drive beside the sampler, record, judge, render."""

from __future__ import annotations

import asyncio
import contextlib
import shlex
import signal
import sys
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pdbench import target_options as options
from pdbench.deployment import Deployment
from pdbench.errors import GateFailed, Interrupted, InvalidRun, PdbenchError
from pdbench.recipe import TargetFlags, chosen, config_file

if TYPE_CHECKING:
    from pdbench.run import Run
    from pdbench.sweep.plan import Plan

Texts = list[str] | None
LOAD, LONG, WAY, RUN = (
    "What is sent",
    "How long",
    "How it is sent",
    "The run and its output",
)
SHAPE = "Other shapes of traffic (docs/traffic.md)"
SEARCH = "A search instead of given rates (docs/capacity.md)"


def sweep(
    proxy: options.Proxy = None,
    prefill: options.Prefill = None,
    decode: options.Decode = None,
    server: options.Colocated = None,
    render: Annotated[
        Texts, typer.Option(metavar="URL", help="A render server; repeatable.", rich_help_panel=options.TARGET)
    ] = None,
    target: Annotated[
        Texts,
        typer.Option(
            metavar="NAME=RECIPE|URL",
            help="A recipe file, or a proxy; give two to compare them.",
            rich_help_panel=options.TARGET,
        ),
    ] = None,
    recipe: options.RecipeFile = None,
    testbed: Annotated[
        str | None,
        typer.Option(help="Practise on a SIMULATED pull, push or colocated one.", rich_help_panel=options.TARGET),
    ] = None,
    engine: options.Engine = None,
    mode: options.Mode = None,
    model: options.Model = None,
    max_num_seqs: options.MaxNumSeqs = None,
    prefill_max_num_seqs: Annotated[
        int | None, typer.Option(min=1, help="Slots of each prefill server.", rich_help_panel=options.TARGET)
    ] = None,
    link_gb_s: Annotated[
        float | None,
        typer.Option(min=0.001, help="GB/s between a prefill and a decode instance.", rich_help_panel=options.TARGET),
    ] = None,
    metrics_url: options.MetricsUrl = None,
    decode_log: Annotated[
        Texts,
        typer.Option(
            metavar="FILE", help="Log of decode, file or pipe: its KV transfer lines.", rich_help_panel=options.TARGET
        ),
    ] = None,
    prefill_log: Annotated[
        Texts, typer.Option(metavar="FILE", help="The same of prefill (push).", rich_help_panel=options.TARGET)
    ] = None,
    api_key_env: options.ApiKeyEnv = None,
    api_key_file: options.ApiKeyFile = None,
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
        typer.Option(
            "--output-len",
            "--random-output-len",
            help="Output tokens: 128, lognormal:MEAN:CV, trace:FILE.",
            rich_help_panel=LOAD,
        ),
    ] = None,
    seed: Annotated[str | None, typer.Option(help="Seed of arrivals and prompts.", rich_help_panel=LOAD)] = None,
    vocab_size: Annotated[
        int | None, typer.Option(help="Token ids go from 256 to below this: 4000.", rich_help_panel=LOAD)
    ] = None,
    ignore_eos: Annotated[
        bool | None,
        typer.Option("--ignore-eos/--no-ignore-eos", help="Full length, or real ends.", rich_help_panel=LOAD),
    ] = None,
    goodput: Annotated[
        Texts, typer.Option(help="SLOs, in ms or with a unit: ttft:2000 tpot:30, ttft:2s.", rich_help_panel=LOAD)
    ] = None,
    num_prompts: Annotated[
        str | None, typer.Option(help="Requests a cell; lifts the 60 s.", rich_help_panel=LONG)
    ] = None,
    duration: Annotated[
        str | None, typer.Option(metavar="TIME", help="Length of a cell: 60s; also ms, m and h.", rich_help_panel=LONG)
    ] = None,
    repeats: Annotated[int | None, typer.Option(min=1, help="Measure the grid so often.", rich_help_panel=LONG)] = None,
    timeout: Annotated[
        str | None, typer.Option(metavar="TIME", help="Deadline of a request: 600s.", rich_help_panel=LONG)
    ] = None,
    arrivals: Annotated[str | None, typer.Option(help="poisson, gamma or constant.", rich_help_panel=WAY)] = None,
    burstiness: Annotated[
        float | None, typer.Option(help="Gamma shape of the gaps; 1 is Poisson.", rich_help_panel=WAY)
    ] = None,
    drive: Annotated[
        Texts,
        typer.Option(help="proxy, or two-hop: ourselves to prefill, then decode; or both.", rich_help_panel=WAY),
    ] = None,
    pass_token_ids: Annotated[
        bool | None,
        typer.Option(
            "--pass-token-ids/--no-pass-token-ids", help="Two-hop chat: tokenise once, or twice.", rich_help_panel=WAY
        ),
    ] = None,
    endpoint: Annotated[str | None, typer.Option(help="completions or chat.", rich_help_panel=WAY)] = None,
    connections: Annotated[
        str | None, typer.Option(help="fresh (one a request) or pool (kept).", rich_help_panel=WAY)
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Send from so many processes.", rich_help_panel=WAY)
    ] = None,
    ray: Annotated[
        str | None, typer.Option(help="Send from a Ray cluster: auto or HOST:PORT.", rich_help_panel=WAY)
    ] = None,
    find_capacity: Annotated[
        bool | None,
        typer.Option("--find-capacity", help="Search the highest rate that holds every --slo.", rich_help_panel=SEARCH),
    ] = None,
    find_knee: Annotated[
        bool | None,
        typer.Option("--find-knee", help="Search the rate at which p99 ITL breaks down.", rich_help_panel=SEARCH),
    ] = None,
    slo: Annotated[
        Texts,
        typer.Option(
            help="ttft:p99:500ms (or 500), tpot:mean:30ms, attained:95% of --goodput; repeatable.",
            rich_help_panel=SEARCH,
        ),
    ] = None,
    max_duration: Annotated[
        str | None, typer.Option(metavar="TIME", help="For the whole search: 1h.", rich_help_panel=SEARCH)
    ] = None,
    classes: Annotated[
        Texts, typer.Option("--class", metavar="NAME:[PROMPT/]OUT@RATE", help="Repeat to mix.", rich_help_panel=SHAPE)
    ] = None,
    ramp: Annotated[
        str | None, typer.Option(metavar="START:END", help="From 1 to 8 requests/s: 1:8.", rich_help_panel=SHAPE)
    ] = None,
    ramp_up_strategy: Annotated[
        str | None, typer.Option(help="linear or exponential, as in vllm bench.", rich_help_panel=SHAPE)
    ] = None,
    steps: Annotated[
        Texts, typer.Option(help="One rate after the other in one cell: 1,2,4,8.", rich_help_panel=SHAPE)
    ] = None,
    trace: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Replay a trace: Azure's CSV, Mooncake's JSONL.", rich_help_panel=SHAPE),
    ] = None,
    speed: Annotated[Texts, typer.Option(help="The trace so many times as fast: 1,2.", rich_help_panel=SHAPE)] = None,
    prefix_len: Annotated[
        int | None, typer.Option(min=1, help="Prompt tokens shared with others.", rich_help_panel=SHAPE)
    ] = None,
    num_prefixes: Annotated[
        int | None, typer.Option(min=1, help="Different shared beginnings: 1.", rich_help_panel=SHAPE)
    ] = None,
    sessions: Annotated[Texts, typer.Option(help="Multi-turn chats, so many at a time.", rich_help_panel=SHAPE)] = None,
    turns: Annotated[int | None, typer.Option(min=1, help="Turns of a session: 5.", rich_help_panel=SHAPE)] = None,
    think_time: Annotated[
        str | None, typer.Option(metavar="TIME", help="Mean pause before each turn: 1s.", rich_help_panel=SHAPE)
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Run directory: runs/DATE-TIME.", rich_help_panel=RUN)] = None,
    resume: Annotated[Path | None, typer.Option(help="Go on with a run directory.", rich_help_panel=RUN)] = None,
    sample_interval: Annotated[
        str | None, typer.Option(metavar="TIME", help="Between scrapes: 500ms.", rich_help_panel=RUN)
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print summary.json to stdout.", rich_help_panel=RUN)] = False,
) -> None:
    """Measure request rate x prompt length against a live deployment, and say what the numbers are worth.

    Without a target: pdbench.toml, else the ports 8192 (proxy), 8100 (prefill) and 8200 (decode) of this host.

    \b
    Practise, one minute, no GPU:
      pdbench sweep --testbed pull --rates 2,8 --prompt-lens 1024,16384 \\
          --duration 10s
    Your deployment, eight cells of a minute:
      pdbench sweep --proxy http://HOST:8192 --prefill http://HOST:8100 \\
          --decode http://HOST:8200 --max-num-seqs 8
    Two deployments in turns, with what explains their difference:
      pdbench sweep --target pull=pull.toml --target push=push.toml --repeats 8
    """
    given = locals()
    from pdbench.run import Run
    from pdbench.sweep.options import DEFAULTS, merged, plan_from
    from pdbench.sweep.start import practice, resumed

    named: dict[str, Any] = {name: given[name] or () if name in LISTS else given[name] for name in TARGET_FLAGS}
    flags = TargetFlags(**named)
    load = {name: given[name] for name in DEFAULTS}
    if out is not None:
        Run.refuse_existing(out)
    begun: list[Run] = []
    same_senders = _same_senders(workers, ray)
    with _last_words(begun, same_senders), contextlib.ExitStack() as stack:
        if resume is not None:
            run, deployments, plan = resumed(stack, resume, flags, load, out)
            begun.append(run)
        else:
            run, file = None, None if testbed else config_file(recipe)
            deployments = [practice(stack, testbed, flags)] if testbed else chosen(flags, file)
            asked = merged(load, file.sweep if file else {}, str(file.path) if file else "")
            plan = plan_from(asked, [deployment.target for deployment in deployments])
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C, before the first cell too
        run, failure = _in_event_loop(_carry_out(run, begun, deployments, plan, out, workers, ray))
    with _last_words(begun, same_senders):
        _tell(run, failure, as_json=json)


LISTS = ("proxy", "prefill", "decode", "server", "render", "target", "metrics_url", "decode_log", "prefill_log")
TARGET_FLAGS = tuple(TargetFlags.__dataclass_fields__)
ONE_STOP_S = 0.5  # signals this close together are one wish: GNU timeout signals the group, then the child again


@contextlib.contextmanager
def _last_words(begun: list[Run], same_senders: str) -> Iterator[None]:
    """However a sweep ends early: its last words name the run that it has `begun`, and how to go on."""
    try:
        yield
    except (KeyboardInterrupt, asyncio.CancelledError):
        if not begun:
            raise Interrupted("interrupted before anything was measured.") from None
        raise Interrupted(
            "interrupted; what was measured is saved, without a new report.", _go_on(begun[0], same_senders)
        ) from None
    except (GateFailed, InvalidRun):
        raise
    except PdbenchError as error:
        if begun and str(begun[0].path) not in error.hint:
            hint = error.hint if error.hint.endswith((".", "?")) or not error.hint else f"{error.hint}."
            error.hint = f"{hint} {_go_on(begun[0], same_senders)}".strip()
        raise


def _same_senders(workers: int | None, ray: str | None) -> str:
    """The options that have the rest of a run sent as its begin was: they belong to the hosts, not to the run."""
    given = {"--workers": workers, "--ray": ray}
    return "".join(f" {option} {shlex.quote(str(value))}" for option, value in given.items() if value is not None)


def _go_on(run: Run, same_senders: str) -> str:
    path = shlex.quote(str(run.path))
    return f"Go on: pdbench sweep --resume {path}{same_senders}, or see what there is: pdbench report {path}"


async def _carry_out(
    run: Run | None,
    begun: list[Run],
    deployments: list[Deployment],
    plan: Plan,
    out: Path | None,
    workers: int | None,
    ray: str | None,
) -> tuple[Run, PdbenchError | None]:
    """Discover, warm up, measure. Returns what was measured and what ended it early, if anything did."""
    from pdbench.cli import say
    from pdbench.probe.discover import discover, notes
    from pdbench.sweep.fit import fitted
    from pdbench.sweep.live import Live
    from pdbench.sweep.measure import measure
    from pdbench.sweep.start import new_run, sending
    from pdbench.sweep.warmup import warm_up

    if (task := asyncio.current_task()) is not None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    async with sending(workers, ray, deployments) as starting:
        known = {deployment.target: await discover(deployment) for deployment in deployments}
        plan = fitted(plan, known.values())
        for note in (*(note for deployment in known.values() for note in notes(deployment)), *plan.notes):
            say(f"note: {note}")
        odd: list[str] = []
        chat = {target: await warm_up(deployment, plan, notes=odd) for target, deployment in known.items()}
        for note in odd:
            say(f"note: {note}")
        senders = await starting
        if run is None:
            run = new_run(out, list(known.values()), plan)
            begun.append(run)
            had = None
        else:
            run.reopen()
            had = _measured(run)
        run.document["notes"] += [note for note in odd if note not in run.document["notes"]]
        stop = asyncio.Event()
        try:
            with _stopping_on_ctrl_c(stop), Live(plan, known) as live:
                await measure(run, plan, known, chat, live, stop, senders, _grown)
            if stop.is_set():
                hint = f"Go on: pdbench sweep --resume {run.path}{_same_senders(workers, ray)}"
                raise Interrupted("interrupted; what was measured is saved.", hint)
        except PdbenchError as error:
            return run, error
    if had == _measured(run):
        say(f"note: nothing was left to measure: every cell of {run.path} is done. Its report again:")
    return run, None


def _measured(run: Run) -> int:
    """How many of its cells, every repeat counted, are done."""
    return sum(entry["state"] == "done" for entry in run.document["cell_runs"])


def _grown(run: Run, plan: Plan) -> Plan | None:
    """The plan with the next probe of a search; None where there is none."""
    if plan.search is None:
        return None
    from pdbench.report.capacity.growth import next_probe

    found = next_probe(run)
    return None if found is None else plan.with_probe(found[0], found[1].rate, found[1].requests)


@contextlib.contextmanager
def _stopping_on_ctrl_c(stop: asyncio.Event) -> Iterator[None]:
    """The first Ctrl-C (or SIGTERM) sets `stop`; a second one, later than ONE_STOP_S, gives up at once."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    first_s = 0.0

    def on_signal() -> None:
        nonlocal first_s
        if stop.is_set() and task is not None:
            if loop.time() - first_s > ONE_STOP_S:
                task.cancel()
            return
        stop.set()
        first_s = loop.time()
        print("stopping: saving what was measured (once more to give up the report)", file=sys.stderr)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal)
    try:
        yield
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
            signal.signal(number, signal.default_int_handler)  # the report too ends with last words


def _in_event_loop(work: Coroutine[Any, Any, tuple[Run, PdbenchError | None]]) -> tuple[Run, PdbenchError | None]:
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work)


def _tell(run: Run, failure: PdbenchError | None, *, as_json: bool) -> None:
    """Join the tables, judge, show, and end with the exit code that the run deserves."""
    from pdbench.report.command import conclude, refuse_invalid, show

    try:
        run.finish()
        summary = conclude(run)
        show([(run, summary)], as_json=as_json)
    except PdbenchError as error:
        raise failure or error from None
    if failure is not None:
        raise failure
    refuse_invalid(run, summary)
