"""Blocks: who has them, and which can be found again."""

import random

from hypothesis import given
from hypothesis import strategies as st

from pdbench.testbed.kv import BlockPool, block_hashes


def test_equal_prefixes_have_equal_hashes_and_the_last_token_is_never_cached() -> None:
    tokens = random.Random(1).choices(range(1000), k=64)
    assert len(block_hashes(tokens, 16)) == 3  # 64 tokens are 4 blocks, and one token must be left to compute
    assert len(block_hashes([*tokens, 1], 16)) == 4
    other = [*tokens[:40], 9999, *tokens[41:]]
    assert block_hashes(other, 16)[:2] == block_hashes(tokens, 16)[:2]
    assert block_hashes(other, 16)[2] != block_hashes(tokens, 16)[2]


def test_a_released_prefix_is_found_again_until_it_is_evicted() -> None:
    pool = BlockPool(4, 16, caching=True)
    hashes = block_hashes(range(49), 16)
    blocks = pool.take(4)
    assert blocks is not None
    pool.remember(blocks, hashes)
    pool.release(blocks)
    assert pool.match(hashes) == blocks[:3] and pool.usage == 0
    taken = pool.take(2)  # the free block, then the end of the prefix
    assert taken is not None
    assert pool.match(hashes) == blocks[:2]


def test_a_shared_block_stays_until_its_last_user_goes() -> None:
    pool = BlockPool(4, 16, caching=True)
    blocks = pool.take(2)
    assert blocks is not None
    pool.remember(blocks, [11, 12])
    again = pool.take(3, pool.match([11, 12]))
    assert again is not None and again[:2] == blocks
    pool.release(blocks)
    assert pool.available == 1
    pool.release(again)
    assert pool.available == 4


def test_without_caching_nothing_is_found() -> None:
    pool = BlockPool(4, 16, caching=False)
    blocks = pool.take(2)
    assert blocks is not None
    pool.remember(blocks, [11, 12])
    assert pool.match([11, 12]) == []


@given(st.lists(st.tuples(st.integers(1, 6), st.integers(0, 3), st.booleans()), max_size=60))
def test_blocks_are_neither_lost_nor_given_twice(steps: list[tuple[int, int, bool]]) -> None:
    pool = BlockPool(12, 4, caching=True)
    held: list[list[int]] = []
    for count, prefix, give_back in steps:
        hashes = [prefix * 100 + i for i in range(count)]
        blocks = pool.take(count, pool.match(hashes))
        if blocks is not None:
            assert len(set(blocks)) == count
            pool.remember(blocks, hashes)
            held.append(blocks)
        if give_back and held:
            pool.release(held.pop(0))
        assert len({block for blocks in held for block in blocks}) == 12 - pool.available
    for blocks in held:
        pool.release(blocks)
    assert pool.available == 12
