"""KV bytes, blocks and descriptors against published figures and against the formula itself."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdbench.errors import UsageError
from pdbench.littles_law.kv import LAYOUTS, KvPool, kv_bytes, transfer_ms
from pdbench.littles_law.models import MODELS, known_model, shape_from_config

# KiB a token in BF16, once over all ranks: published figures and the models' own configs.
KIB_PER_TOKEN = {
    "Llama-3.1-8B": 128,
    "Qwen3-8B": 144,
    "Qwen3-32B": 256,
    "Llama-3.1-70B": 320,
    "Llama-3.1-405B": 504,
    "Qwen2.5-7B": 56,
    "Qwen3-30B-A3B": 96,
    "Qwen3-235B-A22B": 188,
    "DeepSeek-V3": 68.625,
    "gpt-oss-120b": 72,
    "OPT-13B": 800,
    "OPT-175B": 4608,
}
# KiB a token on one rank at TP 8 and TP 16, heads replicated where there are fewer than ranks.
RANK_KIB = {
    "Qwen3-32B": (32, 32),
    "Llama-3.1-70B": (40, 40),
    "Llama-3.1-8B": (16, 16),
    "Llama-3.1-405B": (63, 63),
    "Qwen2.5-7B": (14, 14),
    "Qwen3-235B-A22B": (47, 47),
    "Qwen3-30B-A3B": (24, 24),
    "DeepSeek-V3": (68.625, 68.625),
    "gpt-oss-120b": (9, 9),
}
# 16,384 tokens on one rank: model, TP, block, MiB, descriptors, KiB of each.
HANDOFFS = [
    ("Qwen3-32B", 8, 16, 512, 65536, 8),
    ("Qwen3-32B", 8, 64, 512, 16384, 32),
    ("Qwen3-32B", 8, 128, 512, 8192, 64),
    ("Llama-3.1-70B", 8, 16, 640, 81920, 8),
    ("DeepSeek-V3", 8, 64, 1098, 15616, 72),
    ("gpt-oss-120b", 1, 16, 581.0625, 18594, 32),
]


@pytest.mark.parametrize(("model", "kib"), KIB_PER_TOKEN.items())
def test_bytes_a_token(model: str, kib: float) -> None:
    assert known_model(model).bytes_per_token == kib * 1024
    assert known_model(model, "fp8").bytes_per_token == kib * 512


@pytest.mark.parametrize(("model", "kib"), RANK_KIB.items())
def test_bytes_a_token_on_a_rank(model: str, kib: tuple[float, float]) -> None:
    shape = known_model(model)
    assert (shape.rank_bytes_per_token(8) / 1024, shape.rank_bytes_per_token(16) / 1024) == kib


@pytest.mark.parametrize(("model", "tp", "block", "mib", "descriptors", "each_kib"), HANDOFFS)
def test_blocks_and_descriptors(model: str, tp: int, block: int, mib: float, descriptors: int, each_kib: float) -> None:
    found = known_model(model).in_blocks(16384, block, tp)
    assert found.rank_bytes / 2**20 == mib
    assert found.descriptors == descriptors
    assert found.smallest_descriptor_bytes == found.largest_descriptor_bytes == each_kib * 1024


def test_reference_transfer() -> None:
    nbytes = kv_bytes(16_000, 64, 8, 128)
    assert nbytes == known_model("Qwen3-32B").bytes_for(16_000) == pytest.approx(4.19e9, rel=0.002)
    assert transfer_ms(nbytes, 50, tp=8) == pytest.approx(10.5, abs=0.05)
    # 10k tokens of Llama-3.1-70B at 400 Gb/s; an 8k prompt of Qwen2.5-7B.
    assert transfer_ms(known_model("Llama-3.1-70B").bytes_for(10_000), 50) == pytest.approx(65, rel=0.02)
    assert known_model("Qwen2.5-7B").bytes_for(8192) == pytest.approx(470e6, rel=0.01)


def test_layouts() -> None:
    shape = known_model("Llama-3.1-70B")
    # 118 blocks, K and V apart, as counted in a public report: 18,880 descriptors.
    assert shape.in_blocks(118 * 16, 16, 8, "k-v-apart").descriptors == 18_880
    assert shape.in_blocks(118 * 16, 16, 8, "all-layers").descriptors == 118
    assert known_model("DeepSeek-V3").in_blocks(1024, 64, 1, "k-v-apart").descriptors == 61 * 16


def test_partial_block_is_sent_whole() -> None:
    shape = known_model("Qwen3-32B")
    assert shape.in_blocks(17, 16).rank_bytes == shape.bytes_for(32)


def test_sparse_attention_rows() -> None:
    # 656 bytes a token and layer for the packed latent, 132 for the indexer.
    assert known_model("DeepSeek-V3.2", "fp8_ds_mla").bytes_per_token == 61 * (656 + 132)


@given(
    st.sampled_from(sorted(MODELS)),
    st.integers(1, 100_000),
    st.integers(1, 100_000),
    st.sampled_from([1, 2, 4]),
    st.sampled_from([1, 16, 64]),
    st.sampled_from(sorted(LAYOUTS)),
)
def test_more_tokens_never_need_less(model: str, a: int, b: int, tp: int, block: int, layout: str) -> None:
    shape = known_model(model)
    if any(group.kv_heads > tp and group.kv_heads % tp for group in shape.groups):
        return
    few, many = min(a, b), max(a, b)
    assert shape.bytes_for(few) <= shape.bytes_for(many)
    assert shape.rank_bytes(few, tp) <= shape.in_blocks(few, block, tp, layout).rank_bytes
    assert shape.in_blocks(few, block, tp, layout).descriptors <= shape.in_blocks(many, block, tp, layout).descriptors
    # All ranks together hold everything once, or more where heads are replicated.
    assert shape.wire_bytes(many, tp) >= shape.bytes_for(many) * (1 - 1e-12)


def test_pool_arithmetic() -> None:
    shape = known_model("Llama-3.1-8B")
    pool = KvPool(shape, 100 * shape.bytes_for(1024), block_tokens=16)
    assert pool.sequences(1024) == 100
    assert pool.sequences(1025) == 98  # a block more for each
    assert pool.slots_that_fit(256, 1024) == 100
    assert pool.slots_that_fit(256, 1024, staging=10) == 90
    assert pool.slots_that_fit(64, 1024) == 64
    assert pool.slots_that_fit(64, 1_000_000, staging=3) == 0
    assert pool.bytes_for_slots(3, 1024) == 3 * shape.bytes_for(1024)


def config(**more: object) -> dict[str, object]:
    return {"num_hidden_layers": 12, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 64, **more}


def test_windows_and_hybrids() -> None:
    by_period = shape_from_config(config(sliding_window=512, sliding_window_pattern=6))
    assert [(group.layers, group.window_tokens) for group in by_period.groups] == [(10, 512), (2, None)]
    row = 2 * 4 * 64 * 2
    assert by_period.bytes_for(2048) == row * (10 * 512 + 2 * 2048)
    assert by_period.bytes_for(100) == row * 12 * 100
    unused = shape_from_config(config(sliding_window=512, use_sliding_window=False))
    assert unused.growing_bytes_per_token == unused.bytes_per_token
    late = shape_from_config(config(sliding_window=512, use_sliding_window=True, max_window_layers=9))
    assert {group.window_tokens: group.layers for group in late.groups} == {None: 9, 512: 3}
    linear = shape_from_config(config(full_attention_interval=4))
    assert (linear.layers, linear.state_layers) == (3, 9)
    jamba = shape_from_config(config(attn_layer_period=6, attn_layer_offset=2))
    assert (jamba.layers, jamba.state_layers) == (2, 10)
    pattern = shape_from_config(config(hybrid_override_pattern="M-M*-M-M*-M-"))
    assert (pattern.layers, pattern.state_layers) == (2, 5)
    listed = shape_from_config(config(layers_block_type=["mamba"] * 10 + ["attention"] * 2))
    assert (listed.layers, listed.state_layers) == (2, 10)
    assert shape_from_config(config(num_kv_shared_layers=4)).layers == 8


def test_other_spellings() -> None:
    gpt2 = shape_from_config({"n_layer": 12, "n_head": 12, "n_embd": 768})
    assert gpt2.bytes_per_token == kv_bytes(1, 12, 12, 64)
    multi_query = shape_from_config({"n_layer": 4, "n_head": 8, "n_embd": 512, "multi_query": True})
    assert multi_query.bytes_per_token == kv_bytes(1, 4, 1, 64)
    nested = shape_from_config({"model_type": "gemma3", "text_config": config(torch_dtype="float32")})
    assert nested.bytes_per_token == kv_bytes(1, 12, 4, 64, 4)
    wide_keys = shape_from_config(config(head_dim=192, v_head_dim=128))
    assert wide_keys.bytes_per_token == 12 * 4 * (192 + 128) * 2


def test_kv_dtype_in_the_checkpoint() -> None:
    scheme = {"quantization_config": {"kv_cache_scheme": {"num_bits": 8, "type": "float"}}}
    assert shape_from_config(config(**scheme)).bytes_per_token == kv_bytes(1, 12, 4, 64, 1)
    assert shape_from_config(config(**scheme), kv_dtype="bf16").bytes_per_token == kv_bytes(1, 12, 4, 64, 2)


@pytest.mark.parametrize("field", ["num_hidden_layers", "num_attention_heads"])
def test_a_missing_field_is_named(field: str) -> None:
    lacking = {key: value for key, value in config().items() if key != field}
    with pytest.raises(UsageError, match=field):
        shape_from_config(lacking)


def test_senseless_fields_are_named() -> None:
    for value in (0, -3, 2.5, "many", True):
        with pytest.raises(UsageError, match="num_key_value_heads"):
            shape_from_config(config(num_key_value_heads=value))
    with pytest.raises(UsageError, match="qk_rope_head_dim"):
        shape_from_config(config(kv_lora_rank=512))
    with pytest.raises(UsageError, match="int4"):
        shape_from_config(config(torch_dtype="int4"))


def test_an_unknown_model_names_the_known_ones() -> None:
    with pytest.raises(UsageError) as caught:
        known_model("Qwen9-1T")
    assert "Qwen3-32B" in caught.value.hint


def test_names_as_people_type_them() -> None:
    assert known_model("Qwen/Qwen3-32B-FP8").bytes_per_token == known_model("qwen3-32b").bytes_per_token
    assert known_model("meta-llama/Llama-3.1-8B-Instruct").model == "Llama-3.1-8B"


def test_heads_that_cannot_be_shared_out() -> None:
    with pytest.raises(ValueError, match="8 KV heads"):
        known_model("Qwen3-32B").rank_bytes(1, 3)
