"""The sampler's process against little HTTP servers: exact edges, no page delaying another, and every way to fail."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pdbench.deployment import Deployment, build
from pdbench.errors import StorageError
from pdbench.probe.sampler import Edge, Sampler
from pdbench.run import metric_rows
from tests.probe.replay_server import HTML, Replay, Reply, capture, page, serving


def counting(times: int) -> bytes:
    """A page whose counter says how often it was asked, with a bucket for the edges."""
    return (
        f'vllm:prompt_tokens_total{{engine="0",model_name="m"}} {times}\n'
        f'vllm:num_requests_running{{engine="0",model_name="m"}} 2\n'
        f'vllm:num_requests_running{{engine="1",model_name="m"}} 1\n'
        f'vllm:num_requests_kv_fetch_by_stage{{engine="0",model_name="m",stage="waiting_to_start"}} 5\n'
        f'vllm:time_to_first_token_seconds_bucket{{engine="0",le="0.5",model_name="m"}} 1\n'
    ).encode()


def deployment(**urls: str) -> Deployment:
    return build("t", [("proxy", "http://127.0.0.1:9"), *urls.items()], metrics_urls={"proxy-0": "none"}, engine="vllm")


@contextmanager
def sampling(*deployments: Deployment, interval_s: float = 0.05) -> Iterator[Sampler]:
    sampler = Sampler(deployments, interval_s, time.monotonic_ns())
    sampler.start()
    try:
        yield sampler
    finally:
        sampler.stop()


def run(sampler: Sampler, path: Path, between: Callable[[], Awaitable[None]] | float) -> tuple[Edge, Edge]:
    async def cell() -> tuple[Edge, Edge]:
        begun = await sampler.begin(0, 0, path)
        await (asyncio.sleep(between) if isinstance(between, float) else between())
        return begun, await sampler.end()

    return asyncio.run(cell())


def wait_for_the_first_scrape(sampler: Sampler) -> None:
    deadline = time.monotonic() + 20
    while not sampler.latest() and time.monotonic() < deadline:
        time.sleep(0.02)


def records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def value(record: dict[str, Any], canonical: str) -> float | None:
    return next((row["value"] for row in metric_rows(record) if row["canonical"] == canonical), None)


def test_scrapes_are_in_step_with_nothing(tmp_path: Path) -> None:
    """Constant arrivals of 4 or 8 a second come at parts of the default interval: scrapes as regular as they would find
    the servers at one point of their round each time, idle say, and never know."""
    path, interval_s = tmp_path / "metrics.jsonl", 0.25
    with (
        serving(Replay({"/metrics": page(counting)})) as replay,
        sampling(deployment(decode=replay.url), interval_s=interval_s) as sampler,
    ):
        run(sampler, path, 3.0)
    gaps = np.diff([record["t"] for record in records(path)[1:-1]])
    # Ten gaps that are uniform over one interval lie within 0.3 of it once in 10,000 times.
    assert len(gaps) >= 8 and gaps.max() - gaps.min() > 0.3 * interval_s, gaps


def test_edges_are_scrapes_taken_when_asked_and_only_they_have_buckets(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    seen: list[int] = []
    with serving(Replay({"/metrics": page(counting)})) as replay, sampling(deployment(decode=replay.url)) as sampler:

        async def between() -> None:
            seen.append(len(replay.asked))
            await asyncio.sleep(0.4)
            seen.append(len(replay.asked))

        begun, ended = run(sampler, path, between)
        asked = [at for at, _ in replay.asked]
    assert begun.missing == ended.missing == ()
    rows = records(path)
    assert [record.get("edge") for record in rows] == ["begin", *[None] * (len(rows) - 2), "end"]
    first, last = value(rows[0], "prompt_tokens"), value(rows[-1], "prompt_tokens")
    assert first is not None and last is not None
    assert first <= seen[0], "the begin edge was taken before begin returned"
    assert last > seen[1] - 1 and last > first, "the end edge was asked for after end was called"
    buckets = [any(row["kind"] == "bucket" for row in metric_rows(record)) for record in rows]
    assert buckets == [True, *[False] * (len(rows) - 2), True]
    assert len(rows) >= 4, "and between the edges the page was read at the interval"
    assert [record["t"] for record in rows] == sorted(record["t"] for record in rows)
    origin = sampler._config["origin_ns"] / 1e9
    for record in rows:
        served = asked[int(value(record, "prompt_tokens") or 0) - 1]
        assert served <= record["t"] + origin < served + 2.0, (
            "the stamp follows the moment when the server made the page"
        )
    assert all(value(record, "up") == 1.0 and (value(record, "scrape_s") or 0) > 0 for record in rows)


def test_rows_after_the_cell_are_not_written_and_the_next_cell_has_its_own_file(tmp_path: Path) -> None:
    first, second = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    with serving(Replay({"/metrics": page(counting)})) as replay, sampling(deployment(decode=replay.url)) as sampler:
        run(sampler, first, 0.1)
        size = first.stat().st_size
        time.sleep(0.3)
        assert first.stat().st_size == size
        run(sampler, second, 0.1)
        assert first.stat().st_size == size
    assert records(second)[0]["edge"] == "begin"


def test_a_slow_page_delays_no_other_and_never_overlaps_itself(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    with (
        serving(Replay({"/metrics": page(counting)})) as quick,
        serving(Replay({"/metrics": page(counting, delay_s=0.4)})) as slow,
        sampling(deployment(decode=quick.url, prefill=slow.url)) as sampler,
    ):
        run(sampler, path, 1.5)
        assert slow.most_at_once == 1
    inner = [record for record in records(path) if "edge" not in record]
    by_server = {name: sum(record["server"] == name for record in inner) for name in ("decode-0", "prefill-0")}
    assert by_server["decode-0"] >= 3
    assert by_server["prefill-0"] <= 1, "it answers in 0.4 s: at most once in 2 s"


def test_a_page_that_is_missing_is_down_not_zero(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    whole = capture("vllm-pull-decode.metrics")
    with (
        serving(Replay({})) as gone,
        serving(Replay({"/metrics": page(whole, cut=True)})) as cut,
        serving(Replay({"/metrics": page(whole[:-30])})) as half,
        serving(Replay({"/metrics": HTML})) as html,
    ):
        urls = [("decode", replay.url) for replay in (gone, cut, half, html)] + [("decode", "http://127.0.0.1:9")]
        several = build("t", [("proxy", "http://127.0.0.1:10"), *urls], metrics_urls={"proxy-0": "none"}, engine="vllm")
        with sampling(several) as sampler:
            begun, ended = run(sampler, path, 0.0)
    for edge in (begun, ended):
        assert len(edge.missing) == 5
        assert "404" in edge.missing[0] and "ended inside" in edge.missing[1] and "cut" in edge.missing[2]
        assert "HTML" in edge.missing[3] and edge.missing[4].startswith("decode-4: ")
    for record in records(path):
        assert {row["canonical"] for row in metric_rows(record)} == {"up", "scrape_s"}
        assert value(record, "up") == 0.0


def test_an_edge_that_failed_once_is_taken_again(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    # The page is cut at every odd time that it is asked for: each edge's first try or a scrape between fails.
    odd = page(lambda times: counting(times)[:-5] if times % 2 else counting(times))
    with (
        serving(Replay({"/metrics": odd})) as replay,
        sampling(deployment(decode=replay.url), interval_s=60.0) as sampler,
    ):
        wait_for_the_first_scrape(sampler)
        begun, ended = run(sampler, path, 0.0)
    assert begun.missing == ended.missing == ()
    assert [value(record, "up") for record in records(path)] == [1.0, 1.0]


def test_latest_tells_the_gauges_without_waiting() -> None:
    with serving(Replay({"/metrics": page(counting)})) as replay, sampling(deployment(decode=replay.url)) as sampler:
        assert sampler.latest() == {}
        wait_for_the_first_scrape(sampler)
        latest = sampler.latest()["t", "decode-0"]
    assert latest["running"] == 3.0, "summed over data-parallel ranks"
    assert latest["waiting_to_start"] == 5.0 and latest["waiting"] is None and latest["kv_cache_usage"] is None
    assert latest["up"] and latest["role"] == "decode"


def test_two_targets_and_credentials(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    with serving(Replay({"/metrics": page(counting)})) as replay:
        both = [build(target, [("colocated", replay.url)], key="sk-1", engine="vllm") for target in ("a", "b")]
        with sampling(*both) as sampler:
            run(sampler, path, 0.0)
            command_line = Path(f"/proc/{sampler.pid}/cmdline").read_bytes()
        assert set(replay.authorization) == {"Bearer sk-1"}
    assert {record["target"] for record in records(path)} == {"a", "b"}
    assert b"sk-1" not in command_line and "sk-1" not in path.read_text()


def test_a_deployment_without_pages_needs_no_process(tmp_path: Path) -> None:
    with sampling(deployment()) as sampler:
        assert run(sampler, tmp_path / "x", 0.0) == (Edge((), 0.0), Edge((), 0.0))
        assert sampler.pid is None


def test_a_sampler_that_is_killed_is_noticed_and_started_again(tmp_path: Path) -> None:
    with serving(Replay({"/metrics": page(counting)})) as replay, sampling(deployment(decode=replay.url)) as sampler:

        async def kill() -> None:
            assert sampler.pid is not None
            os.kill(sampler.pid, signal.SIGKILL)

        begun, ended = run(sampler, tmp_path / "a", kill)
        assert begun.missing == () and len(ended.missing) == 1
        assert any("ended by itself" in note for note in sampler.notes)
        assert sampler.latest() == {}  # what it knew last would else look like servers that never come to rest
        begun, ended = run(sampler, tmp_path / "b", 0.0)
        assert begun.missing == ended.missing == ()


def test_a_full_disk_is_the_parents_business() -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("no /dev/full here")
    with serving(Replay({"/metrics": page(counting)})) as replay, sampling(deployment(decode=replay.url)) as sampler:
        with pytest.raises(StorageError, match="No space left") as caught:
            run(sampler, full, 0.0)
        assert caught.value.exit_code == 74


LIMITED = """
import resource, sys
from pathlib import Path
from pdbench.probe.sampling import Lines
resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
lines = Lines(Path(sys.argv[1]))
try:
    while True:
        lines.append(b'{"t":1,"rows":[]}\\n')
except OSError as error:
    print(error.strerror)
"""


def test_what_a_full_disk_cut_short_is_taken_back(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    said = subprocess.run([sys.executable, "-c", LIMITED, str(path)], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "File too large"
    assert [record["t"] for record in records(path)] == [1] * 5


def test_a_folder_that_is_gone_is_a_storage_error(tmp_path: Path) -> None:
    with (
        serving(Replay({"/metrics": page(counting)})) as replay,
        sampling(deployment(decode=replay.url)) as sampler,
        pytest.raises(StorageError, match="cannot write"),
    ):
        run(sampler, tmp_path / "gone" / "metrics.jsonl", 0.0)


ORPHAN = """
import sys, time
from pdbench.deployment import build
from pdbench.probe.sampler import Sampler
sampler = Sampler([build("t", [("colocated", sys.argv[1])], engine="vllm")], 0.05, 0)
sampler.start()
while not sampler.latest():
    time.sleep(0.02)
print(sampler.pid, flush=True)
time.sleep(60)
"""


def test_the_sampler_ends_with_its_parent() -> None:
    with serving(Replay({"/metrics": page(counting)})) as replay:
        parent = subprocess.Popen([sys.executable, "-c", ORPHAN, replay.url], stdout=subprocess.PIPE)
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        parent.kill()
        parent.wait()
        parent.stdout.close()
        deadline = time.monotonic() + 10
        while _alive(child) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not _alive(child)


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_many_servers_share_the_process(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    with serving(Replay({f"/{i}": page(counting) for i in range(50)})) as replay:
        urls = [("decode", f"{replay.url}/s{i}") for i in range(50)]
        pages = {f"decode-{i}": f"{replay.url}/{i}" for i in range(50)}
        many = build(
            "t", [("proxy", "http://127.0.0.1:9"), *urls], metrics_urls={"proxy-0": "none", **pages}, engine="vllm"
        )
        with sampling(many, interval_s=0.5) as sampler:
            begun, ended = run(sampler, path, 0.2)
        assert begun.missing == ended.missing == ()
        assert all(count == 0 for count in replay.at_once.values())
    edges = [record for record in records(path) if "edge" in record]
    assert len(edges) == 100


def test_an_error_reply_is_not_a_page(tmp_path: Path) -> None:
    broken = Reply(counting(1), 500, "text/plain")
    with serving(Replay({"/metrics": broken})) as replay, sampling(deployment(decode=replay.url)) as sampler:
        begun, _ = run(sampler, tmp_path / "m", 0.0)
    assert begun.missing == ("decode-0: HTTP 500",)
