"""Which load do the options name? Rates, streams, a ramp, steps, a trace or sessions: one of them, with its own."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pdbench.errors import UsageError
from pdbench.quantities import count, positive, seconds, several
from pdbench.sweep import stages as over_time
from pdbench.sweep.classes import TrafficClass, classes_of
from pdbench.sweep.lengths import the_trace
from pdbench.sweep.stages import Stage

LOADS = ("rates", "max_concurrency", "ramp", "steps", "trace", "sessions")
WITH_CLASSES = ("rates", "ramp", "steps")
# What belongs to one load only.
OF_LOAD = {"speed": "trace", "turns": "sessions", "think_time": "sessions", "ramp_up_strategy": "ramp"}
DEFAULT_TURNS = 5
DEFAULT_THINK_S = 1.0


@dataclass(frozen=True, slots=True)
class Load:
    """What drives the cells: their rates or streams, and how a cell's own requests differ."""

    rates: tuple[float, ...] = ()
    streams: tuple[int, ...] = ()
    speeds: tuple[float, ...] = ()
    stages: tuple[Stage, ...] = ()
    classes: tuple[TrafficClass, ...] = ()
    trace: str | None = None
    turns: int | None = None
    think_s: float = 0.0


def flag(name: str) -> str:
    return "--class" if name == "classes" else f"--{name.replace('_', '-')}"


def load_of(options: Mapping[str, Any], num_prompts: int | None, duration_s: float | None) -> Load:
    """The load of merged options. Raises UsageError with the flag that is wrong."""
    named = [name for name in LOADS if options[name]]
    if len(named) > 1:
        raise UsageError(
            f"{flag(named[0])} and {flag(named[1])} are two loads.",
            "Give one of them; run the other as a second sweep.",
        )
    load = named[0] if named else None
    for name, owner in OF_LOAD.items():
        if options[name] and load != owner:
            raise UsageError(f"{flag(name)} goes with {flag(owner)}.")
    classes = classes_of(options["classes"])
    if classes and load not in (None, *WITH_CLASSES):
        raise UsageError(f"--class is an open loop of its own and does not go with {flag(load or '')}.")
    if load is None and not classes:
        raise UsageError("no load is given.", "Give --rates 1,2,4 (open loop) or --max-concurrency 8 (closed loop).")
    match load:
        case "trace":
            return _trace(options, num_prompts, duration_s)
        case "ramp" | "steps":
            made = _stages(options, num_prompts, duration_s)
            return Load((round(over_time.mean_rate(made), 9),), stages=made, classes=classes)
        case "sessions":
            return _sessions(options)
        case "max_concurrency":
            return Load(streams=tuple(several(options["max_concurrency"], "--max-concurrency", count)))
    return Load(_rates(options["rates"]) or (math.fsum(each.rate for each in classes),), classes=classes)


def _rates(texts: Sequence[str]) -> tuple[float, ...]:
    if any(word.strip().lower() == "inf" for text in texts for word in text.split(",")):
        raise UsageError(
            "--rates inf sends everything at once, which measures the number of prompts.",
            "For the most that the deployment takes give a closed loop: --max-concurrency 8,16,32.",
        )
    return tuple(several(texts, "--rates", positive))


def _stages(options: Mapping[str, Any], num_prompts: int | None, duration_s: float | None) -> tuple[Stage, ...]:
    """A ramp or steps over the duration, or over the time that the requests take on average."""
    if options["steps"]:
        # Equal steps stay: 2,4,2 goes up and down again.
        words = [word for text in options["steps"] for word in text.split(",") if word.strip()]
        return over_time.steps([several([word], "--steps", positive)[0] for word in words], duration_s, num_prompts)
    strategy = options["ramp_up_strategy"] or "linear"
    if strategy not in over_time.STRATEGIES:
        raise UsageError(f"--ramp-up-strategy is {' or '.join(over_time.STRATEGIES)}, not {strategy!r}.")
    try:
        start, end = (float(word) for word in str(options["ramp"]).split(":"))
        if not (start >= 0 and end >= 0 and math.isfinite(start + end) and start + end > 0):
            raise ValueError
    except ValueError:
        raise UsageError(f"--ramp wants START:END in requests/s, not {options['ramp']!r}.", "Such as 1:8.") from None
    return over_time.ramp(start, end, strategy, duration_s, num_prompts)


def _trace(options: Mapping[str, Any], num_prompts: int | None, duration_s: float | None) -> Load:
    """A trace at each speed; the rate of each is that of the part that is replayed."""
    for name in ("prompt_lens", "output_len", "prefix_len"):
        if options[name]:
            raise UsageError(f"{flag(name)} does not go with --trace: the trace has its own prompts and answers.")
    if options["arrivals"] or float(options["burstiness"]) != 1.0:
        raise UsageError("--arrivals and --burstiness do not go with --trace: it has its own arrivals.")
    path = Path(str(options["trace"])).absolute()
    requests = the_trace(path).requests[:num_prompts]
    speeds = tuple(several(options["speed"] or ["1"], "--speed", positive))
    rates = []
    for speed in speeds:
        end_s = math.inf if duration_s is None else duration_s * speed
        inside = [request.at_s for request in requests if request.at_s < end_s]
        lasts_s = inside[-1] if len(inside) == len(requests) else end_s  # where it goes on, the cell ends in its midst
        if len(inside) < 2 or lasts_s <= 0:
            raise UsageError(f"--trace {path}: {len(inside)} requests at one time have no rate.", "Take more of it.")
        rates.append(round(len(inside) / lasts_s * speed, 9))
    return Load(tuple(rates), speeds=speeds, trace=str(path))


def _sessions(options: Mapping[str, Any]) -> Load:
    sessions = several(options["sessions"], "--sessions", count)
    turns = DEFAULT_TURNS if options["turns"] is None else several([str(options["turns"])], "--turns", count)[0]
    think = options["think_time"]
    think_s = DEFAULT_THINK_S if think is None else seconds(str(think), "--think-time")
    return Load(streams=tuple(sessions), turns=turns, think_s=think_s)
