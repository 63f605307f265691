"""Two pools of instances under a stream of requests, event by event, with instances that can change their role.

A prefill instance takes one prompt at a time. A decode instance holds `slots` streams; a stream keeps the TPOT of the
batch that it joined. Routing is the site's: one queue a role, of which the emptiest instance takes, or a queue for each
instance, drawn at random. An instance that leaves decode takes no more streams and is ready when its last one ends; one
that leaves prefill finishes its prompt, and both then take `switch_s`. Who still waits for it goes to others.
"""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pdbench.littles_law.ratio import Site, Slo


@dataclass(frozen=True, slots=True)
class Job:
    """One request: its forward, all of TTFT that is no wait, and the tokens after the first."""

    at_s: float
    forward_s: float
    least_ttft_s: float
    out_tokens: float


@dataclass(frozen=True, slots=True)
class Served:
    """One request at its first token. A wait is blamed on the pool where it was longer."""

    arrived_s: float
    first_token_s: float
    ttft_s: float
    tpot_ms: float
    prefill_wait_s: float
    slot_wait_s: float

    def meets(self, slo: Slo) -> bool:
        return self.ttft_s * 1000 <= slo.ttft_ms and self.tpot_ms <= slo.step_ms


@dataclass(frozen=True, slots=True)
class Seen:
    """What a controller can measure over one interval; loads are busy shares of the instances in each role."""

    now_s: float
    prefills: int
    decodes: int
    prefill_violations: float
    decode_violations: float
    prefill_load: float
    decode_load: float
    draining: bool


# A controller's answer: +1 makes a decode instance a prefill instance, -1 the reverse, 0 leaves them.
Decide = Callable[[Seen], int]


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A request in a queue: of prefill since it arrived, of decode since its prompt was done."""

    job: Job
    since_s: float
    prefill_wait_s: float = 0.0


@dataclass(slots=True)
class _Instance:
    role: str
    next_role: str | None = None
    running: int = 0
    busy: bool = False
    queue: deque[_Waiting] = field(default_factory=deque)

    def takes(self, role: str) -> bool:
        return self.role == role and self.next_role is None


@dataclass(slots=True)
class _Window:
    prefill_violations: int = 0
    decode_violations: int = 0
    first_tokens: int = 0
    prefill_busy_s: float = 0.0
    decode_slot_s: float = 0.0


@dataclass(slots=True)
class Pools:
    """The state of one simulation. `instant` moves instances without a drain, which only an oracle can."""

    site: Site
    slo: Slo
    switch_s: float
    instant: bool = False
    instances: list[_Instance] = field(default_factory=list)
    served: list[Served] = field(default_factory=list)
    moves: list[tuple[float, int]] = field(default_factory=list)
    ready: list[float] = field(default_factory=list)
    _events: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _order: itertools.count[int] = field(default_factory=itertools.count)
    _shared: dict[str, deque[_Waiting]] = field(default_factory=lambda: {"prefill": deque(), "decode": deque()})
    _router: random.Random = field(default_factory=lambda: random.Random(1))
    _window: _Window = field(default_factory=_Window)
    _now_s: float = 0.0

    def run(
        self, jobs: Sequence[Job], prefills: int, decodes: int, every_s: float = math.inf, decide: Decide = lambda _: 0
    ) -> None:
        """Serve `jobs` to the last one, asking `decide` every `every_s` while they arrive."""
        self.instances = [_Instance("prefill") for _ in range(prefills)] + [_Instance("decode") for _ in range(decodes)]
        end_s = jobs[-1].at_s
        for job in jobs:
            self._at(job.at_s, lambda job=job: self._arrive(job))  # type: ignore[misc]
        for tick in range(1, int(end_s / every_s) + 1):
            self._at(tick * every_s, lambda: self._tick(every_s, decide))
        while self._events:
            self._now_s, _, happen = heapq.heappop(self._events)
            happen()

    def count(self, role: str) -> int:
        return len(self._taking(role))

    def _taking(self, role: str) -> list[_Instance]:
        return [each for each in self.instances if each.takes(role)]

    def _queue(self, instance: _Instance, role: str) -> deque[_Waiting]:
        """From where an instance of this role takes its next request."""
        return self._shared[role] if self.site.routing == "shared" else instance.queue

    def _send(self, role: str, waiting: _Waiting) -> None:
        self._queue(self._router.choice(self._taking(role)), role).append(waiting)

    def _at(self, when_s: float, happen: Callable[[], None]) -> None:
        heapq.heappush(self._events, (when_s, next(self._order), happen))

    def _arrive(self, job: Job) -> None:
        self._send("prefill", _Waiting(job, job.at_s))
        self._start_prefills()

    def _start_prefills(self) -> None:
        for instance in self._taking("prefill"):
            queue = self._queue(instance, "prefill")
            if queue and not instance.busy:
                job = queue.popleft().job
                instance.busy = True
                waited_s = self._now_s - job.at_s
                self._at(self._now_s + job.forward_s, lambda i=instance, j=job, w=waited_s: self._prefilled_by(i, j, w))  # type: ignore[misc]

    def _prefilled_by(self, instance: _Instance, job: Job, waited_s: float) -> None:
        instance.busy = False
        self._window.prefill_busy_s += job.forward_s
        self._send("decode", _Waiting(job, self._now_s, waited_s))
        self._settle(instance)
        self._start_prefills()
        self._admit()

    def _admit(self) -> None:
        def free() -> list[_Instance]:
            return [i for i in self._taking("decode") if i.running < self.site.slots and self._queue(i, "decode")]

        while takers := free():
            instance = min(takers, key=lambda each: each.running)
            waiting = self._queue(instance, "decode").popleft()
            job, prefill_wait_s = waiting.job, waiting.prefill_wait_s
            instance.running += 1
            tpot_ms = self.site.tpot.at(instance.running)
            held_s = job.out_tokens * tpot_ms / 1000
            slot_wait_s = self._now_s - waiting.since_s
            ttft_s = job.least_ttft_s + prefill_wait_s + slot_wait_s
            done = Served(job.at_s, job.at_s + ttft_s, ttft_s, tpot_ms, prefill_wait_s, slot_wait_s)
            self.served.append(done)
            self._note(done, held_s)
            self._at(self._now_s + held_s, lambda i=instance: self._finished(i))  # type: ignore[misc]

    def _note(self, done: Served, held_s: float) -> None:
        window = self._window
        window.first_tokens += 1
        window.decode_slot_s += held_s
        late = done.ttft_s * 1000 > self.slo.ttft_ms
        window.prefill_violations += late and done.prefill_wait_s >= done.slot_wait_s
        window.decode_violations += (late and done.slot_wait_s > done.prefill_wait_s) or done.tpot_ms > self.slo.step_ms

    def _finished(self, instance: _Instance) -> None:
        instance.running -= 1
        self._settle(instance)
        self._admit()

    def _settle(self, instance: _Instance) -> None:
        """An instance that is to change its role and has nothing left to do changes it."""
        if instance.next_role is None or (not self.instant and (instance.running or instance.busy)):
            return
        role, instance.next_role, instance.role = instance.next_role, instance.next_role, "switching"
        self._at(self._now_s + (0.0 if self.instant else self.switch_s), lambda: self._begin(instance, role))

    def _begin(self, instance: _Instance, role: str) -> None:
        instance.role, instance.next_role = role, None
        self.ready.append(self._now_s)
        self._start_prefills()
        self._admit()

    def _tick(self, every_s: float, decide: Decide) -> None:
        step = decide(self._seen(every_s))
        self._window = _Window()
        for _ in range(abs(step)):
            self._move("decode" if step > 0 else "prefill")

    def _seen(self, every_s: float) -> Seen:
        window = self._window
        prefills, decodes = self.count("prefill"), self.count("decode")
        # Who has waited beyond the SLO already is a violation, though it has no first token yet.
        stuck_prompts, stuck_slots = (self._stuck(role) for role in ("prefill", "decode"))
        known = max(1, window.first_tokens + stuck_prompts + stuck_slots)
        return Seen(
            self._now_s,
            prefills,
            decodes,
            (window.prefill_violations + stuck_prompts) / known,
            (window.decode_violations + stuck_slots) / known,
            window.prefill_busy_s / every_s / max(1, prefills),
            window.decode_slot_s / every_s / max(1, decodes * self.site.slots),
            any(each.next_role is not None for each in self.instances),
        )

    def _stuck(self, role: str) -> int:
        queues = [self._shared[role], *(each.queue for each in self._taking(role))]
        late_s = self._now_s - self.slo.ttft_ms / 1000
        return sum(waiting.job.at_s < late_s for queue in queues for waiting in queue)

    def _move(self, source: str) -> None:
        """Take the least busy instance out of a pool that keeps at least one."""
        given = self._taking(source)
        if len(given) < 2:
            return
        instance = min(given, key=lambda each: each.running + each.busy)
        instance.next_role = "prefill" if source == "decode" else "decode"
        self.moves.append((self._now_s, 1 if source == "decode" else -1))
        while instance.queue:
            self._send(source, instance.queue.popleft())
        self._settle(instance)
        self._start_prefills()
        self._admit()
