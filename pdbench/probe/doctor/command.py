"""`pdbench doctor`: is this deployment fit to be measured? Pass, warn or fail for each rule, with the fix."""

from __future__ import annotations

import asyncio
import json as jsonlib
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from pdbench import target_options as options
from pdbench.deployment import DEFAULT_PORTS, GUIDE_PORTS
from pdbench.errors import GateFailed, Unreachable, UsageError
from pdbench.recipe import Recipe, TargetFlags, chosen, config_file


def doctor(
    proxy: options.Proxy = None,
    prefill: options.Prefill = None,
    decode: options.Decode = None,
    server: options.Colocated = None,
    recipe: options.RecipeFile = None,
    engine: options.Engine = None,
    mode: options.Mode = None,
    model: options.Model = None,
    max_num_seqs: options.MaxNumSeqs = None,
    tpot: Annotated[
        float | None, typer.Option(min=0.001, help="Expected ms per output token, where none was decoded yet.")
    ] = None,
    metrics_url: options.MetricsUrl = None,
    api_key_env: options.ApiKeyEnv = None,
    api_key_file: options.ApiKeyFile = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check a live deployment and/or a recipe before anyone measures it.

    Sends one request of 192 tokens through the entry and one of 16 to each prefill server. A recipe whose servers are
    not up is checked by what it says. Exit code 1 when a rule fails, 4 when a server cannot be reached.
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
    from pdbench.probe.doctor.examine import examine

    file = config_file(recipe)
    deployment = chosen(flags, file)[0]
    guessed = deployment.source == DEFAULT_PORTS
    if guessed:
        ports = ", ".join(f"{port} ({role})" for role, port in GUIDE_PORTS.items())
        print(f"No server is named: these are the default ports of this host, {ports}.", file=sys.stderr)
    folder = file.path.parent if file else None
    checks, down, simulated = asyncio.run(
        examine(deployment, entries_of(file, flags), file.sweep if file else {}, tpot, folder)
    )
    if json:
        jsonlib.dump(_document(checks, simulated=simulated), sys.stdout, indent=1, allow_nan=False)
        sys.stdout.write("\n")
    else:
        from pdbench.probe.doctor.text import print_checks

        if down and not any(check.rule == "reachable" for check in checks):
            print("No server answers: this is what the recipe alone says.", file=sys.stderr)
        print_checks(checks, simulated=simulated)
    _conclude(checks, down, recipe_only=file is not None and not flags.urls, guessed=guessed)


def entries_of(file: Recipe | None, flags: TargetFlags) -> Sequence[dict[str, Any]]:
    """The recipe's servers in the deployment's order, without those whose role the command line gives."""
    if file is None or (flags.urls and not flags.recipe):
        return []
    given = {role for role, _ in flags.urls}
    return [entry for entry in file.document.get("server", []) if entry["role"] not in given]


def _document(checks: Sequence[Any], *, simulated: bool) -> dict[str, Any]:
    counts = {level: sum(check.level == level for check in checks) for level in ("fail", "warn", "unknown", "pass")}
    return {"checks": [check._asdict() for check in checks], **counts, "simulated": simulated}


def _conclude(checks: Sequence[Any], down: Sequence[str], *, recipe_only: bool, guessed: bool) -> None:
    failed = [check for check in checks if check.level == "fail"]
    if down and not recipe_only:
        name = "Name the servers with --proxy, --prefill, --decode, --server or --recipe."
        hint = name if guessed else "Start it or correct its URL, then ask again."
        raise Unreachable(f"{', '.join(down)} cannot be reached.", hint)
    if not checks:
        raise UsageError("there is nothing to check.", "Give --proxy, --prefill, --decode or --recipe.")
    refused = [check.where for check in failed if check.rule == "reachable" and "credentials" in check.evidence]
    if refused:
        raise UsageError(f"{', '.join(refused)}: credentials refused.", "Set PDBENCH_API_KEY, or use --api-key-file.")
    if any(check.rule == "answers" and "HTTP 404" in check.evidence for check in failed):
        raise UsageError("the model is not served (HTTP 404).", "Give --model with a name of /v1/models.")
    if failed:
        rules = ", ".join(dict.fromkeys(check.rule for check in failed))
        raise GateFailed(f"{len(failed)} of {len(checks)} checks failed: {rules}.", "Mend them before you measure.")
