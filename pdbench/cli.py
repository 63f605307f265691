"""The verbs. A verb's module is imported when that verb is called, so `pdbench --help` costs next to nothing."""

from __future__ import annotations

import functools
import gc
import importlib
import re
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any, cast

import typer
from typer.core import TyperCommand

from pdbench import __version__
from pdbench.errors import CRASH_EXIT_CODE, Interrupted, PdbenchError, UsageError, end_at_once

VERBS = {
    "sweep": ("pdbench.sweep.command:sweep", "Measure: request rate x prompt length against a live deployment."),
    "report": ("pdbench.report.command:report", "Judge a run directory again: verdict, summary.json, report.html."),
    "import": ("pdbench.report.imports.command:import_results", "Make a run of other tools' results."),
    "compare": ("pdbench.report.compare.command:compare", "Did it change? Intervals from repeats, and a gate for CI."),
    "history": ("pdbench.report.history.command:history", "When did it change? Change points over many runs."),
    "slots": ("pdbench.littles_law.slots_command:slots", "Decode slots: how many, how long a wait, how high a rate."),
    "probe-transfer": (
        "pdbench.probe.transfer.command:probe_transfer",
        "Move KV cache through NIXL: how fast, and by which transport.",
    ),
    "plan": ("pdbench.littles_law.plan_command:plan", "Plan: KV bytes, transfers, crossover, P:D ratio."),
    "watch": ("pdbench.probe.watch.command:watch", "Watch a deployment live: slots, waiting by stage, TTFT split."),
    "doctor": ("pdbench.probe.doctor.command:doctor", "Check a deployment or a recipe before anyone measures it."),
    "topo": ("pdbench.probe.topo.command:topo", "Wiring: GPU pairs, NICs, host; by which path KV can move, how fast."),
    "testbed": ("pdbench.testbed.command:testbed", "Start a SIMULATED deployment on loopback to practise on."),
}
# Options that take several values in a row, as they do in vllm bench serve, and what such a value holds.
SPREADING = {"--goodput": ":", "--role": "=", "--class": "@"}
# Options of `sweep` and of benchmark tools that another verb has under its own name.
SAME_AS = {
    "--rates": "--qps",
    "--request-rate": "--qps",
    "--output-len": "--out-tokens",
    "--prompt-lens": "--prompt-len",
}
# What typer raises for every wrong use; its versions keep it in other places.
_REFUSED = cast("type[Exception]", typer.BadParameter.__mro__[1])


# What a value is, where its option does not say it: for a reader, not for Python.
_KINDS = {r" ?<list\[Path\]>": "", r"<list\[\w+\]>": "LIST", "<str>": "TEXT", "<path>": "PATH"}
_KINDS |= {r"<int(?: range)?>": "N", r"<float(?: range)?>": "X"}


class Grouped(TyperCommand):
    """A verb whose help has its options under headings (`rich_help_panel`), every name in full: rich's own panels cut
    long ones off, and take longer."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        groups: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            usual = "Arguments" if param.param_type_name == "argument" else "Options"
            if record is not None:
                names = record[0]
                for kind, word in _KINDS.items():
                    names = re.sub(kind, word, names)
                groups.setdefault(getattr(param, "rich_help_panel", None) or usual, []).append((names, record[1]))
        for heading, records in sorted(groups.items(), key=lambda group: group[0] == "Options"):
            with formatter.section(heading):
                formatter.write_dl(records)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code (docs/exit-codes.md)."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        ended = _app(words)(args=list(spread(words)), prog_name="pdbench", standalone_mode=False)
    except _REFUSED as error:
        return _refuse(error, words)
    except PdbenchError as error:
        _explain(error)
        return error.exit_code
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0 if end.code is None else CRASH_EXIT_CODE
    except Exception:  # noqa: BLE001 - the one place where a bug of ours becomes exit code 70
        import traceback

        traceback.print_exc()
        print(
            f"pdbench {__version__}: this is a bug in pdbench; please report it with the lines above.", file=sys.stderr
        )
        return CRASH_EXIT_CODE
    return ended if isinstance(ended, int) else 0


def spread(words: Sequence[str]) -> Iterator[str]:
    """`--goodput ttft:2000 tpot:30` as click wants it: the option's name before each value."""
    option = ""
    for place, word in enumerate(words):
        following = words[place + 1] if place + 1 < len(words) else ""
        if option and SPREADING[option] in word and not word.startswith("-"):
            yield from (option, word)
            continue
        option = word if word in SPREADING and SPREADING[word] in following and not following.startswith("-") else ""
        if not option:
            yield word


def _app(words: Sequence[str]) -> typer.Typer:
    context = {"help_option_names": ["-h", "--help"]}
    app = typer.Typer(
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings=context,
    )
    app.callback(invoke_without_command=True)(_top)
    called = next((word for word in words if not word.startswith("-")), None)
    for verb, (where, summary) in VERBS.items():
        loaded = _load(where) if verb == called else _placeholder
        if isinstance(loaded, typer.Typer):
            app.add_typer(loaded, name=verb, context_settings=context)
        else:
            app.command(verb, cls=Grouped, help=None if verb == called else summary)(loaded)
    return app


def _top(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.", is_eager=True)] = False,
) -> None:
    """Measure a prefill/decode deployment: where time to first token goes, what to change, what a number is worth."""
    if version:
        print(f"pdbench {__version__}")
        raise typer.Exit


def _placeholder() -> None:
    """Stands for a verb that this command line does not call."""


def _load(where: str) -> Callable[..., Any] | typer.Typer:
    """The function of a verb, or the Typer of a verb with sub-verbs."""
    module, _, name = where.partition(":")
    loaded: Callable[..., Any] | typer.Typer = getattr(importlib.import_module(module), name)
    if isinstance(loaded, typer.Typer):
        for command in loaded.registered_commands:
            command.cls = Grouped
            command.callback = _guarded(command.callback) if command.callback else None
        return loaded
    return _guarded(loaded)


def _guarded(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, whose Ctrl-C is an error of ours with its exit code, and which has the garbage collector back on."""

    @functools.wraps(function)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        gc.freeze()
        gc.enable()
        try:
            if signal.getsignal(signal.SIGINT) is end_at_once:
                signal.signal(signal.SIGINT, signal.default_int_handler)
            return function(*args, **kwargs)
        except KeyboardInterrupt:
            raise Interrupted("interrupted.") from None

    return guarded


def _refuse(refused: Any, words: Sequence[str]) -> int:
    """Say what typer refuses as every other mistake is said; a verb without its sub-verb gets its help."""
    said = str(refused.format_message())
    if "\n" in said:
        print(said, file=sys.stderr)
    else:
        verb = next((f" {word}" for word in words if word in VERBS), "")  # some refusals come without their command
        command = refused.ctx.command_path if refused.ctx else f"pdbench{verb}"
        said = _here(refused, said.rstrip("."))
        end = "" if said.endswith("?") else "."
        _explain(UsageError(f"{said[:1].lower()}{said[1:]}{end}", f"{_takes(refused)}Its flags: {command} --help"))
    return UsageError.exit_code


def _here(refused: Any, said: str) -> str:
    """An unknown option by the name that it has here, where it is one of another verb's."""
    known = {option for param in refused.ctx.command.params for option in param.opts} if refused.ctx else set()
    here = SAME_AS.get(getattr(refused, "option_name", ""))
    return f"{said.partition(' (Possible')[0]} (here it is {here})" if here in known else said


def _takes(refused: Any) -> str:
    """What an option that is missing takes."""
    param: Any = getattr(refused, "param", None)
    missing = str(refused.format_message()).startswith("Missing option")
    return f"{param.opts[0]}: {param.help} " if missing and getattr(param, "help", None) else ""


def _explain(error: PdbenchError) -> None:
    say(f"pdbench: {error}", style="bold")
    if error.hint:
        say(f"  {error.hint}")


def say(text: str, style: str = "") -> None:
    """A line on standard error, folded where that is a terminal."""
    from rich.console import Console

    console = Console(stderr=True, highlight=False, soft_wrap=True)
    width = console.width if console.is_terminal else None
    console.print(folded(text, width), markup=False, style=style)


# A command with its flags, their values, paths and URLs: what is copied stays in one line.
_VALUE = r"[^\s,;()]+"
_COMMAND = re.compile(
    rf"\bpdbench (?:{'|'.join(VERBS)})\b(?: --?[a-z][\w-]*(?:[ =](?!-){_VALUE})?| [A-Z~./]{_VALUE}| \S*/{_VALUE})*"
    rf"|\bcurl {_VALUE}"
)
_GLUE = "\ue000"  # stands for a space that is no place to break


def folded(text: str, width: int | None) -> str:
    """The text in lines of at most `width`, broken between words; URLs, paths and commands stay whole, to be copied."""
    if width is None:
        return text
    import textwrap

    whole = _COMMAND.sub(lambda found: found[0].replace(" ", _GLUE), text)
    return "\n".join(
        textwrap.fill(line, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
        for line in whole.splitlines()
    ).replace(_GLUE, " ")
