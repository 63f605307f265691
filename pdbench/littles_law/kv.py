"""How large is a prompt's KV cache, and how long does a link need for it? Closed forms without I/O or numpy."""

from __future__ import annotations


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
