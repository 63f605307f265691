"""Discovery against servers that replay what real ones said: facts, and every refusal with its exit code."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

import pytest

from pdbench.deployment import Deployment, build
from pdbench.errors import PdbenchError, Unreachable, UsageError
from pdbench.probe.discover import discover, notes
from tests.probe.replay_server import HTML, Replay, Reply, capture, models, page, serving, vllm


def look(servers: list[tuple[str, Replay]], **known: object) -> Deployment:
    with ExitStack() as stack:
        urls = [(role, stack.enter_context(serving(replay)).url) for role, replay in servers]
        return asyncio.run(discover(build("t", urls, **known)))  # type: ignore[arg-type]


def refused(servers: list[tuple[str, Replay]], **known: object) -> PdbenchError:
    with pytest.raises(PdbenchError) as caught:
        look(servers, **known)
    assert str(caught.value).isprintable()
    return caught.value


def pair(mode: str = "pull") -> list[tuple[str, Replay]]:
    return [
        ("proxy", Replay({"/health": Reply(b"")})),
        ("prefill", vllm("prefill", mode)),
        ("decode", vllm("decode", mode)),
    ]


def test_a_real_vllm_pair_behind_a_proxy_that_answers_nothing_but_health() -> None:
    found = look(pair())
    assert (found.engine, found.model, found.mode, found.simulated) == ("vllm", "mid", "pull", False)
    prefill, decode = found.of("prefill")[0], found.of("decode")[0]
    assert decode.facts is not None and prefill.facts is not None
    assert decode.facts.version == "0.32.0"
    assert (decode.facts.block_size, decode.facts.num_kv_blocks, decode.facts.prefix_caching) == (128, 512, True)
    assert (decode.facts.connector, decode.facts.kv_role) == ("NixlConnector", "kv_consumer")
    assert prefill.facts.kv_role == "kv_producer"
    assert (decode.facts.max_num_seqs, decode.facts.dp_ranks, decode.slots) == (4, 1, 4)
    assert prefill.slots == 8
    assert decode.facts.max_model_len == 4096
    assert decode.facts.has_metrics
    assert notes(found) == []
    assert found.entry.metrics_url is None, "the sampler does not ask a proxy without a page for ever"
    assert decode.metrics_url == f"{decode.url}/metrics"


def test_without_server_info_the_connector_and_the_side_that_moved_kv_still_tell() -> None:
    gone = Reply(b'{"detail":"Not Found"}', 404)
    for mode in ("pull", "push"):
        found = look(
            [
                ("proxy", Replay({})),
                ("prefill", vllm("prefill", mode, server_info=gone)),
                ("decode", vllm("decode", mode, server_info=gone)),
            ]
        )
        facts = found.of("decode")[0].facts
        assert facts is not None
        assert (found.mode, facts.connector, facts.kv_role, facts.transfer_mode) == (mode, "nixl", "kv_consumer", None)
        assert facts.max_num_seqs is None and found.decode_slots is None


def test_a_push_pair() -> None:
    assert look(pair("push")).mode == "push"


def test_mixed_push_and_pull_names_both() -> None:
    error = refused([("proxy", Replay({})), ("prefill", vllm("prefill", "push")), ("decode", vllm("decode"))])
    assert error.exit_code == 2
    assert "prefill-0" in str(error) and "push" in str(error) and "decode-0" in str(error) and "pull" in str(error)


def test_dynamo_behind_its_frontend() -> None:
    frontend = Replay(
        {
            "/v1/models": Reply(capture("dynamo-models.json")),
            "/health": Reply(capture("dynamo-health.json")),
            "/metrics": page(capture("dynamo-frontend.metrics")),
        },
        otherwise=Reply(b"", 404),
    )
    prefill = Replay(
        {"/metrics": page(capture("dynamo-prefill.metrics"))}, otherwise=Reply(b"not found", 404, "text/plain")
    )
    decode = Replay(
        {"/metrics": page(capture("dynamo-decode.metrics"))}, otherwise=Reply(b"not found", 404, "text/plain")
    )
    found = look([("proxy", frontend), ("prefill", prefill), ("decode", decode)])
    assert (found.engine, found.model, found.mode) == ("dynamo", "tiny", None)
    entry = found.entry.facts
    assert entry is not None
    assert entry.max_model_len is None, "context_window 0 means that the frontend does not know"
    assert (entry.block_size, entry.num_kv_blocks, entry.version) == (64, 16384, None)
    assert found.decode_slots == 4
    assert any("frontend" in note for note in notes(found))


def test_nothing_listens() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(Unreachable) as caught:
            asyncio.run(discover(build("t", [("proxy", url)])))
    assert caught.value.exit_code == 4
    assert url in str(caught.value) and "proxy" in str(caught.value) and "refused" in str(caught.value)
    assert "--testbed" in caught.value.hint


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_a_named_server_that_is_down_is_not_passed_over(role: str) -> None:
    with serving(Replay({"/v1/models": models("m")})) as proxy:
        urls = [("proxy", proxy.url), (role, "http://127.0.0.1:9")]
        with pytest.raises(Unreachable, match=f"{role}-0 at http://127.0.0.1:9"):
            asyncio.run(discover(build("t", urls)))


@pytest.mark.parametrize("status", [401, 403])
def test_credentials_refused(status: int) -> None:
    error = refused([("colocated", Replay({"/v1/models": Reply(b'{"error":"Unauthorized"}', status)}))])
    assert error.exit_code == 2 and "credentials refused" in str(error) and "PDBENCH_API_KEY" in error.hint


def test_the_key_is_sent_and_never_shown() -> None:
    replay = Replay({"/v1/models": models("m"), "/metrics": page(b"")})
    found = look([("colocated", replay)], key="sk-secret")
    assert set(replay.authorization) == {"Bearer sk-secret"}
    assert "sk-secret" not in repr(found)
    echo = Replay({"/v1/models": models("sk-secret")})
    error = refused([("colocated", echo)], key="sk-secret", model="m")
    assert "sk-secret" not in str(error)


@pytest.mark.parametrize(
    "server",
    [
        Replay({}, otherwise=HTML),
        Replay({"/v1/models": HTML}),
        Replay({}, otherwise=Reply(b"<html>404", 404, "text/html")),
    ],
)
def test_a_wrong_port_that_answers_html(server: Replay) -> None:
    error = refused([("colocated", server)])
    assert error.exit_code == 2 and "not an inference server (wrong port?)" in str(error)


def test_a_gateway_that_shows_html_except_on_the_completions_path_is_let_through() -> None:
    only = Replay(
        {"/v1/completions": Reply(b'{"error":"empty"}', 400)}, otherwise=Reply(b"<html>404", 404, "text/html")
    )
    assert look([("proxy", only)], model="m").model == "m"


def test_a_redirect_is_not_followed() -> None:
    error = refused(
        [("colocated", Replay({}, otherwise=Reply(b"", 302, headers={"Location": "http://127.0.0.1:9/login"})))]
    )
    assert error.exit_code == 2 and "redirects" in str(error)


@contextmanager
def greeting(first: bytes | None) -> Iterator[str]:
    """A socket that says something which is not HTTP, as a NIXL side channel or a database does."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                with connection:
                    if first is None:  # hang up with a reset, as a TLS server may
                        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                        continue
                    connection.sendall(first)
                    connection.settimeout(0.2)
                    with suppress(OSError):
                        connection.recv(65536)

        threading.Thread(target=serve, daemon=True).start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        listening.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize("first", [b"\xff\x00\x00\x00\x00\x00\x00\x00\x01\x7f\x03\x01", b"", None])
def test_a_port_that_does_not_speak_http(first: bytes | None) -> None:
    with greeting(first) as url, pytest.raises(UsageError, match="not an inference server"):
        asyncio.run(discover(build("t", [("proxy", url)])))


def test_https_on_a_plain_port() -> None:
    with serving(Replay({})) as plain, pytest.raises(Unreachable, match="TLS"):
        asyncio.run(discover(build("t", [("proxy", plain.url.replace("http://", "https://"))])))


def test_a_model_that_is_not_served_names_the_served() -> None:
    error = refused(pair(), model="nope")
    assert error.exit_code == 2 and "'nope'" in str(error) and "mid" in str(error)


def test_several_models_need_a_choice() -> None:
    two = Replay({"/v1/models": Reply(b'{"data":[{"id":"a","root":"x"},{"id":"b","root":"y"}]}')})
    error = refused([("colocated", two)])
    assert error.exit_code == 2 and "a, b" in str(error) and "--model" in error.hint
    assert look([("colocated", two)], model="b").model == "b"


def test_aliases_of_one_model_need_none() -> None:
    assert look([("colocated", Replay({"/v1/models": models("first", "second", root="r")}))]).model == "first"


def test_a_router_of_many_models_means_the_one_that_the_pair_serves() -> None:
    router = Replay({"/v1/models": Reply(b'{"data":[{"id":"a"},{"id":"mid"}]}')})
    assert look([("proxy", router), *pair()[1:]]).model == "mid"


def test_servers_without_a_common_model() -> None:
    error = refused([("proxy", Replay({"/v1/models": models("other")})), *pair()[1:]])
    assert error.exit_code == 2 and "other" in str(error) and "mid" in str(error)


def test_nobody_names_a_model() -> None:
    error = refused([("proxy", Replay({}))])
    assert error.exit_code == 2 and "--model" in error.hint


def test_a_missing_metrics_page_is_a_note_and_so_is_a_cut_one() -> None:
    gone = [("proxy", Replay({})), ("prefill", vllm("prefill", metrics=Reply(b"", 404))), ("decode", vllm("decode"))]
    found = look(gone)
    assert [note for note in notes(found) if "prefill-0" in note and "404" in note]
    assert found.of("prefill")[0].metrics_url is not None, "it is asked again: it may come"
    cut = page(capture("vllm-pull-decode.metrics"), cut=True)
    assert any("ended inside" in note for note in notes(look([("colocated", vllm("decode", metrics=cut))])))


def test_exchanged_roles_are_refused_and_different_versions_noted() -> None:
    swapped = [("proxy", Replay({})), ("prefill", vllm("decode")), ("decode", vllm("prefill"))]
    with pytest.raises(UsageError, match="kv_consumer") as caught:
        look(swapped)
    assert "exchanged" in caught.value.hint
    older = vllm("decode", version=Reply(b'{"version":"0.31.1"}'))
    said = notes(look([("proxy", Replay({})), ("prefill", vllm("prefill")), ("decode", older)]))
    assert sum("versions" in note for note in said) == 2


def test_the_given_mode_yields_to_what_servers_say() -> None:
    found = look(pair("push"), mode="pull")
    assert found.mode == "push" and any("not pull as given" in note for note in notes(found))


def test_the_practice_testbed_is_known_by_its_version() -> None:
    practice = vllm("decode", version=Reply(b'{"version":"0.32.0+pdbench.testbed"}'))
    found = look([("colocated", practice)])
    assert found.simulated and found.mode == "colocated"


def test_active_seqs_lower_the_slots() -> None:
    info = capture("vllm-decode.server_info.json").replace(b'"max_num_active_seqs": null', b'"max_num_active_seqs": 3')
    assert look([("colocated", vllm("decode", server_info=Reply(info)))]).decode_slots == 3


def test_data_parallel_ranks_multiply_slots() -> None:
    one = capture("vllm-pull-decode.metrics")
    two = one + one.replace(b'engine="0"', b'engine="1"')
    found = look([("colocated", vllm("decode", metrics=page(two)))])
    assert found.servers[0].facts is not None and found.servers[0].facts.dp_ranks == 2
    assert found.decode_slots == 8


def test_an_unknown_engine_lists_what_looks_useful() -> None:
    strange = Replay(
        {"/v1/models": models("m"), "/metrics": page(b"acme_queue_depth 3\nacme_uptime 1\nacme_ttft_sum 2\n")}
    )
    found = look([("colocated", strange)])
    (note,) = notes(found)
    assert found.engine is None
    assert "acme_queue_depth" in note and "acme_ttft" in note and "uptime" not in note


def test_an_unknown_engine_flag() -> None:
    error = refused([("colocated", Replay({}))], engine="hal")
    assert error.exit_code == 2 and "vllm" in error.hint


def test_a_server_that_takes_connections_and_says_nothing_costs_a_deadline_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pdbench.probe.discover.DEADLINE_S", 0.8)
    silent = Replay({}, otherwise=Reply(b"", delay_s=2.0))
    found = look([("proxy", silent)], model="m")
    assert any("answered nothing" in note for note in notes(found))


def test_a_host_that_takes_no_connection_is_unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pdbench.probe.discover.DEADLINE_S", 0.8)
    with socket.socket() as full, ExitStack() as stack:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for _ in range(3):  # fill the queue of connections that wait to be taken: further ones hang
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(full.getsockname())
        with pytest.raises(Unreachable, match="no connection within"):
            asyncio.run(discover(build("t", [("proxy", f"http://127.0.0.1:{full.getsockname()[1]}")])))


def test_foreign_text_is_made_harmless() -> None:
    nasty = Replay(
        {
            "/v1/models": models("m"),
            "/version": Reply(b'{"version":"1\\u001b[31m\\n2"}'),
            "/server_info?config_format=json": Reply(
                b'{"vllm_config":{"kv_transfer_config":{"kv_role":"a\\u0007b","kv_connector":7}}}'
            ),
        }
    )
    facts = look([("colocated", nasty)]).servers[0].facts
    assert facts is not None and facts.version is not None and facts.version.isprintable()
    assert facts.kv_role is not None and facts.kv_role.isprintable() and facts.connector is None


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"null", b"{", b'{"data":7}', b'{"data":[7,{"id":null},{}]}', b"\xff\xfe"]
)
def test_odd_json_is_nothing_said(body: bytes) -> None:
    odd = Replay({path: Reply(body) for path in ("/v1/models", "/version", "/server_info?config_format=json")})
    found = look([("colocated", odd)], model="m")
    assert found.model == "m" and found.servers[0].facts is not None and found.servers[0].facts.version is None


SIDES = ("prefill", "decode")
SGLANG = b'sglang:num_running_reqs{model_name="m",tp_rank="0",dp_rank="0"} 0\n'


def sglang(role: str, **more: object) -> Replay:
    told = {"disaggregation_mode": role, "version": "0.5.23", "internal_states": [{}], **more}
    replies = {"/v1/models": models("m"), "/metrics": page(SGLANG)}
    return Replay({**replies, "/server_info?config_format=json": Reply(json.dumps(told).encode())})


def test_sglang_tells_its_slots_and_where_the_two_sides_meet() -> None:
    states = [{"effective_max_running_requests_per_dp": 52}]
    found = look(
        [
            ("prefill", sglang("prefill", disaggregation_bootstrap_port=9001)),
            ("decode", sglang("decode", internal_states=states)),
        ]
    )
    assert (found.engine, found.mode, found.decode_slots) == ("sglang", "push", 52)
    prefill, decode = found.servers
    assert prefill.facts is not None and prefill.facts.bootstrap_port == 9001 and prefill.facts.version == "0.5.23"
    assert decode.facts is not None and decode.facts.bootstrap_port is None
    assert "exchanged" in refused([("prefill", sglang("decode")), ("decode", sglang("prefill"))]).hint


@pytest.mark.parametrize(
    ("told", "ranks"),
    [
        ({"tp_size": 8}, 8),
        ({"tp_size": 8, "dp_size": 8, "enable_dp_attention": True}, 1),
        ({"tp_size": 8, "dp_size": 2, "enable_dp_attention": True, "attn_cp_size": 2}, 2),
        ({"tp_size": 4, "dp_size": 2, "enable_dp_attention": False}, 4),
        ({}, None),
    ],
)
def test_sglang_tells_what_its_handoffs_go_by_and_over_how_many_ranks(told: dict[str, object], ranks: int) -> None:
    found = look([(role, sglang(role, disaggregation_transfer_backend="mooncake", **told)) for role in SIDES])
    assert [(one.facts.kv_ranks, one.facts.connector) for one in found.servers if one.facts] == [
        (ranks, "mooncake")
    ] * 2
    alone = look([("colocated", sglang("null", disaggregation_transfer_backend="mooncake"))]).servers[0].facts
    assert alone is not None and alone.connector is None, "the default of a server that hands nothing over"


def test_the_page_of_trtllm_serve_is_where_it_has_it() -> None:
    """Its /metrics are JSON; a page that the user names elsewhere is left alone."""
    text = b'trtllm_num_requests_running{model_name="m"} 2\ntrtllm_max_num_active_requests{model_name="m"} 16\n'
    replies = {"/v1/models": models("m"), "/metrics": Reply(b"[]"), "/prometheus/metrics": page(text)}
    found = look([("colocated", Replay(replies))])
    assert found.engine == "trtllm" and found.decode_slots == 16
    assert (found.servers[0].metrics_url or "").endswith("/prometheus/metrics") and not notes(found)
    with serving(Replay(replies)) as elsewhere, serving(Replay(replies)) as server:
        pages = {"colocated-0": f"{elsewhere.url}/metrics"}
        told = asyncio.run(discover(build("t", [("colocated", server.url)], metrics_urls=pages)))
    assert told.servers[0].metrics_url == pages["colocated-0"]
