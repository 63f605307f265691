"""Every number of the SIMULATED deployment, with its unit in its name.

The defaults reproduce a published run: Qwen3-32B in BF16 (256 KiB of KV a token) on two nodes of eight H200, 16k
prompts, 128 output tokens, 8 decode slots.  One default needs a word: 60 ms for a 16,384-token prompt is about ten
times faster than those GPUs compute such a prompt.  It stands for the prefix-cache hits of the published run, which
sent 131k prompt tokens a second to a server that can compute about 32k.
"""

import json
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

MODES = ("pull", "push", "colocated")


@dataclass(frozen=True)
class Settings:
    """What to start and how it behaves.  Times are milliseconds unless the name says seconds (`_s`)."""

    mode: str = "pull"
    decode_mode: str = ""  # "" is `mode`; another value plants the push/pull mix-up, which fails at the first request
    prefills: int = 1
    decodes: int = 1

    host: str = "127.0.0.1"
    proxy_port: int = 8192  # port 0 picks a free one
    prefill_port: int = 8100  # the second prefill gets 8101, and so on
    decode_port: int = 8200
    server_port: int = 8000  # the co-located server
    log: str = ""  # directory for the truth logs; "" makes a temporary one

    model: str = "simulated-qwen3-32b"
    max_model_len: int = 32768
    vocab_size: int = 151936
    kv_bytes_per_token: int = 262144
    api_key: str = ""
    dev_mode: bool = True  # whether /server_info answers, as with VLLM_SERVER_DEV_MODE=1
    eos_mean_tokens: float = 128.0  # mean answer length when a request does not set ignore_eos

    prefill_ms_per_token: float = 60.0 / 16384
    prefill_fixed_ms: float = 0.0
    step_base_ms: float = 5.51  # a decode step takes base + per_seq * batch: 5.7 ms alone, 7.03 ms with 8 streams
    step_per_seq_ms: float = 0.19
    max_num_batched_tokens: int = 8192  # prompt chunk limit of the co-located server, and of decode when it recomputes
    max_num_seqs: int = 8  # decode and co-located
    prefill_max_num_seqs: int = 256
    max_num_queued_reqs: int = 0  # 0 is no limit; beyond it decode and co-located answer 503
    prefill_max_num_queued_reqs: int = 0

    link_gb_s: float = 400.0  # all GPUs of a server together: 8 x 50 GB/s
    tensor_parallel: int = 1  # nixl_* series get one observation per rank and transfer
    post_fixed_ms: float = 8.3
    post_ms_per_token: float = 0.0032
    descriptors: int = 128  # per transfer and rank
    us_per_descriptor: float = 0.0
    poll_ms: float = 0.0  # least time between two looks for finished transfers; 0 looks at every step boundary
    idle_poll_ms: float = 1.0  # how often an idle loop looks
    handshake_ms: float = 0.0  # first contact of each decode with each prefill
    lease_s: float = 30.0

    block_size: int = 16
    prefill_blocks: int = 131072
    decode_blocks: int = 131072  # decode and co-located
    prefill_prefix_caching: bool = True
    decode_prefix_caching: bool = True  # decode and co-located

    proxy_ms: float = 0.0  # added by the proxy to every request
    drop_kv_params: bool = False  # the proxy forgets kv_transfer_params: decode computes every prompt again
    stall_at_s: float = 0.0  # decode stops for stall_s, this long after its first request
    stall_s: float = 0.0
    error_every: int = 0  # every Nth request of decode (or co-located) ends in an error event; 0 never
    error_after_tokens: int = 1

    def __post_init__(self) -> None:
        """Refuse what cannot run, in one sentence that names the field."""
        if self.mode not in MODES:
            raise ValueError(f"mode must be one of {', '.join(MODES)}, not {self.mode!r}")
        if self.decode_mode not in ("", "pull", "push"):
            raise ValueError(f"decode_mode must be pull or push, not {self.decode_mode!r}")
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, int | float) and value < 0:
                raise ValueError(f"{field.name} must not be negative")
        at_least_one = (
            "prefills decodes max_model_len vocab_size block_size prefill_blocks decode_blocks tensor_parallel"
        )
        for (
            name
        ) in f"{at_least_one} max_num_seqs prefill_max_num_seqs max_num_batched_tokens kv_bytes_per_token".split():
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1")
        if self.link_gb_s == 0 or self.idle_poll_ms == 0 or self.lease_s == 0:
            raise ValueError("link_gb_s, idle_poll_ms and lease_s must be above 0")

    def on_free_ports(self) -> "Settings":
        """The same deployment on ports that the kernel picks."""
        return replace(self, proxy_port=0, prefill_port=0, decode_port=0, server_port=0)

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
        return f"http://{self.host}:{self.port}"
