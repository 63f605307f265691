"""Counters and histograms of one engine, under the names that vLLM 0.32 gives them."""

from bisect import bisect_left
from collections.abc import Sequence

from pdbench.testbed.link import descriptors
from pdbench.testbed.request import Request
from pdbench.testbed.settings import Settings

_ITL = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
_TTFT = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640)
_LATENCY = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
_TRANSFER = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.2, 0.3, 0.5, 0.75, 1, 5)
_DESCRIPTORS = (10, 20, 30, 50, 75, 100, 200, 400, 1000, 2000, 4000, 10000, 20000, 50000)

# family without the _total that the page adds: (help, label name, its values)
COUNTERS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "vllm:nixl_num_failed_transfers": ("KV transfers, handshakes and notifications that failed.", "", ()),
    "vllm:nixl_num_failed_notifications": ("KV notifications that failed.", "", ()),
    "vllm:nixl_num_kv_expired_reqs": ("Requests whose KV was dropped because its lease ended.", "", ()),
    "vllm:nixl_num_notifications_after_expiry": ("Reads reported after the KV had been dropped.", "", ()),
    "vllm:prefix_cache_queries": ("Prompt tokens looked up in the prefix cache.", "", ()),
    "vllm:prefix_cache_hits": ("Prompt tokens found in the prefix cache.", "", ()),
    "vllm:external_prefix_cache_queries": ("Prompt tokens asked from the KV connector.", "", ()),
    "vllm:external_prefix_cache_hits": ("Prompt tokens the KV connector has.", "", ()),
    "vllm:mm_cache_queries": ("Multi-modal items looked up (always 0 here).", "", ()),
    "vllm:mm_cache_hits": ("Multi-modal items found (always 0 here).", "", ()),
    "vllm:num_preemptions": ("Requests put back because KV blocks ran out.", "", ()),
    "vllm:prompt_tokens": ("Prompt tokens processed.", "", ()),
    "vllm:prompt_tokens_by_source": (
        "Prompt tokens by where their KV came from.",
        "source",
        ("local_compute", "local_cache_hit", "external_kv_transfer"),
    ),
    "vllm:prompt_tokens_cached": ("Prompt tokens that needed no computing here.", "", ()),
    "vllm:prompt_tokens_cached_by_source": (
        "Prompt tokens that needed no computing here, by where they were.",
        "source",
        ("device", "host", "p2p", "disk", "external_unspecified"),
    ),
    "vllm:generation_tokens": ("Tokens generated.", "", ()),
    "vllm:request_success": (
        "Requests ended, by reason.",
        "finished_reason",
        ("stop", "length", "abort", "error", "repetition"),
    ),
    "vllm:admission_rejections": (
        "Requests refused at the door.",
        "reason",
        ("max_num_queued_reqs", "max_num_queued_tokens"),
    ),
}


def histogram_families(max_model_len: int) -> dict[str, tuple[str, Sequence[float]]]:
    """Family -> (help, bucket bounds), in the order of the page; token bounds end at `max_model_len`."""
    tokens = [m * 10**k for k in range(9) for m in (1, 2, 5) if m * 10**k <= max_model_len]
    return {
        "vllm:nixl_xfer_time_seconds": ("Posting plus movement of one KV transfer.", _TRANSFER),
        "vllm:nixl_post_time_seconds": ("Posting of one KV transfer.", (0.001, *_TRANSFER)),
        "vllm:nixl_bytes_transferred": ("Bytes of one KV transfer.", [2**k for k in range(11, 34, 2)]),
        "vllm:nixl_num_descriptors": ("Descriptors of one KV transfer.", _DESCRIPTORS),
        "vllm:request_prompt_tokens": ("Prompt tokens of a request.", tokens),
        "vllm:request_generation_tokens": ("Tokens generated for a request.", tokens),
        "vllm:iteration_tokens_total": ("Tokens of an engine step.", [1, *(2**k for k in range(3, 15))]),
        "vllm:request_max_num_generation_tokens": ("Most tokens generated for a request.", tokens),
        "vllm:request_params_n": ("Parameter n of a request.", (1, 2, 5, 10, 20)),
        "vllm:request_params_max_tokens": ("Parameter max_tokens of a request.", tokens),
        "vllm:time_to_first_token_seconds": ("Arrival to first token.", (*_TTFT, 2560)),
        "vllm:inter_token_latency_seconds": ("Gap between two tokens.", _ITL),
        "vllm:request_time_per_output_token_seconds": ("Mean gap of a request.", _ITL),
        "vllm:e2e_request_latency_seconds": ("Arrival to last token.", _LATENCY),
        "vllm:request_queue_time_seconds": ("Arrival to slot (on decode this includes the KV transfer).", _LATENCY),
        "vllm:request_inference_time_seconds": ("Slot to last token.", _LATENCY),
        "vllm:request_prefill_time_seconds": ("Slot to first token.", _LATENCY),
        "vllm:request_decode_time_seconds": ("First to last token.", _LATENCY),
        "vllm:request_num_preemptions": ("Preemptions of a request.", (1, 2, 3, 4, 5, 10, 20)),
        "vllm:request_prefill_kv_computed_tokens": ("Prompt tokens of a request that were not cached.", tokens),
    }


class Histogram:
    """Counts per bucket (the last is +Inf) and the sum of what was observed."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = [float(bound) for bound in bounds]
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """Count one value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value


class Metrics:
    """What one engine has counted since it started; gauges are read from the engine when the page is written."""

    def __init__(self, max_model_len: int) -> None:
        self.counters = {(name, value): 0.0 for name, (_, _, values) in COUNTERS.items() for value in values or ("",)}
        self.histograms = {name: Histogram(b) for name, (_, b) in histogram_families(max_model_len).items()}

    def add(self, name: str, amount: float = 1, label: str = "") -> None:
        """Advance a counter; `label` is the value of its one extra label."""
        self.counters[name, label] += amount

    def observe(self, name: str, value: float) -> None:
        """Count one value in a histogram."""
        self.histograms[name].observe(value)

    def transferred(self, request: Request, settings: Settings) -> None:
        """One finished transfer: one observation for each tensor-parallel rank, as NIXL handles give."""
        stamps = request.stamps
        tokens = request.nbytes // settings.kv_bytes_per_token
        for _ in range(settings.tensor_parallel):
            self.observe("vllm:nixl_xfer_time_seconds", request.moving_s)
            self.observe("vllm:nixl_post_time_seconds", stamps["post_end"] - stamps["post_start"])
            self.observe("vllm:nixl_bytes_transferred", request.nbytes / settings.tensor_parallel)
            self.observe("vllm:nixl_num_descriptors", descriptors(settings, tokens))

    def prompt_done(self, request: Request) -> None:
        """The first token exists: now the prompt counts, split by where its KV came from."""
        cached = request.cached + request.external
        self.add("vllm:prompt_tokens", request.prompt_tokens)
        self.add("vllm:prompt_tokens_by_source", request.prompt_tokens - cached, "local_compute")
        self.add("vllm:prompt_tokens_by_source", request.cached, "local_cache_hit")
        self.add("vllm:prompt_tokens_by_source", request.external, "external_kv_transfer")
        self.add("vllm:prompt_tokens_cached", cached)
        self.add("vllm:prompt_tokens_cached_by_source", request.cached, "device")
        self.add("vllm:prompt_tokens_cached_by_source", request.external, "p2p")

    def request_done(self, request: Request, reason: str) -> None:
        """A request ended; one that never got a token leaves no durations behind."""
        self.add("vllm:request_success", label=reason)
        if reason == "abort" or not request.generated:
            return
        stamps = request.stamps
        admitted, first, last = stamps["admitted"], stamps["first_token"], stamps["last_token"]
        gaps = request.generated - 1
        # with remote KV vLLM reports the prefill server's cache hits here, when the proxy passes them on
        hits = (
            request.kv.get("remote_prefill_cached_tokens", request.prompt_tokens)
            if request.external
            else request.cached
        )
        for name, value in (
            ("request_prompt_tokens", request.prompt_tokens),
            ("request_generation_tokens", request.generated),
            ("request_max_num_generation_tokens", request.generated),
            ("request_params_n", 1),
            ("request_params_max_tokens", request.max_tokens),
            ("request_time_per_output_token_seconds", (last - first) / gaps if gaps else 0.0),
            ("request_queue_time_seconds", admitted - stamps["queued"]),
            ("request_inference_time_seconds", last - admitted),
            ("request_prefill_time_seconds", first - admitted),
            ("request_decode_time_seconds", last - first),
            ("request_num_preemptions", request.preempted),
            ("request_prefill_kv_computed_tokens", request.prompt_tokens - hits),
        ):
            self.observe(f"vllm:{name}", value)
