"""`--drive two-hop` against the practice deployment, whose log knows when each server had each request."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pdbench.deployment import Deployment, ServerFacts, build
from pdbench.errors import UsageError
from pdbench.sweep.drive import DRIVES
from pdbench.sweep.hops import _value_of, without_params
from pdbench.sweep.plan import Cell, Plan
from pdbench.sweep.prompts import ChatCalibration
from pdbench.sweep.rows import clean
from pdbench.sweep.schedule import Ask
from pdbench.testbed import truth
from pdbench.testbed.launch import Running, running
from pdbench.testbed.settings import Settings
from tests.probe.replay_server import Replay, Reply, serving
from tests.sweep.one_cell import Outcome, measure

PROMPT, OUTPUT, REQUESTS = 2048, 8, 12


def deployment(testbed: Running, mode: str | None, **known: Any) -> Deployment:
    """Without its proxy: pdbench takes its place."""
    urls = [("prefill", url) for url in testbed.prefill_urls] + [("decode", url) for url in testbed.decode_urls]
    return build("default", urls, mode=mode, model="simulated-qwen3-32b", **known)


def plan(**settings: Any) -> Plan:
    cell = Cell(0, "default", 8.0, None, PROMPT, OUTPUT, drive="two-hop")
    return Plan(**{"cells": (cell,), "duration_s": None, "num_prompts": REQUESTS, "timeout_s": 20.0, **settings})


def measured(
    tmp_path: Path, settings: Settings, mode: str | None, **more: Any
) -> tuple[Outcome, dict[str, dict[str, Any]]]:
    chat = ChatCalibration(0.0, 1.0) if more.get("endpoint") == "chat" else None
    with running(settings.on_free_ports()) as testbed:
        outcome = measure(tmp_path, deployment(testbed, mode), plan(**more), chat=chat)
        log = truth.read(testbed.log_dir)["requests"]
    return outcome, log


@pytest.mark.parametrize("endpoint", ["completions", "chat"])
@pytest.mark.parametrize("mode", ["pull", "push"])
def test_both_legs_on_one_clock(mode: str, endpoint: str, tmp_path: Path) -> None:
    outcome, log = measured(tmp_path, Settings(mode=mode, prefill_ms_per_token=0.05), mode, endpoint=endpoint)
    assert outcome.statuses == ["ok"] * REQUESTS
    origin_s = outcome.run.origin_ns / 1e9
    for row in outcome.rows:
        prefill, decode = log[row.request_id]["prefill"], log[row.request_id]["decode"]
        assert decode["external_tokens"] == prefill["prompt_tokens"] - (0 if mode else 1)
        assert row.prefill_sent_s is not None and row.prefill_done_s is not None and row.decode_sent_s is not None
        assert row.sent_s == row.prefill_sent_s and row.output_tokens == OUTPUT
        assert row.prefill_sent_s <= prefill["received"] - origin_s < row.prefill_done_s
        assert row.decode_sent_s <= decode["received"] - origin_s < (row.first_token_s or 0.0)
        if mode == "pull":
            assert row.prefill_done_s <= row.decode_sent_s
        else:
            assert row.decode_sent_s < row.prefill_done_s, "both hops are under way at once"


def test_every_pair_of_servers_meets(tmp_path: Path) -> None:
    with running(Settings(prefills=2, decodes=2).on_free_ports()) as testbed:
        outcome = measure(tmp_path, deployment(testbed, "pull"), plan())
        rows = [json.loads(line) for file in testbed.log_dir.glob("*.jsonl") for line in file.read_text().splitlines()]
    assert outcome.statuses == ["ok"] * REQUESTS
    served = {(row["server"], row["request_id"]) for row in rows if "request_id" in row and "event" not in row}
    pairs = {
        (p, d)
        for request_id in (row.request_id for row in outcome.rows)
        for p, one in served
        for d, other in served
        if one == other == request_id and p.startswith("prefill") and d.startswith("decode")
    }
    assert len(pairs) == 4


def test_a_prefill_that_refuses_is_the_answer(tmp_path: Path) -> None:
    """Its 503 is the request's, and decode is never asked."""
    settings = Settings(prefill_max_num_queued_reqs=1, prefill_max_num_seqs=1, prefill_ms_per_token=0.2)
    outcome, log = measured(tmp_path, settings, "pull")
    rejected = [row for row in outcome.rows if row.status == "rejected"]
    assert rejected and {row.status for row in outcome.rows} == {"ok", "rejected"}
    assert all(row.http_status == 503 and "decode" not in log.get(row.request_id, {}) for row in rejected)


def test_decode_that_fails_after_the_handoff(tmp_path: Path) -> None:
    outcome, _ = measured(tmp_path, Settings(error_every=3), "pull")
    failed = [row for row in outcome.rows if row.status == "failed"]
    assert len(failed) == REQUESTS // 3 and all(row.prefill_done_s is not None for row in failed)


def test_a_prefill_that_is_not_there(tmp_path: Path) -> None:
    with running(Settings().on_free_ports()) as testbed:
        gone = build(
            "default", [("prefill", "http://127.0.0.1:1"), ("decode", testbed.decode_urls[0])], mode="pull", model="m"
        )
        outcome = measure(tmp_path, gone, plan(num_prompts=2))
    assert {(row.status, row.error_kind) for row in outcome.rows} == {("failed", "connect")}
    assert all(row.error is not None and row.error.startswith("prefill: ") for row in outcome.rows)


def test_a_server_without_a_connector_hands_nothing_over(tmp_path: Path) -> None:
    with running(Settings(mode="colocated").on_free_ports()) as plain, running(Settings().on_free_ports()) as pair:
        urls = [("prefill", plain.server_urls[0]), ("decode", pair.decode_urls[0])]
        outcome = measure(
            tmp_path, build("default", urls, mode="pull", model="simulated-qwen3-32b"), plan(num_prompts=2)
        )
    assert all(row.status == "failed" and "KV connector" in (row.error or "") for row in outcome.rows)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b'{"error":{"message":"KV pool \\u001b[31mfull","code":500}}', "prefill: KV pool  [31mfull"),
        (b'{"object":"error","message":"no such lora","code":400}', "prefill: no such lora"),
        (b"upstream\x1b[2J timed\nout " + b"x" * 9000, "not JSON: upstream [2J timed out xxx"),
        (b"", "prefill's answer is empty"),
        (b"[1,2]", "without choices and kv_transfer_params: [1,2]"),
        (b'{"choices":[{"text":"A"}]}', "it has no KV connector"),
    ],
)
def test_what_prefill_says_instead_of_parameters_is_quoted(answer: bytes, said: str) -> None:
    """Only an answer with output and without parameters speaks of a missing connector."""
    printed = clean(without_params(answer), build("default", [("prefill", "h:1")]).credentials)
    assert said.replace("  ", " ") in printed.replace("  ", " ") and len(printed) <= 300 and printed.isprintable()
    assert ("KV connector" in printed) is (b'"text":"A"' in answer)


def test_prefills_own_error_reaches_the_row(tmp_path: Path) -> None:
    body = b'{"error": {"message": "out of KV blocks"}}'
    with serving(Replay({"/v1/completions": Reply(body)})) as prefill, running(Settings().on_free_ports()) as pair:
        urls = [("prefill", prefill.url), ("decode", pair.decode_urls[0])]
        outcome = measure(tmp_path, build("default", urls, mode="pull", model="m"), plan(num_prompts=2))
    assert {row.error for row in outcome.rows} == {"prefill: out of KV blocks"}


@pytest.mark.parametrize("missing", ["prefill", "decode"])
def test_both_sides_are_needed(missing: str, tmp_path: Path) -> None:
    other = "decode" if missing == "prefill" else "prefill"
    with pytest.raises(UsageError, match=missing):
        measure(tmp_path, build("default", [(other, "http://127.0.0.1:1")], model="m"), plan())


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (b'{"a":1,"k": {"x":[1,2,{"y":"}"}]} ,"b":2}', b'{"x":[1,2,{"y":"}"}]}'),
        (b'{"text":"\\"k\\": 5","k":null}', b"null"),
        (b'{"text":"no key"}', None),
        (b'{"k":{"cut":', None),
    ],
)
def test_a_value_is_taken_as_it_came(text: bytes, value: bytes | None) -> None:
    assert _value_of(b'"k":', text) == value


def test_a_sidecar_is_told_which_prefill_to_ask_first() -> None:
    """llm-d: requests go to decode, with the prefill server's HOST:PORT in a header; each pair in its turn."""
    urls = [("prefill", f"http://p{i}:1") for i in range(2)] + [("decode", f"http://d{i}:2") for i in range(2)]
    make = DRIVES["sidecar"](build("default", urls, model="m"), plan(), "tag")
    made = [make(index, Ask(8, 4), b"[1]") for index in range(4)]
    pairs = {(request.url.split("/v1")[0], request.headers["x-prefiller-host-port"]) for request in made}
    assert pairs == {(f"http://d{d}:2", f"p{p}:1") for d in range(2) for p in range(2)}


def test_sglang_is_asked_on_both_sides_with_one_room() -> None:
    urls = [("prefill", "http://p0:1"), ("decode", "http://d0:2")]
    make = DRIVES["two-hop"](build("default", urls, model="m", engine="sglang"), plan(), "tag")
    second = make(3, Ask(8, 4), b"[1]")
    assert second.first is not None and second.first.url.startswith("http://p0:1/")
    asked, told = json.loads(second.body), json.loads(second.first.body)
    assert asked == told and asked["bootstrap_host"] == "p0" and asked["max_tokens"] == 4
    assert asked["bootstrap_port"] == 8998
    assert asked["bootstrap_room"] != json.loads(make(4, Ask(8, 4), b"[1]").body)["bootstrap_room"]


def test_sglang_meets_where_prefill_says_and_in_brackets_where_the_host_is_a_number() -> None:
    servers = build("default", [("prefill", "http://[fd00::7]:1"), ("decode", "http://d0:2")], model="m").servers
    told = replace(servers[0], facts=ServerFacts(bootstrap_port=9001))
    make = DRIVES["two-hop"](Deployment("default", (told, servers[1]), "sglang", model="m"), plan(), "tag")
    asked = json.loads(make(0, Ask(8, 4), b"[1]").body)
    assert (asked["bootstrap_host"], asked["bootstrap_port"]) == ("[fd00::7]", 9001)


@pytest.mark.parametrize(("url", "told"), [("http://p", "p:80"), ("https://p", "p:443"), ("http://[::1]:9", "[::1]:9")])
def test_a_sidecar_is_told_a_port_always(url: str, told: str) -> None:
    make = DRIVES["sidecar"](build("default", [("prefill", url), ("decode", "http://d:2")], model="m"), plan(), "tag")
    assert make(0, Ask(8, 4), b"[1]").headers["x-prefiller-host-port"] == told
