"""The side channel: only who holds the token is let in, and what outsiders send is never parsed."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pdbench.errors import Unreachable, UsageError
from pdbench.probe.transfer.channel import (
    GREETING,
    MAX_MESSAGE_BYTES,
    Channel,
    PeerGone,
    PeerSilent,
    WrongToken,
    accepted,
    called,
    listen,
    new_token,
)
from pdbench.probe.transfer.conversation import Conversation, PeerFailed

SOON = 5.0


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with listen("127.0.0.1", 0) as found:
        yield found


def beside(work: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    """Run `work` in a thread; what it returns, or raises, ends up in the list."""
    told: list[Any] = []

    def run() -> None:
        try:
            told.append(work())
        except Exception as error:  # noqa: BLE001 - handed to the test
            told.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, told


def ends(listener: socket.socket, token: str = "same") -> tuple[Channel, Channel]:
    thread, told = beside(lambda: accepted(listener, token, "control", time.monotonic() + SOON))
    mine = called(*listener.getsockname(), token, "control", time.monotonic() + SOON)
    thread.join()
    return Channel(mine, "the other side"), Channel(told[0][0], "the other side")


def test_messages_go_both_ways(listener: socket.socket) -> None:
    one, other = ends(listener)
    message = {"do": "x", "values": list(range(10_000))}
    for sender, receiver in ((one, other), (other, one)):
        sender.send(message)
        assert receiver.receive(time.monotonic() + SOON) == message


@pytest.mark.parametrize(("token", "purpose"), [("wrong", "control"), ("", "control"), ("right", "data")])
def test_a_wrong_token_or_purpose_is_turned_away_and_the_right_one_still_let_in(
    listener: socket.socket, token: str, purpose: str
) -> None:
    thread, told = beside(lambda: accepted(listener, "right", "control", time.monotonic() + SOON))
    with pytest.raises(WrongToken) as raised:
        called(*listener.getsockname(), token, purpose, time.monotonic() + SOON)
    assert raised.value.exit_code == 2 and "does not take this token" in str(raised.value)
    called(*listener.getsockname(), "right", "control", time.monotonic() + SOON).close()
    thread.join()
    connection, turned_away = told[0]
    connection.close()
    assert turned_away == 1


@pytest.mark.parametrize(
    "sent",
    [b"", b"GET / HTTP/1.1\r\n\r\n" * 9, GREETING, GREETING + b"n" * 32 + b"p" * 32, b"\x80\x04pickle" * 20],
    ids=["nothing", "http", "greeting", "guess", "pickle"],
)
def test_strangers_are_turned_away(listener: socket.socket, sent: bytes) -> None:
    thread, told = beside(lambda: accepted(listener, "right", "control", time.monotonic() + SOON))
    with socket.create_connection(listener.getsockname()) as stranger:
        answer = stranger.recv(1 << 16)
        with contextlib.suppress(OSError):
            stranger.sendall(sent)
            stranger.shutdown(socket.SHUT_WR)
            while stranger.recv(1 << 16):
                pass
    assert answer[len(GREETING) :] != sent[len(GREETING) :] and b"right" not in answer
    called(*listener.getsockname(), "right", "control", time.monotonic() + SOON).close()
    thread.join()
    told[0][0].close()
    assert told[0][1] == 1


def test_nobody_listens_and_nobody_calls(listener: socket.socket) -> None:
    with listen("127.0.0.1", 0) as gone:
        port = gone.getsockname()[1]
    with pytest.raises(Unreachable, match="nothing answers on 127"):
        called("127.0.0.1", port, "t", "control", time.monotonic() + 0.3)
    with pytest.raises(Unreachable, match="no peer came"):
        accepted(listener, "t", "control", time.monotonic() + 0.1)
    with pytest.raises(UsageError, match="cannot listen on"):
        listen(*listener.getsockname())


def test_what_listens_there_is_no_pdbench() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        thread, _ = beside(
            lambda: other.accept()[0].sendall(b"220 mail.example ESMTP ready, and then some more words\r\n")
        )
        with pytest.raises(Unreachable, match="not as pdbench does"):
            called(*other.getsockname(), "t", "control", time.monotonic() + SOON)
        thread.join()


def test_the_end_of_the_other_side_is_seen_at_once(listener: socket.socket) -> None:
    one, other = ends(listener)
    one.check_alive()
    other.send({"do": "something"})
    one.check_alive()  # a message that waits is not taken away
    assert one.receive(time.monotonic() + SOON) == {"do": "something"}
    other.socket.close()
    with pytest.raises(PeerGone, match="the other side is gone"):
        one.check_alive()
    with pytest.raises(PeerGone, match="the other side is gone"):
        one.receive(time.monotonic() + SOON)


def test_silence_has_a_deadline_and_length_a_limit(listener: socket.socket) -> None:
    one, other = ends(listener)
    with pytest.raises(PeerSilent, match="does not answer"):
        one.receive(time.monotonic() + 0.05)
    other.socket.sendall((MAX_MESSAGE_BYTES + 1).to_bytes(8, "big"))
    with pytest.raises(PeerGone, match="no pdbench does"):
        one.receive(time.monotonic() + SOON)


def test_each_side_serves_while_it_waits(listener: socket.socket) -> None:
    """decode asks for a sum; prefill, before it answers, asks decode for the numbers."""
    one, other = ends(listener)
    decode, prefill = Conversation(one), Conversation(other)
    decode.handlers["numbers"] = lambda _: [1, 2, 3]
    prefill.handlers["sum"] = lambda _: sum(prefill.ask("numbers"))

    def fails(_: Any) -> Any:
        raise UsageError("that much memory cannot be had.", "Ask for less.")

    prefill.handlers["fail"] = fails
    thread, told = beside(prefill.serve)
    assert decode.ask("sum") == 6
    with pytest.raises(PeerFailed, match="cannot be had") as raised:
        decode.ask("fail")
    assert (raised.value.exit_code, raised.value.hint) == (2, "Ask for less.")
    with pytest.raises(PeerFailed, match="asks for 'unheard of'"):
        decode.ask("unheard of")
    one.send({"do": "bye"})
    thread.join()
    assert told == [None]


def test_tokens_differ_and_are_long() -> None:
    tokens = {new_token() for _ in range(100)}
    assert len(tokens) == 100 and min(len(token) for token in tokens) >= 20


@pytest.fixture(autouse=True)
def close_sockets() -> Iterator[None]:
    """What the tests leave open is theirs to close, so that no warning about it hides another."""
    made: list[socket.socket] = []
    create = socket.socket.__init__

    def remember(self: socket.socket, *words: Any, **names: Any) -> None:
        create(self, *words, **names)
        made.append(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "__init__", remember)
        yield
    for each in made:
        with contextlib.suppress(OSError):
            each.close()
