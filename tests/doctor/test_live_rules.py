"""Rules about servers that run: real captured pages with one thing changed, and the practice deployment with faults."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import time
import urllib.request
from contextlib import ExitStack
from typing import Any

import pytest

from pdbench.cli import main
from pdbench.deployment import build
from pdbench.probe.doctor.examine import examine
from pdbench.probe.doctor.finding import Check
from pdbench.testbed.launch import Running, running
from pdbench.testbed.settings import Settings
from tests.probe.replay_server import HTML, Replay, Reply, capture, page, serving, vllm

EXPIRED = re.compile(r"vllm:nixl_num_kv_expired_reqs_total\b")
STREAM = "".join(
    f'data: {{"choices":[{{"text":"w{i}","finish_reason":{"null" if i < 7 else chr(34) + "length" + chr(34)}}}]}}\n\n'
    for i in range(8)
)
ANSWER = Reply((STREAM + "data: [DONE]\n\n").encode(), content_type="text/event-stream")


def edited(role: str, edits: dict[str, str]) -> str:
    """A captured page with other values of the series that begin so."""
    text = capture(f"vllm-pull-{role}.metrics").decode()
    for series, value in edits.items():
        text, times = re.subn(rf"(?m)^({re.escape(series)}.*) \S+$", rf"\1 {value}", text)
        assert times, series
    return text


def decode_page(edits: dict[str, str] | None = None, moved: str = "external_kv_transfer") -> Reply:
    """Decode's captured page; from the second look on the small request's 192 tokens are there, by `moved`."""
    text = edited("decode", edits or {})
    pattern = rf'(?m)^(vllm:prompt_tokens_by_source_total\{{[^}}]*source="{moved}"[^}}]*\}}) (\S+)$'
    assert re.search(pattern, text)
    later = re.sub(pattern, lambda found: f"{found[1]} {float(found[2]) + 192}", text)
    return page(lambda times: (text if times <= 2 else later).encode())


def checks(decode: Replay, answer: Reply = ANSWER) -> list[Check]:
    entry = Replay({"/v1/models": vllm("decode").replies["/v1/models"], "/v1/completions": answer})
    servers = [
        ("proxy", entry),
        ("prefill", vllm("prefill", metrics=page(edited("prefill", QUIET).encode()))),
        ("decode", decode),
    ]
    with ExitStack() as stack:
        urls = [(role, stack.enter_context(serving(replay)).url) for role, replay in servers]
        return asyncio.run(examine(build("t", urls), [], {}))[0]


def level(found: list[Check], rule: str) -> str:
    return next(check.level for check in found if check.rule == rule)


IDLE = {"vllm:num_requests_running": "0.0", "vllm:num_requests_waiting{": "0.0", "vllm:kv_cache_usage_perc": "0.0"}
QUIET = {
    **IDLE,
    "vllm:nixl_num_notifications_after_expiry_total": "0.0",
    "vllm:nixl_num_kv_expired_reqs_total": "0.0",
    "vllm:nixl_num_failed_transfers_total": "0.0",
}
LIVE = {"kv-expired", "failed-transfers", "stuck-kv", "foreign-load", "several-answers", "disaggregated", "answers"}


def test_a_healthy_pair_passes_every_live_rule() -> None:
    found = checks(vllm("decode", metrics=decode_page(QUIET)))
    assert {check.rule for check in found if check.level == "pass"} >= LIVE | {"versions", "metrics-page", "reachable"}
    assert not [check for check in found if check.level == "fail"]


@pytest.mark.parametrize(
    ("rule", "wanted", "edits"),
    [
        ("kv-expired", "fail", {"vllm:nixl_num_notifications_after_expiry_total": "3.0"}),
        ("kv-expired", "warn", {"vllm:nixl_num_kv_expired_reqs_total": "2.0"}),
        ("failed-transfers", "warn", {"vllm:nixl_num_failed_transfers_total": "1.0"}),
        ("stuck-kv", "warn", {"vllm:kv_cache_usage_perc": "0.4"}),
        ("foreign-load", "warn", {"vllm:num_requests_running": "3.0"}),
        ("several-answers", "warn", {'vllm:request_params_n_bucket{engine="0",le="1.0"': "0.0"}),
    ],
)
def test_what_a_page_betrays(rule: str, wanted: str, edits: dict[str, str]) -> None:
    assert level(checks(vllm("decode", metrics=decode_page({**QUIET, **edits}))), rule) == wanted


STARTING = 'vllm:num_requests_kv_fetch_by_stage{engine="0",model_name="mid",stage="in_progress"'


@pytest.mark.parametrize(
    ("edits", "wanted"),
    [
        ({STARTING: "2.0", "vllm:num_requests_waiting{": "2.0"}, "warn"),
        ({STARTING: "2.0", "vllm:num_requests_waiting{": "2.0", "vllm:num_requests_running": "1.0"}, "pass"),
        ({}, "pass"),
    ],
    ids=["alone", "beside-load", "none"],
)
def test_fetches_that_go_on_while_nothing_else_does(edits: dict[str, str], wanted: str) -> None:
    assert level(checks(vllm("decode", metrics=decode_page({**QUIET, **edits}))), "stuck-fetch") == wanted


def test_decode_that_computes_the_prompt_itself() -> None:
    assert level(checks(vllm("decode", metrics=decode_page(QUIET, "local_compute"))), "disaggregated") == "fail"


@pytest.mark.parametrize(
    ("rule", "decode"),
    [
        ("metrics-page", {"metrics": HTML}),
        ("metrics-page", {"metrics": Reply(b"", 404)}),
        ("versions", {"version": Reply(b'{"version":"0.31.1"}')}),
        ("reachable", {"models": Reply(b'{"data":[]}')}),
    ],
)
def test_a_server_that_is_not_as_it_should_be(rule: str, decode: dict[str, Reply]) -> None:
    assert level(checks(vllm("decode", **{"metrics": decode_page(QUIET), **decode})), rule) == "fail"


@pytest.mark.parametrize(
    "answer",
    [
        Reply(b'{"error":{"message":"boom"}}', 500),
        Reply(b'data: {"error":{"message":"Internal error"}}\n\ndata: [DONE]\n\n', content_type="text/event-stream"),
        Reply(b"data: [DONE]\n\n", content_type="text/event-stream"),
    ],
)
def test_a_small_request_that_fails(answer: Reply) -> None:
    assert level(checks(vllm("decode", metrics=decode_page(QUIET)), answer=answer), "answers") == "fail"


def test_what_came_is_said_where_no_engine_answered() -> None:
    """A web page is named by its title, and nobody is sent to look for a handshake."""
    page_of = b"<!DOCTYPE html>\n<html><head><title>501 Not\nImplemented</title></head><body>x</body></html>"
    for answer in (Reply(page_of, 501, "text/html"), Reply(b"no such route", 501)):
        found = checks(vllm("decode", metrics=decode_page(QUIET)), answer=answer)
        said = next(check for check in found if check.rule == "answers")
        assert "HTTP 501" in said.evidence and "hash mismatch" not in said.fix
        assert ("an HTML page, '501 Not Implemented'" in said.evidence) is (answer.body == page_of)


def test_a_proxy_that_collects_the_stream() -> None:
    """The replayed answer comes in one piece: the events of a real stream do not."""
    assert level(checks(vllm("decode", metrics=decode_page(QUIET))), "streaming") == "warn"


def flags(testbed: Running) -> list[str]:
    pairs = [("--proxy", [testbed.proxy_url] if testbed.proxy_url else []), ("--prefill", testbed.prefill_urls)]
    pairs += [("--decode", testbed.decode_urls), ("--server", testbed.server_urls)]
    return [word for flag, urls in pairs for url in urls for word in (flag, url)]


@pytest.mark.parametrize(
    ("settings", "code", "failing"),
    [
        ({}, 0, set()),
        ({"mode": "push"}, 0, set()),
        ({"mode": "colocated"}, 0, set()),
        ({"drop_kv_params": True}, 1, {"disaggregated"}),
        ({"decode_mode": "push"}, 1, {"mixed-modes", "answers"}),
        ({"api_key": "secret-of-the-test"}, 2, {"reachable"}),
    ],
    ids=["pull", "push", "colocated", "dropped", "mixed", "key"],
)
def test_the_practice_deployment(
    settings: dict[str, Any], code: int, failing: set[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with running(Settings(**settings).on_free_ports()) as testbed:
        assert main(["doctor", *flags(testbed), "--json"]) == code
        printed = capsys.readouterr()
    document = json.loads(printed.out)
    assert document["simulated"]
    assert {check["rule"] for check in document["checks"] if check["level"] == "fail"} == failing
    if not failing and settings.get("mode") != "colocated":
        assert level([Check(**check) for check in document["checks"]], "streaming") == "pass"


def test_a_deployment_on_ipv6(capsys: pytest.CaptureFixture[str]) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6 loopback")
    with running(Settings(mode="push", host="::1").on_free_ports()) as testbed:
        assert main(["doctor", *flags(testbed)]) == 0
        assert "disaggregated" in capsys.readouterr().out
        assert main(["watch", *flags(testbed), "--once", "--interval", "100ms"]) == 0
        assert "2/2 up" in capsys.readouterr().out


def test_nothing_there(capsys: pytest.CaptureFixture[str]) -> None:
    nowhere = ["--proxy", "http://127.0.0.1:1", "--prefill", "http://127.0.0.1:3", "--decode", "http://127.0.0.1:2"]
    assert main(["doctor", *nowhere, "--json"]) == 4
    printed = capsys.readouterr()
    assert "cannot be reached" in printed.err
    assert {check["rule"] for check in json.loads(printed.out)["checks"]} == {"reachable"}
    assert "default ports" not in printed.err
    main(["doctor"])
    assert "No server is named: these are the default ports of this host, 8192 (proxy)" in capsys.readouterr().err


def test_exchanged_roles_and_a_wrong_mode_are_called_so(capsys: pytest.CaptureFixture[str]) -> None:
    with running(Settings(dev_mode=False).on_free_ports()) as testbed:
        entry, prefill, decode = str(testbed.proxy_url), testbed.prefill_urls[0], testbed.decode_urls[0]
        assert main(["doctor", "--proxy", entry, "--prefill", decode, "--decode", prefill]) == 1
        assert "look exchanged" in (told := " ".join(capsys.readouterr().out.split())) and "drops" not in told
    assert told.startswith("SIMULATED")
    with running(Settings().on_free_ports()) as testbed:
        assert main(["doctor", *flags(testbed), "--mode", "push", "--json"]) == 1
    checks = {check["rule"]: check for check in json.loads(capsys.readouterr().out)["checks"]}
    assert checks["answers"]["level"] == checks["disaggregated"]["level"] == "pass"
    assert "the mode given is wrong" in checks["mixed-modes"]["evidence"]
    assert "handshake" not in checks["mixed-modes"]["evidence"] and "pull" in checks["mixed-modes"]["fix"]


def test_looking_leaves_no_kv_behind_that_expires() -> None:
    """The small request to prefill is fetched by decode: nothing is pinned, nothing can expire."""
    with running(Settings(lease_s=1.0).on_free_ports()) as testbed:
        assert main(["doctor", *flags(testbed)]) == 0
        time.sleep(2.0)
        pages = [urllib.request.urlopen(f"{url}/metrics").read().decode() for url in testbed.prefill_urls]
    expired = [float(line.split()[-1]) for page in pages for line in page.splitlines() if EXPIRED.match(line)]
    assert expired == [0.0]


def test_a_proxy_alone_is_no_all_clear(capsys: pytest.CaptureFixture[str]) -> None:
    with running(Settings().on_free_ports()) as testbed:
        assert main(["doctor", "--proxy", str(testbed.proxy_url), "--json"]) == 0
    checks = json.loads(capsys.readouterr().out)["checks"]
    levels = {check["rule"]: check["level"] for check in checks}
    assert levels["roles"] == "unknown"
    assert not {"slots-known", "slots-agree", "kv-pool", "failure-policy", "dead-settings"} & set(levels)


def test_a_model_that_is_not_served(capsys: pytest.CaptureFixture[str]) -> None:
    with running(Settings(mode="colocated").on_free_ports()) as testbed:
        assert main(["doctor", "--server", testbed.server_urls[0], "--model", "nope"]) == 2
    assert "--model" in capsys.readouterr().err
