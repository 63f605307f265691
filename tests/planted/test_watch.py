"""What `pdbench watch` leads with, second by second, replayed from the pages of whole runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pdbench.deployment import build
from pdbench.probe.watch.frame import Watch
from pdbench.probe.watch.reading import Reading
from pdbench.run import Run
from pdbench.testbed.settings import Settings
from tests.planted.virtual import sweep


def frames(run: Run, settings: Settings) -> list[Reading]:
    """The reading of the last ten seconds at each scrape of the run."""
    servers = [(s["role"], s["url"]) for s in run.document["deployments"][0]["servers"]]
    view = Watch(build("bed", servers, slots={"decode-0": settings.max_num_seqs}, mode=settings.mode), 1.0)
    by_name = {server.name: server for server in view.servers}
    found = []
    for t, page in run.table("metrics").groupby("t"):
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


def test_late_notices_are_named(tmp_path: Path) -> None:
    bed = Settings(mode="pull", poll_ms=500)
    load: dict[str, Any] = {"rates": [2], "prompt_lens": [1024], "output_len": 64, "duration_s": 25.0}
    seen = frames(sweep(tmp_path / "run", {"bed": bed}, **load).run, bed)
    settled = [reading.cause for reading in seen if reading.length_s >= 10 and (reading.requests_per_s or 0.0) > 1]
    assert settled.count("completion-polling") >= 0.8 * len(settled) > 5
