"""How large is a prompt's KV cache, on one GPU and on the wire? Closed forms without I/O or numpy.

`kv_bytes` is the formula for plain attention. `KvShape` holds a whole model: groups of layers whose cache has one form
(grouped heads, one latent vector as in MLA, a sliding window), and does the arithmetic of ranks, blocks and pools.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

# How a model's cache lies in registered memory: regions a layer, each of which needs a descriptor a block.
LAYOUTS = {"per-layer": "one region a layer, K and V together", "k-v-apart": "K and V in regions of their own"}
LAYOUTS |= {"all-layers": "one row of all layers a block"}


def kv_bytes(tokens: float, layers: int, kv_heads: int, head_dim: int, dtype_bytes: float = 2) -> float:
    """Bytes of the KV cache of `tokens` tokens: one key and one value vector per token, layer and KV head."""
    if min(tokens, layers, kv_heads, head_dim, dtype_bytes) < 0:
        raise ValueError("kv_bytes: no argument may be negative")
    return tokens * layers * 2 * kv_heads * head_dim * dtype_bytes


def transfer_ms(nbytes: float, link_gb_s: float, tp: int = 1) -> float:
    """Milliseconds to move `nbytes` when each of `tp` GPUs sends its shard over a link of `link_gb_s` (1e9 bytes/s)."""
    if nbytes < 0 or link_gb_s <= 0 or tp < 1:
        raise ValueError("transfer_ms: wants nbytes >= 0, link_gb_s > 0 and tp >= 1")
    return nbytes / tp / (link_gb_s * 1e9) * 1000


def effective_gb_s(nbytes: float, seconds: float) -> float | None:
    """GB/s (1e9 bytes/s) of `nbytes` in `seconds`; `None` when no time was measured."""
    return nbytes / seconds / 1e9 if seconds > 0 else None


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """Layers whose cache has one form. `value_dim` is 0 where one vector serves as key and value (MLA)."""

    layers: int
    kv_heads: int
    key_dim: int
    value_dim: int
    dtype_bytes: float
    window_tokens: int | None = None

    def heads_on_rank(self, tp: int) -> int:
        """KV heads that one of `tp` ranks holds; a rank never holds less than one, so heads are replicated."""
        if self.kv_heads > tp and self.kv_heads % tp:
            raise ValueError(f"{self.kv_heads} KV heads cannot be shared out evenly over {tp} ranks")
        return max(1, self.kv_heads // tp)

    def token_bytes(self, heads: int) -> float:
        return self.layers * heads * (self.key_dim + self.value_dim) * self.dtype_bytes

    def kept_tokens(self, tokens: float) -> float:
        return tokens if self.window_tokens is None else min(tokens, self.window_tokens)

    def kept_blocks(self, tokens: float, block_tokens: int) -> int:
        """Blocks that are sent: all, or the window's last ones and the one that it begins in."""
        blocks = math.ceil(tokens / block_tokens)
        if self.window_tokens is None:
            return blocks
        return min(blocks, math.ceil(self.window_tokens / block_tokens) + 1)

    def regions(self, layout: str) -> int:
        return self.layers * (2 if layout == "k-v-apart" and self.value_dim else 1)


@dataclass(frozen=True, slots=True)
class Blocks:
    """A prompt's cache on one rank as whole blocks, and what NIXL is asked to move when no two blocks are merged."""

    blocks: int
    rank_bytes: float
    descriptors: int
    smallest_descriptor_bytes: float
    largest_descriptor_bytes: float


@dataclass(frozen=True, slots=True)
class KvShape:
    """A model's KV cache. `state_layers` have a fixed state a sequence (Mamba, linear attention), not counted here."""

    model: str
    groups: tuple[LayerGroup, ...]
    state_layers: int = 0

    @property
    def bytes_per_token(self) -> float:
        """Bytes of one token in every layer, each KV head once: what a token costs while it lies in every window."""
        return sum(group.token_bytes(group.kv_heads) for group in self.groups)

    @property
    def growing_bytes_per_token(self) -> float:
        """Bytes that a further token adds to a long prompt: the layers without a window."""
        return sum(group.token_bytes(group.kv_heads) for group in self.groups if group.window_tokens is None)

    @property
    def layers(self) -> int:
        return sum(group.layers for group in self.groups)

    def bytes_for(self, tokens: float) -> float:
        """Bytes of a prompt, each KV head once."""
        if tokens < 0:
            raise ValueError("bytes_for: tokens may not be negative")
        return sum(group.token_bytes(group.kv_heads) * group.kept_tokens(tokens) for group in self.groups)

    def rank_bytes_per_token(self, tp: int = 1) -> float:
        return sum(group.token_bytes(group.heads_on_rank(tp)) for group in self.groups)

    def rank_bytes(self, tokens: float, tp: int = 1) -> float:
        """Bytes of a prompt on one of `tp` ranks."""
        return sum(group.token_bytes(group.heads_on_rank(tp)) * group.kept_tokens(tokens) for group in self.groups)

    def wire_bytes(self, tokens: float, tp: int = 1) -> float:
        """Bytes that cross the links of all `tp` ranks together, replicated heads as often as they are held."""
        return tp * self.rank_bytes(tokens, tp)

    def replication(self, tp: int) -> float:
        """How often the average byte is held by `tp` ranks; 1 while every group has a head for each."""
        return tp * self.rank_bytes_per_token(tp) / self.bytes_per_token

    def in_blocks(self, tokens: float, block_tokens: int, tp: int = 1, layout: str = "per-layer") -> Blocks:
        """A prompt's cache on one rank in whole blocks of `block_tokens`."""
        if layout not in LAYOUTS or block_tokens < 1 or tokens < 0:
            raise ValueError(f"in_blocks: wants a layout of {', '.join(LAYOUTS)} and blocks of at least one token")
        total, descriptors, sizes = 0.0, 0, []
        for group in self.groups:
            kept = group.kept_blocks(tokens, block_tokens)
            block_bytes = group.token_bytes(group.heads_on_rank(tp)) * block_tokens
            regions = 1 if layout == "all-layers" else group.regions(layout)
            total += kept * block_bytes
            descriptors += kept * regions
            sizes.append(block_bytes / regions)
        return Blocks(math.ceil(tokens / block_tokens), total, descriptors, min(sizes), max(sizes))


@dataclass(frozen=True, slots=True)
class KvPool:
    """The part of one GPU's memory that holds KV blocks, of a model spread over `tp` ranks."""

    shape: KvShape
    rank_bytes: float
    tp: int = 1
    block_tokens: int = 16

    def sequence_bytes(self, tokens: float) -> float:
        """Bytes on one GPU of a sequence of `tokens` (prompt and answer), in whole blocks."""
        return self.shape.in_blocks(tokens, self.block_tokens, self.tp).rank_bytes

    def sequences(self, tokens: float) -> int | None:
        """Sequences of `tokens` that fit at once; `None` when a sequence needs nothing."""
        each = self.sequence_bytes(tokens)
        return math.floor(self.rank_bytes / each) if each > 0 else None

    def slots_that_fit(self, max_num_seqs: int, tokens: float, staging: int = 0) -> int:
        """Slots that can be filled: `max_num_seqs`, or what the pool holds less `staging` loads that await a slot."""
        held = self.sequences(tokens)
        return max_num_seqs if held is None else max(0, min(max_num_seqs, held - staging))

    def bytes_for_slots(self, slots: float, tokens: float) -> float:
        """Bytes on one GPU that `slots` sequences of `tokens` need."""
        return slots * self.sequence_bytes(tokens)
