"""A run in virtual time is an ordinary one: same code, exact truth, the same every time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pdbench.report.summary import summarise
from pdbench.testbed.settings import Settings
from tests.planted.virtual import Sabotage, sweep


def stamps(rows: list[dict[str, Any]], server: str) -> list[dict[str, Any]]:
    return [row for row in rows if row["server"] == server and "done" in row]


@pytest.mark.parametrize("mode", ["pull", "push", "colocated"])
def test_the_report_finds_what_the_servers_wrote_down(tmp_path: Path, mode: str) -> None:
    done = sweep(tmp_path / "run", {"bed": Settings(mode=mode)}, rates=[4], prompt_lens=[2048], duration_s=15.0)
    (cell,) = summarise(done.run)["cells"]
    assert cell["completed"] == cell["sent"] > 30 and cell["failed"] == 0
    maker = "colocated-0" if mode == "colocated" else "prefill-0"
    computed = [row["first_token"] - row["admitted"] for row in stamps(done.truth["bed"], maker)]
    assert cell["ttft_split_ms"]["prefill"] == pytest.approx(np.mean(computed) * 1000, abs=0.01)
    if mode == "pull":
        decoded = stamps(done.truth["bed"], "decode-0")
        moved = np.mean([row["transfer_end"] - row["post_end"] for row in decoded]) * 1000
        assert cell["ttft_split_ms"]["transfer"] == pytest.approx(moved, abs=0.01)
    rows = done.run.table("requests")
    first = {row["request_id"]: row["first_token_written"] for row in stamps(done.truth["bed"], "decode-0")}
    origin = done.run.document["clock"]["origin_monotonic_ns"] / 1e9
    for row in rows.itertuples():
        if row.request_id in first:
            assert row.first_token_s + origin == pytest.approx(first[row.request_id], abs=1e-6)


def test_a_run_is_repeated_exactly(tmp_path: Path) -> None:
    seen = []
    for name in ("first", "second"):
        done = sweep(tmp_path / name, {"bed": Settings()}, rates=[3], duration_s=5.0, sabotage=Sabotage(late_ms=1.0))
        seen.append(done.run.table("requests").drop(columns="request_id"))
        assert (seen[-1]["sent_s"] > seen[-1]["intended_s"]).all()
    assert seen[0].equals(seen[1])


def test_a_dead_decode_server_breaks_streams_and_then_refuses(tmp_path: Path) -> None:
    gone = Sabotage(dies="decode-0", dies_s=3.0)
    done = sweep(tmp_path / "run", {"bed": Settings()}, rates=[6], output_len=128, duration_s=6.0, sabotage=gone)
    kinds = set(done.run.table("requests")["error_kind"].dropna())
    assert kinds == {"truncated", "http-502"}
