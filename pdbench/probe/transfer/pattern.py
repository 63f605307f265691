"""What one transfer moves: blocks of KV cache, out of regions of registered memory. No I/O; numpy only where ids are.

vLLM registers a region a layer, prepares a descriptor for every block of every region, and a request then picks the
blocks that it has in each: descriptors = regions x blocks. Neighbours on both sides are merged by NIXL.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pdbench.errors import UsageError
from pdbench.littles_law.kv import KvShape

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

IDS = ("scattered", "contiguous")
GUARD_BYTES = 4096  # behind each region and never moved, so that no two regions touch


@dataclass(frozen=True, slots=True)
class Segment:
    """Regions of equal blocks; one transfer takes `blocks` of each, with the same ids in every region."""

    regions: int
    blocks: int
    block_bytes: int

    @property
    def nbytes(self) -> int:
        return self.regions * self.blocks * self.block_bytes

    def stride(self, in_flight: int) -> int:
        """Bytes from one region to the next when it holds the blocks of `in_flight` transfers."""
        return self.blocks * in_flight * self.block_bytes + GUARD_BYTES


@dataclass(frozen=True, slots=True)
class Pattern:
    """What one transfer moves. `tokens` and `block_tokens`: of the prompt whose cache it is; None for raw bytes."""

    name: str
    segments: tuple[Segment, ...]
    tokens: int | None = None
    block_tokens: int | None = None

    @property
    def nbytes(self) -> int:
        return sum(segment.nbytes for segment in self.segments)

    @property
    def descriptors(self) -> int:
        """Blocks of all regions: what NIXL is asked to move when no two are merged."""
        return sum(segment.regions * segment.blocks for segment in self.segments)

    @property
    def regions(self) -> int:
        """Descriptors when all blocks of a region lie beside each other on both sides."""
        return sum(segment.regions for segment in self.segments)

    def pool_bytes(self, in_flight: int) -> int:
        """Memory that `in_flight` transfers at once need on each side, guards included."""
        return sum(segment.regions * segment.stride(in_flight) for segment in self.segments)

    def document(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "segments": [[s.regions, s.blocks, s.block_bytes] for s in self.segments],
            "tokens": self.tokens,
            "block_tokens": self.block_tokens,
        }


def pattern_from(document: Mapping[str, Any]) -> Pattern:
    segments = tuple(Segment(*map(int, sizes)) for sizes in document["segments"])
    return Pattern(str(document["name"]), segments, document.get("tokens"), document.get("block_tokens"))


def of_prompt(shape: KvShape, tokens: int, block_tokens: int, tp: int, layout: str) -> Pattern:
    """The cache of one prompt on one rank, as vLLM hands it over (`KvShape.in_blocks` counts the same)."""
    segments = []
    for group in shape.groups:
        regions = 1 if layout == "all-layers" else group.regions(layout)
        block_bytes = group.token_bytes(group.heads_on_rank(tp)) * block_tokens / regions
        segments.append(Segment(regions, group.kept_blocks(tokens, block_tokens), round(block_bytes)))
    return Pattern(shape.model, tuple(segments), tokens, block_tokens)


def of_bytes(nbytes: int, descriptors: int) -> Pattern:
    """`nbytes` in equal blocks of one region. Raises UsageError when they cannot be cut so."""
    if nbytes % descriptors:
        raise UsageError(
            f"--bytes {nbytes} cannot be cut into {descriptors} equal descriptors.",
            "Give a number of descriptors that divides it, such as 64MiB and 8192.",
        )
    return Pattern("raw", (Segment(1, descriptors, nbytes // descriptors),))


def smaller(pattern: Pattern, divisor: int) -> Pattern:
    """The same layout with 1/`divisor` of the blocks, at least one of each region."""
    segments = tuple(Segment(s.regions, max(1, s.blocks // divisor), s.block_bytes) for s in pattern.segments)
    return Pattern(pattern.name, segments, None, pattern.block_tokens)


def descriptors(pattern: Pattern, base: int, device: int, in_flight: int) -> npt.NDArray[np.uint64]:
    """(address, bytes, device) of every block of every region, region after region, in memory that begins at `base`."""
    import numpy as np

    rows = []
    for segment in pattern.segments:
        regions = np.arange(segment.regions, dtype=np.uint64) * np.uint64(segment.stride(in_flight))
        blocks = np.arange(segment.blocks * in_flight, dtype=np.uint64) * np.uint64(segment.block_bytes)
        part = np.empty((segment.regions * len(blocks), 3), dtype=np.uint64)
        part[:, 0] = (base + regions[:, None] + blocks[None, :]).ravel()
        part[:, 1:] = segment.block_bytes, device
        rows.append(part)
        base += segment.regions * segment.stride(in_flight)
    return np.concatenate(rows)


@dataclass(frozen=True, slots=True)
class Picks:
    """The block ids of each segment that one transfer takes, on the reading and on the other side, pair by pair."""

    here: tuple[npt.NDArray[np.int64], ...]
    there: tuple[npt.NDArray[np.int64], ...]


def picks(pattern: Pattern, ids: str, in_flight: int, seed: int) -> list[Picks]:
    """One `Picks` for each transfer in flight. Scattered ids have no two neighbours that are so on both sides."""
    import numpy as np

    rng = np.random.default_rng(seed)
    here, there = [], []
    for segment in pattern.segments:
        count = segment.blocks * in_flight
        if ids == "contiguous":
            one = other = np.arange(count)
        else:
            one = rng.permutation(count)
            other = _unmergeable(rng, one)
        here.append(one.reshape(in_flight, segment.blocks))
        there.append(other.reshape(in_flight, segment.blocks))
    return [
        Picks(tuple(part[index] for part in here), tuple(part[index] for part in there)) for index in range(in_flight)
    ]


def _unmergeable(rng: np.random.Generator, one: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """A permutation in which no step is +1 where `one` has a step of +1, so that NIXL can merge nothing."""
    import numpy as np

    rising = np.diff(one) == 1
    for _ in range(50):
        other = rng.permutation(len(one))
        if not (rising & (np.diff(other) == 1)).any():
            return other
    return len(one) - 1 - one  # falls wherever `one` rises


def indices(pattern: Pattern, ids: Sequence[npt.NDArray[np.int64]], in_flight: int) -> npt.NDArray[np.int32]:
    """The rows of `descriptors` that the block ids stand for: region after region, as vLLM counts them."""
    import numpy as np

    parts, first = [], 0
    for segment, chosen in zip(pattern.segments, ids, strict=True):
        pool = segment.blocks * in_flight
        starts = first + np.arange(segment.regions) * pool
        parts.append((starts[:, None] + chosen[None, :]).ravel())
        first += segment.regions * pool
    return np.concatenate(parts).astype(np.int32)
