"""What a KV transfer costs: posting it, and moving its bytes."""

from pdbench.testbed.settings import Settings


def post_s(settings: Settings, tokens: int) -> float:
    """Seconds to prepare and submit the transfer of so many tokens, on whichever thread does it."""
    per_descriptor_ms = descriptors(settings, tokens) * settings.us_per_descriptor / 1000
    return (settings.post_fixed_ms + settings.post_ms_per_token * tokens + per_descriptor_ms) / 1000


def descriptors(settings: Settings, tokens: int) -> float:
    """Descriptors of the transfer of so many tokens, on each rank."""
    return settings.descriptors + -(-tokens // settings.block_size) * settings.descriptors_per_block


def block_bytes(settings: Settings) -> int:
    """Bytes of one KV block over all ranks."""
    return settings.block_size * settings.kv_bytes_per_token


class Link:
    """The wire of one server.  Transfers go one after another: together they never exceed the link's rate."""

    def __init__(self, gb_s: float) -> None:
        self._bytes_s = gb_s * 1e9
        self._free_s = 0.0

    def reserve(self, ready_s: float, nbytes: int) -> tuple[float, float]:
        """When a transfer that is posted at `ready_s` starts to move, and when it ends."""
        start = max(ready_s, self._free_s)
        self._free_s = start + nbytes / self._bytes_s
        return start, self._free_s
