"""A model's KV cache from its config.json, or from the table of well-known models. No I/O: a config is a mapping."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from pdbench.errors import UsageError
from pdbench.littles_law.kv import KvShape, LayerGroup

Config = Mapping[str, Any]

KV_DTYPES = {"bf16": 2.0, "fp16": 2.0, "fp32": 4.0, "fp8": 1.0, "int8": 1.0, "fp8_ds_mla": 1.0}
_CONFIG_DTYPES = {"bfloat16": 2.0, "float16": 2.0, "half": 2.0, "float32": 4.0, "float": 4.0}
# vLLM's packed row of one token and layer for DeepSeek's sparse attention: 512 FP8 values, 4 scales, 64 BF16 values.
_FP8_DS_MLA_ROW_BYTES = 656
# The indexer's own row: `index_head_dim` FP8 values and one FP32 scale for each 128 of them.
_INDEXER_SCALE_BYTES, _INDEXER_SCALE_OF = 4, 128

_LAYERS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")
_HEADS = ("num_attention_heads", "n_head", "n_heads")
_KV_HEADS = ("num_key_value_heads", "num_kv_heads", "n_head_kv", "multi_query_group_num")
_HIDDEN = ("hidden_size", "n_embd", "d_model")
_NESTED = ("text_config", "llm_config", "language_config", "thinker_config")
_NO_CACHE = {"linear_attention", "mamba", "mamba2", "recurrent", "conv", "linear", "ssm"}
_WINDOWED = {"sliding_attention", "chunked_attention", "local_attention", "sliding_window"}
_WITHOUT_LAYER = {"mlp", "moe"}


def _plain(layers: int, kv_heads: int, head_dim: int, heads: int | None = None, **more: Any) -> Config:
    return {
        "num_hidden_layers": layers,
        "num_attention_heads": heads or kv_heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        **more,
    }


_MLA = {"num_hidden_layers": 61, "num_attention_heads": 128, "kv_lora_rank": 512, "qk_rope_head_dim": 64}
_ALTERNATING = ("sliding_attention", "full_attention")

# What of each model's config.json decides its KV cache. Checked by tests against published figures (docs/plan.md).
MODELS: dict[str, Config] = {
    "Llama-3.1-8B": _plain(32, 8, 128, 32),
    "Llama-3.1-70B": _plain(80, 8, 128, 64),
    "Llama-3.3-70B": _plain(80, 8, 128, 64),
    "Llama-3.1-405B": _plain(126, 8, 128, 128),
    "Qwen2.5-0.5B": _plain(24, 2, 64, 14),
    "Qwen2.5-7B": _plain(28, 4, 128, 28),
    "Qwen2.5-32B": _plain(64, 8, 128, 40),
    "Qwen2.5-72B": _plain(80, 8, 128, 64),
    "Qwen3-0.6B": _plain(28, 8, 128, 16),
    "Qwen3-8B": _plain(36, 8, 128, 32),
    "Qwen3-32B": _plain(64, 8, 128, 64),
    "Qwen3-30B-A3B": _plain(48, 4, 128, 32),
    "Qwen3-235B-A22B": _plain(94, 4, 128, 64),
    "Qwen3-Next-80B-A3B": _plain(48, 2, 256, 16, full_attention_interval=4),
    "Mistral-7B": _plain(32, 8, 128, 32),
    "Mixtral-8x7B": _plain(32, 8, 128, 32),
    "Gemma-3-27B": _plain(62, 16, 128, 32, sliding_window=1024, sliding_window_pattern=6),
    "gpt-oss-20b": _plain(24, 8, 64, 64, sliding_window=128, layer_types=_ALTERNATING * 12),
    "gpt-oss-120b": _plain(36, 8, 64, 64, sliding_window=128, layer_types=_ALTERNATING * 18),
    "DeepSeek-V3": _MLA,
    "DeepSeek-R1": _MLA,
    "DeepSeek-V3.2": {**_MLA, "index_head_dim": 128},
    "Kimi-K2": {**_MLA, "num_attention_heads": 64},
    "OPT-13B": _plain(40, 40, 128),
    "OPT-175B": _plain(96, 96, 128),
}


def known_model(name: str, kv_dtype: str = "auto") -> KvShape:
    """The KV cache of a model of the table; `Qwen/Qwen3-32B` and `qwen3-32b-instruct` are found too."""
    wanted = name.rsplit("/", 1)[-1].lower()
    by_name = {known.lower(): known for known in MODELS}
    for suffix in ("", "-instruct", "-fp8", "-base", "-it", "-chat"):
        bare = wanted.removesuffix(suffix)
        if bare in by_name:
            return shape_from_config(MODELS[by_name[bare]], by_name[bare], kv_dtype)
    raise UsageError(
        f"--model {name}: not in the built-in table.",
        f"Known: {', '.join(MODELS)}. For another model give --model-config with its config.json.",
    )


def shape_from_config(config: Config, model: str = "", kv_dtype: str = "auto") -> KvShape:
    """The KV cache that a config.json describes; UsageError names the field that is missing or senseless."""
    nested = next((config[key] for key in _NESTED if isinstance(config.get(key), Mapping)), None)
    if nested is not None:
        return shape_from_config({**config, **dict.fromkeys(_NESTED), **nested}, model, kv_dtype)
    name = model or str(config.get("_name_or_path") or config.get("model_type") or "the model")
    dtype_bytes = _dtype_bytes(config, kv_dtype)
    kinds = layer_kinds(config)
    if config.get("kv_lora_rank"):
        return KvShape(name, _latent(config, kinds, dtype_bytes, kv_dtype))
    if kv_dtype == "fp8_ds_mla":
        raise UsageError(f"--kv-dtype fp8_ds_mla: {name} has no latent attention.", "Use fp8 instead.")
    groups = []
    for kind, layers in Counter(kinds).items():
        if kind in _NO_CACHE or kind in _WITHOUT_LAYER:
            continue
        groups.append(_grouped(config, kind, layers, dtype_bytes))
    if not groups:
        raise UsageError(f"{name}: no layer of this config keeps a KV cache.", "Nothing would be handed over.")
    return KvShape(name, tuple(groups), sum(kind in _NO_CACHE for kind in kinds))


def layer_kinds(config: Config) -> list[str]:
    """What each layer is: `full_attention`, a windowed or a recurrent kind, in the words of config.json."""
    shared = int(config.get("num_kv_shared_layers") or 0)
    for key in ("layer_types", "layers_block_type", "attn_type_list"):
        if isinstance(config.get(key), Sequence) and not isinstance(config[key], str):
            kinds = [
                "full_attention" if kind in ("attention", "full", 1, "hybrid") else str(kind) for kind in config[key]
            ]
            return kinds[: len(kinds) - shared]
    pattern = config.get("hybrid_override_pattern")
    if isinstance(pattern, str) and pattern:
        return [{"M": "mamba", "*": "full_attention"}.get(mark, "mlp") for mark in pattern]
    layers = _count(config, _LAYERS)
    return [_kind_by_rule(config, index) for index in range(layers - shared)]


def _kind_by_rule(config: Config, index: int) -> str:
    """The kind of layer `index` where the config gives a period instead of a list."""
    if config.get("full_attention_interval"):
        return "full_attention" if (index + 1) % int(config["full_attention_interval"]) == 0 else "linear_attention"
    if config.get("attn_layer_period"):
        at = index % int(config["attn_layer_period"]) == int(config.get("attn_layer_offset") or 0)
        return "full_attention" if at else "mamba"
    if not config.get("sliding_window") or config.get("use_sliding_window") is False:
        return "full_attention"
    period = config.get("sliding_window_pattern") or config.get("_sliding_window_pattern")
    if isinstance(period, int) and period > 0:
        return "full_attention" if (index + 1) % period == 0 else "sliding_attention"
    if config.get("model_type") == "gemma2":
        return "sliding_attention" if index % 2 == 0 else "full_attention"
    if config.get("use_sliding_window") and index < int(config.get("max_window_layers") or 0):
        return "full_attention"
    return "sliding_attention"


def _latent(config: Config, kinds: Sequence[str], dtype_bytes: float, kv_dtype: str) -> tuple[LayerGroup, ...]:
    """MLA: one latent vector with its rotary part serves every head as key and value, on every rank."""
    layers = len([kind for kind in kinds if kind not in _NO_CACHE])
    width = _count(config, ("kv_lora_rank",)) + _count(config, ("qk_rope_head_dim",))
    group = LayerGroup(layers, 1, width, 0, dtype_bytes)
    if kv_dtype == "fp8_ds_mla":
        group = LayerGroup(layers, 1, _FP8_DS_MLA_ROW_BYTES, 0, 1)
    index = int(config.get("index_head_dim") or 0)
    if not index:
        return (group,)
    row = index + index // _INDEXER_SCALE_OF * _INDEXER_SCALE_BYTES
    return (group, LayerGroup(layers, 1, row, 0, 1))


def _grouped(config: Config, kind: str, layers: int, dtype_bytes: float) -> LayerGroup:
    """Multi-head, grouped and multi-query attention, with or without a window."""
    heads = _count(config, _HEADS)
    windowed = kind in _WINDOWED
    window = None
    if windowed:
        field = "attention_chunk_size" if kind == "chunked_attention" else "sliding_window"
        window = _count(config, (field,))
    kv_heads = 1 if config.get("multi_query") is True else _count(config, _KV_HEADS, heads)
    if config.get("multi_query_attention") is False:
        kv_heads = heads
    if windowed and config.get("swa_num_key_value_heads"):
        kv_heads = _count(config, ("swa_num_key_value_heads",))
    prefix = "swa_" if windowed and config.get("swa_head_dim") else ""
    head_dim = _count(config, (f"{prefix}head_dim", "kv_channels"), 0) or _count(config, _HIDDEN) // heads
    value_dim = _count(config, (f"{prefix}v_head_dim",), head_dim)
    return LayerGroup(layers, kv_heads, head_dim, value_dim, dtype_bytes, window)


def _dtype_bytes(config: Config, kv_dtype: str) -> float:
    """Bytes of a cached value: asked for, or as vLLM's `auto` (a KV scheme in the checkpoint, else its dtype)."""
    if kv_dtype != "auto":
        if kv_dtype not in KV_DTYPES:
            raise UsageError(f"--kv-dtype {kv_dtype}: not known.", f"Use auto, {', '.join(KV_DTYPES)}.")
        return KV_DTYPES[kv_dtype]
    quantization = config.get("quantization_config")
    if isinstance(quantization, Mapping):
        scheme = quantization.get("kv_cache_scheme")
        if isinstance(scheme, Mapping) and scheme.get("num_bits"):
            return float(scheme["num_bits"]) / 8
        if str(quantization.get("kv_cache_quant_algo") or "").upper() in ("FP8", "INT8"):
            return 1.0
    named = str(config.get("torch_dtype") or config.get("dtype") or "bfloat16").removeprefix("torch.")
    if named not in _CONFIG_DTYPES:
        raise UsageError(f"the config's dtype {named!r} says nothing of the KV cache.", "Add --kv-dtype, such as bf16.")
    return _CONFIG_DTYPES[named]


def _count(config: Config, fields: Sequence[str], default: int | None = None) -> int:
    """The first of `fields` that the config has."""
    for field in fields:
        value = config.get(field)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise UsageError(f"the config's {field} is {value!r}, not a whole number above 0.", "Is it a config.json?")
        return value
    if default is None:
        also = f" (or {', '.join(fields[1:])})" if fields[1:] else ""
        raise UsageError(f"the config has no {fields[0]}{also}.", "Give the model's own config.json, complete.")
    return default
