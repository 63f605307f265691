"""The ways to a server, for load and pages alike: TLS, a Unix socket, IPv6, the environment's HTTP proxy."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pandas as pd
import pytest

from tests.cli.conftest import Ended
from tests.sweep.authority import authority, secured
from tests.sweep.conftest import started
from tests.sweep.test_clients import pump

Way = tuple[str, dict[str, str], str, str | None]  # URL, environment, stamps, what is told of it
FLAGS = ("--ttft", "10", "--itl", "2")


@contextlib.contextmanager
def over_tls(tmp_path: Path) -> Iterator[Way]:
    known = authority(tmp_path, "localhost")
    with contextlib.ExitStack() as stack:
        port = started(stack, tmp_path / "truth.jsonl", FLAGS).port

        def relay(conn: socket.socket) -> None:
            with socket.create_connection(("127.0.0.1", port)) as server:
                threading.Thread(target=pump, args=(conn, server), daemon=True).start()
                pump(server, conn)

        url = stack.enter_context(secured(relay, known))
        base = url.replace("127.0.0.1", "localhost").removesuffix("/v1/completions")
        yield base, {"SSL_CERT_FILE": str(known.pem)}, "kernel", None


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
