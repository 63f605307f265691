"""What `pdbench watch` costs: 200 servers, each with a real vLLM page, looked at once a second.

    python benchmarks/watch.py [--servers 200] [--seconds 20]

The pages are served by a process of its own; the figure is the CPU of the watching process as a share of one core,
without its start-up (aim: below 25 %).
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import time
from pathlib import Path

import psutil
from aiohttp import web

PAGES = Path(__file__).parent.parent / "tests" / "probe" / "captures"


async def serve(servers: int) -> None:
    """`servers` ports, prefill and decode in turn; prints them when all are open."""
    pages = {role: (PAGES / f"vllm-pull-{role}.metrics").read_bytes() for role in ("prefill", "decode")}
    models = b'{"object":"list","data":[{"id":"mid","root":"mid","max_model_len":4096}]}'
    ports = []
    for number in range(servers):
        app = web.Application()
        role = ("prefill", "decode")[number % 2]
        app.router.add_get("/metrics", lambda _, page=pages[role]: web.Response(body=page, content_type="text/plain"))
        app.router.add_get("/v1/models", lambda _: web.Response(body=models, content_type="application/json"))
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        ports.append(runner.addresses[0][1])
    print(*ports, flush=True)
    await asyncio.sleep(3600)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--servers", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        asyncio.run(serve(given.servers))
        return
    command = [sys.executable, __file__, "--serve", "--servers", str(given.servers)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as pages:
        assert pages.stdout is not None
        urls = [f"http://127.0.0.1:{port}" for port in pages.stdout.readline().split()]
        words = [word for i, url in enumerate(urls) for word in (("--prefill", "--decode")[i % 2], url)]
        watching = [sys.executable, "-m", "pdbench", "watch", *words, "--json"]
        with subprocess.Popen(watching, stdout=subprocess.PIPE, text=True) as watch:
            assert watch.stdout is not None
            for _ in range(3):
                watch.stdout.readline()
            process = psutil.Process(watch.pid)
            before, begun, looks = sum(process.cpu_times()[:2]), time.monotonic(), 0
            while time.monotonic() - begun < given.seconds:
                watch.stdout.readline()
                looks += 1
            took_s = time.monotonic() - begun
            cpu_s = sum(process.cpu_times()[:2]) - before
            watch.terminate()
        pages.terminate()
    print(
        f"{given.servers} servers, {looks / took_s:.2f} looks a second: {cpu_s / took_s:.1%} of one core, "
        f"{1e6 * cpu_s / looks / given.servers:.0f} us a page, {process_note(looks, took_s)}"
    )


def process_note(looks: int, took_s: float) -> str:
    return "on time" if looks / took_s > 0.95 else "LATE: the looks did not keep their interval"


if __name__ == "__main__":
    main()
