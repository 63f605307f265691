"""Logs read beside the pages: files and pipes, through the sampler's process into a cell's window."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from pdbench.deployment import Deployment, build, with_logs
from pdbench.errors import UsageError
from pdbench.probe.sampler import Sampler
from pdbench.report.window import Metrics
from pdbench.run import metric_rows
from tests.probe.replay_server import Replay, capture, page, serving
from tests.probe.test_sampler import records, run, sampling
from tests.report.answered import columns

LINE = (
    "INFO 11-30 00:15:38 [metrics.py:103] KV Transfer metrics: Num successful transfers=4, Avg xfer time (ms)=10.0, "
    "P90 xfer time (ms)=12.0, Avg post time (ms)=2.0, P90 post time (ms)=3.0, Avg MB per transfer=3.0, "
    "Throughput (MB/s)=300.0, Avg number of descriptors=8.0\n"
)
BARE = (
    b'vllm:num_requests_running{engine="0",model_name="m"} 2\nvllm:prompt_tokens_total{engine="0",model_name="m"} 7\n'
)


def with_log(url: str, log: Path | str) -> Deployment:
    built = build(
        "t", [("proxy", "http://127.0.0.1:9"), ("decode", url)], metrics_urls={"proxy-0": "none"}, engine="vllm"
    )
    return with_logs(built, {"decode-0": str(log)})


def window_of(path: Path) -> Metrics:
    rows = [row for record in records(path) for row in metric_rows(record)]
    return Metrics(columns("metrics", rows))


def transfers(path: Path) -> float | None:
    frame = window_of(path)
    times = [record["t"] for record in records(path) if "edge" in record and not record["server"].endswith(".log")]
    segment = frame.segment("t", min(times), max(times), max(times))
    found = [
        value
        for one in segment.pages
        for key, value in one.deltas.items()
        if key.canonical == "nixl_xfer_s" and key.kind == "count"
    ]
    return sum(found) if found else None


@pytest.mark.parametrize("kind", ["file", "pipe"])
def test_what_a_log_says_while_a_cell_runs_is_in_its_window(kind: str, tmp_path: Path) -> None:
    """Four transfers that the log told before, and two lines of four while the cell ran."""
    path, log = tmp_path / "metrics.jsonl", tmp_path / "decode.log"
    if kind == "pipe":
        os.mkfifo(log)
        writer = os.open(log, os.O_RDWR)
    else:
        log.write_text("an old line\n" + LINE)
        writer = os.open(log, os.O_WRONLY | os.O_APPEND)
    with serving(Replay({"/metrics": page(BARE)})) as replay, sampling(with_log(replay.url, log)) as sampler:

        async def between() -> None:
            os.write(writer, LINE.encode())
            await asyncio.sleep(0.6)
            os.write(writer, LINE[:60].encode())
            await asyncio.sleep(0.3)
            os.write(writer, LINE[60:].encode())
            await asyncio.sleep(0.3)

        run(sampler, path, between)
    os.close(writer)
    assert transfers(path) == 8.0


@pytest.mark.parametrize("how", ["moved", "copied"])
def test_a_log_that_is_rotated_is_followed(how: str, tmp_path: Path) -> None:
    """Moved away, its writer still writing for a moment, with a new file in its place; or copied and cut."""
    path, log = tmp_path / "metrics.jsonl", tmp_path / "decode.log"
    log.write_text("old\n" * 200)
    with serving(Replay({"/metrics": page(BARE)})) as replay, sampling(with_log(replay.url, log)) as sampler:

        async def between() -> None:
            with log.open("a") as writer:
                writer.write(LINE)
                writer.flush()
                await asyncio.sleep(0.6)
                if how == "moved":
                    log.rename(tmp_path / "decode.log.1")
                    writer.write(LINE)
                else:
                    os.truncate(log, 0)
            with log.open("a") as writer:
                writer.write(LINE)
            await asyncio.sleep(1.2)
            with log.open("a") as writer:
                writer.write(LINE)
            await asyncio.sleep(0.6)

        run(sampler, path, between)
    assert transfers(path) == (16.0 if how == "moved" else 12.0)


def test_a_page_that_shows_transfers_is_not_counted_twice(tmp_path: Path) -> None:
    path, log = tmp_path / "metrics.jsonl", tmp_path / "decode.log"
    log.write_text("")
    both = capture("vllm-pull-decode.metrics")
    with serving(Replay({"/metrics": page(both)})) as replay, sampling(with_log(replay.url, log)) as sampler:

        async def between() -> None:
            log.write_text(LINE)
            await asyncio.sleep(0.6)

        run(sampler, path, between)
    assert any(record["server"] == "decode-0.log" for record in records(path))
    assert transfers(path) == 0.0, "the page's counter stood still, whatever the log says"


def test_a_silent_log_is_not_measured(tmp_path: Path) -> None:
    path, log = tmp_path / "metrics.jsonl", tmp_path / "decode.log"
    log.write_text(LINE)
    with serving(Replay({"/metrics": page(BARE)})) as replay, sampling(with_log(replay.url, log)) as sampler:
        run(sampler, path, 0.3)
    assert transfers(path) is None


def test_a_log_that_cannot_be_read_and_a_server_that_there_is_not(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        Sampler([with_log("http://127.0.0.1:1", tmp_path / "none")], 1.0, 0)
    with pytest.raises(UsageError, match="no server decode-3"):
        with_logs(build("t", [("decode", "http://127.0.0.1:1")]), {"decode-3": "x"})
