"""What a search found, as `capacity` in summary.json and in one sentence; and what it would probe next."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pdbench.report.capacity.measured_probes import Key, Searched, searches
from pdbench.report.capacity.probe import Probe
from pdbench.report.capacity.search import Found, Step, found, is_deciding, next_step, only_overload
from pdbench.report.cell import Measured

KNEE = "knee"


@dataclass(frozen=True, slots=True)
class Outcome:
    """One search, what its probes say, its next step or why it ended, and of all of them the time that would do for
    the next probes, where it was the time that ended them."""

    search: Searched
    found: Found
    next: Step | str
    enough_s: float = 0.0


def outcomes(plan: Mapping[str, Any], cells: Sequence[Measured]) -> list[Outcome]:
    """All searches of a plan. What is left of the time is shared by those that still go on."""
    known = searches(plan, cells)
    left_s = float(plan["search"]["max_duration_s"]) - sum(search.spent_s for search in known)
    wanted = [step for search in known if isinstance(step := next_step(search.probes, float("inf")), Step)]
    share_s = left_s / max(1, len(wanted))
    lacking_s = max((step.requests / step.rate - share_s for step in wanted), default=0.0)
    enough_s = float(plan["search"]["max_duration_s"]) + len(wanted) * max(0.0, lacking_s)
    return [Outcome(search, found(search.probes), next_step(search.probes, share_s), enough_s) for search in known]


def upcoming(plan: Mapping[str, Any], cells: Sequence[Measured]) -> tuple[Key, Step] | None:
    """The next probe of all: of the search that has taken least time so far. None: all are at their end."""
    going = [each for each in outcomes(plan, cells) if isinstance(each.next, Step)]
    if not going:
        return None
    turn = min(going, key=lambda each: each.search.spent_s)
    assert isinstance(turn.next, Step)
    return turn.search.key, turn.next


def capacity_document(plan: Mapping[str, Any], cells: Sequence[Measured]) -> dict[str, Any] | None:
    """`capacity` of summary.json; None for a run that searched for nothing."""
    if not plan.get("search"):
        return None
    found_all = outcomes(plan, cells)
    several = len({each.search.target for each in found_all}) > 1
    limit_s, spent_s = float(plan["search"]["max_duration_s"]), sum(each.search.spent_s for each in found_all)
    return {
        "find": plan["search"]["find"],
        "max_duration_s": plan["search"]["max_duration_s"],
        "spent_s": spent_s,
        "overrun": _overrun(spent_s, limit_s),
        "answers": [_answer(each, str(plan["search"]["find"]), several) for each in found_all],
    }


def _overrun(spent_s: float, limit_s: float) -> str | None:
    """In words, where the search took longer than it was given; a second or so more is the settling of a cell."""
    if spent_s <= 1.02 * limit_s + 1:
        return None
    return (
        f"It took {spent_s:,.0f} s, more than the {limit_s:,.0f} s of --max-duration: a probe is measured to its end."
    )


def _answer(outcome: Outcome, find: str, several: bool) -> dict[str, Any]:
    search, so_far = outcome.search, outcome.found
    state = "unfinished" if isinstance(outcome.next, Step) else outcome.next
    place = ("target", "prompt_len", "output_len", "output_law", "drive")
    return {
        **{name: getattr(search, name) for name in place},
        "slos": [{**slo.document(), "text": slo.text()} for slo in search.slos],
        "state": state,
        "settled": state == "settled",
        "rate": so_far.rate if so_far.bounded else None,  # without an interval it only says where to look next
        "interval": [so_far.low, so_far.high] if so_far.bounded else None,
        "holds": so_far.holds,
        "fails": so_far.fails,
        "no_evidence_from": so_far.limit,
        "said": said(outcome, find, several),
        "probes": [
            {
                "cell": probe.cell,
                "request_rate": probe.rate,
                "requests": probe.requests,
                "values": list(probe.values),
                "ratios": list(probe.ratios),
                "result": "no evidence" if probe.doubt else "holds" if probe.holds else "fails",
                "overloaded": probe.overloaded,
                "deciding": not probe.doubt and is_deciding(probe, search.probes),
                "doubt": probe.doubt,
            }
            for probe in search.probes
        ],
    }


def said(outcome: Outcome, find: str, several: bool) -> str:
    """The answer in a sentence or two, for a reader in a hurry."""
    search = outcome.search
    where = f"{search.target}, " if several else ""
    where += f"{search.prompt_len:,}-token prompts: "
    text = _knee(outcome) if find == KNEE else _capacity(outcome)
    return f"{where}{text}{_why_not_settled(outcome)}"


def _capacity(outcome: Outcome) -> str:
    so_far, slos = outcome.found, " and ".join(slo.text() for slo in outcome.search.slos)
    if so_far.holds is None:
        return _nothing_held(outcome, slos)
    held = f"{_rate(so_far.holds)} req/s holds {slos}"
    if not _held_for_long(outcome):
        held = f"in short probes {_rate(so_far.holds)} req/s stays within {slos}"
    if so_far.fails is None:
        return f"{held}; no higher rate that was asked failed{_limit(outcome)}."
    if so_far.rate is not None and so_far.bounded:
        return (
            f"{_rate(so_far.rate)} req/s ({_rate(so_far.low)} to {_rate(so_far.high)}) holds {slos};"
            f" fails at {_rate(_fails_beyond(outcome))}{_overload(outcome)}."
        )
    return f"{held}; fails at {_rate(so_far.fails)}{_overload(outcome)}."


def _held_for_long(outcome: Outcome) -> bool:
    """Whether a probe long enough to decide held the rate that is said to hold, or a higher one."""
    probes, rate = outcome.search.probes, outcome.found.holds or 0.0
    held = [probe for probe in probes if probe.rate >= rate and probe.holds and not probe.doubt]
    return any(is_deciding(probe, probes) for probe in held)


def _fails_beyond(outcome: Outcome) -> float | None:
    """The lowest rate above the interval that failed: inside it a single probe may do either."""
    so_far = outcome.found
    failed = [probe.rate for probe in outcome.search.probes if not probe.doubt and not probe.holds]
    return min((rate for rate in failed if so_far.high is None or rate > so_far.high), default=so_far.fails)


def _knee(outcome: Outcome) -> str:
    so_far = outcome.found
    if not outcome.search.slos:
        return "no gap between tokens was measured, so no knee can be seen."
    limit = outcome.search.slos[0]
    what = f"p99 ITL passes {limit.limit:,.3g} ms, three times a calm stream's gap"
    if so_far.holds is None:
        return f"no rate was found at which p99 ITL stays below {limit.limit:,.3g} ms, three times a calm stream's gap."
    if so_far.fails is None or only_overload(outcome.search.probes):
        end = "" if so_far.fails is None else f"; at {_rate(so_far.fails)} it no longer keeps up"
        worst = max((p.values[0] or 0.0 for p in outcome.search.probes if p.holds and not p.doubt), default=0.0)
        return f"no knee up to {_rate(so_far.holds)} req/s (p99 ITL at most {worst:,.3g} ms){end}{_limit(outcome)}."
    if so_far.rate is not None and so_far.bounded:
        return f"knee at {_rate(so_far.rate)} req/s ({_rate(so_far.low)} to {_rate(so_far.high)}), where {what}."
    return f"knee between {_rate(so_far.holds)} and {_rate(so_far.fails)} req/s, where {what}."


def _overload(outcome: Outcome) -> str:
    return ", where it no longer keeps up (no SLO is missed before)" if only_overload(outcome.search.probes) else ""


def _nothing_held(outcome: Outcome, slos: str) -> str:
    probes = [probe for probe in outcome.search.probes if not probe.doubt]
    if not probes:
        why = next((probe.doubt for probe in outcome.search.probes), "nothing was measured")
        return f"no probe says what is held ({why})."
    lowest = min(probes, key=lambda probe: probe.rate)
    missed = [
        f"{slo.metric.upper()} {slo.statistic} is {slo.said(value)}"
        for slo, value, ratio in zip(outcome.search.slos, lowest.values, lowest.ratios, strict=True)
        if ratio is not None and ratio > 1
    ]
    below = [probe for probe in outcome.search.probes if probe.doubt and probe.rate < lowest.rate]
    even = "even when requests come nearly alone" if outcome.next == "lowest" else "at the lowest rate that was asked"
    even = "at the lowest rate whose probe is evidence" if below else even
    what = "; ".join(missed) or "it does not keep up"
    return f"{slos} fails {even}, at {_rate(lowest.rate)} req/s: {what}{_discarded(below)}."


def _discarded(below: Sequence[Probe]) -> str:
    """Lower rates were asked, and nobody knows whether they hold."""
    if not below:
        return ""
    lowest = min(below, key=lambda probe: probe.rate)
    are = "a probe says" if len(below) == 1 else f"{len(below)} probes say"
    return f"; below, from {_rate(lowest.rate)} on, {are} nothing of the deployment ({lowest.doubt})"


def _limit(outcome: Outcome) -> str:
    limit = outcome.found.limit
    if limit is None:
        return ""
    doubt = next(probe.doubt for probe in outcome.search.probes if probe.rate == limit and probe.doubt)
    return f", and from {_rate(limit)} on probes say nothing of the deployment ({doubt})"


def _why_not_settled(outcome: Outcome) -> str:
    wanted = "" if outcome.found.bounded else ", and the probes so far are too few or too short for an interval"
    overstated = f"{wanted}; short probes show too high a rate, since queues have no time to grow."
    if isinstance(outcome.next, Step):
        return f" Not settled: the search was interrupted{overstated} pdbench sweep --resume goes on."
    if outcome.next == "budget":
        limit = f"{10 * math.ceil(outcome.enough_s / 10)}s"
        more = f"The next probe takes it to {limit}: pdbench sweep --resume RUN --max-duration {limit}."
        return f" Not settled: --max-duration ended the search{overstated} {more}"
    if outcome.next == "probes":
        return f" Not settled after {len(outcome.search.probes)} probes."
    return ""


def _rate(value: float | None) -> str:
    return "?" if value is None else f"{value:.3g}"


def capacity_said(document: Mapping[str, Any] | None) -> str:
    """All answers in their order; empty without a search."""
    if not document:
        return ""
    return " ".join([*(answer["said"] for answer in document["answers"]), *filter(None, [document.get("overrun")])])


def is_unfinished(document: Mapping[str, Any] | None) -> bool:
    return document is not None and any(answer["state"] == "unfinished" for answer in document["answers"])


def exit_code_of(document: Mapping[str, Any]) -> int:
    """1 when an SLO fails at any rate, 3 when no probe of any search is evidence, else 0."""
    evidence = [[p for p in answer["probes"] if p["result"] != "no evidence"] for answer in document["answers"]]
    if not any(evidence):
        return 3
    missed = any(
        some and answer.get("holds") is None for some, answer in zip(evidence, document["answers"], strict=True)
    )
    return 1 if missed and document["find"] != KNEE else 0
