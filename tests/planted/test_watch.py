"""What `pdbench watch` leads with, second by second, replayed from the pages of whole runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pdbench.deployment import build
from pdbench.probe.watch.frame import Watch
from pdbench.probe.watch.reading import Reading
from pdbench.report.summary import summarise
from pdbench.run import Run
from pdbench.testbed.settings import Settings
from tests.planted.virtual import sweep


def frames(run: Run, settings: Settings, every_s: float = 0.0, window_s: float = 10.0) -> list[Reading]:
    """The reading of the last seconds at each scrape of the run, or at those so far apart."""
    servers = [(s["role"], s["url"]) for s in run.document["deployments"][0]["servers"]]
    view = Watch(build("bed", servers, slots={"decode-0": settings.max_num_seqs}, mode=settings.mode), 1.0)
    by_name = {server.name: server for server in view.servers}
    view._now_s, last = window_s, -every_s
    found = []
    for t, page in run.table("metrics").groupby("t"):
        if float(t) < last + every_s:
            continue
        last = float(t)
        for name, rows in page.groupby("server"):
            if name in by_name:
                columns = ("metric", "canonical", "kind", "engine", "labels", "value")
                by_name[name].take(float(t), list(zip(*(rows[c].tolist() for c in columns), strict=True)))
        found.append(view.step(float(t)).now)
    return found


@pytest.mark.parametrize("slots", [4, 8])
def test_a_queue_that_drains_is_no_late_notice(tmp_path: Path, slots: int) -> None:
    """A burst that decode works off: requests that end now tell of waits that are over, and loaded ones of slots."""
    bed = Settings(mode="pull", max_num_seqs=slots)
    load: dict[str, Any] = {"rates": [30], "prompt_lens": [1024], "output_len": 96, "num_prompts": 150}
    seen = frames(sweep(tmp_path / "run", {"bed": bed}, duration_s=None, **load).run, bed)
    causes = [reading.cause for reading in seen]
    assert "decode-slots" in causes and set(causes) <= {"decode-slots", None}
    said = [reading.verdict for reading in seen if reading.cause == "decode-slots"]
    assert all(one.startswith("decode-slots: ") and "raise --max-num-seqs on decode" in one for one in said)
    full = [reading for reading in seen if reading.slots_short]
    assert full and all((one.slots_needed or 0.0) <= slots for one in full), "what is held is not what is needed"
    assert all(f">{slots} of {slots} slots needed" in one.verdict for one in full if one.cause == "decode-slots")


def test_no_look_at_a_steady_load_contradicts_the_report(tmp_path: Path) -> None:
    """Slots that are nearly all needed: a window without a wait says that waits come and go, a short one nothing."""
    bed = Settings(mode="pull", max_num_seqs=4)
    load: dict[str, Any] = {"rates": [4], "prompt_lens": [4096], "output_len": 128, "duration_s": 30.0}
    run = sweep(tmp_path / "run", {"bed": bed}, **load).run
    assert [c["cause"] for c in summarise(run)["cells"][0]["diagnosis"]] == ["decode-slots"]
    short = [one for one in frames(run, bed, 2.9, 3.0)[2:] if (one.requests_per_s or 0.0) > 2]  # a queue is there
    full = [one for one in frames(run, bed, 0.9) if one.length_s >= 10 and (one.requests_per_s or 0.0) > 2]
    assert len(short) > 5 and len(full) > 15
    for one in (*short, *full):
        contradicts = one.decided and one.cause is None and "waits for one come and go" not in one.verdict
        assert one.cause in ("decode-slots", None) and not contradicts, one.verdict
    assert not any(one.decided and one.parts_between_ms["slot_wait"][0] <= 0 for one in short)
    assert [one.cause for one in full].count("decode-slots") > 0.8 * len(full)
    # Arrivals at random at a load that holds: what prefill sends more than decode ends is no lack of slots.
    assert not [one.flags for one in (*short, *full) if "not-steady-state" in one.flags]


def test_late_notices_are_named(tmp_path: Path) -> None:
    bed = Settings(mode="pull", poll_ms=500)
    load: dict[str, Any] = {"rates": [2], "prompt_lens": [1024], "output_len": 64, "duration_s": 25.0}
    run = sweep(tmp_path / "run", {"bed": bed}, **load).run
    settled = [one for one in frames(run, bed) if one.length_s >= 10 and (one.requests_per_s or 0.0) > 1]
    late = [one.verdict for one in settled if one.cause == "completion-polling"]
    assert len(late) >= 0.8 * len(settled) > 5
    assert alike(late[-1], run, "completion-polling")


def alike(verdict: str, run: Run, cause: str) -> bool:
    """Whether the report of the whole run names this cause, and as the first change what the verdict says."""
    (advice,) = (c["advice"] for c in summarise(run)["cells"][0]["diagnosis"] if c["cause"] == cause)
    first = verdict.rpartition("; ")[2].partition(":")[0].partition(",")[0]
    return verdict.startswith(f"{cause}: ") and advice.lower().startswith(first.lower())


@pytest.mark.parametrize(("mode", "cause"), [("pull", "engine-loop-blocking"), ("push", "not-distinguishable")])
def test_long_posts_hold_decodes_loop_where_decode_makes_them(tmp_path: Path, mode: str, cause: str) -> None:
    """In push a thread of prefill's posts, whatever makes it slow; the report says the same of the whole run."""
    bed = Settings(mode=mode, post_fixed_ms=300.0)
    load: dict[str, Any] = {"rates": [1], "prompt_lens": [1024], "output_len": 64, "duration_s": 20.0}
    run = sweep(tmp_path / "run", {"bed": bed}, **load).run
    settled = [one.cause for one in frames(run, bed) if one.length_s >= 10 and (one.requests_per_s or 0.0) > 0.5]
    assert cause in settled and set(settled) <= {cause, None}
    assert cause in [c["cause"] for c in summarise(run)["cells"][0]["diagnosis"]]
