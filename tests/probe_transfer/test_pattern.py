"""What is moved: vLLM's layout against the published table, and block ids that NIXL merges, or cannot."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdbench.errors import UsageError
from pdbench.littles_law.models import MODELS, known_model
from pdbench.probe.transfer.memory import checksum, fill, guards_are_wiped, host_memory, wipe
from pdbench.probe.transfer.pattern import (
    GUARD_BYTES,
    Pattern,
    Segment,
    descriptors,
    indices,
    of_bytes,
    of_prompt,
    pattern_from,
    picks,
    smaller,
)

MIB = 1 << 20
segments = st.builds(Segment, st.integers(1, 4), st.integers(1, 9), st.sampled_from([8, 64, 4096]))
patterns = st.builds(lambda parts: Pattern("any", tuple(parts)), st.lists(segments, min_size=1, max_size=3))


# facts/transfer.md 6: what one rank of TP 8 holds of 16,384 tokens, and in how many blocks of which size.
@pytest.mark.parametrize(
    ("model", "tp", "block", "mib", "blocks", "block_kib"),
    [
        ("Qwen3-32B", 8, 16, 512, 65_536, 8),
        ("Qwen3-32B", 8, 64, 512, 16_384, 32),
        ("Qwen3-32B", 8, 128, 512, 8_192, 64),
        ("Llama-3.1-70B", 8, 16, 640, 81_920, 8),
        ("DeepSeek-V3", 8, 64, 1098, 15_616, 72),
        ("gpt-oss-120b", 1, 16, 581.0625, 18_594, 32),
    ],
)
def test_published_layouts(model: str, tp: int, block: int, mib: float, blocks: int, block_kib: int) -> None:
    pattern = of_prompt(known_model(model), 16_384, block, tp, "per-layer")
    assert (pattern.nbytes, pattern.descriptors) == (mib * MIB, blocks)
    assert {segment.block_bytes for segment in pattern.segments} == {block_kib * 1024}


# The same table: KiB a token of all ranks together in BF16, and what one of 8 holds.
@pytest.mark.parametrize(
    ("model", "whole_kib", "rank_kib"),
    [
        ("Qwen3-32B", 256, 32),
        ("Llama-3.1-70B", 320, 40),
        ("Llama-3.1-8B", 128, 16),
        ("Llama-3.1-405B", 504, 63),
        ("Qwen2.5-7B", 56, 14),
        ("Qwen3-235B-A22B", 188, 47),
        ("Qwen3-30B-A3B", 96, 24),
        ("DeepSeek-R1", 68.625, 68.625),
    ],
)
def test_published_bytes_a_token(model: str, whole_kib: float, rank_kib: float) -> None:
    tokens = 16_000  # whole blocks of 16
    assert of_prompt(known_model(model), tokens, 16, 1, "per-layer").nbytes == tokens * whole_kib * 1024
    assert of_prompt(known_model(model), tokens, 16, 8, "per-layer").nbytes == tokens * rank_kib * 1024


@pytest.mark.parametrize("layout", ["per-layer", "k-v-apart", "all-layers"])
@pytest.mark.parametrize("model", sorted(MODELS))
def test_every_model_counts_as_plan_does(model: str, layout: str) -> None:
    shape = known_model(model)
    counted = shape.in_blocks(5000, 16, 1, layout)
    pattern = of_prompt(shape, 5000, 16, 1, layout)
    assert (pattern.descriptors, pattern.nbytes) == (counted.descriptors, counted.rank_bytes)


def test_bytes_that_cannot_be_cut_evenly_are_refused() -> None:
    assert of_bytes(64 * MIB, 8192).segments == (Segment(1, 8192, 8192),)
    with pytest.raises(UsageError, match="cannot be cut into 3 equal descriptors"):
        of_bytes(64 * MIB, 3)


@given(patterns, st.integers(1, 3), st.integers(0, 2**32))
def test_scattered_blocks_cannot_be_merged_and_contiguous_ones_all_are(
    pattern: Pattern, in_flight: int, seed: int
) -> None:
    rows = descriptors(pattern, 1 << 20, 0, in_flight)
    for ids, wanted in (("scattered", pattern.descriptors), ("contiguous", pattern.regions)):
        taken: list[int] = []
        for one in picks(pattern, ids, in_flight, seed):
            here = rows[indices(pattern, one.here, in_flight)].astype(np.int64)
            there = rows[indices(pattern, one.there, in_flight)].astype(np.int64)
            assert (here[:, 1] == there[:, 1]).all() and here[:, 1].sum() == pattern.nbytes
            follows = (np.diff(here[:, 0]) == here[:-1, 1]) & (np.diff(there[:, 0]) == there[:-1, 1])
            assert len(rows[indices(pattern, one.here, in_flight)]) - follows.sum() == wanted
            taken += here[:, 0].tolist()
        assert len(set(taken)) == in_flight * pattern.descriptors  # no block twice, not even by two in flight
        assert max(taken) < (1 << 20) + pattern.pool_bytes(in_flight) - GUARD_BYTES


@given(patterns, st.data())
def test_a_byte_in_the_wrong_place_is_seen(pattern: Pattern, data: st.DataObject) -> None:
    """What arrives is copied by hand, descriptor by descriptor; then one byte, or two blocks, are put wrong."""
    source, target = host_memory(pattern.pool_bytes(1)), host_memory(pattern.pool_bytes(1))
    fill(source, source.nbytes, seed=7)
    wipe(target, target.nbytes)
    (one,) = picks(pattern, "scattered", 1, seed=3)
    rows = descriptors(pattern, 0, 0, 1).astype(int)
    pairs = list(zip(indices(pattern, one.here, 1), indices(pattern, one.there, 1), strict=True))
    for here, there in pairs:
        target.write(rows[here][0], source.read(rows[there][0], rows[there][1]))
    sent = checksum(source, pattern, one.there, 1)
    assert checksum(target, pattern, one.here, 1) == sent and guards_are_wiped(target, pattern, 1)

    row = rows[pairs[data.draw(st.integers(0, len(pairs) - 1))][0]]
    at = int(row[0]) + data.draw(st.integers(0, int(row[1]) - 1))
    target.write(at, target.read(at, 1) ^ np.uint8(1))
    assert checksum(target, pattern, one.here, 1) != sent
    target.write(at, target.read(at, 1) ^ np.uint8(1))
    if len(pairs) > 1 and rows[pairs[0][0]][1] == rows[pairs[1][0]][1]:
        first, second = (target.read(*rows[here][:2]).copy() for here, _ in pairs[:2])
        target.write(rows[pairs[0][0]][0], second)
        target.write(rows[pairs[1][0]][0], first)
        assert checksum(target, pattern, one.here, 1) != sent
    target.write(target.nbytes - 1, np.ones(1, dtype=np.uint8))
    assert not guards_are_wiped(target, pattern, 1)


@given(patterns, st.sampled_from([4, 16, 64]))
def test_smaller_keeps_the_layout_and_documents_come_back(pattern: Pattern, divisor: int) -> None:
    less = smaller(pattern, divisor)
    assert [(s.regions, s.block_bytes) for s in less.segments] == [(s.regions, s.block_bytes) for s in pattern.segments]
    assert 0 < less.descriptors <= pattern.descriptors
    assert pattern_from(less.document()) == less
