"""A history in words, the same in every view."""

from __future__ import annotations

from collections.abc import Iterator

from pdbench.report import facts, wording
from pdbench.report.compare.explain import measured_on
from pdbench.report.compare.said import metric_name, signed, unit
from pdbench.report.compare.sides import Side
from pdbench.report.history.change_points import FEWEST_RUNS, SEGMENT
from pdbench.report.history.story import Drift, Event, History, Shift
from pdbench.report.wording import clean, number

MISSING = {"git": "the git commit (PDBENCH_REVISION, or CI's own variable)", "driver": "the GPU driver of this host"}
VERSION = "the engine's version"
TELLING_MEMORY = 0.2


def run_name(run: Side) -> str:
    """`2026-11-12 03:40 a1b2c3d runs/x`: when, which commit, where."""
    commit = str(run.summary.get("revision") or "")
    short = commit[:9] + ("-dirty" if commit.endswith("-dirty") else "")
    return " ".join(filter(None, [measured_on(run), clean(short, 20), clean(run.path.name, 40)]))


def shift_sentence(shift: Shift) -> str:
    each = shift.series
    values = f"{number(shift.before)} -> {number(shift.after)} {unit(each.metric)}".rstrip()
    return f"{each.cell}: {metric_name(each.metric)} {values}, {signed(shift.change)}"


def event_sentence(history: History, event: Event) -> str:
    return f"between {run_name(history.runs[event.at - 1])} and {run_name(history.runs[event.at])}"


def differs(event: Event) -> str:
    told = "; ".join(f"{fact.name}: {fact.base} -> {fact.new}" for fact in event.differs)
    return told or "nothing that the runs tell"


def capacity(history: History) -> str:
    """Whose capacity it is, as far as the newest run tells: `Capacity by slots of the pull deployment`."""
    deployments = history.runs[-1].summary.get("deployments") or []
    modes = list(dict.fromkeys(clean(found["mode"], 20) for found in deployments if found.get("mode")))
    plural = "s" if len(modes) > 1 else ""
    return "Capacity by slots" + (f" of the {' and '.join(modes)} deployment{plural}" if modes else "")


def drift_sentence(history: History, drift: Drift) -> str:
    known = [value for value in drift.values if value is not None]
    most = "" if drift.below_qps is None else "at most "
    fill = "req/s fill the slots"
    if drift.below_qps is not None:
        fill += f" (at the TPOT of {number(drift.below_qps)} req/s; that of full slots is longer)"
    if drift.per_run is None:
        return f"{drift.shape}: {most}{number(known[-1])} {fill}; a trend takes {FEWEST_RUNS} runs"
    total = drift.per_run * (len(known) - 1)
    if not drift.sure:
        return f"{drift.shape}: {most}{number(known[-1])} {fill}; no trend"
    return (
        f"{drift.shape}: {most}{number(known[0])} -> {number(known[-1])} {fill}, {signed(total)} over {len(known)} runs"
    )


def doubts(history: History) -> Iterator[str]:
    """What to keep in mind of the changes: runs that resemble their neighbours, and what the runs do not tell."""
    if history.memory >= TELLING_MEMORY and not history.too_short:
        yield (
            f"runs resemble their neighbours ({history.memory:.0%} of what is odd in one is in the next): only larger "
            "changes are told from that, and a change may still be weather; quieter runs or more repeats a run help"
        )
    yield from missing(history)


def missing(history: History) -> Iterator[str]:
    """What the runs do not tell of themselves, so that a change cannot be laid to it."""
    told = [facts.flat(run.summary, run.target) for run in history.runs]
    for name, what in MISSING.items():
        without = sum(name not in each for each in told)
        if without:
            yield f"{without} of {len(told)} runs do not tell {what}"
    without = sum(not any("version" in key or "/" in key for key in each) for each in told)
    if without:
        yield f"{without} of {len(told)} runs do not tell {VERSION}"


def verdict(history: History) -> str:
    size = f"{wording.counted(len(history.runs), 'run')}, {len(history.series):,} series"
    if history.too_short:
        return f"{size}: too few to tell a change from noise, which takes {FEWEST_RUNS} runs."
    if not history.events:
        return f"{size}: no change of {history.effect:.0%} or more that lasted {SEGMENT} runs."
    newest = history.events[-1]
    first = newest.shifts[0]
    more = f" and {len(newest.shifts) - 1} more series" if len(newest.shifts) > 1 else ""
    word = "worse" if first.worse else "better"
    where = event_sentence(history, newest)
    changes = wording.counted(len(history.events), "change")
    return f"{changes}; the newest is for the {word}: {shift_sentence(first)}{more}, {where}."
