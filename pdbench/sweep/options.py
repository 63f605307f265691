"""From flags and the file's defaults to a Plan. Flags win over the file, the file over the defaults here."""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pdbench.errors import UsageError
from pdbench.quantities import count, milliseconds, seconds, several
from pdbench.sweep.lengths import Law, law, laws, the_trace
from pdbench.sweep.load_options import LOADS, OF_LOAD, WITH_CLASSES, Load, flag, load_of
from pdbench.sweep.plan import DEFAULT_DURATION_S, Plan, grid
from pdbench.sweep.search_options import FINDS, FIRST_RATE, FIRST_REQUESTS, OF_SEARCH, search_of, too_short

DEFAULTS: dict[str, Any] = {
    "rates": [],
    "max_concurrency": [],
    "ramp": None,
    "ramp_up_strategy": None,
    "steps": [],
    "trace": None,
    "speed": [],
    "sessions": [],
    "turns": None,
    "think_time": None,
    "classes": [],
    "prompt_lens": [],
    "output_len": [],
    "prefix_len": None,
    "num_prefixes": None,
    "num_prompts": None,
    "duration": None,
    "burstiness": 1.0,
    "arrivals": None,
    "seed": None,
    "drive": [],
    "pass_token_ids": True,
    "endpoint": None,
    "vocab_size": 4000,
    "ignore_eos": True,
    "timeout": "600s",
    "goodput": [],
    "find_capacity": False,
    "find_knee": False,
    "slo": [],
    "max_duration": None,
    "repeats": 1,
    "sample_interval": "500ms",
    "connections": "fresh",
}
DEFAULT_RATES = ["1", "2", "4", "8"]
DEFAULT_PROMPT_LENS = [1024, 16384]
DEFAULT_TURN_LEN = 512  # of each message in a session
DEFAULT_OUTPUT_LEN = 128
SLO_METRICS = ("ttft", "tpot", "itl", "e2el")
ARRIVALS = ("poisson", "gamma", "constant")
DRIVE_NAMES = ("proxy", "two-hop", "sidecar", "render", "render-only")
CONNECTIONS = ("fresh", "pool")
FIRST_TOKEN_ID = 256
OF_A_TRACE = ("prompt_lens", "output_len", "prefix_len", "num_prefixes", "arrivals", "burstiness")  # it brings its own


def merged(flags: Mapping[str, Any], file: Mapping[str, Any], where: str) -> dict[str, Any]:
    """One value for each option. Raises UsageError for a key of the file's [sweep] table that is no option."""
    unknown = sorted(set(file) - set(DEFAULTS))
    if unknown:
        raise UsageError(f"{where}: unknown key sweep.{unknown[0]}.", f"Known are: {', '.join(sorted(DEFAULTS))}.")
    options = {name: _listed(name, value) for name, value in {**DEFAULTS, **file}.items()}
    given = {name: value for name, value in flags.items() if value is not None and value != []}
    # A flag that chooses the load or the length of a cell takes the place of what the file said about it.
    replaced: set[str] = set()
    if given.keys() & set(FINDS):
        replaced |= {*LOADS, *OF_LOAD, "classes", "num_prompts", "duration", "repeats"}
    if given.keys() & {*LOADS, "classes"}:
        replaced |= {*FINDS, *OF_SEARCH}
        replaced |= {*LOADS, *OF_LOAD} | (set() if given.keys() & set(WITH_CLASSES) else {"classes"})
        replaced |= set(OF_A_TRACE) if "trace" in given else set()
    if given.keys() & {"num_prompts", "duration"}:
        replaced |= {"num_prompts", "duration"}
    options |= {name: DEFAULTS[name] for name in replaced}
    options |= given
    return (
        options if any(options[name] for name in (*LOADS, "classes", *FINDS)) else {**options, "rates": DEFAULT_RATES}
    )


def _listed(name: str, value: Any) -> Any:
    if not isinstance(DEFAULTS[name], list):
        return value
    return [str(item) for item in (value if isinstance(value, list) else [value])]


def plan_from(options: Mapping[str, Any], targets: list[str]) -> Plan:
    """The plan of merged options. Raises UsageError with the flag that is wrong."""
    arrivals, burstiness = _arrivals(options)
    num_prompts = None if options["num_prompts"] is None else int(_number(options, "num_prompts", count))
    duration_s = _duration(options, num_prompts)
    search = search_of(options)
    load = Load((FIRST_RATE,)) if search else load_of(options, num_prompts, duration_s)
    prompt_lens, output_lens = _lengths(options, load, num_prompts)
    vocab_size = int(_number(options, "vocab_size", count))
    if vocab_size <= FIRST_TOKEN_ID + 1:
        raise UsageError(f"--vocab-size must be above {FIRST_TOKEN_ID + 1}: ids are drawn from {FIRST_TOKEN_ID} up.")
    drives = several(options["drive"], "--drive", str) or ["proxy"]
    if unknown := [name for name in drives if name not in DRIVE_NAMES]:
        raise UsageError(f"--drive is one or more of {', '.join(DRIVE_NAMES)}, not {unknown[0]!r}.")
    cells = grid(targets, load.rates, load.streams, prompt_lens, output_lens, load.speeds, drives)
    cells = tuple(replace(cell, requests=FIRST_REQUESTS) for cell in cells) if search else cells
    prefix_len, num_prefixes = _prefixes(options, load, [cell.prompt_len for cell in cells])
    if options["connections"] not in CONNECTIONS:
        raise UsageError(f"--connections is one of {', '.join(CONNECTIONS)}, not {options['connections']!r}.")
    return Plan(
        cells=cells,
        repeats=int(_number(options, "repeats", count)),
        arrivals="trace" if load.trace else arrivals,
        burstiness=burstiness,
        num_prompts=num_prompts,
        duration_s=None if search else math.fsum(s.duration_s for s in load.stages) if load.stages else duration_s,
        seed=_seed(options["seed"]) if options["seed"] is not None else 0,
        prompt_seed=None if options["seed"] is not None else secrets.randbits(63),
        endpoint=_endpoint(options, load),
        vocab_size=vocab_size,
        ignore_eos=bool(options["ignore_eos"]),
        timeout_s=_time(options, "timeout"),
        goodput_ms=_goodput(options["goodput"]),
        sample_interval_s=_time(options, "sample_interval"),
        stages=load.stages,
        classes=load.classes,
        trace=load.trace,
        session_turns=load.turns,
        think_s=load.think_s,
        digests=_digests(load, output_lens),
        prefix_len=prefix_len,
        num_prefixes=num_prefixes,
        notes=(*_left_out(load), *too_short(search, cells)),
        pass_token_ids=bool(options["pass_token_ids"]),
        connections=options["connections"],
        search=search,
    )


def _lengths(options: Mapping[str, Any], load: Load, num_prompts: int | None) -> tuple[list[int], list[Law]]:
    """Prompt lengths and laws of answers over which the grid goes; means, where the load brings its own."""
    if load.trace:
        requests = the_trace(Path(load.trace)).requests[:num_prompts]
        prompts, outputs = ([getattr(each, name) for each in requests] for name in ("prompt_tokens", "output_tokens"))
        return [_mean(prompts, [1] * len(prompts))], [Law(_mean(outputs, [1] * len(outputs)))]
    prompt_lens = several(options["prompt_lens"], "--prompt-lens", count)
    output_lens = laws(options["output_len"])
    rates = [each.rate for each in load.classes]
    if load.classes:
        if output_lens:
            raise UsageError("--output-len does not go with --class: each class names its answers.")
        output_lens = [Law(_mean([law(each.output_law).mean for each in load.classes], rates))]
        own = [each.prompt_len for each in load.classes if each.prompt_len is not None]
        if len(own) == len(load.classes):
            if prompt_lens:
                raise UsageError("--prompt-lens does not go with classes that all name their prompts.")
            prompt_lens = [_mean(own, rates)]
    default = [DEFAULT_TURN_LEN] if load.turns else DEFAULT_PROMPT_LENS
    return prompt_lens or default, output_lens or [Law(DEFAULT_OUTPUT_LEN)]


def _mean(values: Sequence[float], weights: Sequence[float]) -> int:
    return max(1, round(math.fsum(v * w for v, w in zip(values, weights, strict=True)) / math.fsum(weights)))


def _endpoint(options: Mapping[str, Any], load: Load) -> str:
    endpoint = options["endpoint"] or ("chat" if load.turns else "completions")
    if endpoint not in ("completions", "chat"):
        raise UsageError(f"--endpoint is completions or chat, not {endpoint!r}.")
    if load.turns and endpoint != "chat":
        raise UsageError("--sessions are chats: they need --endpoint chat.")
    return str(endpoint)


def _prefixes(options: Mapping[str, Any], load: Load, prompt_lens: Sequence[int]) -> tuple[int, int]:
    """Length and number of the shared beginnings of prompts; every prompt must be longer than its own."""
    if options["prefix_len"] is None:
        if options["num_prefixes"] is not None:
            raise UsageError("--num-prefixes goes with --prefix-len.", "Such as --prefix-len 512 --num-prefixes 4.")
        return 0, 1
    prefix_len = int(_number(options, "prefix_len", count))
    own = [each.prompt_len for each in load.classes]
    shortest = min([*(n for n in own if n is not None), *(prompt_lens if None in own or not own else ())])
    if prefix_len >= shortest:
        raise UsageError(
            f"--prefix-len {prefix_len} leaves nothing of its own to a prompt of {shortest} tokens.",
            "The prefix is a part of the prompt: choose longer prompts or a shorter prefix.",
        )
    return prefix_len, 1 if options["num_prefixes"] is None else int(_number(options, "num_prefixes", count))


def _left_out(load: Load) -> tuple[str, ...]:
    left_out = the_trace(Path(load.trace)).left_out if load.trace else 0
    return (f"{left_out:,} requests of the trace have no prompt or no answer and were left out.",) if left_out else ()


def _digests(load: Load, output_lens: Sequence[Law]) -> dict[str, str]:
    """What the traces held that the plan rests on, by their paths."""
    texts = [each.text for each in output_lens] + [each.output_law for each in load.classes]
    paths = {text.removeprefix("trace:") for text in texts if text.startswith("trace:")} | {load.trace or ""}
    return {path: the_trace(Path(path)).digest for path in sorted(paths) if path}


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
    return DEFAULT_DURATION_S if num_prompts is None and not options["trace"] else None


def _time(options: Mapping[str, Any], name: str) -> float:
    value = seconds(str(options[name]), flag(name))
    if value <= 0:
        raise UsageError(f"{flag(name)} must be above 0.")
    return value


def _number(options: Mapping[str, Any], name: str, kind: Any) -> Any:
    try:
        return kind(str(options[name]))
    except ValueError:
        raise UsageError(f"{flag(name)} wants a number above 0, not {options[name]!r}.") from None


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
            raise UsageError(
                f"--goodput wants METRIC:LIMIT with {', '.join(SLO_METRICS)}, not {word!r}.",
                "Such as ttft:2000 or ttft:2s.",
            )
        slos[metric] = milliseconds(limit, "--goodput")
    return slos
