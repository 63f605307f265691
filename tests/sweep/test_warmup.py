"""Warm-up: every pair of servers is met, and each refusal says what to do."""

from __future__ import annotations

import asyncio
import socket
from dataclasses import replace

import pytest

from pdbench.deployment import build
from pdbench.errors import Unreachable, UsageError
from pdbench.run import RequestRow
from pdbench.sweep.prompts import ChatCalibration
from pdbench.sweep.warmup import refusal, warm_up
from tests.sweep.one_cell import closed_cell, open_cell, plan_for


def run(deployment, plan, **kwargs):
    return asyncio.run(warm_up(deployment, plan, **kwargs))


def test_every_pair_twice_and_the_longest_prompt_once(ground_truth):
    server = ground_truth("--ttft", "1", "--itl", "1")
    others = [("prefill", f"http://127.0.0.1:{port}") for port in (1, 2)]
    others += [("decode", f"http://127.0.0.1:{port}") for port in (3, 4, 5)]
    deployment = build("default", [("proxy", server.url), *others], model="ground-truth")
    assert run(deployment, plan_for(open_cell(prompt_len=500))) is None
    lengths = [record["prompt_tokens"] for record in server.log().values()]
    assert len(lengths) == 2 * 3 * 2 + 1 and lengths[-1] == 500


def test_chat_is_calibrated(quick_server):
    plan = plan_for(open_cell(prompt_len=100), endpoint="chat")
    chat = run(quick_server.deployment(), plan)
    assert isinstance(chat, ChatCalibration)
    # The ground-truth server counts blank-separated words of the messages' JSON: each word is one, the frame a few.
    assert chat.tokens_per_word == pytest.approx(1.0) and 0 < chat.overhead_tokens < 10
    with pytest.raises(UsageError, match="usage"):
        run(quick_server.deployment("nousage"), plan)


@pytest.mark.parametrize(("mode", "takes"), [("", True), ("strict", False)])
def test_sessions_learn_whether_the_server_takes_their_name(quick_server, mode, takes):
    plan = plan_for(closed_cell(2, prompt_len=100), endpoint="chat", session_turns=2)
    notes: list[str] = []
    chat = run(quick_server.deployment(mode), plan, notes=notes)
    assert chat is not None and chat.conversation_id is takes
    assert any("conversation_id" in note for note in notes) == (not takes)


@pytest.mark.parametrize(
    ("mode", "error", "said", "hint"),
    [
        ("status:401", UsageError, "refuses the credentials", "PDBENCH_API_KEY"),
        ("status:403", UsageError, "refuses the credentials", "PDBENCH_API_KEY"),
        ("status:404", UsageError, "knows no such address", "takes clients' requests"),
        ("status:400", UsageError, "refuses a prompt of 16 tokens", ""),
        ("status:500", Unreachable, "http-500", "prompt-lens"),
        ("status:503", Unreachable, "turns requests away", ""),
        ("html", UsageError, "HTML instead of an event stream", "port"),
        ("json", UsageError, "ignored stream: true", ""),
        ("redirect", UsageError, "redirected to /v1/completions", ""),
        ("hang", Unreachable, "within 0.3 s", ""),
        ("cut:1", Unreachable, "without [DONE]", ""),
        ("error:1", Unreachable, "EngineCore", ""),
    ],
)
def test_refusals(quick_server, mode, error, said, hint):
    with pytest.raises(error) as caught:
        run(quick_server.deployment(mode), plan_for(open_cell()), deadline_s=0.3)
    assert said in str(caught.value) and hint in caught.value.hint


def test_nobody_there():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(Unreachable, match="ECONNREFUSED") as caught:
        run(build("default", [("proxy", f"127.0.0.1:{port}")], model="m"), plan_for(open_cell()))
    assert "--testbed" in caught.value.hint


@pytest.mark.parametrize(
    ("status", "said", "hint"),
    [
        (404, "The model `m` does not exist.", "/v1/models"),
        (400, "Token id 3999 is out of vocabulary", "--vocab-size"),
        (400, "This model's maximum context length is 8192 tokens", "--prompt-lens"),
    ],
)
def test_hints_for_what_servers_refuse(status, said, hint):
    row = RequestRow(0, 0, "default", "id", "default", 0, 0.0, prompt_len=9000, http_status=status, error=said)
    row = replace(row, error_kind=f"http-{status}")
    error = refusal(row, build("default", [("proxy", "127.0.0.1:1")], model="m"))
    assert isinstance(error, UsageError) and hint in error.hint
