"""`pdbench probe-transfer`: how fast KV moves between two places, and by which transport, through NIXL itself."""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pdbench import __version__
from pdbench.errors import Interrupted, PdbenchError, UsageError
from pdbench.littles_law import plan_options as shared
from pdbench.probe.transfer.progress import Progress

if TYPE_CHECKING:
    from pdbench.probe.transfer.plan import Plan
    from pdbench.run import Run

Texts = list[str] | None
MOVED, HOW, WHERE, RUN = "What is moved", "How", "Between what", "The run"
TOKEN_VARIABLE = "PDBENCH_TRANSFER_TOKEN"


def probe_transfer(
    model: Annotated[
        str | None, typer.Option(help="Its prompts' KV cache, of one rank.", rich_help_panel=MOVED)
    ] = None,
    model_config: Annotated[Path | None, typer.Option(help="Or its config.json.", rich_help_panel=MOVED)] = None,
    kv_dtype: Annotated[str, typer.Option(help="auto, bf16, fp16, fp32, fp8, int8.", rich_help_panel=MOVED)] = "auto",
    tp: Annotated[int, typer.Option(min=1, help="Ranks that the cache is spread over.", rich_help_panel=MOVED)] = 1,
    prompt_len: Annotated[Texts, typer.Option(help="Prompt tokens: 16000.", rich_help_panel=MOVED)] = None,
    block_size: Annotated[Texts, typer.Option(help="Tokens a block: 16,64,128.", rich_help_panel=MOVED)] = None,
    layout: Annotated[str, typer.Option(help="per-layer, k-v-apart, all-layers.", rich_help_panel=MOVED)] = "per-layer",
    nbytes: Annotated[Texts, typer.Option("--bytes", help="Raw bytes instead: 64MiB.", rich_help_panel=MOVED)] = None,
    descriptors: Annotated[Texts, typer.Option(help="In so many blocks: 8192.", rich_help_panel=MOVED)] = None,
    ids: Annotated[Texts, typer.Option(help="scattered, contiguous; both.", rich_help_panel=HOW)] = None,
    op: Annotated[Texts, typer.Option(help="read (pull), write (push); both.", rich_help_panel=HOW)] = None,
    in_flight: Annotated[Texts, typer.Option(help="Transfers at once: 1,2,4.", rich_help_panel=HOW)] = None,
    poll_interval: Annotated[
        str | None, typer.Option(metavar="TIME", help="Also look only this often: 10ms.", rich_help_panel=HOW)
    ] = None,
    memory: Annotated[Texts, typer.Option(help="auto, dram, vram.", rich_help_panel=HOW)] = None,
    gpu: Annotated[str | None, typer.Option(help="GPUs of prefill and decode: 0,1.", rich_help_panel=HOW)] = None,
    backend: Annotated[Texts, typer.Option(help="UCX, LIBFABRIC; those that load.", rich_help_panel=HOW)] = None,
    nixl_threads: Annotated[
        int, typer.Option(min=0, max=64, help="NIXL's threads; vLLM has 4.", rich_help_panel=HOW)
    ] = 4,
    link: Annotated[str | None, typer.Option(help="The link's theory, by name: ndr.", rich_help_panel=WHERE)] = None,
    link_gb_s: Annotated[float | None, typer.Option(help="Or in GB/s, one way.", rich_help_panel=WHERE)] = None,
    listen: Annotated[
        str | None, typer.Option(metavar="ADDR:PORT", help="Be the prefill host.", rich_help_panel=WHERE)
    ] = None,
    connect: Annotated[
        str | None, typer.Option(metavar="ADDR:PORT", help="Be the decode host.", rich_help_panel=WHERE)
    ] = None,
    token_file: Annotated[Path | None, typer.Option(help="File with the token.", rich_help_panel=WHERE)] = None,
    duration: Annotated[str, typer.Option(metavar="TIME", help="For each shape.", rich_help_panel=RUN)] = "1s",
    repeats: Annotated[int, typer.Option(min=1, max=100, help="Passes over all shapes.", rich_help_panel=RUN)] = 5,
    timeout: Annotated[
        str, typer.Option(metavar="TIME", help="The most that all of it may take.", rich_help_panel=RUN)
    ] = "15m",
    seed: Annotated[int, typer.Option(min=0, help="Of block ids and orders.", rich_help_panel=RUN)] = 0,
    out: Annotated[Path | None, typer.Option(help="Run directory.", rich_help_panel=RUN)] = None,
    json: Annotated[bool, typer.Option("--json", help="Print summary.json.", rich_help_panel=RUN)] = False,
) -> None:
    """Move KV cache through NIXL and time every step: two processes here, or one on each of two hosts.

    Without a model: 64 MiB in 8,192 blocks. On two hosts: --listen on the first, --connect on the second, which
    measures; the token that --listen prints goes into PDBENCH_TRANSFER_TOKEN there.
    """
    given = locals()
    from pdbench.probe.transfer import backends, nixl, options
    from pdbench.quantities import seconds

    limit_s = seconds(timeout, "--timeout")
    if listen and connect:
        raise UsageError("--listen and --connect are the two ends.", "Give one of them on each host.")
    nixl.require()
    if listen:
        return serve(options.address(listen, "--listen"), token_file, options.gpu_pair(gpu, one_host=False)[0], limit_s)
    shape = options.shape_of(model, model_config, kv_dtype, tp)
    plan = options.plan_from(shape, given)
    named = options.link_document(shared.link_of(link, link_gb_s))
    target = options.address(connect, "--connect") if connect else None
    token = _token(token_file) if target else None
    survey = backends.survey()
    plan = replace(plan, backends=options.backends(backend or [], survey))
    prompts = options.predicted(shape, plan, tp, layout)
    run = _new_run(out, plan, {"link": named, "backends": survey, "prompts": prompts, "tp": tp})
    failure = _carry_out(run, plan, limit_s, target, token)
    _tell(run, failure, as_json=json)


def serve(address: tuple[str, int], token_file: Path | None, gpu: int, limit_s: float) -> None:
    """The prefill host: wait for one decode host that holds the token, and do as it asks."""
    import tempfile

    from pdbench.probe.transfer.channel import listen, new_token
    from pdbench.probe.transfer.launch import ending, listen_to, start

    with listen(*address) as listener, tempfile.TemporaryDirectory(prefix="pdbench-transfer-") as logs:
        host, port = listener.getsockname()[:2]
        where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        token = _token(token_file, required=False)
        if token is None:
            token = new_token()
            print(f"token, for one session: {token}", file=sys.stderr)
        print(
            f"listening on {where}; on the other host: {TOKEN_VARIABLE}=... pdbench probe-transfer --connect {where}",
            file=sys.stderr,
            flush=True,
        )
        spec = {"token": token, "connect_s": limit_s, "gpu": gpu}
        worker = start("prefill", spec, Path(logs), listener)
        listener.close()
        with ending([worker]):
            notes = listen_to([worker], limit_s, _heard)
    for note in [*notes, "the session is over; its results are on the host that connected."]:
        print(note, file=sys.stderr)


def _heard(role: str, event: dict[str, Any]) -> None:
    if event["event"] == "connected":
        print(f"{event['peer']} is connected", file=sys.stderr, flush=True)


def _carry_out(
    run: Run, plan: Plan, limit_s: float, target: tuple[str, int] | None, token: str | None
) -> PdbenchError | None:
    """Start the workers, write down what they tell. Returns what ended it early, if anything did."""

    progress = Progress(sys.stderr, plan.repeats)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # whoever ends us gets what was measured, as with Ctrl-C
    try:
        run.document["notes"] += _measured(run, plan, limit_s, target, token, progress)
        run.document["perftest"] = _perftest(run)
    except KeyboardInterrupt:
        hint = f"See it: pdbench report {run.path} (it cannot be resumed; fewer --repeats or shapes take less time)"
        return Interrupted("interrupted; what was measured is saved.", hint)
    except PdbenchError as error:
        return error
    finally:
        progress.end()
        run.save()
    return None


def _measured(
    run: Run, plan: Plan, limit_s: float, target: tuple[str, int] | None, token: str | None, progress: Progress
) -> list[str]:
    """Start decode's worker, and prefill's where it is on no other host; listen until both are done. Returns notes."""
    from pdbench.probe.transfer.channel import listen, new_token
    from pdbench.probe.transfer.launch import Worker, ending, listen_to, start

    logs = run.path / "logs"
    logs.mkdir()
    workers: list[Worker] = []
    with ending(workers):
        if target is None:
            token = new_token()
            with listen("127.0.0.1", 0) as listener:
                target = ("127.0.0.1", int(listener.getsockname()[1]))
                spec = {"token": token, "connect_s": 30.0, "gpu": plan.gpu[0]}
                workers.append(start("prefill", spec, logs, listener))
        spec = {"token": token, "connect_s": 30.0, "gpu": plan.gpu[1], "host": target[0], "port": target[1]}
        workers.append(start("decode", {**spec, "plan": plan.document()}, logs))
        return listen_to(workers, limit_s, _writing(run, progress))


def _writing(run: Run, progress: Progress) -> Callable[[str, dict[str, Any]], None]:
    """Cells go into transfers.jsonl as they come, everything else into run.json."""
    import json

    from pdbench.report.transfer.results import FILE
    from pdbench.run import storing

    def take(role: str, event: dict[str, Any]) -> None:
        match event["event"]:
            case "sides":
                run.document["sides"] = event["sides"]
                run.document["notes"] += [event["note"]] if event["note"] else []
                run.save()
            case "cells":
                run.document["planned"] = {"measurements": event["count"], "asked": event["asked"]}
            case "setup":
                run.document["setup"].append({key: event[key] for key in ("backend", "memory", "setup_ms")})
                run.document["gpu_pair"] = event["gpu_pair"] or run.document.get("gpu_pair")
                if not progress.planned:  # not before the first back-end is up: what is refused has no progress
                    progress.begin(run.document["planned"]["measurements"])
            case "cell":
                with storing(run.path), (run.path / FILE).open("a", encoding="utf-8") as lines:
                    lines.write(json.dumps(event["found"], allow_nan=False) + "\n")
                progress.measured(event["found"])

    return take


def _perftest(run: Run) -> list[dict[str, Any]]:
    """UCX without NIXL on the sizes that NIXL moved, where both sides were on this host."""
    from pdbench.probe.transfer.perftest import installed, perftest
    from pdbench.report.transfer.results import passes

    boots = {side["boot_id"] for side in run.document["sides"].values()}
    if not installed() or len(boots) > 1:
        return []
    verified = [each for each in passes(run) if each["asked"] and each.get("descriptors_merged")]
    over_ucx = [each for each in verified if (each["backend"], each["memory"]) == ("UCX", "DRAM")]
    sizes = dict.fromkeys((each["op"], each["nbytes"] // each["descriptors_merged"]) for each in over_ucx)
    return [{"op": op, "nbytes": nbytes, **perftest(op, nbytes)} for op, nbytes in sizes]


def _new_run(out: Path | None, plan: Plan, more: dict[str, Any]) -> Run:
    from pdbench.run import Run

    run = Run.create(
        out or Path("runs") / f"{time.strftime('%Y%m%d-%H%M%S')}-transfer",
        {
            "kind": "transfer",
            "pdbench": __version__,
            "created_unix_s": time.time(),
            "command": shlex.join(["pdbench", *sys.argv[1:]]),
            "simulated": False,
            "host": {"python": platform.python_version(), "platform": platform.platform(), "cpus": os.cpu_count()},
            "plan": {**plan.document(), "prompts": more["prompts"], "tp": more["tp"]},
            "link": more["link"],
            "backends": more["backends"],
            "setup": [],
            "notes": [],
        },
    )
    for folder in ("live", "parts"):  # of sweeps
        (run.path / folder).rmdir()
    return run


def _token(file: Path | None, *, required: bool = True) -> str | None:
    """The one-time token, from a file or from the environment: never from the command line, where others see it."""
    text = os.environ.get(TOKEN_VARIABLE, "")
    if file is not None:
        try:
            text = file.read_text(encoding="utf-8")
        except OSError as error:
            raise UsageError(f"--token-file {file}: {error.strerror}.") from None
    if text.strip():
        return text.strip()
    if required:
        raise UsageError(
            "--connect needs the token that --listen printed.", f"Set {TOKEN_VARIABLE} to it, or give --token-file."
        )
    return None


def _tell(run: Run, failure: PdbenchError | None, *, as_json: bool) -> None:
    """Judge what there is, show it, and end with the exit code that it deserves."""
    from pdbench.report.command import conclude, refuse_invalid, show

    try:
        summary = conclude(run)
        if failure is None or summary["results"] or (summary["cut_short"] or {"done": 0})["done"]:
            show([(run, summary)], as_json=as_json)
    except PdbenchError as error:
        raise failure or error from None
    if failure is not None:
        if failure.exit_code == UsageError.exit_code and not summary["results"]:
            shutil.rmtree(run.path)  # so that the same --out can be given with the flags put right
        raise failure
    refuse_invalid(run, summary)
