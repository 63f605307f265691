"""`pdbench testbed`: start the SIMULATED deployment, say where it is, and end it on Ctrl-C.

Its options are the fields of Settings, one for one; the function's signature is made from them.
"""

import inspect
import json
import signal
import threading
from collections.abc import Callable
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pdbench.testbed.settings import Settings

if TYPE_CHECKING:
    from pdbench.testbed.launch import Running


PORTS = ("proxy_port", "prefill_port", "decode_port", "colocated_port")
# The heading that begins with a field, in their order.
HEADINGS = {
    "mode": "What is started",
    "host": "Where",
    "model": "The model and its answers",
    "render_ms_per_token": "How fast the engines are",
    "link_gb_s": "The handoff",
    "block_size": "KV and prefix caches",
    "proxy_ms": "The proxy, and faults to practise on",
}


def testbed(context: typer.Context, **options: Any) -> None:
    """Start a SIMULATED P/D deployment (or a co-located server) on this machine, to practise on.

    Real HTTP processes on loopback with vLLM's API and metrics; only the GPUs are simulated.

    The defaults stand for a published run of Qwen3-32B on two nodes of eight H200.

    60 ms for a 16k prompt stands for the prefix-cache hits of that run.
    """
    from pdbench.errors import UsageError
    from pdbench.testbed.launch import TestbedError, running

    as_json = options.pop("json")
    port = options.pop("port")
    try:
        settings = Settings(**options)
        if port is not None:
            given = {name: options[name] for name in PORTS if _was_given(context, name)}
            settings = replace(settings.on_ports_from(port), **given)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    stopped = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopped.set())
    try:
        with running(settings) as deployment:
            if as_json:
                print(json.dumps(deployment.as_dict()), flush=True)
            else:
                _show(deployment)
            stopped.wait()
    except TestbedError as error:
        raise UsageError(f"{error}.") from None
    if not as_json:
        typer.echo("The SIMULATED deployment has ended.", err=True)


def _was_given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _show(deployment: "Running") -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"SIMULATED {deployment.mode} deployment", title_justify="left")
    table.add_column("server")
    table.add_column("URL", overflow="fold")
    table.add_column("pid", justify="right")
    urls = {"proxy": deployment.proxy_url} if deployment.proxy_url else {}
    for role, found in (
        ("prefill", deployment.prefill_urls),
        ("decode", deployment.decode_urls),
        ("colocated", deployment.server_urls),
    ):
        urls |= {f"{role}-{i}": url for i, url in enumerate(found)}
    for name, url in urls.items():
        table.add_row(name, url, str(deployment.pids[name]))
    Console().print(table)
    targets = [f"--proxy {deployment.proxy_url}"] if deployment.proxy_url else []
    targets += [f"--prefill {url}" for url in deployment.prefill_urls]
    targets += [f"--decode {url}" for url in deployment.decode_urls]
    targets += [f"--server {url}" for url in deployment.server_urls]
    print(f"pdbench sweep {' '.join(targets)}", flush=True)
    typer.echo(f"Truth logs (SIMULATED): {deployment.log_dir}\nCtrl-C ends it.", err=True)


def _options() -> list[inspect.Parameter]:
    """One option for each field of Settings, and two of the command's own."""

    def option(
        name: str, kind: Any, default: Any, flag: str, text: str, heading: str | None = None
    ) -> inspect.Parameter:
        annotation = Annotated[kind, typer.Option(flag, help=text, rich_help_panel=heading)]
        return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)

    made = [inspect.Parameter("context", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context)]
    heading = ""
    for field in fields(Settings):
        heading = HEADINGS.get(field.name, heading)
        flag = "--" + field.name.replace("_", "-")
        if field.type is bool:
            flag = f"{flag}/--no-{flag[2:]}"
        made.append(option(field.name, field.type, field.default, flag, field.metadata["help"], heading))
    made.append(
        option(
            "port", int | None, None, "--port", "first of all ports that are not given, proxy first; 0 picks free ones"
        )
    )
    made.append(option("json", bool, False, "--json", "one JSON object on stdout instead of a table"))
    return made


def _sign(function: Callable[..., None]) -> None:
    parameters = _options()
    function.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    function.__annotations__ = {each.name: each.annotation for each in parameters}


_sign(testbed)
