"""The text of /metrics: families, labels and order of a real vLLM 0.32 page, filled from one engine."""

import os
import resource
import time
from collections.abc import Iterator
from pathlib import Path

from pdbench.testbed.engine import Engine
from pdbench.testbed.metrics import COUNTERS, histogram_families
from pdbench.testbed.settings import Place, Settings

CONTENT_TYPE = "text/plain; version=1.0.0; charset=utf-8"


def _number(value: float) -> str:
    """A float the way Prometheus clients in Python print it: 1e6 and above with an exponent."""
    if value < 1e6:
        return repr(float(value))
    mantissa, exponent = f"{value:.15e}".split("e")
    return f"{mantissa.rstrip('0').rstrip('.')}e{exponent}"


def cache_config(settings: Settings, role: str) -> dict[str, object]:
    """vLLM's CacheConfig of this server, as far as the simulation has one."""
    prefill = role == "prefill"
    blocks = settings.prefill_blocks if prefill else settings.decode_blocks
    tokens = blocks * settings.block_size
    return {
        "_block_size_resolved": True,
        "block_size": settings.block_size,
        "cache_dtype": "auto",
        "cache_hit_alignment_tokens": None,
        "effective_attention_block_size": settings.block_size,
        "enable_mamba_shared_prefix_checkpoint": False,
        "enable_prefix_caching": settings.prefill_prefix_caching if prefill else settings.decode_prefix_caching,
        "gpu_memory_utilization": 0.92,
        "hash_block_size": None,
        "is_attention_free": False,
        "kv_cache_dtype_skip_layers": [],
        "kv_cache_layout": None,
        "kv_cache_max_concurrency": round(tokens / settings.max_model_len, 3),
        "kv_cache_memory_bytes": tokens * settings.kv_bytes_per_token,
        "kv_cache_size_tokens": tokens,
        "kv_offloading_backend": "native",
        "kv_offloading_size": None,
        "kv_sharing_fast_prefill": False,
        "mamba_block_size": None,
        "mamba_cache_dtype": "auto",
        "mamba_cache_mode": "none",
        "mamba_page_size_padded": None,
        "mamba_ssm_cache_dtype": "auto",
        "num_cpu_blocks": None,
        "num_gpu_blocks": blocks,
        "num_gpu_blocks_override": None,
        "prefix_cache_retention_interval": 0,
        "prefix_caching_hash_algo": "sha256",
        "prefix_match_unit": None,
        "replayssm_buffer_len": 16,
        "skip_page_size_padded": None,
        "sliding_window": None,
        "swa_bounded_replay": True,
        "use_kda_recoverssm": False,
        "use_replayssm": False,
        "user_specified_block_size": False,
    }


class MetricsPage:
    """Writes the page of one engine server."""

    def __init__(self, settings: Settings, place: Place, engine: Engine) -> None:
        self._settings = settings
        self._place = place
        self._engine = engine
        self._created = _number(time.time())
        self._model = f'model_name="{settings.model}"'
        config = {**cache_config(settings, place.role), "engine": "0"}
        self._config = ",".join(f'{key}="{config[key]}"' for key in sorted(config))
        self._histograms = histogram_families(settings.max_model_len)

    def text(self) -> str:
        """The whole page."""
        lines: list[str] = []
        connected = bool(self._place.transfer)
        nixl = [name for name in self._histograms if name.startswith("vllm:nixl_")]
        nixl_counters = [name for name in COUNTERS if name.startswith("vllm:nixl_")]
        lines += self._process()
        if connected:
            for name in nixl:
                lines += self._histogram(name)
            for name in nixl_counters:
                lines += self._counter(name)
        lines += self._gauges()
        for name in COUNTERS:
            if name not in nixl_counters:
                lines += self._counter(name)
        for name in self._histograms:
            if name not in nixl:
                lines += self._histogram(name)
        lines += self._family("vllm:cache_config_info", "gauge", "Cache configuration of this SIMULATED engine.")
        lines.append(f"vllm:cache_config_info{{{self._config}}} 1.0\n")
        return "\n".join(lines)

    @staticmethod
    def _family(name: str, kind: str, text: str) -> tuple[str, str]:
        return f"# HELP {name} {text}", f"# TYPE {name} {kind}"

    def _process(self) -> Iterator[str]:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        pages = int(Path("/proc/self/statm").read_text().split()[1]) if Path("/proc/self/statm").exists() else 0
        for name, kind, text, value in (
            ("process_resident_memory_bytes", "gauge", "Resident memory.", pages * os.sysconf("SC_PAGE_SIZE")),
            ("process_start_time_seconds", "gauge", "Start of the process, Unix time.", float(self._created)),
            ("process_cpu_seconds_total", "counter", "CPU time used.", usage.ru_utime + usage.ru_stime),
        ):
            yield from self._family(name, kind, text)
            yield f"{name} {_number(value)}"

    def _gauges(self) -> Iterator[str]:
        stages = self._engine.stages()
        deferred = stages["in_progress"] + stages["completed_waiting"]
        rows: list[tuple[str, str, list[tuple[str, float]]]] = [
            ("num_requests_running", "Requests that hold a slot.", [("", stages["running"])]),
            ("num_requests_waiting", "Requests without a slot.", [("", stages["capacity"] + deferred)]),
            (
                "num_requests_waiting_by_reason",
                "Requests without a slot, by reason.",
                [('reason="capacity"', stages["capacity"]), ('reason="deferred"', deferred)],
            ),
        ]
        if self._place.role == "decode":
            by_stage = [(f'stage="{n}"', stages[n]) for n in ("waiting_to_start", "in_progress", "completed_waiting")]
            rows.append(("num_requests_kv_fetch_by_stage", "Requests whose KV comes from prefill.", [*by_stage]))
        states = [(f'sleep_state="{n}"', float(n == "awake")) for n in ("awake", "weights_offloaded", "discard_all")]
        rows.append(("engine_sleep_state", "Whether the engine sleeps (never here).", states))
        rows.append(("kv_cache_usage_perc", "KV blocks in use, 1 is all.", [("", self._engine.pool.usage)]))
        for name, text, values in rows:
            yield from self._family(f"vllm:{name}", "gauge", text)
            for label, value in values:
                extra = f",{label}" if label else ""
                yield f'vllm:{name}{{engine="0",{self._model}{extra}}} {_number(value)}'

    def _counter(self, name: str) -> Iterator[str]:
        text, label, values = COUNTERS[name]
        keys: list[tuple[str, str]] = []
        for value in values or ("",):
            parts = [] if name == "vllm:admission_rejections" else ['engine="0"']
            parts += [self._model, f'{label}="{value}"'] if label else [self._model]
            keys.append((value, ",".join(sorted(parts))))
        yield from self._family(f"{name}_total", "counter", text)
        for value, labels in keys:
            yield f"{name}_total{{{labels}}} {_number(self._engine.metrics.counters[name, value])}"
        yield from self._family(f"{name}_created", "gauge", text)
        for _, labels in keys:
            yield f"{name}_created{{{labels}}} {self._created}"

    def _histogram(self, name: str) -> Iterator[str]:
        histogram = self._engine.metrics.histograms[name]
        text = self._histograms[name][0]
        labels = f'engine="0",{self._model}'
        yield from self._family(name, "histogram", text)
        total = 0
        for bound, count in zip([*histogram.bounds, None], histogram.counts, strict=True):
            total += count
            le = "+Inf" if bound is None else _number(bound)
            yield f'{name}_bucket{{engine="0",le="{le}",{self._model}}} {_number(total)}'
        yield f"{name}_count{{{labels}}} {_number(total)}"
        yield f"{name}_sum{{{labels}}} {_number(histogram.sum)}"
        yield from self._family(f"{name}_created", "gauge", text)
        yield f"{name}_created{{{labels}}} {self._created}"
