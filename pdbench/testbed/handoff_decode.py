"""The decode side of a handoff: handshakes, reads (pull) or registrations (push), and heartbeats for what must wait."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pdbench.testbed import wire
from pdbench.testbed.engine import Engine
from pdbench.testbed.request import DONE, LOADING, Request
from pdbench.testbed.settings import Place, Settings


@dataclass
class Peer:
    """One prefill server, as this decode server knows it."""

    writer: asyncio.StreamWriter | None = None  # None until the handshake is done
    engine_id: str = ""
    requests: list[Request] = field(default_factory=list)  # those that have not been read or written yet


class DecodeHandoff:
    """All prefill servers that this decode server has met."""

    def __init__(self, settings: Settings, place: Place, engine: Engine, wake: Callable[[], None]) -> None:
        self.settings = settings
        self.place = place
        self.engine = engine
        self.wake = wake
        self._peers: dict[tuple[str, int], Peer] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    # ---- what the server and the engine call

    def arrived(self, request: Request) -> None:
        """A request with remote KV was queued: meet its prefill server, so that heartbeats can begin."""
        address = (str(request.kv.get("remote_host")), int(request.kv.get("remote_port") or 0))
        peer = self._peers.get(address)
        if peer is None:
            peer = self._peers[address] = Peer()
            task = asyncio.create_task(self._talk(address, peer))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        peer.requests.append(request)

    def start(self, request: Request) -> None:
        """Blocks are there.  Push: say where to write; pull: the engine posts the read once `may_post`."""
        peer = self._peer(request)
        if peer is not None and peer.writer is not None:
            self._begin(peer, request)

    def may_post(self, request: Request) -> bool:
        """Whether the handshake with the right server is done."""
        peer = self._peer(request)
        return peer is not None and peer.writer is not None and not request.failed

    def posted(self, request: Request) -> None:
        """Tell prefill when the read will be over, so that it lets the blocks go then."""
        self._tell(request, {"op": "read", "id": self._remote_id(request), "at": request.stamps["transfer_end"]})

    def dropped(self, request: Request) -> None:
        """The request ended without its KV: prefill need not keep it."""
        self._tell(request, {"op": "release", "id": self._remote_id(request)})

    # ---- talking to prefill

    @staticmethod
    def _remote_id(request: Request) -> str:
        return str(request.kv.get("remote_request_id"))

    def _peer(self, request: Request) -> Peer | None:
        return next((peer for peer in self._peers.values() if request in peer.requests), None)

    def _tell(self, request: Request, message: dict[str, Any]) -> None:
        peer = self._peer(request)
        if peer is not None:
            peer.requests.remove(request)
            if peer.writer is not None:
                wire.send(peer.writer, message)

    def _begin(self, peer: Peer, request: Request) -> None:
        if peer.engine_id != request.kv.get("remote_engine_id"):
            self._fail(request)
        elif self.place.transfer == "push" and peer.writer is not None:
            skip = request.cached // self.settings.block_size
            wire.send(peer.writer, {"op": "register", "key": self._remote_id(request), "skip_blocks": skip})

    async def _talk(self, address: tuple[str, int], peer: Peer) -> None:
        """Handshake, then read what the prefill server sends until it goes."""
        refused = True
        try:
            reader, writer = await asyncio.open_connection(*address, limit=wire.LIMIT)
            wire.send(writer, {"op": "hello"})
            await asyncio.sleep(self.settings.handshake_ms / 1000)
            async for message in wire.messages(reader):
                if message["op"] == "hello":
                    if message["transfer"] != self.place.transfer:
                        break
                    refused = False
                    self._meet(peer, writer, message["engine_id"])
                elif message["op"] == "written":
                    self._written(peer, message)
            writer.close()
        except OSError:
            pass
        self._lost(address, peer, refused)

    def _meet(self, peer: Peer, writer: asyncio.StreamWriter, engine_id: str) -> None:
        peer.writer = writer
        peer.engine_id = engine_id
        for request in peer.requests:
            if request.stage == LOADING:
                self._begin(peer, request)
        self.wake()

    def _written(self, peer: Peer, message: dict[str, Any]) -> None:
        for request in peer.requests:
            if self._remote_id(request) == message["key"] and request.stage == LOADING:
                request.nbytes = message["bytes"]
                request.stamps |= message["stamps"]
                peer.requests.remove(request)
                self.wake()
                return

    def _lost(self, address: tuple[str, int], peer: Peer, refused: bool) -> None:
        """The handshake failed, or the server died: pull fails what it has not read; push waits for ever, as vLLM."""
        self._peers.pop(address, None)
        if refused:
            self.engine.metrics.add("vllm:nixl_num_failed_transfers")
        for request in peer.requests:
            if self.place.transfer == "push" and not refused:
                self.engine.metrics.add("vllm:nixl_num_failed_transfers")
                self.engine.metrics.add("vllm:nixl_num_failed_notifications")
            elif request.stage != DONE:
                self._fail(request)
        self.wake()

    def _fail(self, request: Request) -> None:
        request.failed = True
        self.engine.metrics.add("vllm:nixl_num_failed_transfers")
        self.wake()

    async def send_heartbeats(self) -> None:
        """Renew the leases of what still waits to be read, until cancelled; push has no renewal in vLLM 0.32."""
        while True:
            await asyncio.sleep(self.settings.lease_s / 6)
            for peer in self._peers.values():
                if peer.writer is not None and peer.requests and self.place.transfer == "pull":
                    ids = [self._remote_id(request) for request in peer.requests]
                    wire.send(peer.writer, {"op": "heartbeat", "ids": ids})
