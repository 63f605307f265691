"""How long does a handoff's transfer take, and how much of it does a prompt wait for?

    transfer = t0 + bytes / bandwidth + descriptors x post      (t0: handshake and fixed costs of one transfer)

Posting runs on one thread before the bytes have moved; with pull it is decode's engine thread, which stalls every
stream. Layer by layer, piece i of the transfer starts when piece i of the prefill is done:

    exposed = x if x <= p else n x - (n - 1) p      (n pieces, prefill p and transfer x a piece, one link)
"""

from __future__ import annotations

from dataclasses import dataclass

from pdbench.littles_law.kv import transfer_ms

# 46 ms for 18,880 descriptors on LIBFABRIC (ai-dynamo/nixl issue 1514).
POST_US_PER_DESCRIPTOR = 2.4


@dataclass(frozen=True, slots=True)
class Transfer:
    """One prompt's transfer between two instances of equal TP; every rank moves its part at the same time."""

    rank_bytes: float
    link_gb_s: float
    fixed_ms: float = 0.0
    descriptors: float = 0.0
    post_us_per_descriptor: float = POST_US_PER_DESCRIPTOR

    @property
    def wire_ms(self) -> float:
        return transfer_ms(self.rank_bytes, self.link_gb_s)

    @property
    def post_ms(self) -> float:
        return self.descriptors * self.post_us_per_descriptor / 1000

    @property
    def total_ms(self) -> float:
        """t0 + bytes/bandwidth + descriptors: an upper bound, since the first bytes move while the last are posted."""
        return self.fixed_ms + self.wire_ms + self.post_ms


@dataclass(frozen=True, slots=True)
class Overlap:
    """How much of a transfer a prompt still waits for after its prefill, and which share of it was hidden."""

    exposed_ms: float
    hidden_fraction: float


def layer_wise(pieces: int, prefill_piece_ms: float, transfer_piece_ms: float, piece_cost_ms: float = 0.0) -> Overlap:
    """A transfer in `pieces` that starts with the prefill's first piece; each adds `piece_cost_ms`."""
    if pieces < 1 or min(prefill_piece_ms, transfer_piece_ms, piece_cost_ms) < 0:
        raise ValueError("layer_wise: wants at least one piece and no negative time")
    piece = transfer_piece_ms + piece_cost_ms
    exposed = piece if piece <= prefill_piece_ms else pieces * piece - (pieces - 1) * prefill_piece_ms
    whole = pieces * transfer_piece_ms
    return Overlap(exposed, max(0.0, 1 - exposed / whole) if whole > 0 else 0.0)


def streaming_pays(pieces: int, prefill_piece_ms: float, transfer_piece_ms: float, piece_cost_ms: float) -> bool:
    """Whether sending in pieces beats one transfer after the prefill: what is hidden must exceed the extra pieces."""
    if pieces == 1:
        return False
    streamed = layer_wise(pieces, prefill_piece_ms, transfer_piece_ms, piece_cost_ms).exposed_ms
    return streamed < pieces * transfer_piece_ms + piece_cost_ms


@dataclass(frozen=True, slots=True)
class Exposure:
    """What a prompt waits for between the end of its prefill and its first step on decode, in one way of handing over.

    `stalls_decode_ms` is the time for which posting holds up decode's other streams; `None`: not known.
    """

    way: str
    exposed_ms: float
    hidden_fraction: float
    stalls_decode_ms: float | None
    explained: str


def exposures(
    transfer: Transfer, layers: int, prefill_ms: float | None, chunks: int, step_ms: float, proxy_ms: float
) -> list[Exposure]:
    """Pull, push after the forward, and push per layer. `prefill_ms` `None`: per-layer push cannot be told."""
    poll_ms = step_ms / 2
    after = [
        Exposure(
            "pull", proxy_ms + transfer.total_ms + poll_ms, 0.0, transfer.post_ms if transfer.descriptors else None,
            "after the whole forward, over the proxy; posted on decode's engine thread",
        ),
        Exposure(
            "push", transfer.total_ms + poll_ms, 0.0, 0.0,
            "after the whole forward; no proxy round trip, posted on prefill",
        ),
    ]  # fmt: skip
    if prefill_ms is None:
        return after
    # With chunked prefill the blocks of earlier chunks wait for the last one, so only its forward hides anything.
    piece = layer_wise(layers, prefill_ms / chunks / layers, (transfer.wire_ms + transfer.post_ms) / layers)
    hides = "each layer when it is computed"
    hides += f"; of {chunks} chunks only the last one's forward hides it" if chunks > 1 else ""
    streamed = transfer.fixed_ms + piece.exposed_ms + poll_ms
    return [*after, Exposure("push per layer", streamed, piece.hidden_fraction, 0.0, hides)]
