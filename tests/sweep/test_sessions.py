"""Conversations: what each turn carries, and that they are the same whoever leads them."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdbench.errors import UsageError
from pdbench.run import RequestRow
from pdbench.sweep.client import Request
from pdbench.sweep.drive import through_proxy
from pdbench.sweep.prompts import ChatCalibration
from pdbench.sweep.said import Said, said_in
from pdbench.sweep.sessions import Conversation, Script, planned
from tests.sweep.test_cell import DEPLOYMENT
from tests.sweep.test_schedule import drawn, plan

CHAT = ChatCalibration(10.0, 1.0)


def script(**flags: Any) -> Script:
    made = plan(**{"sessions": ["4"], "prompt_lens": ["60"], "output_len": ["8"], **flags})
    return Script(made, made.cells[0], 11, 12, CHAT, through_proxy(DEPLOYMENT, made, "0123abcd-0-0"), drawn(made))


def row(prompt_tokens: int | None, output_tokens: int | None) -> RequestRow:
    return RequestRow(
        0, 0, "default", "id", "default", 0, 0.0, prompt_tokens=prompt_tokens, output_tokens=output_tokens
    )


def messages(request: Request) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(request.body)["messages"]
    return found


def test_each_turn_carries_what_was_asked_and_what_was_answered():
    conversation = Conversation(script(), 2, 3)
    first = conversation.request()
    conversation.hear(row(61, 8), Said('say "this"\n'))
    second = conversation.request()
    conversation.hear(row(129, 8), Said("and that", "hm, well", "reasoning_content"))
    third = conversation.request()
    assert conversation.turns_left == 0
    asked = messages(third)
    assert [m["role"] for m in asked] == ["user", "assistant", "user", "assistant", "user"]
    assert asked[:1] == messages(first) and asked[:3] == messages(second)
    assert asked[1] == {"role": "assistant", "content": 'say "this"\n'}
    assert asked[3] == {"role": "assistant", "content": "and that", "reasoning_content": "hm, well"}
    assert all(len(m["content"].split()) == 50 for m in asked[::2]) and asked[0] != asked[2] != asked[4]
    assert [(r.prompt_len, r.shared_len, r.turn, r.session) for r in (first, second, third)] == [
        (60, 0, 1, 2), (61 + 8 + 60, 69, 2, 2), (129 + 8 + 60, 137, 3, 2),
    ]  # fmt: skip
    bodies = [json.loads(request.body) for request in (first, second, third)]
    assert {body["conversation_id"] for body in bodies} == {"0123abcd-0-0-s2"}
    assert [request.request_id for request in (first, second, third)] == [f"0123abcd-0-0-{i}" for i in (10, 11, 12)]


def test_a_server_without_usage_cannot_be_talked_to():
    conversation = Conversation(script(), 0, 2)
    conversation.request()
    with pytest.raises(UsageError, match="no usage"):
        conversation.hear(row(None, 8), Said("x"))


@given(st.integers(1, 9), st.integers(1, 6), st.integers(1, 60), st.integers(1, 4))
def test_any_number_of_processes_lead_the_same_conversations(clients, turns, most, workers):
    """The requests of all clients are those with the indices from 0, each once, however clients are dealt out."""
    flags = {"sessions": [str(clients)], "turns": turns, "num_prompts": str(most)}
    whole = script(**flags)
    seen: list[int] = []
    for worker in range(workers):
        mine = range(worker, clients, workers)
        own = [c._session * turns + t for client in mine for c in whole.led(client) for t in range(c.turns_left)]
        assert planned(whole.plan, whole.cell, mine) == len(own)
        seen += own
    assert sorted(seen) == list(range(most))


def test_conversations_are_fresh_and_repeatable():
    def said(one: Conversation) -> tuple[str, float]:
        pause = one.think_s
        return messages(one.request())[0]["content"], pause

    led = [said(c) for c in itertools.islice(script().led(1), 20)]
    assert led == [said(c) for c in itertools.islice(script().led(1), 20)]
    assert len(set(led)) == 20
    thinks = [Conversation(script(think_time="2s"), session, 5)._thinks_s for session in range(400)]
    assert sum(each.sum() for each in thinks) / 2000 == pytest.approx(2.0, rel=0.1)
    assert Conversation(script(think_time="0s"), 0, 5).think_s == 0


def test_a_shared_beginning_is_that_of_the_first_message():
    made = script(prefix_len=20, num_prefixes=2)
    firsts = [Conversation(made, session, 2).request() for session in range(12)]
    beginnings = {tuple(messages(request)[0]["content"].split()[:20]) for request in firsts}
    assert len(beginnings) == 2
    assert [request.shared_len for request in firsts].count(0) == 2 and {r.shared_len for r in firsts} == {0, 20}


def events(*deltas: Any, usage: Any = None) -> list[tuple[int, bytes]]:
    made = [json.dumps({"choices": [{"index": 0, "delta": delta}]}) for delta in deltas]
    made += [json.dumps({"choices": [], "usage": usage})] if usage else []
    return [(1, f"data: {text}\n\n".encode()) for text in [*made, "[DONE]"]]


@pytest.mark.parametrize(
    ("reads", "heard"),
    [
        (events({"role": "assistant", "content": ""}, {"content": "a "}, {"content": "b"}), Said("a b")),
        (
            events({"reasoning": "hm "}, {"reasoning": "so"}, {"content": "yes"}, {"content": "!"}),
            Said("yes!", "hm so", "reasoning", 0.5),
        ),
        (events({"reasoning_content": "hm"}, {"content": "yes"}), Said("yes", "hm", "reasoning_content", 0.5)),
        (
            events({"content": "<think>hm"}, {"content": "</think>"}, {"content": "yes"}, {"content": "."}),
            Said("<think>hm</think>yes.", thought_share=0.5),
        ),
        (
            events({"reasoning": "h"}, usage={"completion_tokens_details": {"reasoning_tokens": 7}}),
            Said("", "h", "reasoning", 1.0, 7),
        ),
        ([(1, b'data: {\n\ndata: 3\n\ndata: {"choices":[3]}\n\n')], Said()),
        ([], Said()),
    ],
)
def test_what_an_answer_said(reads, heard):
    assert said_in(reads) == heard


@given(st.binary(max_size=400))
def test_no_bytes_are_too_strange(body):
    said_in([(1, body), (2, b"data: " + body + b"\n\n")])
