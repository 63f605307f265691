"""The prefill side of a handoff: blocks kept until they were read, leases, and in push mode the writing.

Push posts its writes on a thread of its own, one after another: neither the prefill loop nor the decode loop waits.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pdbench.testbed import wire
from pdbench.testbed.engine import Engine
from pdbench.testbed.link import block_bytes, post_s
from pdbench.testbed.request import Request
from pdbench.testbed.settings import Place, Settings


@dataclass
class Registration:
    """Where decode wants a prompt's KV written."""

    message: dict[str, Any]
    writer: asyncio.StreamWriter
    at_s: float


@dataclass
class Pinned:
    """A finished prompt whose blocks wait for their reader."""

    request: Request
    expires_s: float
    writing: bool = False


class PrefillHandoff:
    """What one prefill server holds for others."""

    def __init__(
        self,
        settings: Settings,
        place: Place,
        engine: Engine,
        wake: Callable[[], None],
        log: Callable[[dict[str, Any]], None],
    ) -> None:
        self.settings = settings
        self.place = place
        self.engine = engine
        self.wake = wake
        self.log = log
        self._pinned: dict[str, Pinned] = {}  # by engine_id of the request
        self._registered: dict[str, Registration] = {}  # push: decode came first
        self._thread_free_s = 0.0

    # ---- what the engine calls

    def finished(self, request: Request, at_s: float) -> dict[str, Any]:
        """Pin the blocks and describe them; the keys are those of vLLM's NIXL connector."""
        self._pinned[request.engine_id] = Pinned(request, at_s + self.settings.lease_s)
        registration = self._registered.pop(_without_suffix(request.engine_id), None)
        if registration is not None:
            self._write(request, registration, at_s)
        push = self.place.transfer == "push"
        return {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_block_ids": [request.blocks],
            "remote_engine_id": self.place.name,
            "remote_request_id": request.engine_id,
            "remote_host": self.place.host,
            "remote_port": self.place.side_port,
            "tp_size": self.settings.tensor_parallel,
            "dcp_size": 1,
            "pp_size": 1,
            "remote_num_tokens": request.prompt_tokens,
            **({} if push else {"remote_blocks_expiry_time": None}),
            "transfer_mode": self.place.transfer,
            "remote_prefill_cached_tokens": request.cached,
        }

    # ---- what decode servers send

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one decode server until it goes."""
        async for message in wire.messages(reader):
            op = message["op"]
            if op == "hello":
                me = {"op": "hello", "engine_id": self.place.name, "transfer": self.place.transfer}
                wire.send(writer, me)
            elif op == "heartbeat":
                self._renew(message["ids"])
            elif op == "read":
                self._schedule_release(message["id"], message["at"], "read")
            elif op == "release":
                self._cancel(message["id"])
            elif op == "register":
                self._register(message, writer)
        writer.close()

    def _cancel(self, remote_id: str) -> None:
        """Decode lost interest.  Pull names the exact id, push the one without the random end."""
        self._registered.pop(remote_id, None)
        for key, pinned in list(self._pinned.items()):
            if remote_id in (key, _without_suffix(key)) and not pinned.writing:
                self._release(key, "released")

    def _renew(self, ids: list[str]) -> None:
        for key in ids:
            if key in self._pinned:
                pinned = self._pinned[key]
                pinned.expires_s = max(pinned.expires_s, time.monotonic() + self.settings.lease_s * 2 / 3)

    def _register(self, message: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        registration = Registration(message, writer, time.monotonic())
        for key, pinned in self._pinned.items():
            if _without_suffix(key) == message["key"] and not pinned.writing:
                self._write(pinned.request, registration, registration.at_s)
                return
        self._registered[message["key"]] = registration

    def _write(self, request: Request, registration: Registration, at_s: float) -> None:
        """Push: submit the write on the posting thread, and tell decode when it will have arrived."""
        message, settings = registration.message, self.settings
        self._pinned[request.engine_id].writing = True
        request.nbytes = (len(request.blocks) - message["skip_blocks"]) * block_bytes(settings)
        tokens = request.prompt_tokens - message["skip_blocks"] * settings.block_size
        stamps = request.stamps
        ready = at_s
        if settings.push_pieces > 1:  # the first piece left when it was computed, if decode had said where to by then
            piece_s = (stamps["prefill_end"] - stamps["prefill_start"]) / settings.push_pieces
            ready = max(stamps["prefill_start"] + piece_s, registration.at_s)
        start = max(ready, self._thread_free_s)
        posted = self._thread_free_s = start + post_s(settings, tokens)
        begin, end = self.engine.link.reserve(posted, request.nbytes)
        request.moving_s = end - start
        end = max(end, at_s + request.moving_s / settings.push_pieces)  # the last piece leaves when the prompt is done
        told = {"post_start": start, "post_end": posted, "transfer_start": begin, "transfer_end": end}
        request.stamps |= told
        wire.send(
            registration.writer, {"op": "written", "key": message["key"], "bytes": request.nbytes, "stamps": told}
        )
        self._schedule_release(request.engine_id, end, "written")

    # ---- the end of a pin

    def _schedule_release(self, key: str, at_s: float, why: str) -> None:
        if key in self._pinned:
            self._pinned[key].expires_s = max(self._pinned[key].expires_s, at_s + 1)
        asyncio.get_running_loop().call_later(max(0.0, at_s - time.monotonic()), self._release, key, why)

    def _release(self, key: str, why: str) -> None:
        pinned = self._pinned.pop(key, None)
        metrics = self.engine.metrics
        if pinned is None:
            if why == "read":
                metrics.add("vllm:nixl_num_notifications_after_expiry", self.settings.tensor_parallel)
            return
        self.engine.pool.release(pinned.request.blocks)
        if why == "written":
            metrics.transferred(pinned.request, self.settings)
        elif why == "expired":
            metrics.add("vllm:nixl_num_kv_expired_reqs")
        row = {"event": why, "request_id": pinned.request.id, "at": time.monotonic(), **pinned.request.stamps}
        self.log(row)
        self.wake()

    async def watch_leases(self) -> None:
        """Drop what was not collected in time, until cancelled."""
        while True:
            await asyncio.sleep(min(0.25, self.settings.lease_s / 10))
            now = time.monotonic()
            for key in [key for key, pinned in self._pinned.items() if pinned.expires_s < now]:
                self._release(key, "expired")


def _without_suffix(engine_id: str) -> str:
    """A push proxy knows a request's id only without the random end that the engine adds."""
    return engine_id.rpartition("-")[0]
