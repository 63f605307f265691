"""The ways to a server, for load and pages alike: TLS, a Unix socket, IPv6, the environment's HTTP proxy."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pandas as pd
import pytest

from tests.cli.conftest import Ended
from tests.sweep.authority import authority
from tests.sweep.conftest import started

Way = tuple[str, dict[str, str], str, str | None]  # URL, environment, stamps, what is told of it
FLAGS = ("--ttft", "10", "--itl", "2")


@contextlib.contextmanager
def relayed(port: int, context: ssl.SSLContext) -> Iterator[int]:
    """TLS in front of a port, on one event loop: two threads must not share a connection's SSL object."""

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(pump(reader, inner_writer), pump(inner_reader, writer))

    loop = asyncio.new_event_loop()
    server = loop.run_until_complete(asyncio.start_server(relay, "127.0.0.1", 0, ssl=context))
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        server.close()
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0.05))
        loop.close()


@contextlib.contextmanager
def over_tls(tmp_path: Path) -> Iterator[Way]:
    known = authority(tmp_path, "localhost")
    with contextlib.ExitStack() as stack:
        port = started(stack, tmp_path / "truth.jsonl", FLAGS).port
        outer = stack.enter_context(relayed(port, known.context))
        yield f"https://localhost:{outer}", {"SSL_CERT_FILE": str(known.pem)}, "kernel", None


@contextlib.contextmanager
def over_a_unix_socket(tmp_path: Path) -> Iterator[Way]:
    with contextlib.ExitStack() as stack:
        started(stack, tmp_path / "truth.jsonl", (*FLAGS, "--host", str(tmp_path / "server.sock")))
        yield f"unix://{tmp_path / 'server.sock'}", {}, "user", "the client's stamps are its own"


@contextlib.contextmanager
def over_ipv6(tmp_path: Path) -> Iterator[Way]:
    if not socket.has_ipv6:
        pytest.skip("no IPv6 here")
    with contextlib.ExitStack() as stack:
        port = started(stack, tmp_path / "truth.jsonl", (*FLAGS, "--host", "::1")).port
        yield f"http://[::1]:{port}", {}, "kernel", None


@contextlib.contextmanager
def through_a_proxy(tmp_path: Path) -> Iterator[Way]:
    with contextlib.ExitStack() as stack:
        port = started(stack, tmp_path / "truth.jsonl", FLAGS).port
        proxy = f"http://somebody:secret@127.0.0.1:{port}"
        said = f"http://model.example is reached through the proxy http://127.0.0.1:{port} of the environment"
        yield "http://model.example", {"HTTP_PROXY": proxy, "NO_PROXY": ""}, "user", said


@pytest.mark.parametrize("way", [over_tls, over_a_unix_socket, over_ipv6, through_a_proxy])
def test_load_and_pages_take_the_same_way(pdbench: Callable[..., Ended], tmp_path: Path, way) -> None:
    with way(tmp_path) as (url, environ, stamp, said):
        words = ["--rates", "10", "--prompt-lens", "16", "--output-len", "8", "--num-prompts", "12", "--out", "run"]
        ended = pdbench("sweep", "--server", url, *words, "--json", env=environ)
    (cell,) = ended.summary["cells"]
    assert cell["completed"] == 12, ended.err
    rows = pd.read_parquet(tmp_path / "run" / "requests.parquet")
    assert set(rows["stamp"]) == {stamp} and cell["client"]["kernel_stamps_share"] == (stamp == "kernel")
    metrics = pd.read_parquet(tmp_path / "run" / "metrics.parquet")
    assert set(metrics["canonical"]) >= {"running", "generation_tokens"}
    document = json.loads((tmp_path / "run" / "run.json").read_text())
    notes = [*document["notes"], *cell["notes"]]
    assert any(said in note for note in notes) if said else not any("stamps" in note for note in notes)
    assert "secret" not in json.dumps(document) + ended.out + ended.err
