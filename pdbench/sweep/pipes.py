"""A process of ours beside this one, spoken to in frames."""

from __future__ import annotations

import asyncio
import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import pdbench
from pdbench.sweep.frames import HEADER, frame

OnMessage = Callable[[Any], None]
OnEnd = Callable[[], None]


class Incoming(asyncio.Protocol):
    """Cuts what comes through a pipe into messages."""

    def __init__(self, on_message: OnMessage, on_end: OnEnd) -> None:
        self._on_message, self._on_end = on_message, on_end
        self._buffer = bytearray()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while len(self._buffer) >= HEADER.size:
            end = HEADER.size + HEADER.unpack_from(self._buffer)[0]
            if len(self._buffer) < end:
                return
            message = pickle.loads(self._buffer[HEADER.size : end])
            del self._buffer[:end]
            self._on_message(message)

    def connection_lost(self, error: Exception | None) -> None:
        self._on_end()


class Child:
    """A process that runs one of our modules. A session of its own keeps the terminal's Ctrl-C away from it."""

    def __init__(self, process: subprocess.Popen[bytes], complaints: IO[bytes]) -> None:
        self._process, self._complaints = process, complaints
        self.closing = False

    @classmethod
    async def start(cls, module: str, on_message: OnMessage, on_end: OnEnd) -> Child:
        """Start it; `on_end` is called when it has ended, for whatever reason."""
        complaints = tempfile.TemporaryFile()  # noqa: SIM115  (closed by `close`)
        process = subprocess.Popen(
            [sys.executable, "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=complaints,
            env=os.environ | {"PYTHONPATH": package_path()},
            start_new_session=True,
        )
        child = cls(process, complaints)
        loop = asyncio.get_running_loop()
        child._out, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, process.stdin)
        child._in, _ = await loop.connect_read_pipe(lambda: Incoming(on_message, on_end), process.stdout)
        return child

    _out: asyncio.WriteTransport
    _in: asyncio.ReadTransport

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, *message: Any) -> bytes:
        """A pickle, and a write that does not block. Returns the frame that was sent."""
        framed = frame(message)
        self._out.write(framed)
        return framed

    def kill(self) -> None:
        self._process.kill()

    def why(self) -> str:
        """Why it ended, in few words: the last line that it wrote to stderr, else how it ended."""
        self._complaints.seek(0)
        if said := self._complaints.read()[-2000:].decode(errors="replace").strip().rpartition("\n")[2]:
            return said
        try:
            code = self._process.wait(1.0)  # its pipe has closed, so it is about to end
        except subprocess.TimeoutExpired:
            return "its process was ended"
        return f"its process was ended by signal {-code}" if code < 0 else f"exit code {code}"

    async def close(self, patience_s: float) -> None:
        """End it by ending its input: it finishes what it was given, as far as that takes no longer than this."""
        self.closing = True
        self._out.close()
        try:
            await asyncio.to_thread(self._process.wait, patience_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._in.close()
        self._complaints.close()
        await asyncio.sleep(0)


def package_path() -> str:
    """PYTHONPATH for a process that must find this package, wherever it was started."""
    return os.pathsep.join([str(Path(pdbench.__file__).parent.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
