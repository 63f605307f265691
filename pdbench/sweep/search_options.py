"""What does a search look for? From `--find-capacity --slo ...` or `--find-knee` to the plan's `search`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from pdbench.errors import UsageError
from pdbench.quantities import milliseconds, seconds
from pdbench.sweep.plan import Cell

FINDS = ("find_capacity", "find_knee")
OF_SEARCH = ("slo", "max_duration")
METRICS = ("ttft", "tpot", "itl", "e2el")
OF_GAPS = ("tpot", "itl")  # one token has none
HIGHEST = 99.9  # percentile: one beyond takes more requests than any search sends
DEFAULT_MAX_DURATION = "1h"
FIRST_RATE, FIRST_REQUESTS = 1.0, 40  # of every search: low, and enough for a first look
_RIVALS = {  # what a search chooses by itself, or cannot use
    "rates": "the search chooses the rates",
    "max_concurrency": "a closed loop lowers its own rate, so only an open loop has a capacity",
    "ramp": "a search asks one rate at a time",
    "steps": "a search asks one rate at a time",
    "trace": "a trace has its own rate",
    "sessions": "sessions are a closed loop",
    "classes": "classes name their rates",
    "turns": "sessions are a closed loop",
    "think_time": "sessions are a closed loop",
    "speed": "a trace has its own rate",
    "ramp_up_strategy": "a search asks one rate at a time",
    "num_prompts": "the search chooses how long each probe is",
    "duration": "the search chooses how long each probe is; --max-duration bounds the whole search",
}
_SHAPE = re.compile(r"(?P<metric>[a-z0-9]+):(?P<statistic>mean|median|p\d{1,2}(?:\.\d+)?):(?P<limit>.+)")


def search_of(options: Mapping[str, Any]) -> dict[str, Any] | None:
    """`{"find", "slos", "max_duration_s"}`; None where nothing is searched for. Raises UsageError."""
    named = [name for name in FINDS if options[name]]
    if not named:
        if options["slo"]:
            raise UsageError("--slo goes with --find-capacity.", "To count what meets SLOs at given rates: --goodput.")
        if options["max_duration"]:
            raise UsageError(
                "--max-duration goes with --find-capacity and --find-knee.", "A cell's length: --duration."
            )
        return None
    flag = f"--{named[0].replace('_', '-')}"
    if len(named) > 1:
        raise UsageError("--find-capacity and --find-knee are two searches.", "Run one after the other.")
    for name, why in _RIVALS.items():
        if options[name]:
            spelled = "--class" if name == "classes" else f"--{name.replace('_', '-')}"
            raise UsageError(f"{spelled} does not go with {flag}: {why}.")
    if int(options["repeats"]) > 1:
        raise UsageError(f"--repeats does not go with {flag}: the search probes until it is sure.")
    knee = named[0] == "find_knee"
    if knee and options["slo"]:
        raise UsageError("--slo goes with --find-capacity; a knee is where p99 ITL leaves that of a low load.")
    slos = [] if knee else _slos(options["slo"], options["goodput"])
    if not knee and not slos:
        raise UsageError("--find-capacity needs what must hold.", "Such as --slo ttft:p99:500ms --slo tpot:mean:30ms.")
    of_gaps = [] if not knee else ["p99 ITL"]
    of_gaps += [slo["metric"].upper() for slo in slos if slo["metric"] in OF_GAPS]
    of_gaps += [word for word in options["goodput"] if slos and word.partition(":")[0] in OF_GAPS]
    if of_gaps and "1" in re.split(r"[,\s]+", " ".join(options["output_len"])):
        raise UsageError(
            f"{of_gaps[0]} has no value with --output-len 1: one token has no gap.", "Ask for two or more."
        )
    limit_s = seconds(str(options["max_duration"] or DEFAULT_MAX_DURATION), "--max-duration")
    if limit_s <= 0:
        raise UsageError("--max-duration must be above 0.")
    return {"find": "knee" if knee else "capacity", "slos": slos, "max_duration_s": limit_s}


def too_short(search: Mapping[str, Any] | None, cells: Sequence[Cell]) -> list[str]:
    """What to know before a search begins that cannot end within its time: its first probes alone take longer."""
    first_s = len(cells) * FIRST_REQUESTS / FIRST_RATE
    if search is None or first_s <= search["max_duration_s"]:
        return []
    of = "the first probe" if len(cells) == 1 else f"the first probes of {len(cells)} searches"
    take = "takes" if len(cells) == 1 else "take"
    return [
        f"--max-duration {search['max_duration_s']:g} s is too short for an answer: {of}, made in any case, "
        f"alone {take} about {first_s:.0f} s. A search takes minutes, a p99 near capacity an hour (docs/capacity.md)."
    ]


def _slos(texts: Sequence[str], goodput: Sequence[str]) -> list[dict[str, Any]]:
    words = [word for text in texts for word in re.split(r"[,\s]+", text) if word]
    found = [_slo(word, bool(goodput)) for word in dict.fromkeys(words)]
    if sum(slo["metric"] == "attained" for slo in found) > 1:
        raise UsageError("--slo attained:... is given twice.", "The higher share holds the lower one too.")
    return found


def _slo(word: str, has_goodput: bool) -> dict[str, Any]:
    if word.startswith("attained:"):
        return _attained(word, has_goodput)
    match = _SHAPE.fullmatch(word.lower())
    if match is None or match["metric"] not in METRICS:
        raise UsageError(
            f"--slo wants METRIC:STATISTIC:LIMIT with {', '.join(METRICS)} and mean or a percentile, not {word!r}.",
            "Such as ttft:p99:500ms, tpot:mean:30ms, or attained:95% with --goodput.",
        )
    limit_ms = milliseconds(match["limit"], "--slo")
    statistic = "p50" if match["statistic"] == "median" else match["statistic"]
    if statistic != "mean" and not 0 < float(statistic[1:]) <= HIGHEST:
        raise UsageError(f"--slo {word}: a percentile is above p0 and at most p{HIGHEST:g}.")
    return {"metric": match["metric"], "statistic": statistic, "limit": round(limit_ms, 6)}


def _attained(word: str, has_goodput: bool) -> dict[str, Any]:
    share = re.fullmatch(r"attained:(\d{1,2}(?:\.\d+)?)%", word)
    if share is None or float(share[1]) == 0:
        raise UsageError(f"--slo {word}: attained takes a share above 0% and below 100%.", "Such as attained:95%.")
    if not has_goodput:
        raise UsageError("--slo attained:... needs --goodput: it is the share of requests that meet those SLOs.")
    return {"metric": "attained", "statistic": "", "limit": round(float(share[1]) / 100, 9)}
