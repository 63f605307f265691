"""What a 5,000-line metrics page costs, against prometheus_client over the whole page; and 200 servers once a second.

    python benchmarks/scrape.py [--rounds 50] [--servers 200] [--seconds 20]

Two pages: one where about 150 lines matter (one busy server among exporters), and eight data-parallel ranks of a real
vLLM page. `first` is the first scrape of a process, when names and labels are parsed; `between` a scrape while a cell
runs; `edge` one at a cell's edge, with all buckets. Times are the best of the rounds.

Then the sampler of a sweep, a process of its own, as it scrapes `--servers` pages of a real vLLM at 1 Hz and writes the
rows: its CPU as a share of one core, between a cell's edges (aim: below 10%).
"""

from __future__ import annotations

import argparse
import asyncio
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import psutil
from prometheus_client.parser import text_string_to_metric_families

from pdbench.deployment import build
from pdbench.probe import scrape
from pdbench.probe.sampler import Sampler

CAPTURE = Path(__file__).parent.parent / "tests" / "probe" / "captures" / "vllm-pull-decode.metrics"
PAGE_SERVER = Path(__file__).parent / "page_server.py"


def sparse_page(lines: int = 5000) -> bytes:
    """About 150 lines that matter, buckets not counted, among others."""
    real = [line for line in CAPTURE.read_bytes().splitlines() if not line.startswith(b"#")]
    plain = [line for line in real if b"_bucket" not in line and b"_created" not in line and line.startswith(b"vllm:")]
    mine = [line.replace(b'engine="0"', b'engine="%d"' % rank) for rank in range(3) for line in plain]
    others = [
        b'exporter_series_bucket{le="%d",shard="s%d"} %d' % (i % 40, i // 40, i) for i in range(lines - len(mine))
    ]
    page = mine + others
    random.Random(0).shuffle(page)
    return b"\n".join(page) + b"\n"


def dense_page(ranks: int = 8) -> bytes:
    real = [line for line in CAPTURE.read_bytes().splitlines() if not line.startswith(b"#")]
    return b"".join(
        line.replace(b'engine="0"', b'engine="%d"' % rank) + b"\n" for rank in range(ranks) for line in real
    )


def best_ms(action: Callable[[], object], rounds: int) -> float:
    best = float("inf")
    for _ in range(rounds):
        begun = time.perf_counter()
        action()
        best = min(best, time.perf_counter() - begun)
    return best * 1000


async def sampled(urls: list[str], seconds: float, path: Path) -> tuple[float, int]:
    """CPU seconds of the sampler per second of a cell, and the rows that it wrote."""
    deployment = build("it", [(("prefill", "decode")[number % 2], url) for number, url in enumerate(urls)])
    sampler = Sampler([deployment], 1.0, time.monotonic_ns())
    sampler.start()
    try:
        edge = await sampler.begin(0, 0, path)
        assert not edge.missing and sampler.pid is not None
        process = psutil.Process(sampler.pid)
        await asyncio.sleep(2.5)  # past the first scrape between edges, where names and labels are parsed
        before, begun = sum(process.cpu_times()[:2]), time.monotonic()
        await asyncio.sleep(seconds)
        share = (sum(process.cpu_times()[:2]) - before) / (time.monotonic() - begun)
        await sampler.end()
    finally:
        sampler.stop()
    return share, path.read_bytes().count(b"\n")


def many(servers: int, seconds: float) -> None:
    command = [sys.executable, str(PAGE_SERVER), str(servers)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as pages:
        assert pages.stdout is not None
        urls = [f"http://127.0.0.1:{port}" for port in pages.stdout.readline().split()]
        with tempfile.TemporaryDirectory() as folder:
            share, rows = asyncio.run(sampled(urls, seconds, Path(folder) / "metrics.jsonl"))
        pages.terminate()
    each_us = share / servers * 1e6
    print(f"{servers} servers at 1 Hz: {share:.1%} of one core, {each_us:.0f} us a page, {rows} lines written")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--servers", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=20.0)
    given = parser.parse_args()
    rounds = given.rounds
    many(given.servers, given.seconds)
    for name, page in (("sparse", sparse_page()), ("dense", dense_page())):
        text = page.decode()
        whole = best_ms(lambda text=text: list(text_string_to_metric_families(text)), max(3, rounds // 10))
        scrape._identify.cache_clear()
        first = best_ms(lambda page=page: scrape.read_page("vllm", page), 1)
        between = best_ms(lambda page=page: scrape.read_page("vllm", page), rounds)
        scrape.read_page("vllm", page, edge=True)
        edge = best_ms(lambda page=page: scrape.read_page("vllm", page, edge=True), rounds)
        rows = len(scrape.read_page("vllm", page).rows)
        edge_rows = len(scrape.read_page("vllm", page, edge=True).rows)
        lines, kib = page.count(b"\n"), len(page) / 1024
        print(f"{name}: {lines} lines, {kib:.0f} KiB, {rows} rows ({edge_rows} at an edge)")
        print(f"  whole page by prometheus_client {whole:8.2f} ms")
        for label, ms in (("first", first), ("between", between), ("edge", edge)):
            print(f"  {label:<32}{ms:8.2f} ms   ratio {whole / ms:6.1f}")


if __name__ == "__main__":
    main()
