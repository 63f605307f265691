"""Every number of the SIMULATED deployment, with its unit in its name.

The defaults reproduce a published run: Qwen3-32B in BF16 (256 KiB of KV a token) on two nodes of eight H200, 16k
prompts, 128 output tokens, 8 decode slots.  One default needs a word: 60 ms for a 16,384-token prompt is about ten
times faster than those GPUs compute such a prompt.  It stands for the prefix-cache hits of the published run, which
sent 131k prompt tokens a second to a server that can compute about 32k.
"""

import json
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, TypeVar

MODES = ("pull", "push", "colocated")


T = TypeVar("T")


def _is(default: T, text: str) -> T:
    """A field with its default and the sentence that explains it, here and in `pdbench testbed --help`."""
    return field(default=default, metadata={"help": text})


@dataclass(frozen=True)
class Settings:
    """What to start and how it behaves.  Times are milliseconds unless the name says seconds (`_s`)."""

    mode: str = _is("pull", "pull, push or colocated")
    decode_mode: str = _is("", "another mode on decode than on prefill: plants the mix-up, fails at the first request")
    prefills: int = _is(1, "number of prefill servers")
    decodes: int = _is(1, "number of decode servers")

    host: str = _is("127.0.0.1", "address to listen on")
    proxy_port: int = _is(8192, "port of the proxy; 0 picks a free one")
    prefill_port: int = _is(8100, "port of the first prefill server, the next has the next; 0 picks free ones")
    decode_port: int = _is(8200, "port of the first decode server, the next has the next; 0 picks free ones")
    colocated_port: int = _is(8000, "port of the co-located server; 0 picks a free one")
    log: str = _is("", "directory for the truth logs; a temporary one by default")

    model: str = _is("simulated-qwen3-32b", "name of the served model")
    max_model_len: int = _is(32768, "longest prompt plus answer, tokens")
    vocab_size: int = _is(151936, "token ids at or above this are refused")
    kv_bytes_per_token: int = _is(262144, "KV cache bytes of one token, all ranks together")
    api_key: str = _is("", "if set, /v1 wants it as bearer token")
    dev_mode: bool = _is(True, "answer /server_info, as vLLM does with VLLM_SERVER_DEV_MODE=1")
    eos_mean_tokens: float = _is(128.0, "mean answer length of requests that do not set ignore_eos")
    thinking_tokens: int = _is(0, "of each chat answer, so many tokens are a thinking trace")
    keep_thinking: bool = _is(False, "the chat template keeps the thinking of earlier turns; most drop it")

    render_ms_per_token: float = _is(0.0017, "time to template and tokenise one prompt token, one request at a time")
    prefill_ms_per_token: float = _is(60.0 / 16384, "time to compute one prompt token")
    prefill_fixed_ms: float = _is(0.0, "added once to each computed prompt")
    step_base_ms: float = _is(5.5, "a decode step takes this ...")
    step_per_seq_ms: float = _is(0.2, "... plus this for each running stream: 5.7 ms alone, 7.1 ms with 8")
    max_num_batched_tokens: int = _is(8192, "prompt tokens of one step, co-located and on a decode that recomputes")
    max_num_seqs: int = _is(8, "slots of decode and of co-located")
    prefill_max_num_seqs: int = _is(256, "slots of prefill, which computes one prompt at a time anyway")
    max_num_queued_reqs: int = _is(0, "decode and co-located answer 503 beyond so many waiting; 0 is no limit")
    prefill_max_num_queued_reqs: int = _is(0, "prefill answers 503 beyond so many waiting; 0 is no limit")

    link_gb_s: float = _is(400.0, "KV link in GB/s, all GPUs of a server together (8 x 50); transfers take turns")
    tensor_parallel: int = _is(1, "ranks; the nixl_* series get one observation for each rank and transfer")
    post_fixed_ms: float = _is(8.3, "time to post a transfer, on the decode loop in pull, on an own thread in push ...")
    post_ms_per_token: float = _is(0.0032, "... plus this for each token of it ...")
    us_per_descriptor: float = _is(0.0, "... plus this for each of its descriptors")
    descriptors: int = _is(128, "descriptors of a transfer, per rank ...")
    descriptors_per_block: float = _is(0.0, "... plus this for each KV block of it: scattered blocks are not merged")
    handoff_stall_ms: float = _is(
        0.0, "decode's loop does nothing else for so long at each handoff it admits, in any mode"
    )
    push_pieces: int = _is(1, "push: pieces of a transfer, each sent when its part of the prompt is computed")
    poll_ms: float = _is(0.0, "least time between two looks for finished transfers; 0 looks at every step boundary")
    idle_poll_ms: float = _is(1.0, "how often an idle loop looks for finished transfers")
    handshake_ms: float = _is(0.0, "first contact of each decode with each prefill")
    lease_s: float = _is(30.0, "how long prefill keeps KV for a decode that does not come")

    block_size: int = _is(16, "tokens of a KV block")
    prefill_blocks: int = _is(229376, "KV blocks of each prefill server: what 8 H200 hold beside the weights")
    decode_blocks: int = _is(229376, "KV blocks of each decode server, and of co-located")
    prefill_prefix_caching: bool = _is(True, "prefix cache on prefill")
    repeated_share: float = _is(0.0, "this share of each prompt is in prefill's prefix cache, as if it was sent before")
    decode_prefix_caching: bool = _is(True, "prefix cache on decode and co-located")

    proxy_ms: float = _is(0.0, "added by the proxy to every request")
    drop_kv_params: bool = _is(False, "the proxy forgets kv_transfer_params, so decode computes every prompt again")
    stall_at_s: float = _is(0.0, "decode (or co-located) stops this long after its first request ...")
    stall_s: float = _is(0.0, "... for this long")
    error_every: int = _is(0, "every Nth request of decode (or co-located) ends in an error; 0 is never ...")
    error_after_tokens: int = _is(1, "... at this token")

    def __post_init__(self) -> None:
        """Refuse what cannot run, in one sentence that names the field."""
        if self.mode not in MODES:
            raise ValueError(f"mode must be one of {', '.join(MODES)}, not {self.mode!r}")
        if self.decode_mode not in ("", "pull", "push"):
            raise ValueError(f"decode_mode must be pull or push, not {self.decode_mode!r}")
        for each in fields(self):
            value = getattr(self, each.name)
            if isinstance(value, int | float) and value < 0:
                raise ValueError(f"{each.name} must not be negative")
        at_least_one = (
            "prefills decodes max_model_len vocab_size block_size prefill_blocks decode_blocks tensor_parallel"
            " push_pieces max_num_seqs prefill_max_num_seqs max_num_batched_tokens kv_bytes_per_token"
        )
        for name in at_least_one.split():
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1")
        if self.repeated_share >= 1:
            raise ValueError("repeated_share must be below 1: something of a prompt is always computed")
        if self.link_gb_s == 0 or self.idle_poll_ms == 0 or self.lease_s == 0:
            raise ValueError("link_gb_s, idle_poll_ms and lease_s must be above 0")
        needed = -(-self.max_model_len // self.block_size)
        if needed > min(self.prefill_blocks, self.decode_blocks):
            raise ValueError(f"max_model_len {self.max_model_len} needs {needed} KV blocks of {self.block_size} tokens")

    def on_ports_from(self, first: int) -> "Settings":
        """The same deployment with the proxy (or co-located server) on `first` and the others on the ports after it."""
        if not first:
            return self.on_free_ports()
        prefill = first + 1
        return replace(
            self, proxy_port=first, colocated_port=first, prefill_port=prefill, decode_port=prefill + self.prefills
        )

    def on_free_ports(self) -> "Settings":
        """The same deployment on ports that the kernel picks."""
        return replace(self, proxy_port=0, prefill_port=0, decode_port=0, colocated_port=0)

    def to_json(self) -> str:
        """One line that `from_json` reads back."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> "Settings":
        """The settings that `to_json` wrote."""
        values: dict[str, Any] = json.loads(text)
        return Settings(**values)


@dataclass(frozen=True)
class Place:
    """One engine server of the deployment: who it is and how its own loop is set."""

    role: str  # prefill, decode or colocated
    index: int
    host: str
    port: int
    side_port: int  # where another engine reaches its KV handoff; 0 for co-located
    transfer: str  # pull, push, or "" without a connector

    @property
    def name(self) -> str:
        """Name of the server in logs, such as `decode-0`; also its NIXL engine id."""
        return f"{self.role}-{self.index}"

    @property
    def url(self) -> str:
        """Base URL."""
        return url_of(self.host, self.port)


def url_of(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
