"""The side channel as both ends use it: each asks, and serves what the other asks while it waits for an answer."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pdbench.errors import PdbenchError, UsageError
from pdbench.probe.transfer.channel import Channel, Message, PeerGone, PeerSilent

# How often an end that waits looks after NIXL: it takes notifications, and moves transports that the kernel does not.
LIVELY_S = 0.001
ANSWER_S = 600.0  # the longest that an answer may take, since the other side measures a cell in the meantime
NO_ANSWER = object()  # of a handler that moves bytes over the data connection instead


class PeerFailed(PdbenchError):
    """The other side failed, and said why; `exit_code` is what its error deserves."""

    def __init__(self, message: str, hint: str, exit_code: int) -> None:
        super().__init__(message, hint)
        self.exit_code = exit_code


@dataclass(slots=True)
class Conversation:
    """`handlers` do what the other end asks; `agents` are NIXL's, which want looking after."""

    channel: Channel
    handlers: dict[str, Callable[[Message], Any]] = field(default_factory=dict)
    agents: list[Any] = field(default_factory=list)

    def ask(self, do: str, **arguments: Any) -> Any:
        """The other end's answer. Raises PeerFailed with its words."""
        self.channel.send({"do": do, **arguments})
        answer = self._serve_until(lambda message: "do" not in message)
        if "error" in answer:
            failed = answer["error"]
            raise PeerFailed(str(failed["message"]), str(failed["hint"]), int(failed["exit_code"]))
        return answer["answer"]

    def serve(self) -> None:
        """Do what the other end asks until it says goodbye."""
        self._serve_until(lambda message: message.get("do") == "bye")

    def _serve_until(self, is_last: Callable[[Message], bool]) -> Message:
        while True:
            message = self._next()
            if is_last(message):
                return message
            self._handle(message)

    def _next(self) -> Message:
        deadline = time.monotonic() + ANSWER_S
        while not self.channel.waits(LIVELY_S):
            for agent in self.agents:
                agent.get_new_notifs()
            if time.monotonic() > deadline:
                raise PeerSilent(f"{self.channel.what} does not answer.", "It hangs; start both sides again.")
        return self.channel.receive(deadline)

    def _handle(self, message: Message) -> None:
        do = message.get("do")
        try:
            if do not in self.handlers:
                raise UsageError(f"the other side asks for {do!r}.", "Use the same pdbench on both sides.")
            answer = self.handlers[do](message)
        except PeerGone:
            raise
        except PdbenchError as error:
            said = {"message": str(error), "hint": error.hint, "exit_code": error.exit_code}
            self.channel.send({"error": said})
            return
        if answer is not NO_ANSWER:
            self.channel.send({"answer": answer})
