"""One cell as measured: what was planned, what the client saw and what the pages said, of one repeat or of several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from pdbench.report.answers import Answers, Load, latencies, pooled
from pdbench.report.steady_state import Steadiness, judge
from pdbench.report.turns import Turns, turns_of
from pdbench.report.whole_pages import TURNS, Doubt
from pdbench.report.window import LOG_SUFFIX, Segment, Window

PULL, PUSH, COLOCATED = "pull", "push", "colocated"


@dataclass(frozen=True, slots=True)
class Part:
    """One repeat of a cell."""

    repeat: int
    entry: Mapping[str, Any]  # of run.json's cell_runs
    load: Load
    segment: Segment
    doubts: tuple[Doubt, ...] = ()  # of its pages

    @property
    def client(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.entry.get("client") or {}
        return found


@dataclass(frozen=True, eq=False)
class Measured:
    """A cell with the repeats that are judged together. What is asked of it often is reckoned once.

    `window` lacks the pages of roles in doubt; `as_read` has them."""

    plan: Mapping[str, Any]
    cell: Mapping[str, Any]  # of the plan's cells
    deployment: Mapping[str, Any]
    parts: Sequence[Part]
    answers: Answers
    window: Window

    @property
    def rate(self) -> float | None:
        """Asked requests/s of an open loop."""
        value = self.cell.get("request_rate")
        return None if value is None else float(value)

    @property
    def streams(self) -> int | None:
        value = self.cell.get("max_concurrency")
        return None if value is None else int(value)

    @property
    def stages(self) -> Sequence[Mapping[str, Any]]:
        """Stretches of time in which the asked rate moves or stands; empty where it is one rate."""
        found: Sequence[Mapping[str, Any]] = self.plan.get("stages") or ()
        return found

    @property
    def send_s(self) -> float:
        return sum(part.load.duration_s for part in self.parts)

    @property
    def achieved(self) -> float | None:
        """Answers a second over the send window shifted by what a request takes."""
        return sum(float(p.load.counted().sum()) for p in self.parts) / self.send_s if self.send_s > 0 else None

    @property
    def offered(self) -> float | None:
        """The asked rate, or what a closed loop achieved."""
        return self.rate if self.rate is not None else self.achieved

    @property
    def decoder(self) -> str:
        """The role that makes the tokens."""
        return "colocated" if self.mode == COLOCATED else "decode"

    def has_role(self, role: str) -> bool:
        return any(server.get("role") == role for server in self.deployment.get("servers", []))

    @property
    def cut(self) -> bool:
        """Whether a repeat ended before its time: by the user, or with a load worker."""
        return any(part.entry.get("state") != "done" for part in self.parts)

    def servers(self, role: str) -> int:
        """How many servers of a role the deployment has."""
        return sum(server.get("role") == role for server in self.deployment.get("servers", []))

    @property
    def doubts(self) -> Mapping[str, Doubt]:
        """Roles whose pages do not tell of the whole cell, with the reason."""
        return {doubt.role: doubt for part in self.parts for doubt in part.doubts}

    @property
    def as_read(self) -> Measured:
        """The cell with all pages, for what even a page in doubt can prove; without those of two servers in turn, whose
        counters mean nothing."""
        mixed = {doubt.role for doubt in self.doubts.values() if doubt.kind == TURNS}
        window = Window(tuple(part.segment.without(mixed) for part in self.parts))
        return replace(self, window=window) if self.doubts else self

    @cached_property
    def unread(self) -> tuple[str, ...]:
        """Roles of the engines, given or not, of which no metrics page was read, or none that tells of the whole cell:
        what they take of TTFT is unknown."""
        wanted = (COLOCATED,) if self.mode == COLOCATED else ("prefill", "decode")
        read = {page.role for _, page in self.window.pages() if not page.server.endswith(LOG_SUFFIX)}
        return tuple(role for role in wanted if role not in read)

    @property
    def mode(self) -> str | None:
        """Pull, push or colocated: as the deployment says, else by whose NIXL series moved; `None` when unknown."""
        if self.has_role("colocated"):
            return COLOCATED
        said = self.deployment.get("mode")
        if said in (PULL, PUSH):
            return str(said)
        for role, mode in (("decode", PULL), ("prefill", PUSH)):
            if self.window.delta(role, "nixl_xfer_s", "count"):
                return mode
        return None

    @cached_property
    def steadiness(self) -> Sequence[Steadiness]:
        """The steady-state judgement of each repeat."""
        even = self.plan.get("trace") is None
        loads = [part.load for part in self.parts]
        return [judge(x.answers, x.start, x.send_end, self.rate, self.streams, even=even) for x in loads]

    @property
    def settles(self) -> bool:
        """Whether the client saw a steady state, of which more requests would tell more."""
        return not self.stages and not any(
            seen.growth_ms is not None or seen.never_drains or seen.flight_grows or seen.one_burst
            for seen in self.steadiness
        )

    @cached_property
    def latencies(self) -> Mapping[str, Any]:
        """TTFT, TPOT, ITL and E2EL of all repeats together."""
        return latencies(self.answers, self.settles)

    @cached_property
    def turns(self) -> Turns | None:
        """Turns of decode's loop, as if a handoff's first token came with it."""
        return turns_of(self.answers, 0.0)

    @property
    def renders_only(self) -> bool:
        """Whether only the render tier was asked: prefill and decode have no part in it."""
        return self.cell.get("drive") == "render-only"

    @property
    def dynamo(self) -> bool:
        return "dynamo" in str(self.deployment.get("engine") or "").lower()

    def only(self, part: Part) -> Measured:
        """The same cell with this repeat alone."""
        return self if len(self.parts) == 1 else measured(self.plan, self.cell, self.deployment, [part])


def measured(
    plan: Mapping[str, Any], cell: Mapping[str, Any], deployment: Mapping[str, Any], parts: Sequence[Part]
) -> Measured:
    answers = pooled([part.load.answers for part in parts])
    doubted = {doubt.role for part in parts for doubt in part.doubts}
    window = Window(tuple(part.segment.without(doubted) for part in parts))
    return Measured(plan, cell, deployment, parts, answers, window)
