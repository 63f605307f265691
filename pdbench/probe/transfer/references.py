"""What the same machine does without NIXL, in the same round: a copy in memory, the kernel's copy between processes,
a plain TCP socket. Each takes a contest's blocks and returns the seconds it took."""

from __future__ import annotations

import ctypes
import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pdbench.errors import PdbenchError, UsageError
from pdbench.probe.transfer.channel import Channel, receive_exactly
from pdbench.probe.transfer.memory import Memory, host_memory, regions, wipe
from pdbench.probe.transfer.pattern import Pattern, Picks

Reference = Callable[[], float]
MOST_VECTORS = 1024  # UIO_MAXIOV: pieces that one call of process_vm_readv takes


class NotHere(PdbenchError):
    """This reference cannot be had here, and why."""


@dataclass(frozen=True, slots=True)
class Contest:
    """What a reference copies: the blocks of one transfer, between this worker's memory and its peer's."""

    op: str
    pattern: Pattern
    in_flight: int
    picks: tuple[Picks, ...]
    here: Memory
    there_address: int
    peer_pid: int | None  # None: the peer is not on this host, or in a PID namespace of its own
    channel: Channel
    data: socket.socket


def memcpy(contest: Contest) -> Reference:
    """Gather the blocks out of another buffer of this process: what memory alone allows one thread."""
    here = contest.here
    if here.kind != "DRAM":
        raise NotHere("the data is in GPU memory")
    try:
        scratch = host_memory(contest.pattern.pool_bytes(contest.in_flight))
    except UsageError as error:
        raise NotHere(str(error).rstrip(".")) from None
    wipe(scratch, scratch.nbytes)  # so that it has pages of its own
    sources = regions(scratch, contest.pattern, contest.in_flight)
    targets = regions(here, contest.pattern, contest.in_flight)
    moves = [
        (source, target[: len(one.there[place])], one.there[place])
        for (place, source, _), (_, target, _) in zip(sources, targets, strict=True)
        for one in contest.picks
    ]

    def run() -> float:
        begin = time.perf_counter()
        for source, target, ids in moves:
            np.take(source, ids, axis=0, out=target, mode="clip")
        return time.perf_counter() - begin

    return run


def process_vm(contest: Contest) -> Reference:
    """process_vm_readv and _writev over the same blocks: what UCX's cma does, without UCX and NIXL."""
    if contest.here.kind != "DRAM":
        raise NotHere("the data is in GPU memory")
    pid = contest.peer_pid
    if pid is None:
        raise NotHere("the peer is on another host or in another PID namespace")
    libc = ctypes.CDLL(None, use_errno=True)
    call = libc.process_vm_readv if contest.op == "READ" else libc.process_vm_writev
    call.restype = ctypes.c_ssize_t
    size, address = ctypes.c_ulong, ctypes.c_void_p
    call.argtypes = [ctypes.c_int, address, size, address, size, size]
    ours = _vectors(contest, contest.here.address, here=True)
    theirs = _vectors(contest, contest.there_address, here=False)
    pieces = [(ours[i : i + MOST_VECTORS], theirs[i : i + MOST_VECTORS]) for i in range(0, len(ours), MOST_VECTORS)]
    calls = [(mine.ctypes.data, other.ctypes.data, len(mine)) for mine, other in pieces]

    def run(keep_alive: object = pieces) -> float:
        begin = time.perf_counter()
        for mine, other, count in calls:
            if call(pid, mine, count, other, count, 0) < 0:
                raise NotHere(os.strerror(ctypes.get_errno()))
        return time.perf_counter() - begin

    run()
    return run


def _vectors(contest: Contest, base: int, *, here: bool) -> npt.NDArray[np.uint64]:
    """struct iovec (address, bytes) of every block, in the order of the transfer's descriptors."""
    rows = []
    for one in contest.picks:
        offset = base
        for place, segment in enumerate(contest.pattern.segments):
            ids = (one.here if here else one.there)[place].astype(np.uint64)
            for _ in range(segment.regions):
                part = np.empty((len(ids), 2), dtype=np.uint64)
                part[:, 0] = offset + ids * np.uint64(segment.block_bytes)
                part[:, 1] = segment.block_bytes
                rows.append(part)
                offset += segment.stride(contest.in_flight)
    return np.concatenate(rows)


def tcp(contest: Contest) -> Reference:
    """The same number of bytes in one piece through a plain TCP connection between the two workers."""
    nbytes = contest.pattern.nbytes * len(contest.picks)
    view = contest.here.read(0, nbytes).data if contest.here.kind == "DRAM" else memoryview(bytearray(nbytes))
    channel, data = contest.channel, contest.data
    request = {"do": "send" if contest.op == "READ" else "take", "nbytes": nbytes}

    def run() -> float:
        begin = time.perf_counter()
        channel.send(request)
        if contest.op == "READ":
            receive_into(data, view)
        else:
            data.sendall(view)
            receive_exactly(data, 1, time.monotonic() + 60, channel.what)
        return time.perf_counter() - begin

    return run


def receive_into(data: socket.socket, view: memoryview) -> None:
    got = 0
    while got < len(view):
        count = data.recv_into(view[got:])
        if not count:
            raise OSError("the connection ended")
        got += count


REFERENCES: dict[str, Callable[[Contest], Reference]] = {"memcpy": memcpy, "process_vm": process_vm, "tcp": tcp}
