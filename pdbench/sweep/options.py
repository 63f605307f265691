"""From flags and the file's defaults to a Plan. Flags win over the file, the file over the defaults here."""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping
from typing import Any

from pdbench.errors import UsageError
from pdbench.quantities import count, positive, seconds, several
from pdbench.sweep.plan import DEFAULT_DURATION_S, Plan, grid

DEFAULTS: dict[str, Any] = {
    "rates": ["1", "2", "4", "8"],
    "max_concurrency": [],
    "prompt_lens": ["1024", "16384"],
    "output_len": ["128"],
    "num_prompts": None,
    "duration": None,
    "burstiness": 1.0,
    "arrivals": None,
    "seed": None,
    "endpoint": "completions",
    "vocab_size": 4000,
    "ignore_eos": True,
    "timeout": "600s",
    "goodput": [],
    "repeats": 1,
    "sample_interval": "500ms",
}
SLO_METRICS = ("ttft", "tpot", "itl", "e2el")
ARRIVALS = ("poisson", "gamma", "constant")
FIRST_TOKEN_ID = 256


def merged(flags: Mapping[str, Any], file: Mapping[str, Any], where: str) -> dict[str, Any]:
    """One value for each option. Raises UsageError for a key of the file's [sweep] table that is no option."""
    unknown = sorted(set(file) - set(DEFAULTS))
    if unknown:
        raise UsageError(f"{where}: unknown key sweep.{unknown[0]}.", f"Known are: {', '.join(sorted(DEFAULTS))}.")
    options = {name: _listed(name, value) for name, value in {**DEFAULTS, **file}.items()}
    given = {name: value for name, value in flags.items() if value is not None and value != []}
    # A flag that chooses the loop or the length of a cell takes the place of what the file said about it.
    for one, other in (("rates", "max_concurrency"), ("num_prompts", "duration")):
        if one in given and other not in given:
            options[other] = DEFAULTS[other] if one == "num_prompts" else []
        if other in given and one not in given:
            options[one] = [] if other == "max_concurrency" else DEFAULTS[one]
    if options["max_concurrency"] and "rates" not in file and "rates" not in given:
        options["rates"] = []
    return {**options, **given}


def _listed(name: str, value: Any) -> Any:
    if not isinstance(DEFAULTS[name], list):
        return value
    return [str(item) for item in (value if isinstance(value, list) else [value])]


def plan_from(options: Mapping[str, Any], targets: list[str]) -> Plan:
    """The plan of merged options. Raises UsageError with the flag that is wrong."""
    if any(word.strip().lower() == "inf" for text in options["rates"] for word in text.split(",")):
        raise UsageError(
            "--rates inf sends everything at once, which measures the number of prompts.",
            "For the most that the deployment takes give a closed loop: --max-concurrency 8,16,32.",
        )
    rates = several(options["rates"], "--rates", positive)
    concurrencies = several(options["max_concurrency"], "--max-concurrency", count)
    if rates and concurrencies:
        raise UsageError(
            "--rates is an open loop and --max-concurrency a closed one.",
            "Give one of them; run the other as a second sweep.",
        )
    if not rates and not concurrencies:
        raise UsageError("no load is given.", "Give --rates 1,2,4 (open loop) or --max-concurrency 8 (closed loop).")
    prompt_lens = several(options["prompt_lens"], "--prompt-lens", count)
    output_lens = several(options["output_len"], "--output-len", count)
    arrivals, burstiness = _arrivals(options)
    num_prompts = None if options["num_prompts"] is None else int(_number(options, "num_prompts", count))
    duration_s = _duration(options, num_prompts)
    vocab_size = int(_number(options, "vocab_size", count))
    if vocab_size <= FIRST_TOKEN_ID + 1:
        raise UsageError(f"--vocab-size must be above {FIRST_TOKEN_ID + 1}: ids are drawn from {FIRST_TOKEN_ID} up.")
    if options["endpoint"] not in ("completions", "chat"):
        raise UsageError(f"--endpoint is completions or chat, not {options['endpoint']!r}.")
    return Plan(
        cells=grid(targets, rates, concurrencies, prompt_lens, output_lens),
        repeats=int(_number(options, "repeats", count)),
        arrivals=arrivals,
        burstiness=burstiness,
        num_prompts=num_prompts,
        duration_s=duration_s,
        seed=_seed(options["seed"]) if options["seed"] is not None else 0,
        prompt_seed=None if options["seed"] is not None else secrets.randbits(63),
        endpoint=options["endpoint"],
        vocab_size=vocab_size,
        ignore_eos=bool(options["ignore_eos"]),
        timeout_s=_time(options, "timeout"),
        goodput_ms=_goodput(options["goodput"]),
        sample_interval_s=_time(options, "sample_interval"),
    )


def _arrivals(options: Mapping[str, Any]) -> tuple[str, float]:
    burstiness = float(options["burstiness"])
    if not burstiness > 0:
        raise UsageError("--burstiness is above 0: 1 is Poisson, below 1 burstier, above 1 smoother.")
    named = options["arrivals"] or (
        "poisson" if burstiness == 1.0 else "gamma" if math.isfinite(burstiness) else "constant"
    )
    if named not in ARRIVALS:
        raise UsageError(f"--arrivals is one of {', '.join(ARRIVALS)}, not {named!r}.")
    if named != "gamma" and burstiness not in (1.0, math.inf):
        raise UsageError(f"--burstiness shapes gamma arrivals, not {named} ones.")
    return named, burstiness if math.isfinite(burstiness) else 1.0


def _duration(options: Mapping[str, Any], num_prompts: int | None) -> float | None:
    if options["duration"] is not None:
        return _time(options, "duration")
    return DEFAULT_DURATION_S if num_prompts is None else None


def _time(options: Mapping[str, Any], name: str) -> float:
    value = seconds(str(options[name]), f"--{name.replace('_', '-')}")
    if value <= 0:
        raise UsageError(f"--{name.replace('_', '-')} must be above 0.")
    return value


def _number(options: Mapping[str, Any], name: str, kind: Any) -> Any:
    try:
        return kind(str(options[name]))
    except ValueError:
        raise UsageError(f"--{name.replace('_', '-')} wants a number above 0, not {options[name]!r}.") from None


def _seed(value: Any) -> int:
    try:
        seed = int(value)
    except (TypeError, ValueError):
        seed = -1
    if seed < 0:
        raise UsageError(f"--seed wants a whole number from 0, not {value!r}.")
    return seed


def _goodput(values: list[str]) -> dict[str, float]:
    slos: dict[str, float] = {}
    for word in several([part for value in values for part in value.split()], "--goodput", str):
        metric, colon, limit = word.partition(":")
        if metric not in SLO_METRICS or not colon:
            raise UsageError(f"--goodput wants METRIC:MILLISECONDS with {', '.join(SLO_METRICS)}, not {word!r}.")
        slos[metric] = several([limit], "--goodput", positive)[0]
    return slos
