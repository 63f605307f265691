"""What users get wrong, and what breaks under them: one clear sentence, the right exit code, nothing measured lost."""

from __future__ import annotations

import http.server
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pandas as pd
import pytest

from pdbench.testbed.launch import Running
from tests.cli.conftest import Ended, roles

Run = Callable[..., Ended]
Bed = Callable[..., Running]
LOAD = ["--rates", "4", "--prompt-lens", "256", "--output-len", "8", "--num-prompts", "8"]


def refused(ended: Ended, code: int, *words: str) -> None:
    assert ended.code == code, f"{ended.code}: {ended.out}{ended.err}"
    assert ended.out == ""
    for word in words:
        assert word in ended.err, ended.err
    assert len(ended.err.strip().splitlines()) <= 3, ended.err


@pytest.fixture
def nobody() -> int:
    """A port on which nothing listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def website() -> Iterator[str]:
    """A server that answers everything with a page for people."""

    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = b"<!doctype html><html><body>Welcome to nginx!</body></html>"
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET

        def log_message(self, *args: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_nothing_listens(pdbench: Run, nobody: int) -> None:
    refused(pdbench("sweep", "--proxy", f"http://127.0.0.1:{nobody}", *LOAD), 4, str(nobody), "--testbed")


def test_a_decode_server_that_was_named_but_is_not_there(pdbench: Run, testbed: Bed, nobody: int) -> None:
    bed = testbed(mode="pull")
    ended = pdbench("sweep", "--proxy", bed.proxy_url, "--decode", f"http://127.0.0.1:{nobody}", *LOAD)
    refused(ended, 4, str(nobody))


def test_a_web_server_on_that_port(pdbench: Run, website: str) -> None:
    refused(pdbench("sweep", "--proxy", website, *LOAD), 2, website)


def test_a_wrong_or_missing_api_key(pdbench: Run, testbed: Bed, tmp_path: Path) -> None:
    bed = testbed(mode="pull", api_key="sk-right")
    refused(pdbench("sweep", *roles(bed), *LOAD), 2, "credentials")
    wrong = pdbench("sweep", *roles(bed), *LOAD, env={"PDBENCH_API_KEY": "sk-wrong-one"})
    refused(wrong, 2, "credentials")
    assert "sk-wrong-one" not in wrong.err
    right = pdbench("sweep", *roles(bed), *LOAD, "--out", "run", env={"PDBENCH_API_KEY": "sk-right"})
    assert "8 ok" in right.err and right.code in (0, 3), right.err  # a busy machine's cell is void, and was measured
    for path in (tmp_path / "run").iterdir():
        assert b"sk-right" not in path.read_bytes(), path


def test_a_model_that_is_not_served(pdbench: Run, testbed: Bed) -> None:
    bed = testbed(mode="pull")
    refused(pdbench("sweep", *roles(bed), "--model", "nope", *LOAD), 2, "nope", "simulated-qwen3-32b")
    refused(pdbench("sweep", "--proxy", bed.proxy_url, "--model", "nope", *LOAD), 2, "nope")


def test_a_prompt_longer_than_the_model_takes(pdbench: Run, testbed: Bed, tmp_path: Path) -> None:
    bed = testbed(mode="pull", max_model_len=1024)
    words = ["--rates", "4", "--prompt-lens", "256,1020", "--output-len", "8", "--num-prompts", "8", "--out", "run"]
    refused(pdbench("sweep", *roles(bed), *words), 2, "1020", "1024")
    assert not (tmp_path / "run").exists()


def test_token_ids_beyond_the_vocabulary(pdbench: Run, testbed: Bed) -> None:
    bed = testbed(mode="pull", vocab_size=2000)
    refused(pdbench("sweep", *roles(bed), *LOAD), 2, "--vocab-size")
    # Answered, whatever a busy machine makes of so few requests.
    assert pdbench("sweep", *roles(bed), "--vocab-size", "2000", *LOAD).code in (0, 3)


def test_push_and_pull_mixed(pdbench: Run, testbed: Bed) -> None:
    bed = testbed(mode="push", decode_mode="pull")
    refused(pdbench("sweep", *roles(bed), *LOAD), 2, "push", "pull")


def test_push_and_pull_mixed_where_no_server_tells(pdbench: Run, testbed: Bed) -> None:
    bed = testbed(mode="push", decode_mode="pull", dev_mode=False)
    ended = pdbench("sweep", *roles(bed), *LOAD)
    assert ended.code in (2, 4)
    assert "handoff" in ended.err or "push" in ended.err or "NIXL" in ended.err, ended.err


def test_a_run_directory_that_exists(pdbench: Run, testbed: Bed, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "mine").write_text("x")
    refused(pdbench("sweep", "--testbed", "pull", *LOAD, "--out", "run"), 2, "run exists", "Give another --out.")
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["mine"]
    (tmp_path / "run" / "run.json").write_text("{}")
    refused(pdbench("sweep", "--testbed", "pull", *LOAD, "--out", "run"), 2, "run exists", "sweep --resume run")


@pytest.mark.parametrize(
    "words",
    [
        ["--rates", "fast"],
        ["--testbed", "shove"],
        ["--recipe", "nowhere.toml"],
        ["--rates", "2", "--max-concurrency", "4"],
        ["--burstiness", "0"],
        ["--goodput", "ttft"],
        ["--resume", "nowhere"],
        ["--no-such-flag"],
        ["--testbed", "pull", "--proxy", "http://127.0.0.1:1"],
    ],
)
def test_flags_that_make_no_sense(pdbench: Run, words: list[str]) -> None:
    ended = pdbench("sweep", *words)
    assert (ended.code, ended.out) == (2, "")


def test_no_target_and_nothing_on_the_default_ports_names_the_testbed(pdbench: Run) -> None:
    for port in (8192, 8100, 8200):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                pytest.skip(f"something listens on {port}")
    refused(pdbench("sweep"), 4, "--testbed")


def test_metrics_that_cannot_be_had_are_named_and_cost_no_client_figure(pdbench: Run, testbed: Bed) -> None:
    bed = testbed(mode="pull")
    ended = pdbench("sweep", "--proxy", bed.proxy_url, *LOAD, "--out", "run", "--json")
    (cell,) = ended.summary["cells"]
    assert cell["completed"] == 8
    assert "metrics-missing" in [flag["code"] for flag in cell["validity"]]
    assert "waiting_mean" not in cell
    assert set(cell["ttft_split_ms"]) == {"unexplained"}


def test_a_server_that_dies_under_the_run(pdbench: Run, testbed: Bed, tmp_path: Path) -> None:
    bed = testbed(mode="colocated")
    threading.Timer(8, lambda: os.kill(bed.pids["colocated-0"], 9)).start()
    words = ["--rates", "5,6,7", "--prompt-lens", "256", "--output-len", "8", "--duration", "4s", "--out", "run"]
    ended = pdbench("sweep", *roles(bed), *words)
    assert ended.code == 4, ended.err
    assert "--resume" in ended.err
    rows = pd.read_parquet(tmp_path / "run" / "requests.parquet")
    assert (rows[rows["cell"] == 0]["status"] == "ok").all()
    assert (tmp_path / "run" / "report.html").exists()


@pytest.mark.skipif(os.geteuid() != 0 or not sys.platform.startswith("linux"), reason="mounts a small file system")
def test_a_full_disk(pdbench: Run, testbed: Bed, tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=200k", "tmpfs", small], check=True)
    try:
        bed = testbed(mode="pull")
        words = ["--rates", "20", "--prompt-lens", "64", "--output-len", "64", "--num-prompts", "400"]
        ended = pdbench("sweep", *roles(bed), *words, "--out", small / "run")
        assert ended.code == 74, ended.err
        assert "space" in ended.err.lower()
        rows = sum(len(path.read_text().splitlines()) for path in (small / "run" / "live").glob("requests-*"))
        tables = [pd.read_parquet(path) for path in (small / "run").glob("**/requests*.parquet")]
        assert rows + sum(map(len, tables)) > 0
        assert json.loads((small / "run" / "run.json").read_text())["schema"] == 1
    finally:
        subprocess.run(["umount", small], check=True)
