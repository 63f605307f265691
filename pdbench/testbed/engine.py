"""The scheduler of one engine, as a function of time: no clock, no sockets.

`begin_step(t)` decides at a step boundary who runs and says how long the step takes; `end_step` hands out its tokens.
Whoever drives it (loop.py in real time, a test in no time) passes the instants in, so a run has one exact schedule.

The order of decisions is vLLM 0.32's.  Finished loads are noticed at a boundary; then the queue is walked in order of
arrival and the walk ends when all slots are taken.  A request whose KV is here takes a slot.  A request whose KV is
elsewhere starts to load it and takes blocks, but no slot: hence one free slot starts the loads of all that wait.
"""

from dataclasses import dataclass, field
from typing import Any, Protocol

from pdbench.testbed.kv import BlockPool
from pdbench.testbed.link import Link, block_bytes, post_s
from pdbench.testbed.metrics import Metrics
from pdbench.testbed.request import DONE, LOADED, LOADING, RUNNING, WAITING, Request
from pdbench.testbed.settings import Place, Settings


class Fetching(Protocol):
    """How decode gets KV from another engine (handoff_decode.py)."""

    def start(self, request: Request) -> None:
        """The request has its blocks: tell prefill where to write (push), or make ready to read (pull)."""

    def may_post(self, request: Request) -> bool:
        """Whether the read can be submitted now."""

    def posted(self, request: Request) -> None:
        """The read was submitted; the request's stamps say when it will end."""

    def dropped(self, request: Request) -> None:
        """The request ended without its remote KV."""


class Keeping(Protocol):
    """How prefill holds KV for another engine (handoff_prefill.py)."""

    def finished(self, request: Request, at_s: float) -> dict[str, Any]:
        """The prompt is computed: keep its blocks and say where they are."""


@dataclass
class Step:
    """One turn of the loop: posts and what else handoffs hold it for, then one forward pass over chunks and streams."""

    start_s: float
    posts_s: float = 0.0
    decodes: list[Request] = field(default_factory=list)
    chunks: list[tuple[Request, int]] = field(default_factory=list)
    duration_s: float = 0.0


class Engine:
    """Waiting and running requests of one server, and the rules that move them."""

    def __init__(self, settings: Settings, place: Place, metrics: Metrics) -> None:
        prefill = place.role == "prefill"
        caching = settings.prefill_prefix_caching if prefill else settings.decode_prefix_caching
        blocks = settings.prefill_blocks if prefill else settings.decode_blocks
        self.settings = settings
        self.metrics = metrics
        self.fetch: Fetching | None = None  # set by the server on decode
        self.keep: Keeping | None = None  # set by the server on prefill
        self.connected = bool(place.transfer)
        self.reads = place.role == "decode" and place.transfer == "pull"  # posts on this very loop
        self.slots = settings.prefill_max_num_seqs if prefill else settings.max_num_seqs
        self.one_prompt_at_a_time = prefill
        self.pool = BlockPool(blocks, settings.block_size, caching)
        self.link = Link(settings.link_gb_s)
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self._unposted: list[Request] = []
        self._held_s = 0.0  # by the handoffs that were just admitted
        self._last_poll_s = 0.0

    # ---- what the server asks for

    def submit(self, request: Request) -> None:
        """Queue a request; it counts from its `queued` stamp on."""
        request.target = request.prompt_tokens
        self.waiting.append(request)

    def abort(self, request: Request, at_s: float) -> None:
        """The client went away: free slot and blocks at once."""
        if request.stage != DONE:
            self._leave(request, at_s, "abort")

    def stages(self) -> dict[str, int]:
        """Requests in each stage; of those waiting without KV, `waiting_to_start` counts the ones with remote KV."""
        counts = dict.fromkeys(("running", "capacity", "waiting_to_start", "in_progress", "completed_waiting"), 0)
        counts["running"] = len(self.running)
        for request in self.waiting:
            if request.stage == WAITING:
                counts["capacity"] += 1
                counts["waiting_to_start"] += request.remote
            else:
                counts["in_progress" if request.stage == LOADING else "completed_waiting"] += 1
        return counts

    # ---- one step

    def begin_step(self, t: float) -> Step | None:
        """Decide at instant `t` (seconds) what the next step does; None when there is nothing to do."""
        self._notice(t)
        self._admit(t)
        step = Step(t, posts_s=self._held_s)
        self._held_s = 0.0
        self._post(step)
        self._grow()
        step.decodes = [r for r in self.running if r.computed == r.target]
        self._chunk(step)
        if not step.decodes and not step.chunks and not step.posts_s:
            return None
        s = self.settings
        milliseconds = s.step_base_ms + s.step_per_seq_ms * len(step.decodes) if step.decodes else 0.0
        for request, tokens in step.chunks:
            milliseconds += tokens * s.prefill_ms_per_token
            if "prefill_start" not in request.stamps:
                milliseconds += s.prefill_fixed_ms
                request.stamps["prefill_start"] = t + step.posts_s
        step.duration_s = step.posts_s + milliseconds / 1000
        return step

    def end_step(self, step: Step, t: float) -> None:
        """The step ended at instant `t`: count and hand out its tokens."""
        prompt_tokens = 0
        for request, tokens in step.chunks:
            if request.stage == RUNNING:
                request.computed += tokens
                prompt_tokens += tokens
                if request.computed == request.target:
                    self.pool.remember(request.blocks, request.hashes)
                    request.stamps.setdefault("prefill_end", t)
                    step.decodes.append(request)
        alive = [r for r in step.decodes if r.stage == RUNNING]
        if alive or prompt_tokens:
            self.metrics.observe("vllm:iteration_tokens_total", prompt_tokens + len(alive))
        for request in alive:
            self._token(request, t)

    def next_look(self, t: float) -> float | None:
        """When an idle loop will notice the next finished load (seconds), None if none is known to end."""
        if any(r.failed for r in self.waiting):
            return t
        ends = [r.stamps["transfer_end"] for r in self.waiting if r.stage == LOADING and "transfer_end" in r.stamps]
        if not ends:
            return None
        poll_s = self.settings.idle_poll_ms / 1000
        polls = max(1, -int(-(min(ends) - t) // poll_s))
        return max(t + polls * poll_s, self._last_poll_s + self.settings.poll_ms / 1000)

    # ---- the parts of a step

    def _notice(self, t: float) -> None:
        if t - self._last_poll_s < self.settings.poll_ms / 1000 - 1e-9:
            return
        self._last_poll_s = t
        for request in [r for r in self.waiting if r.failed]:
            self._leave(request, t, "error")
            request.sink(request, "error")
        for request in self.waiting:
            if request.stage == LOADING and request.stamps.get("transfer_end", t + 1) <= t:
                request.stage = LOADED
                request.stamps["noticed"] = t
                request.computed = request.target
                self.pool.remember(request.blocks, request.hashes)
                if self.reads:
                    self.metrics.transferred(request, self.settings)

    def _admit(self, t: float) -> None:
        budget = self._budget()
        for request in list(self.waiting):
            if len(self.running) >= self.slots:
                return
            if request.stage == LOADING or request.stamps["queued"] > t:
                continue
            if request.stage == LOADED:
                self._take_slot(request, t)
                continue
            if not request.remote and budget <= 0:
                return
            reuse = self.pool.match(request.hashes)
            blocks = self.pool.take(self.pool.for_tokens(request.target), reuse)
            if blocks is None:
                return
            request.blocks = blocks
            known = len(reuse) * self.settings.block_size
            if self.one_prompt_at_a_time and self.pool.caching:
                known = max(known, int(self.settings.repeated_share * request.prompt_tokens))
            self._count_lookup(request, known)
            if request.remote:
                request.stage = LOADING
                request.stamps["load_start"] = t
                request.external = request.prompt_tokens - request.cached
                request.nbytes = (len(blocks) - len(reuse)) * block_bytes(self.settings)
                assert self.fetch is not None, "only decode has requests with remote KV"
                self.fetch.start(request)
                if self.reads:
                    self._unposted.append(request)
            else:
                request.computed = known
                self._take_slot(request, t)
                budget = 0 if self.one_prompt_at_a_time else budget - (request.target - request.computed)

    def _budget(self) -> int:
        """Prompt tokens that the coming step could still compute for newcomers."""
        pending = sum(r.target - r.computed for r in self.running)
        if self.one_prompt_at_a_time:
            return 0 if pending else 1
        return self.settings.max_num_batched_tokens - len(self.running) - pending

    def _take_slot(self, request: Request, t: float) -> None:
        self.waiting.remove(request)
        self.running.append(request)
        request.stage = RUNNING
        request.batch = len(self.running)
        request.stamps.setdefault("admitted", t)
        if request.remote:
            self._held_s += self.settings.handoff_stall_ms / 1000

    def _post(self, step: Step) -> None:
        if self.fetch is None:
            return
        for request in [r for r in self._unposted if self.fetch.may_post(r)]:
            self._unposted.remove(request)
            start = step.start_s + step.posts_s
            seconds = post_s(self.settings, request.external)
            step.posts_s += seconds
            begin, end = self.link.reserve(start + seconds, request.nbytes)
            request.stamps |= {"post_start": start, "post_end": start + seconds}
            request.stamps |= {"transfer_start": begin, "transfer_end": end}
            request.moving_s = end - start
            self.fetch.posted(request)

    def _grow(self) -> None:
        """Give each running stream room for its next token, at the expense of the youngest when there is none."""
        size = self.settings.block_size
        for request in list(self.running):
            tokens = request.prompt_tokens + request.generated
            while (
                request.stage == RUNNING and request.computed == request.target and len(request.blocks) * size < tokens
            ):
                block = self.pool.take(1)
                if block is not None:
                    request.blocks += block
                else:
                    self._preempt(self.running[-1])

    def _preempt(self, request: Request) -> None:
        self.running.remove(request)
        self.pool.release(request.blocks)
        request.blocks = []
        request.stage = WAITING
        request.remote = False  # vLLM computes a preempted request again by itself
        request.target = request.prompt_tokens + request.generated
        request.computed = 0
        request.preempted += 1
        self.waiting.insert(0, request)
        self.metrics.add("vllm:num_preemptions")

    def _chunk(self, step: Step) -> None:
        budget = self.settings.max_num_batched_tokens - len(step.decodes)
        for request in self.running:
            missing = request.target - request.computed
            tokens = missing if self.one_prompt_at_a_time else min(missing, budget)
            if tokens > 0:
                step.chunks.append((request, tokens))
                budget -= tokens

    # ---- tokens and ends

    def _count_lookup(self, request: Request, hit: int) -> None:
        if request.preempted:
            return
        request.cached = hit
        missed = request.prompt_tokens - hit
        if self.pool.caching:
            self.metrics.add("vllm:prefix_cache_queries", request.prompt_tokens)
            self.metrics.add("vllm:prefix_cache_hits", hit)
        if self.connected:
            self.metrics.add("vllm:external_prefix_cache_queries", missed)
            self.metrics.add("vllm:external_prefix_cache_hits", missed if request.remote else 0)

    def _token(self, request: Request, t: float) -> None:
        request.generated += 1
        request.computed = request.target  # the token's own KV is written by the step that follows
        self.metrics.add("vllm:generation_tokens")
        if request.generated == 1:
            request.stamps["first_token"] = t
            self.metrics.prompt_done(request)
        else:
            self.metrics.observe("vllm:inter_token_latency_seconds", t - request.last_token_s)
        request.last_token_s = t
        reason: str | None = None
        if request.generated == request.error_at:
            reason = "error"
        elif request.generated == request.output_tokens:
            reason = request.finish
        if reason:
            self._leave(request, t, reason)
        request.sink(request, reason)

    def _leave(self, request: Request, t: float, reason: str) -> None:
        """The request ends, in whatever stage it is."""
        (self.running if request.stage == RUNNING else self.waiting).remove(request)
        if request in self._unposted:
            self._unposted.remove(request)
        if self.fetch is not None and request.remote and "transfer_end" not in request.stamps:
            self.fetch.dropped(request)
        request.stage = DONE
        request.status = reason
        request.stamps["last_token"] = request.last_token_s
        request.stamps["done"] = t
        if self.keep is not None and request.kv.get("do_remote_decode") and reason in ("length", "stop"):
            request.kv_out = self.keep.finished(request, t)
        else:
            self.pool.release(request.blocks)
        self.metrics.request_done(request, reason)
