"""`pdbench watch` against the practice deployment, whose settings are the truth, and against a stand-in Prometheus."""

from __future__ import annotations

import asyncio
import io
import json
import os
import pty
import re
import select
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console

from pdbench.cli import main
from pdbench.deployment import Deployment, ServerFacts, build
from pdbench.errors import Unreachable
from pdbench.probe.discover import discover
from pdbench.probe.pages import session
from pdbench.probe.scrape import read_page
from pdbench.probe.watch.export import Exporter
from pdbench.probe.watch.frame import Frame, Watch
from pdbench.probe.watch.sources import from_prometheus, from_servers, learning
from pdbench.probe.watch.view import picture
from pdbench.testbed.launch import Running, running
from pdbench.testbed.settings import Settings
from tests.probe.replay_server import Replay, Reply, capture, page, serving, vllm

RECIPES = Path(__file__).parents[2] / "recipes" / "monitoring"
PROMPT, OUTPUT, REQUESTS = 4096, 16, 6


def urls(testbed: Running) -> list[tuple[str, str]]:
    entry = [("proxy", testbed.proxy_url)] if testbed.proxy_url else []
    pairs = [("prefill", testbed.prefill_urls), ("decode", testbed.decode_urls), ("colocated", testbed.server_urls)]
    return [*entry, *((role, url) for role, every in pairs for url in every)]


async def send(client: aiohttp.ClientSession, url: str, index: int) -> None:
    prompt = [300 + (index * 7919 + place * 31) % 3000 for place in range(PROMPT)]
    body = {"model": "simulated-qwen3-32b", "prompt": prompt, "max_tokens": OUTPUT, "ignore_eos": True}
    async with client.post(f"{url}/v1/completions", json=body) as answer:
        assert answer.status == 200
        await answer.read()


async def watched(testbed: Running, at_once: bool) -> Frame:
    """Look, send some requests, look again."""
    deployment = await discover(build("t", urls(testbed)))
    view = Watch(deployment, 1.0)
    async with session() as client, from_servers(deployment, view.servers) as look:
        await look()
        view.step(time.monotonic())
        if at_once:
            sends = [asyncio.create_task(send(client, testbed.entry_url, i)) for i in range(REQUESTS)]
            while not all(one.done() for one in sends):
                await asyncio.sleep(0.02)
                await look()
                view.step(time.monotonic())
            await asyncio.gather(*sends)
        else:
            for i in range(REQUESTS):
                await send(client, testbed.entry_url, i)
        await look()
        return view.step(time.monotonic())


@pytest.mark.parametrize("mode", ["pull", "push", "colocated"])
def test_what_is_shown_is_what_was_sent(mode: str) -> None:
    settings = Settings(mode=mode, post_fixed_ms=20.0, post_ms_per_token=0.0)
    with running(settings.on_free_ports()) as testbed:
        now = asyncio.run(watched(testbed, at_once=False)).now
    assert now.requests_per_s is not None and now.output_tokens_per_s is not None
    assert now.requests_per_s * now.length_s == pytest.approx(REQUESTS)
    assert now.output_tokens_per_s * now.length_s == pytest.approx(REQUESTS * OUTPUT)
    assert now.parts_ms["prefill"] == pytest.approx(PROMPT * settings.prefill_ms_per_token, rel=0.5)
    assert now.slots_available == settings.max_num_seqs
    if mode == "colocated":
        return
    assert now.transfers_per_s is not None and now.transfer_nbytes_per_s is not None
    assert now.transfers_per_s * now.length_s == pytest.approx(REQUESTS)
    assert now.transfer_nbytes_per_s * now.length_s == pytest.approx(REQUESTS * PROMPT * settings.kv_bytes_per_token)
    assert now.parts_ms["post"] == pytest.approx(20.0, rel=0.05)
    assert now.parts_ms["transfer"] == pytest.approx(
        PROMPT * settings.kv_bytes_per_token / settings.link_gb_s / 1e6, rel=0.05
    )
    assert now.parts_ms["slot_wait"] < 1.0 and not now.flags


def test_one_slot_for_six_requests() -> None:
    with running(Settings(max_num_seqs=1).on_free_ports()) as testbed:
        now = asyncio.run(watched(testbed, at_once=True)).now
    assert now.cause == "decode-slots"
    # Six in a row, each holding the slot for its answer: the mean wait is two and a half answers, and a little more.
    held_ms = OUTPUT * (now.tpot_ms or 0.0)
    assert 2.0 * held_ms < now.parts_ms["slot_wait"] < 5.0 * held_ms


def test_a_proxy_that_forgets_the_handoff_is_flagged() -> None:
    with running(Settings(drop_kv_params=True).on_free_ports()) as testbed:
        frame = asyncio.run(watched(testbed, at_once=False))
    assert "decode-recomputed" in frame.now.flags and frame.now.verdict.startswith("no disaggregation")


@pytest.fixture(scope="module")
def pull() -> Iterator[Running]:
    with running(Settings().on_free_ports()) as testbed:
        yield testbed


def flags(testbed: Running) -> list[str]:
    return [word for role, url in urls(testbed) for word in (f"--{role}", url)]


def test_once_as_text_fits_eighty_columns(pull: Running, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["watch", *flags(pull), "--once", "--interval", "100ms"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80 and "SIMULATED" in lines[0]
    assert any(line.startswith("decode-0") and "0/8" in line for line in lines)
    said = [line for line in lines if line.strip()]
    assert len(said) == len(set(said)), "both windows are the same yet: one of them is enough"


def test_once_as_json(pull: Running, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["watch", *flags(pull), "--once", "--json", "--interval", "100ms"]) == 0
    document = json.loads(capsys.readouterr().out, parse_constant=lambda name: pytest.fail(name))
    assert document["simulated"] is True
    assert {one["server"] for one in document["servers"]} == {"prefill-0", "decode-0"}
    assert "tpot_ms" not in document["now"], "nothing was decoded: absent, not 0"


def test_nothing_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["watch", "--decode", "http://127.0.0.1:1", "--once"]) == 4
    assert main(["watch", "--decode", "http://127.0.0.1:1", "--prometheus", "http://127.0.0.1:2", "--once"]) == 4
    assert "--prometheus" in capsys.readouterr().err
    if all(_free(port) for port in (8192, 8100, 8200)):
        assert main(["watch", "--once"]) == 4
        assert "--prefill and --decode" in capsys.readouterr().err


def _free(port: int) -> bool:
    with socket.socket() as asked:
        return asked.connect_ex(("127.0.0.1", port)) != 0


def test_a_server_that_goes_away_is_shown_as_gone(pull: Running) -> None:
    async def frames() -> Frame:
        deployment = build("t", [("decode", pull.decode_urls[0]), ("prefill", "http://127.0.0.1:1")])
        view = Watch(deployment, 1.0)
        async with from_servers(deployment, view.servers) as look:
            for _ in range(2):
                await look()
                frame = view.step(time.monotonic())
            return frame

    frame = asyncio.run(frames())
    assert "prefill-0" in frame.now.flags["metrics-missing"]
    assert [one.up for one in frame.servers if one.role == "decode"] == [True]


def test_keys_on_a_terminal_of_eighty_columns(pull: Running) -> None:
    """Sort, pause and quit, as a person would over ssh."""
    parent, child = pty.openpty()
    subprocess.run(["stty", "rows", "24", "cols", "80"], stdin=child, check=True)
    command = [sys.executable, "-m", "pdbench", "watch", *flags(pull), "--interval", "200ms"]
    process = subprocess.Popen(
        command, stdin=child, stdout=child, stderr=child, env={**os.environ, "TERM": "xterm", "COLUMNS": "80"}
    )
    os.close(child)
    shown = b""

    def until(text: bytes, limit_s: float = 20.0) -> None:
        nonlocal shown
        end = time.monotonic() + limit_s
        while text not in shown and time.monotonic() < end:
            if select.select([parent], [], [], 0.2)[0]:
                shown += os.read(parent, 65536)
        assert text in shown, shown[-2000:]

    try:
        until(b"sorted by name")
        os.write(parent, b"s")
        until(b"sorted by waiting")
        os.write(parent, b"p")
        until(b"PAUSED")
        os.write(parent, b"q")
        end = time.monotonic() + 10
        while process.poll() is None and time.monotonic() < end:
            if select.select([parent], [], [], 0.1)[0]:
                try:
                    shown += os.read(parent, 65536)
                except OSError:
                    break
        assert process.wait(10) == 0
    finally:
        process.kill()
        process.wait()
        os.close(parent)


def prometheus_of(text: str, instance: str, t_s: float) -> list[dict[str, Any]]:
    """What Prometheus' API says of a page that it scraped."""
    found = []
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = {"__name__": sample.name, "instance": instance, "job": "vllm", **sample.labels}
            found.append({"metric": labels, "value": [t_s, str(sample.value)]})
    return found


def test_prometheus_and_the_servers_say_the_same() -> None:
    """The same two captured pages by both ways give the same reading."""
    before = capture("vllm-pull-decode.metrics").decode()
    after = re.sub(r"(?m)^(vllm:generation_tokens_total\S*) (\S+)$", lambda m: f"{m[1]} {float(m[2]) + 500}", before)
    texts = [before, after]

    def api(times: int) -> bytes:
        result = prometheus_of(texts[min(times, 2) - 1], "decode.example:8200", 1000.0 + 10 * times)
        return json.dumps({"status": "success", "data": {"resultType": "vector", "result": result}}).encode()

    async def by(deployment: Deployment, prometheus: str | None) -> Frame:
        view = Watch(deployment, 1.0)
        async with session() as client, from_servers(deployment, view.servers) as look:
            if prometheus is not None:
                look = from_prometheus(client, prometheus, deployment, view.servers)
            await look()
            view.step(0.0)
            await look()
            return view.step(10.0)

    direct_server = Replay({"/metrics": page(lambda times: texts[min(times, 2) - 1].encode())})
    with serving(direct_server) as direct, serving(Replay({}, otherwise=Reply(api))) as prometheus:
        one = asyncio.run(by(build("t", [("decode", direct.url)]), None))
        other = asyncio.run(by(build("t", [("decode", "http://decode.example:8200")]), prometheus.url))
    assert one.now == other.now and one.now.output_tokens_per_s == 50.0
    assert one.servers[0].now == other.servers[0].now


def test_a_prometheus_that_has_nothing_and_one_that_goes_away_and_comes_back() -> None:
    """The first look must meet one; after that the view goes on, and its servers come back with it."""
    text = capture("vllm-pull-decode.metrics").decode()
    has = prometheus_of(text, "decode.example:80", 1010.0)
    answers = [
        json.dumps({"status": "success", "data": {"result": []}}),
        json.dumps({"status": "success", "data": {"result": has}}),
        '{"status":"error","error":"query timed out"}',
        '{"status":"success","data":{"resultType":"scalar","result":[1,"1"]}}',
        json.dumps({"status": "success", "data": {"result": prometheus_of(text, "decode.example:80", 1020.0)}}),
    ]

    async def seen() -> list[tuple[bool, str]]:
        async with session() as client:
            deployment = build("t", [("decode", "http://decode.example")])
            view = Watch(deployment, 1.0)
            look = from_prometheus(client, prometheus.url, deployment, view.servers)
            found = []
            for _ in answers:
                await look()
                view.step(time.monotonic())
                found.append((view.servers[0].up, view.servers[0].trouble))
            return found

    api = Reply(lambda times: answers[min(times, len(answers)) - 1].encode())
    with serving(Replay({}, otherwise=api)) as prometheus:
        found = asyncio.run(seen())
    assert [up for up, _ in found] == [False, True, False, False, True]
    assert "no instance decode.example:80" in found[0][1] and "no Prometheus API" in found[2][1]


def test_a_server_that_is_not_there_yet_is_learnt_of_when_it_comes() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    async def slots(meet: Any) -> list[int | None]:
        urls = [("decode", here.url), ("decode", f"http://127.0.0.1:{port}")]
        view = Watch(await discover(build("t", urls), all_there=False), 1.0)
        async with from_servers(view.deployment, view.servers) as pages:
            look = learning(pages, view)
            await look()
            found = [view.step(0.0).now.slots_available]
            with meet:
                await look()
                found.append(view.step(1.0).now.slots_available)
            return found

    with serving(vllm("decode")) as here:
        assert asyncio.run(slots(serving(vllm("decode"), port))) == [None, 8]
    with pytest.raises(Unreachable):
        asyncio.run(discover(build("t", [("decode", f"http://127.0.0.1:{port}")]), all_there=False))


def test_many_servers_that_do_not_answer_leave_room_on_a_terminal_of_24_lines() -> None:
    view = Watch(build("t", [("decode", f"http://10.0.0.{i}:8200") for i in range(200)]), 1.0)
    for t_s in range(3):
        for i, one in enumerate(view.servers):
            if i % 2:
                one.take(float(t_s), [("m", "running", "gauge", "0", "{}", float(i))])
            else:
                one.lost(float(t_s), "no connection within 3.2 s to a host with a long name")
        frame = view.step(float(t_s))
    console = Console(width=80, height=24, file=io.StringIO())
    for sort, first in (("name", "decode-0 "), ("running", "decode-199 ")):
        with console.capture() as captured:
            console.print(picture(frame, sort, paused=False, height=24, keys=True))
        lines = captured.get().splitlines()
        assert len(lines) <= 24 and max(map(len, lines)) <= 80 and lines[-1].startswith("q quit")
        table = next(i for i, line in enumerate(lines) if line.startswith("last look "))
        assert lines[table + 1].startswith(first)
    assert len(frame.now.flags["metrics-missing"]) < 300 and "and 97 more" in frame.now.flags["metrics-missing"]


@pytest.mark.parametrize(
    ("body", "trouble"),
    [
        (b"", "an empty page"),
        (b"vllm:num_requests_running NaN\nvllm:num_requests_waiting NaN\n", "2 are NaN"),
        (b"process_start_time_seconds 1.7e9\nvllm:num_requests_running NaN\n", "1 are NaN"),
        (b"python_info 1\n", "no series"),
    ],
)
def test_a_page_without_a_figure_is_a_missing_one(body: bytes, trouble: str) -> None:
    async def look(urls: list[tuple[str, str]]) -> Frame:
        view = Watch(build("t", urls), 1.0)
        async with from_servers(view.deployment, view.servers) as look:
            await look()
        return view.step(0.0)

    with serving(vllm("prefill")) as prefill, serving(vllm("decode", metrics=page(body))) as decode:
        frame = asyncio.run(look([("prefill", prefill.url), ("decode", decode.url)]))
    assert [one.up for one in frame.servers] == [True, False]
    assert trouble in frame.now.flags["metrics-missing"]


@pytest.mark.parametrize(
    ("slots", "running", "usage", "cause"),
    [
        (4, 4.0, 0.5, "decode-slots"),
        (8, 4.0, 0.99, "decode-kv-pool"),
        (8, 4.0, 0.5, "prefill-queue"),
        (None, 4.0, 0.5, "prefill-queue"),
    ],
)  # fmt: skip
def test_a_queue_before_a_server_that_does_both(slots: int | None, running: float, usage: float, cause: str) -> None:
    """Ten requests, each 2 s in the queue and 0.1 s in prefill: no prefill server and no decoder is spoken of."""
    limits = {"colocated-0": slots} if slots else {}
    view = Watch(build("t", [("colocated", "http://127.0.0.1:1")], slots=limits), 1.0)
    for t_s in (0.0, 10.0):
        done = t_s
        rows = [
            ("m", name, "gauge", "0", "{}", value) for name, value in (("running", running), ("kv_cache_usage", usage))
        ]
        for name, each_s in (("queue_s", 2.0), ("prefill_s", 0.1), ("e2e_s", 3.0)):
            rows += [("m", name, "sum", "0", "{}", done * each_s), ("m", name, "count", "0", "{}", done)]
        view.servers[0].take(t_s, rows)
        frame = view.step(t_s)
    assert frame.now.cause == cause
    assert "co-located" in frame.now.verdict and "prefill server" not in frame.now.verdict


def test_sglang_shows_its_stages() -> None:
    """Ten requests between two looks, each stage with a length of its own."""

    def pages(role: str, stages: dict[str, float], done: int) -> bytes:
        lines = [f"sglang:queue_time_seconds_{kind} {value}" for kind, value in (("sum", done * 0.02), ("count", done))]
        lines += [f"sglang:e2e_request_latency_seconds_count {done}", "sglang:num_decode_prealloc_queue_reqs 3"]
        for stage, ms in stages.items():
            for kind, value in (("sum", done * ms / 1000), ("count", done)):
                lines.append(f'sglang:per_stage_req_latency_seconds_{kind}{{stage="{stage}",tp_rank="0"}} {value}')
        return ("\n".join([*lines, "sglang:num_running_reqs 1"]) + "\n").encode()

    stages = {
        "prefill": {"prefill_bootstrap": 33.0, "prefill_forward": 60.0, "prefill_transfer_kv_cache": 11.0},
        "decode": {"decode_bootstrap": 5.0, "decode_waiting": 2.0},
    }
    view = Watch(build("t", [(role, f"http://{role}:1") for role in stages], engine="sglang", mode="push"), 1.0)
    for t_s, done in ((0.0, 7), (10.0, 17)):
        for one in view.servers:
            one.take(t_s, read_page("sglang", pages(one.role, stages[one.role], done)).rows)
        now = view.step(t_s).now
    expected = {"prefill_queue": 20.0, "prefill": 60.0, "transfer": 11.0, "slot_wait": 3 * 10 / 10 * 1000}
    assert now.parts_ms == pytest.approx(expected) and now.transfers_per_s == 1.0


@pytest.mark.parametrize(("ranks", "certain"), [(2, True), (1, False)])
def test_sglangs_bytes_are_of_all_its_ranks(ranks: int, certain: bool) -> None:
    """Four requests in ten seconds, of which each of two ranks sent 8 MiB; with one rank on decode nobody knows."""

    def page(done: int) -> bytes:
        return b"".join(
            b'sglang:kv_transfer_total_mb_%s{tp_rank="%d",pp_rank="0"} %d\n' % (kind, rank, done * each)
            for rank in range(2)
            for kind, each in ((b"sum", 8), (b"count", 1))
        )

    built = build("t", [("prefill", "http://p:1"), ("decode", "http://d:1")], engine="sglang", mode="push")
    facts = {"prefill": ServerFacts(kv_ranks=2, version="0.5.23"), "decode": ServerFacts(kv_ranks=ranks)}
    view = Watch(replace(built, servers=tuple(replace(one, facts=facts[one.role]) for one in built.servers)), 1.0)
    for t_s, done in ((0.0, 3), (10.0, 7)):
        view.servers[0].take(t_s, read_page("sglang", page(done)).rows)
        now = view.step(t_s).now
    assert now.transfer_nbytes_per_s == (4 * 2 * 8 * 2**20 / 10 if certain else None)


def test_what_stores_move_is_exported_as_prometheus_reads_it() -> None:
    """The page that is served, through prometheus_client's own parser: names, labels, units, nothing twice."""
    view = Watch(build("t", [("colocated", "http://s:1")]), 1.0)
    each = {
        "vllm:kv_offload_load_bytes_total": 2e9, "vllm:kv_offload_load_size_count": 40,
        'vllm:mooncake_store_operation_time_seconds_count{operation="save_put",status="ok"}': 20,
        'vllm:mooncake_store_operation_bytes_total{operation="save_put",status="ok"}': 5e8,
        "vllm:hf3fs_load_duration_seconds_count": 10, "lmcache:time_to_store_count": 30,
        "vllm:hisparse_host_to_device_bytes_total": 1e8,
    }  # fmt: skip
    exporter = Exporter()
    for t_s, times in ((0.0, 1), (10.0, 2)):
        page = "".join(f"{name} {times * value}\n" for name, value in each.items())
        view.servers[0].take(t_s, read_page("vllm", page.encode()).rows)
        exporter.frame = view.step(t_s)
    registry = CollectorRegistry()
    registry.register(exporter)
    text = generate_latest(registry).decode()
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert len(families) == text.count("# TYPE ")

    def shown(name: str) -> dict[str, float]:
        samples = families[name].samples
        found = {f"{one.labels['connector']} {one.labels['direction']}": one.value for one in samples}
        assert families[name].type == "gauge" and len(found) == len(samples)
        assert all({*one.labels} == {"target", "connector", "direction"} for one in samples)
        return found

    assert shown("pdbench_store_bytes_per_second") == {
        "offload load": 2e8, "Mooncake store save": 5e7, "HiSparse load": 1e7,
    }  # fmt: skip
    assert shown("pdbench_store_operations_per_second") == {
        "offload load": 4, "Mooncake store save": 2, "HF3FS load": 1, "LMCache save": 3,
    }  # fmt: skip
    assert "no handoff: HiSparse load 10.0 MB/s" in shown_lines(exporter.frame)


def shown_lines(frame: Frame) -> list[str]:
    console = Console(width=80, file=io.StringIO())
    console.print(picture(frame, "name", paused=False, height=24, keys=False))
    return [line.rstrip() for line in console.file.getvalue().splitlines()]  # type: ignore[attr-defined]


def test_what_is_exported_is_what_is_shown(pull: Running) -> None:
    exporter = Exporter()
    exporter.frame = asyncio.run(watched(pull, at_once=False))
    families = {family.name: family for family in exporter.collect()}
    now = exporter.frame.now
    assert families["pdbench_slots_available"].samples[0].value == now.slots_available == 8
    assert families["pdbench_tpot_seconds"].samples[0].value == pytest.approx((now.tpot_ms or 0) / 1000)
    parts = {sample.labels["part"]: sample.value for sample in families["pdbench_ttft_part_seconds"].samples}
    assert parts == pytest.approx({part: ms / 1000 for part, ms in now.parts_ms.items()})
    used = set()
    for file in ("grafana.json", "alerts.yml"):
        used |= set(re.findall(r"\bpdbench_[a-z_]+", (RECIPES / file).read_text()))
    assert used and used <= set(families), used - set(families)
    json.loads((RECIPES / "grafana.json").read_text())


def test_what_prometheus_scraped_of_a_simulation_is_called_so(
    pull: Running, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where the servers can be reached they say themselves what they are, and how many slots they have."""
    with urllib.request.urlopen(f"{pull.decode_urls[0]}/metrics") as answer:
        result = prometheus_of(answer.read().decode(), pull.decode_urls[0].removeprefix("http://"), 1000.0)
    api = Reply(json.dumps({"status": "success", "data": {"result": result}}).encode())
    with serving(Replay({}, otherwise=api)) as prometheus:
        words = ["--prometheus", prometheus.url, "--once", "--interval", "100ms"]
        assert main(["watch", "--decode", pull.decode_urls[0], *words]) == 0
    said = capsys.readouterr().out
    assert "SIMULATED" in said and "0/8" in said


def test_prometheus_takes_the_alert_rules() -> None:
    """By promtool where there is one; and never a matching of labels with a number, which it refuses."""
    file = RECIPES / "alerts.yml"
    rules = [rule for group in yaml.safe_load(file.read_text())["groups"] for rule in group["rules"]]
    assert rules and not [rule for rule in rules if re.search(r"\d\s*[-+*/]\s*(ignoring|on)\b", rule["expr"])]
    if promtool := shutil.which("promtool"):
        assert subprocess.run([promtool, "check", "rules", file], capture_output=True).returncode == 0
