"""One request on one engine server, from arrival to its last token."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

WAITING = "waiting"  # no slot; with remote KV this is vLLM's stage waiting_to_start
LOADING = "loading"  # holds blocks, its KV is on the way: stage in_progress
LOADED = "loaded"  # its KV is here, no slot yet: stage completed_waiting
RUNNING = "running"  # holds a slot
DONE = "done"


@dataclass(eq=False, slots=True)
class Request:
    """Token counts, blocks and the instants (`stamps`, CLOCK_MONOTONIC seconds) of every stage it went through."""

    id: str  # X-Request-Id
    api_id: str  # cmpl-<id> or chatcmpl-<id>
    engine_id: str  # what the other engine calls it: cmpl-<id>-0-<8 hex>
    tokens: Sequence[int]
    hashes: list[int]
    max_tokens: int
    output_tokens: int  # how many it will generate
    finish: str  # length or stop
    kv: dict[str, Any]  # kv_transfer_params as received
    sink: Callable[["Request", str | None], None]  # called for each token, and at the end with the finish reason
    stamps: dict[str, float]

    conversation_id: str | None = None
    stage: str = WAITING
    remote: bool = False  # its KV comes from a prefill server
    error_at: int = 0  # planted fault: ends in an error at this token; 0 never
    blocks: list[int] = field(default_factory=list)
    target: int = 0  # tokens that must be in the KV cache before the next token can be sampled
    computed: int = 0  # of them, those that are there
    cached: int = 0  # prompt tokens found in the own prefix cache
    external: int = 0  # prompt tokens that came from another server
    generated: int = 0
    last_token_s: float = 0.0
    batch: int = 0  # running requests right after its own admission
    nbytes: int = 0  # KV bytes moved for it
    moving_s: float = 0.0  # posting and moving them, without what the transfer waited for later pieces of its prompt
    preempted: int = 0
    failed: bool = False  # its handoff failed; the loop ends it at the next boundary
    kv_out: dict[str, Any] | None = None  # kv_transfer_params of the answer
    status: str = ""

    @property
    def prompt_tokens(self) -> int:
        """Length of the prompt."""
        return len(self.tokens)

    def to_truth(self) -> dict[str, Any]:
        """The row of the truth log."""
        return {
            "request_id": self.id,
            "id": self.api_id,
            "conversation_id": self.conversation_id,
            "status": self.status,
            "prompt_tokens": self.prompt_tokens,
            "output_tokens": self.generated,
            "max_tokens": self.max_tokens,
            "cached_tokens": self.cached,
            "external_tokens": self.external,
            "bytes": self.nbytes,
            "batch_at_admission": self.batch,
            "preemptions": self.preempted,
            **self.stamps,
        }
