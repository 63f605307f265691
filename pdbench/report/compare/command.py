"""`pdbench compare`: did it change, how sure is that, and may it be merged?"""

from __future__ import annotations

import json as jsonlib
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pdbench.errors import GateFailed, InvalidRun, PdbenchError, UsageError
from pdbench.quantities import several
from pdbench.run import storing

if TYPE_CHECKING:
    from pdbench.report.compare.comparison import Comparison
    from pdbench.report.compare.gate import Rules
    from pdbench.report.compare.sides import Side

Texts = list[str] | None
STDOUT = Path("-")


def compare(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="BASE NEW...",
            help="Run directories or summary.json files; one run of two targets compares these.",
            show_default=False,
        ),
    ],
    between: Annotated[Texts, typer.Option(help="Two targets of one run, the base first: a,b.")] = None,
    gate: Annotated[
        Texts, typer.Option(help="Metrics of the gate: ttft, tpot, throughput, p99_itl_ms, post, ...")
    ] = None,
    min_effect: Annotated[str, typer.Option(help="The smallest change that matters.")] = "5%",
    strict: Annotated[bool, typer.Option("--strict", help="What is undecided fails too.")] = False,
    html: Annotated[Path | None, typer.Option(help="Write a page: both sides, evidence, what explains it.")] = None,
    junit: Annotated[Path | None, typer.Option(help="Write JUnit XML, one test a gate.")] = None,
    markdown: Annotated[
        Path | None, typer.Option(help="Write a comment for a pull request; - prints it instead.")
    ] = None,
    step_summary: Annotated[
        bool, typer.Option("--step-summary", help="Append that comment to $GITHUB_STEP_SUMMARY.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of the tables.")] = False,
) -> None:
    """Compare measurements: every change with its interval, and a gate that repeats decide, not requests.

    Exits 0 when no gate failed, 1 when one did (or is undecided, with --strict), 2 when the comparison is refused, 3
    when no cell is valid on both sides.
    """
    from pdbench.report.compare.comparison import compare as judged

    if step_summary and not os.environ.get("GITHUB_STEP_SUMMARY"):
        raise UsageError("--step-summary wants GITHUB_STEP_SUMMARY, which GitHub Actions sets; it is not set here.")
    printed = [
        name for name, path in (("--html", html), ("--junit", junit), ("--markdown", markdown)) if path == STDOUT
    ]
    if len(wanting := [*printed, *(["--json"] if json else [])]) > 1 and printed:
        raise UsageError(f"{' and '.join(wanting)} want standard output.", "Give all but one of them a file.")
    sides = _sides(runs, between)
    rules = _rules(gate, min_effect, sides)
    comparisons = [judged(base, new, rules) for base, new in sides]
    _write(comparisons, html, junit, markdown, step_summary)
    if not printed:
        _show(comparisons, json)
    if failure := _failure(comparisons, strict):
        raise failure
    if not printed and not json:
        _say_what_exit_0_means(comparisons)


def _sides(runs: Sequence[Path], between: Texts) -> list[tuple[Side, Side]]:
    from pdbench.report.compare.sides import BASE, NEW, read_side, two_targets

    if len(runs) == 1:
        return [two_targets(read_side(runs[0], BASE), several(between or [], "--between", str))]
    if between:
        raise UsageError("--between names two targets of one run; of several runs the first is the base.")
    places = [path.resolve() for path in runs]
    if twice := [path for path, place in zip(runs, places, strict=True) if places.count(place) > 1]:
        raise UsageError(f"{twice[0]} is given twice: a run does not differ from itself.", "Give another run as NEW.")
    base = read_side(runs[0], BASE)
    return [(base, read_side(path, NEW if len(runs) == 2 else f"{NEW}{i}")) for i, path in enumerate(runs[1:], 1)]


def _rules(gate: Texts, min_effect: str, sides: Sequence[tuple[Side, Side]]) -> Rules:
    """The false alarms of several comparisons share one budget."""
    from pdbench.report.compare import capacities, transfers
    from pdbench.report.compare.evidence import ALPHA
    from pdbench.report.compare.gate import GATED, Rules, gates_named

    transfer = transfers.is_transfer(sides[0][0].summary)
    if gate and capacities.is_search(sides[0][0].summary):
        raise UsageError("--gate names metrics of cells; two searches are compared by what they searched for.")
    named = gates_named(several(gate or [], "--gate", str), transfer)
    return Rules(named or (transfers.GATED if transfer else GATED), share(min_effect), ALPHA / len(sides))


def share(text: str) -> float:
    """`5%` or `0.05`. Raises UsageError for what is no share."""
    match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*(%?)\s*", text)
    found = float(match[1]) / (100 if match[2] else 1) if match else 0.0
    if not 0 < found < 1:
        raise UsageError(f"--min-effect wants a share such as 5% or 0.05, not {text!r}.")
    return found


def _write(
    comparisons: list[Comparison], html: Path | None, junit: Path | None, markdown: Path | None, step_summary: bool
) -> None:
    """The files that were asked for, `-` being standard output; a refused comparison has them too: CI shows files."""
    if html is not None:
        from pdbench.report.compare.html import render_html

        _write_text(html, render_html(comparisons))
    if junit is not None:
        from pdbench.report.compare.junit import render_junit

        _write_text(junit, render_junit(comparisons))
    if markdown is not None or step_summary:
        from pdbench.report.compare.markdown import render_markdown

        comment = render_markdown(comparisons)
        if markdown is not None:
            _write_text(markdown, comment)
        if step_summary:
            shown = Path(os.environ["GITHUB_STEP_SUMMARY"])
            with storing(shown), shown.open("a", encoding="utf-8") as file:
                file.write(comment)


def _write_text(path: Path, text: str) -> None:
    if path == STDOUT:
        sys.stdout.write(text)
        return
    with storing(path):
        path.write_text(text, encoding="utf-8")


def _show(comparisons: list[Comparison], as_json: bool) -> None:
    if as_json:
        from pdbench.report.compare.document import document

        jsonlib.dump(document(comparisons), sys.stdout, indent=1, allow_nan=False)
        sys.stdout.write("\n")
        return
    from pdbench.report.command import terminal
    from pdbench.report.compare.comparison import REFUSED
    from pdbench.report.compare.text import print_comparison

    judged = [comparison for comparison in comparisons if comparison.status != REFUSED]  # the others are errors
    for place, comparison in enumerate(judged):
        if place:
            print()
        print_comparison(comparison, terminal())


def _say_what_exit_0_means(comparisons: list[Comparison]) -> None:
    """A CI job whose gates decided nothing looks like one that passed."""
    from pdbench.report.compare import said
    from pdbench.report.compare.comparison import UNDECIDED

    if any(comparison.status == UNDECIDED for comparison in comparisons):
        print(f"exit 0: {said.STRICT[:1].lower()}{said.STRICT[1:-1]}")


def _failure(comparisons: list[Comparison], strict: bool) -> PdbenchError | None:
    """What the exit code says: what means nothing before what failed, what was refused before both."""
    from pdbench.report.compare import said
    from pdbench.report.compare.comparison import FAILED, MEANINGLESS, REFUSED, UNDECIDED

    of = {comparison.status: comparison for comparison in reversed(comparisons)}
    if REFUSED in of:
        refused = of[REFUSED]
        why = " Also, ".join(each.why for each in refused.refused)
        steps = " ".join(dict.fromkeys(each.next_step for each in refused.refused))
        return UsageError(f"{refused.new.path} is not compared with {refused.base.path}: {why}", steps)
    if MEANINGLESS in of:
        return InvalidRun(
            f"no cell is valid both in {of[MEANINGLESS].base.path} and in {of[MEANINGLESS].new.path}.",
            "The flags of each run say why, and what to do: pdbench report RUN",
        )
    if FAILED in of:
        return GateFailed(f"{of[FAILED].count(FAILED)} of {len(of[FAILED].gates)} gates failed.")
    if strict and UNDECIDED in of:
        return GateFailed("the gate is undecided, which --strict fails.", said.next_step(of[UNDECIDED]))
    return None
