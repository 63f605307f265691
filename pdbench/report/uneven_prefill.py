"""Is one prefill server slow a prompt, or sent more prompts than it computes, while others of its role have room?

Over all of them prefill then has time to spare, and only the requests of that server wait. A server is called slow only
where it computes no more prompts than another, and none that are longer: those share its time, or take more of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from pdbench.report.cell import Measured
from pdbench.report.one_full import RISE, ROOM
from pdbench.report.prefix import prefix_hits
from pdbench.report.slow_server import AS_LONG, AS_MANY, SLOWER
from pdbench.report.window import Page, Segment
from pdbench.report.wording import number, two_digits

OVER = 1.05  # of a server's time that its prompts take: no steady state exists, as with slots
SURE_OVER = 1.0  # the lower end of that, since a server is sent more than its share by chance
ONE_SIDED = 1.645  # standard errors of 95 %
FEW_PROMPTS = 5  # in half of the sending: below, a mean says nothing of a server
WAITED = 1.0  # requests that waited there on average over the second half of sending, at least


@dataclass(frozen=True, slots=True)
class Worked:
    """One prefill server in one repeat. `load`: of its time, what all prompts that it was sent take to compute, and
    `load_low` the lower end of that in the long run (prompts of varied length that come as they like); in each half of
    sending the time a prompt (`None` with too few of them) and how many requests waited."""

    server: str
    prompts: float
    spent_s: float
    load: float
    load_low: float
    halves_ms: tuple[float | None, float | None]
    waited: tuple[float, float]

    @property
    def overloaded(self) -> bool:
        first, second = self.waited
        return self.load >= OVER and self.load_low >= SURE_OVER and second >= max(WAITED, RISE * first)


@dataclass(frozen=True, slots=True)
class SlowPrefill:
    """`others_ms`: the quickest and the slowest of the others; `excess`: the part of all servers' time to compute
    prompts that there would not be if it were as fast as the slowest other."""

    server: str
    prompt_ms: float
    others_ms: tuple[float, float]
    excess: float

    def text(self) -> str:
        low, high = (number(ms) for ms in self.others_ms)
        return (
            f"{self.server} is slow: {number(self.prompt_ms)} ms a prompt where the others take"
            f" {low if low == high else f'{low} to {high}'} and compute as many or more"
        )

    def advice(self) -> str:
        return (
            f"Find out why {self.server} is slow before adding instances, of which the others have time to spare:"
            " compare its GPU's clocks, what else runs there, and its flags with theirs. If it must stay as it is, send"
            " it fewer requests."
        )

    def confirm(self) -> str:
        return f"With {self.server} as fast as the others no request waits there for longer than at them."


def one_prefill_overloaded(cell: Measured) -> str | None:
    """The server whose queue grows beside one with time to spare, in words."""
    for segment in cell.window.segments:
        servers = list(_servers(segment, _varied(cell)))
        room = min((each for each in servers if each.load <= ROOM), key=lambda each: each.load, default=None)
        full = max((each for each in servers if each.overloaded), key=lambda each: each.waited[1], default=None)
        if room is not None and full is not None:
            first, second = full.waited
            sent = full.prompts / (segment.send_end - segment.start)
            return (
                f"{full.server} alone is overloaded: it was sent {two_digits(sent)} req/s and computes"
                f" {two_digits(sent / full.load)};"
                f" on average {second:,.0f} requests waited there in the second half of sending, {first:,.0f} in the"
                f" first, while {room.server} computed for {room.load:.0%} of the time"
            )
    return None


def slow_prefill(cell: Measured) -> SlowPrefill | None:
    """The one prefill server that is slow; `None` where that is not sure."""
    seen = [{each.server: each for each in _servers(segment, _varied(cell))} for segment in cell.window.segments]
    names = set(seen[0]) if seen else set()
    halves = [{name: of[name].halves_ms[k] for name in of} for of in seen for k in (0, 1)]
    if len(names) < max(2, cell.servers("prefill")) or any(set(of) != names for of in seen):
        return None
    if any(ms is None for half in halves for ms in half.values()):
        return None
    prompts = {name: sum(of[name].prompts for of in seen) for name in names}
    spent = {name: 1000 * sum(of[name].spent_s for of in seen) for name in names}
    mean = {name: spent[name] / prompts[name] for name in names}
    slowest = max(names, key=lambda name: mean[name])
    others = names - {slowest}
    if any((half[slowest] or 0.0) < SLOWER * (half[other] or 0.0) for half in halves for other in others):
        return None
    if prompts[slowest] > AS_MANY * max(prompts[other] for other in others) or _longer(cell, slowest, others):
        return None
    if any(of[other].load > ROOM for of in seen for other in others):
        return None
    paces = [mean[other] for other in others]
    excess = prompts[slowest] * (mean[slowest] - max(paces)) / sum(spent.values())
    return SlowPrefill(slowest, mean[slowest], (min(paces), max(paces)), excess)


def _varied(cell: Measured) -> float:
    """E[tokens^2] / E[tokens]^2 of the prompts: 1 where all have one length."""
    tokens = cell.answers.prompt_tokens[np.isfinite(cell.answers.prompt_tokens)]
    mean = float(tokens.mean()) if len(tokens) else 0.0
    return float((tokens**2).mean()) / mean**2 if mean > 0 else 1.0


def _servers(segment: Segment, varied: float) -> Iterator[Worked]:
    """Those whose pages tell how long they computed. Prompts that are computed together share the server's time."""
    start, end = segment.start, segment.send_end
    for page in segment.pages:
        prompts, spent_s = (_delta(page, kind) for kind in ("count", "sum"))
        if page.role != "prefill" or "prefill_s" in page.resets or not prompts or not spent_s or end <= start:
            continue
        middle = (start + end) / 2
        running, together = _mean(page, "running", start, end), 1.0
        if running is not None:
            together = max(1.0, running)
        waited = [_mean(page, "waiting", *half) or 0.0 for half in pairwise((start, middle, end))]
        halves = [_pace_ms(page, *half) for half in pairwise((start, middle, end))]
        load = spent_s / together / (end - start)
        low = load * (1 - ONE_SIDED * (varied / prompts) ** 0.5)  # work that comes as a compound Poisson process
        yield Worked(page.server, prompts, spent_s, load, low, (halves[0], halves[1]), (waited[0], waited[1]))


def _delta(page: Page, kind: str) -> float:
    return sum(value for key, value in page.deltas.items() if key.canonical == "prefill_s" and key.kind == kind)


def _pace_ms(page: Page, start: float, end: float) -> float | None:
    """Time a prompt that ended from `start` to `end`."""
    rise: Mapping[str, float] = {
        kind: sum(
            float(np.diff(np.interp([start, end], series.t, series.value))[0])
            for key, series in page.series.items()
            if key.canonical == "prefill_s" and key.kind == kind
        )
        for kind in ("count", "sum")
    }
    return 1000 * rise["sum"] / rise["count"] if rise["count"] >= FEW_PROMPTS else None


def _mean(page: Page, canonical: str, start: float, end: float) -> float | None:
    """Of a gauge, all ranks of the server together."""
    areas = [
        gauge.integral(start, end)
        for key, gauge in page.series.items()
        if key.kind == "gauge" and key.canonical == canonical and len(gauge.t)
    ]
    return sum(areas) / (end - start) if areas else None


def _longer(cell: Measured, slowest: str, others: set[str]) -> bool:
    """Whether it computes more tokens a prompt than all others, as far as the pages tell: theirs may be longer, or
    fewer of them in the prefix cache."""

    def computed(name: str) -> float | None:
        tokens = cell.window.delta("prefill", "prompt_tokens", server=name)
        prompts = cell.window.delta("prefill", "prefill_s", "count", server=name)
        if tokens is None or not prompts:
            return None
        return tokens / prompts * (1 - (prefix_hits(cell, "prefill", server=name) or 0.0))

    own, theirs = computed(slowest), [tokens for name in others if (tokens := computed(name)) is not None]
    return own is not None and bool(theirs) and own > AS_LONG * max(theirs)
