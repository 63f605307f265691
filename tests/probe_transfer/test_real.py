"""Real NIXL transfers on this machine: bytes right, both directions, merging, the carrier proved. Never GB/s."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pdbench.cli import main
from tests.probe_transfer.conftest import QUICK, SMALL, Ended, needs_nixl, run

pytestmark = needs_nixl

# 4 layers x 2 KV heads x (16 + 16) x 2 bytes: 512 bytes a token, 128 a layer.
TINY = {"num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
TIMES = ("prep_ms", "make_ms", "post_ms", "move_ms", "total_ms")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Ended]:
    """One run over a tiny model's cache: two block sizes, two in flight, polled tightly and every 20 ms."""
    cwd = tmp_path_factory.mktemp("tiny")
    (cwd / "config.json").write_text(json.dumps(TINY))
    words = ["--model-config", "config.json", "--prompt-len", "1000", "--block-size", "16,64", "--in-flight", "1,2"]
    return cwd, run(*words, *QUICK, "--poll-interval", "20ms", "--out", "run", "--json", cwd=cwd)


def test_the_layout_is_vllms_and_contiguous_blocks_are_merged(tiny: tuple[Path, Ended]) -> None:
    _, done = tiny
    assert done.code == 0, done.err
    found = {(r["op"], r["ids"], r["block_tokens"], r["in_flight"]): r for r in done.summary["results"]}
    assert len(found) == 2 * 2 * 2 * 2
    for (_, ids, block, _), result in found.items():
        blocks = -(-1000 // block)
        assert (result["descriptors"], result["nbytes"]) == (4 * blocks, 4 * blocks * block * 128)
        assert result["descriptors_merged"] == (4 * blocks if ids == "scattered" else 4)


def test_the_contract_of_json(tiny: tuple[Path, Ended]) -> None:
    for result in tiny[1].summary["results"]:
        assert result["op"] in ("READ", "WRITE") and result["backend"] == "UCX" and result["memory"] == "DRAM"
        assert all(0 < result[name]["p50"] <= result[name]["p99"] for name in TIMES)
        parts = sum(result[name]["p50"] for name in TIMES[1:-1])
        assert result["gb_s"] > 0 and parts > 0
        assert set(result["reference_gb_s"]) == {"memcpy", "process_vm", "tcp"}


def test_every_byte_was_verified_and_the_carrier_proved(tiny: tuple[Path, Ended]) -> None:
    for result in tiny[1].summary["results"]:
        assert result["verified"] is True
        assert result["transport"] == "cma/memory"
        proof = result["transport_proof"]
        assert proof["ucx"] == "zero-copy cma/memory" and proof["agree"] is not False
        assert ("ucp_get" if result["op"] == "READ" else "ucp_put") in proof["operation"]


def test_polling_between_steps_is_seen_in_the_times(tiny: tuple[Path, Ended]) -> None:
    for result in tiny[1].summary["results"]:
        poll = result["poll"]
        assert poll["interval_ms"] == 20 and poll["seen_ms"]["p50"] >= 20
        assert poll["nixl_xfer_ms"]["p50"] <= poll["seen_ms"]["p50"]


def test_what_it_predicts_grows_with_the_prompt(tiny: tuple[Path, Ended]) -> None:
    rows = tiny[1].summary["predictions"]
    assert {row["block_tokens"] for row in rows} == {16, 64}
    row = next(row for row in rows if (row["tokens"], row["block_tokens"]) == (16_384, 16))
    assert (row["nbytes"], row["descriptors"], row["regions"]) == (16_384 * 512, 4 * 1024, 4)
    assert all(way["interval"][0] <= way["ms"] <= way["interval"][1] * 1.0001 for way in row["ways"])


def test_backends_that_do_not_load_say_why(tiny: tuple[Path, Ended]) -> None:
    backends = {each["backend"]: each for each in tiny[1].summary["backends"]}
    assert backends["UCX"]["loads"] and backends["UCX"]["peers"]
    assert backends["POSIX"]["peers"] is False
    assert all(each["why"] for each in backends.values() if not each["loads"])


def test_report_shows_the_same_again(tiny: tuple[Path, Ended], capsys: pytest.CaptureFixture[str]) -> None:
    cwd, done = tiny
    assert main(["report", "--json", str(cwd / "run")]) == 0
    assert json.loads(capsys.readouterr().out) == done.summary
    assert main(["report", str(cwd / "run")]) == 0
    text = capsys.readouterr().out
    assert "1,000 tokens of" in text and "over cma/memory" in text
    assert all(len(line) <= 80 for line in text.splitlines() if not line.startswith("report"))
    assert (cwd / "run" / "report.html").stat().st_size > 10_000


def test_tcp_is_proved_by_report_and_counters(tmp_path: Path) -> None:
    done = run(*SMALL, "--out", "run", "--json", cwd=tmp_path, UCX_TLS="tcp")
    assert done.code == 0, done.err
    for result in done.summary["results"]:
        assert result["verified"] and result["transport"] == "tcp/lo"
        proof = result["transport_proof"]
        assert proof["agree"] is True and proof["counters"]["lo"] >= 0.9
        assert proof["ucx"].startswith("software emulation" if result["op"] == "READ" else "zero-copy")
    assert "tcp" in {each["cause"] for each in done.summary["diagnosis"]}


def test_bare_numbers_of_our_own_loop_match_nixls(tiny: tuple[Path, Ended]) -> None:
    """NIXL's telemetry holds post and transfer inside what the loop timed around its calls."""
    for result in tiny[1].summary["results"]:
        if result["in_flight"] == 1:
            assert result["nixl_post_ms"]["p50"] <= result["post_ms"]["p50"] + 0.1


STUB = """
#include <stdlib.h>
#include <string.h>
int cuInit(unsigned f) { return 0; }
int cuDeviceGetCount(int *n) { *n = 2; return 0; }
int cuDeviceGet(int *d, int i) { *d = i; return i < 2 ? 0 : 101; }
int cuDevicePrimaryCtxRetain(void **c, int d) { *c = (void *)1; return 0; }
int cuCtxSetCurrent(void *c) { return 0; }
int cuMemAlloc_v2(unsigned long long *p, size_t n) {
  if (n > ((size_t)1 << 30)) return 2;
  return (*p = (unsigned long long)malloc(n)) ? 0 : 2;
}
int cuMemcpyHtoD_v2(unsigned long long d, const void *s, size_t n) { memcpy((void *)d, s, n); return 0; }
int cuMemcpyDtoH_v2(void *d, unsigned long long s, size_t n) { memcpy(d, (void *)s, n); return 0; }
int cuGetErrorString(int e, const char **s) { *s = e == 2 ? "out of memory" : "invalid device ordinal"; return 0; }
"""


@pytest.fixture(scope="module")
def gpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A CUDA driver with two GPUs whose memory is the host's: NIXL's UCX, which sees that, refuses to register it."""
    if shutil.which("cc") is None:
        pytest.skip("needs a C compiler for the stub of libcuda")
    folder = tmp_path_factory.mktemp("cuda")
    (folder / "stub.c").write_text(STUB)
    flags = ["-shared", "-fPIC", "-o", str(folder / "libcuda.so.1"), str(folder / "stub.c")]
    subprocess.run(["cc", *flags], check=True)
    return str(folder)


@pytest.mark.parametrize(
    ("words", "sentence", "hint"),
    [
        ([], "could not register 1.004 MiB of VRAM: this UCX cannot tell GPU memory", "--memory dram"),
        (
            ["--memory", "vram", "--bytes", "2GiB", "--descriptors", "4"],
            "2.000 GiB on GPU 1: out of memory",
            "nvidia-smi",
        ),
    ],
    ids=["registration", "out of memory"],
)
def test_gpu_memory_that_cannot_be_had(tmp_path: Path, gpus: str, words: list[str], sentence: str, hint: str) -> None:
    chosen = [*words, *QUICK] if "--bytes" in words else [*SMALL, *words]
    done = run(*chosen, cwd=tmp_path, LD_LIBRARY_PATH=gpus)
    assert done.code == 4 and sentence in done.err and hint in done.err, done.err


@pytest.mark.parametrize(
    ("words", "env", "code", "sentence"),
    [
        (["--memory", "vram"], {}, 4, "no CUDA driver"),
        ([], {"UCX_TLS": "posix"}, 4, "no transport that UCX may use can tell that a peer died"),
        (["--backend", "libfabric"], {}, 4, "LIBFABRIC does not load"),
        (["--backend", "posix"], {}, 2, "it stores, and has no peer"),
        (["--backend", "pigeon"], {}, 2, "this NIXL has none"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_what_is_refused_says_why(
    tmp_path: Path, words: list[str], env: dict[str, str], code: int, sentence: str
) -> None:
    if "libfabric" in words and _loads("LIBFABRIC"):
        pytest.skip("LIBFABRIC loads here")
    done = run(*SMALL, *words, cwd=tmp_path, **env)
    assert done.code == code and sentence in done.err, done.err
    assert len(done.err.strip().splitlines()) == 2  # a sentence and what to do


def _loads(backend: str) -> bool:
    from pdbench.probe.transfer.backends import survey

    return any(each["backend"] == backend and each["loads"] for each in survey())


def test_more_memory_than_there_is(tmp_path: Path) -> None:
    done = run("--bytes", "1TiB", "--descriptors", "1024", "--out", "run", cwd=tmp_path)
    assert done.code == 2 and "of memory and" in done.err and not (tmp_path / "run").exists()
    limited = ["prlimit", "--as=3000000000"]
    if shutil.which(limited[0]):
        done = run("--bytes", "4GiB", "--descriptors", "1024", *QUICK, cwd=tmp_path, before=limited)
        assert done.code == 2 and "Move less" in done.err, done.err


def test_without_nixl(tmp_path: Path) -> None:
    script = """
import sys
sys.modules.update(dict.fromkeys(("nixl", "nixl_cu13", "nixl_cu12", "nixl_rocm")))  # as if not installed
from pdbench.cli import main
sys.exit(main(["probe-transfer"]))
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 4 and "NIXL is not installed" in done.stderr
    assert "pip install --no-deps nixl-cu12==1.5.1" in done.stderr and "Traceback" not in done.stderr
    assert not (tmp_path / "runs").exists()
