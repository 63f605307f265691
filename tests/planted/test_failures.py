"""Failures that look like success are named, with real engines of the testbed and their counters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pdbench.report.summary import summarise
from pdbench.testbed.settings import Settings
from tests.planted.virtual import Sabotage, sweep

LOAD: dict[str, Any] = {"rates": [4], "prompt_lens": [1024], "output_len": 32, "duration_s": 8.0}


def cell(path: Path, settings: Settings, **load: Any) -> dict[str, Any]:
    found: dict[str, Any] = summarise(sweep(path / "run", {"bed": settings}, **{**LOAD, **load}).run)["cells"][0]
    return found


@pytest.mark.parametrize("mode", ["pull", "push"])
def test_decode_that_computes_prompts_itself(tmp_path: Path, mode: str) -> None:
    found = cell(tmp_path, Settings(mode=mode, drop_kv_params=True))
    first = found["diagnosis"][0]
    assert found["failed"] == 0 and first["cause"] == "decode-recomputed"
    assert "kv_transfer_params" in first["advice"]


@pytest.mark.parametrize(("mode", "decode_mode"), [("pull", "push"), ("push", "pull")])
def test_a_pair_that_mixes_push_and_pull(tmp_path: Path, mode: str, decode_mode: str) -> None:
    """Servers that say how they transfer are refused before; these don't."""
    found = cell(tmp_path, Settings(mode=mode, decode_mode=decode_mode, dev_mode=False))
    assert found["completed"] == 0 and [c["cause"] for c in found["diagnosis"]] == ["mixed-modes"]
    assert "not one that worked" in found["diagnosis"][0]["evidence"]


def test_a_decode_server_that_dies_behind_the_proxy(tmp_path: Path) -> None:
    gone = Sabotage(dies="decode-0", dies_s=4.0)
    found = cell(tmp_path, Settings(), output_len=128, sabotage=gone)
    (cause,) = found["diagnosis"]  # slots and queues of a server that is gone are no advice
    assert cause["cause"] == "decode-down" and "broke off" in cause["evidence"]
    said = found["verdict"].partition(": ")[2]
    assert said.startswith("decode-down: decode-0 answered no scrape from second 4 ") and "decode-0's log" in said
    assert said.endswith("Void: failed-requests.") and "502" not in said  # as the proxy did answer
    assert found["counsel"] == found["cross_checks"] == [] and not any("P/D" in note for note in found["notes"])
    assert "littles-law" not in {flag["code"] for flag in found["validity"]}


@pytest.mark.parametrize(("mode", "server"), [("pull", "decode-0"), ("push", "prefill-0")])
def test_what_was_short_before_a_server_went_is_named_behind_it(tmp_path: Path, mode: str, server: str) -> None:
    gone = Sabotage(dies=server, dies_s=15.0)
    found = cell(
        tmp_path, Settings(mode=mode, max_num_seqs=2), output_len=64, rates=[6], duration_s=20.0, sabotage=gone
    )
    down, before = found["diagnosis"]
    assert down["cause"] == f"{server[:-2]}-down" and before["cause"] == "decode-slots"
    assert f"before {server} went" in before["evidence"] and before["share"] is None
    assert found["verdict"].partition(": ")[2].startswith(down["cause"])


@pytest.mark.parametrize(
    ("dies", "cause", "named"),
    [
        ("prefill-0 decode-0 proxy-0", "servers-down", "prefill-0, decode-0 and proxy-0"),
        ("proxy-0", "proxy-down", "proxy-0"),
    ],
)
def test_all_servers_that_died_are_named_and_the_proxy_that_takes_no_connection(
    tmp_path: Path, dies: str, cause: str, named: str
) -> None:
    found = cell(tmp_path, Settings(), sabotage=Sabotage(dies=dies, dies_s=4.0))
    down = found["diagnosis"][0]
    assert down["cause"] == cause and named in down["advice"]
    engines = "prefill-0 and decode-0 answered no scrape from second 4 of the cell on"
    assert (engines in down["evidence"]) == (cause == "servers-down")
    assert "proxy-0 took no connection from second 4 on" in down["evidence"]
    (flag,) = (v["evidence"] for v in found["validity"] if v["code"] == "failed-requests")
    assert "could not connect to the server" in flag


def test_one_prefill_server_of_two_dies_near_the_end(tmp_path: Path) -> None:
    """A few failed requests void nothing, and the server is gone all the same."""
    gone = Sabotage(dies="prefill-1", dies_s=28.5)
    found = cell(tmp_path, Settings(prefills=2), rates=[3.5], output_len=80, duration_s=30.0, sabotage=gone)
    assert 0 < found["failed"] < 0.05 * found["sent"]
    assert found["diagnosis"][0]["cause"] == "prefill-down" and "prefill-1" in found["diagnosis"][0]["evidence"]
    assert "prefill-down: prefill-1 answered no scrape" in found["verdict"]


def test_kv_that_was_given_away_before_it_was_read(tmp_path: Path) -> None:
    """In push nothing renews a lease: with too few slots decode registers after it has ended."""
    settings = Settings(mode="push", max_num_seqs=1, lease_s=0.5)
    found = cell(tmp_path, settings, output_len=64, duration_s=6.0, timeout_s=20.0)
    assert "kv-expired" in [c["cause"] for c in found["diagnosis"]]
    assert any(v["code"] == "kv-expired" and v["severity"] == "void" for v in found["validity"])


def test_kv_of_requests_that_decode_turned_away_expires_and_voids_nothing(tmp_path: Path) -> None:
    """In pull prefill is done when decode says no: nobody comes for that KV, and every answer is from its own."""
    full = Settings(max_num_seqs=2, max_num_queued_reqs=1, lease_s=2.0)
    found = cell(tmp_path, full, rates=[6], output_len=96, duration_s=15.0)
    (flag,) = (v for v in found["validity"] if v["code"] == "kv-expired")
    assert flag["severity"] == "warn" and found["rejected"] > 0
    assert "kv-expired" not in [c["cause"] for c in found["diagnosis"]]
