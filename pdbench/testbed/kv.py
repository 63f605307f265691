"""The KV cache as the scheduler sees it: numbered blocks, and which of them can be found again by their tokens."""

from array import array
from collections import OrderedDict
from collections.abc import Sequence


def block_hashes(tokens: Sequence[int], block_size: int) -> list[int]:
    """One hash for each full block; each covers all tokens before it too, so equal hashes mean equal prefixes.

    The block with the last token is left out: an engine must compute at least one token to have something to sample.
    """
    raw = array("q", tokens).tobytes()
    width = 8 * block_size
    hashes: list[int] = []
    previous = 0
    for start in range(0, (len(tokens) - 1) // block_size * width, width):
        previous = hash((previous, raw[start : start + width]))
        hashes.append(previous)
    return hashes


class BlockPool:
    """Blocks of one server.  A block is free, in use, or idle: not in use but findable, and evicted oldest first."""

    def __init__(self, blocks: int, block_size: int, caching: bool) -> None:
        self.blocks = blocks
        self.block_size = block_size
        self.caching = caching
        self._free = list(range(blocks, 0, -1))  # popped from the end, so ids start at 1, as vLLM's do
        self._idle: OrderedDict[int, int] = OrderedDict()  # block -> hash
        self._found: dict[int, int] = {}  # hash -> block
        self._hash: dict[int, int] = {}  # block -> hash
        self._users: dict[int, int] = {}  # block -> number of requests

    @property
    def available(self) -> int:
        """Blocks that a request could get now."""
        return len(self._free) + len(self._idle)

    @property
    def usage(self) -> float:
        """Share of the pool in use, 0 to 1."""
        return 1.0 - self.available / self.blocks

    def for_tokens(self, tokens: int) -> int:
        """Whole blocks that hold so many tokens."""
        return -(-tokens // self.block_size)

    def match(self, hashes: Sequence[int]) -> list[int]:
        """Blocks that already hold the longest known prefix."""
        found: list[int] = []
        if self.caching:
            for value in hashes:
                block = self._found.get(value)
                if block is None:
                    break
                found.append(block)
        return found

    def take(self, count: int, reuse: Sequence[int] = ()) -> list[int] | None:
        """`reuse` plus new blocks up to `count`, or None (and nothing taken) when the pool cannot give them."""
        idle_reused = sum(block in self._idle for block in reuse)
        if count - len(reuse) > self.available - idle_reused:
            return None
        for block in reuse:
            self._idle.pop(block, None)
            self._users[block] = self._users.get(block, 0) + 1
        fresh = [self._free.pop() if self._free else self._evict() for _ in range(count - len(reuse))]
        for block in fresh:
            self._users[block] = 1
        return [*reuse, *fresh]

    def _evict(self) -> int:
        block, value = self._idle.popitem(last=False)
        del self._found[value], self._hash[block]
        return block

    def remember(self, blocks: Sequence[int], hashes: Sequence[int]) -> None:
        """These blocks now hold these prefixes."""
        if not self.caching:
            return
        for block, value in zip(blocks, hashes, strict=False):
            if value not in self._found:
                self._found[value] = block
                self._hash[block] = value

    def release(self, blocks: Sequence[int]) -> None:
        """One user less for each block; the end of a prompt becomes evictable before its beginning."""
        for block in reversed(blocks):
            users = self._users.pop(block) - 1
            if users:
                self._users[block] = users
            elif block in self._hash:
                self._idle[block] = self._hash[block]
            else:
                self._free.append(block)
