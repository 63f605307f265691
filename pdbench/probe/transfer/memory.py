"""The memory that is registered and moved: host memory here, GPU memory in cuda.py, behind the same five functions."""

from __future__ import annotations

import mmap
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pdbench.errors import UsageError
from pdbench.littles_law.plan_text import binary_size
from pdbench.probe.transfer.pattern import GUARD_BYTES, Pattern

Bytes = npt.NDArray[np.uint8]

_CHUNK_BYTES = 8 << 20
_ODD = 0x9E3779B97F4A7C15


@dataclass(frozen=True, slots=True)
class Memory:
    """A registered range. `write` and `read` copy between it and host memory; a host range is read in place."""

    kind: str  # DRAM or VRAM, in NIXL's words
    address: int
    nbytes: int
    device: int
    write: Callable[[int, Bytes], None]
    read: Callable[[int, int], Bytes]


def host_memory(nbytes: int) -> Memory:
    """Private anonymous memory of this process."""
    try:
        whole = np.frombuffer(mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), dtype=np.uint8)
    except (OSError, ValueError, OverflowError) as error:
        raise UsageError(
            f"{binary_size(nbytes)} of memory cannot be had: {getattr(error, 'strerror', None) or error}.",
            "Move less: a smaller --prompt-len or --bytes, fewer in flight, or raise the process's memory limit.",
        ) from None

    def write(offset: int, data: Bytes) -> None:
        whole[offset : offset + len(data)] = data

    def read(offset: int, count: int) -> Bytes:
        return whole[offset : offset + count]

    return Memory("DRAM", whole.ctypes.data, nbytes, 0, write, read)


def memory_of(kind: str, nbytes: int, device: int) -> Memory:
    if kind == "VRAM":
        from pdbench.probe.transfer.cuda import gpu_memory

        return gpu_memory(nbytes, device)
    return host_memory(nbytes)


def available_bytes() -> int | None:
    """Memory of this machine that can still be had without swapping; None where the kernel does not say."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)


def refuse_more_than_available(needed: int, where: str) -> None:
    available = available_bytes()
    if available is not None and needed > available * 0.9:
        raise UsageError(
            f"{where}: this takes {binary_size(needed)} of memory and {binary_size(available)} are available.",
            "Move less: a smaller --prompt-len or --bytes, a larger --tp, or fewer in flight.",
        )


def fill(memory: Memory, nbytes: int, seed: int) -> None:
    """Words that differ at every place and for every seed, so that a block in the wrong place is seen."""
    words = np.random.default_rng(seed).integers(0, 2**64, _CHUNK_BYTES // 8, dtype=np.uint64)
    for index, offset in enumerate(range(0, nbytes, _CHUNK_BYTES)):
        chunk = (words ^ np.uint64((index * _ODD) & (2**64 - 1))).view(np.uint8)
        memory.write(offset, chunk[: min(_CHUNK_BYTES, nbytes - offset)])


def wipe(memory: Memory, nbytes: int) -> None:
    zeros = np.zeros(_CHUNK_BYTES, dtype=np.uint8)
    for offset in range(0, nbytes, _CHUNK_BYTES):
        memory.write(offset, zeros[: min(_CHUNK_BYTES, nbytes - offset)])


def regions(memory: Memory, pattern: Pattern, in_flight: int) -> Iterator[tuple[int, Bytes, Bytes]]:
    """Each region of the pattern: the place of its segment, its blocks as rows, and the guard behind them."""
    offset = 0
    for place, segment in enumerate(pattern.segments):
        for _ in range(segment.regions):
            whole = memory.read(offset, segment.stride(in_flight))
            yield place, whole[:-GUARD_BYTES].reshape(-1, segment.block_bytes), whole[-GUARD_BYTES:]
            offset += segment.stride(in_flight)


def checksum(memory: Memory, pattern: Pattern, ids: Sequence[npt.NDArray[np.int64]], in_flight: int) -> int:
    """CRC-32 of the picked blocks in the order in which a transfer names them: alike on both sides when it is right."""
    total = 0
    for place, blocks, _ in regions(memory, pattern, in_flight):
        total = zlib.crc32(blocks[ids[place]].data, total)
    return total


def guards_are_wiped(memory: Memory, pattern: Pattern, in_flight: int) -> bool:
    """Whether the guards, which no transfer names, are still as `wipe` left them."""
    return not any(guard.any() for _, _, guard in regions(memory, pattern, in_flight))
