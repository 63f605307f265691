"""Posts that meet on decode's loop: what the replay of a run's own requests says is what its servers did."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from pdbench.report import diagnosis
from pdbench.report.causes.case import Case
from pdbench.report.summary import summarise
from pdbench.testbed.settings import Settings
from tests.planted.virtual import Done, Sabotage, sweep

STEP_MS = 10.0
BED: dict[str, Any] = {"mode": "pull", "step_base_ms": STEP_MS, "step_per_seq_ms": 0, "max_num_seqs": 64}
BED |= {"post_fixed_ms": 120.0, "post_ms_per_token": 0}


def judged(path: Path, bed: Settings, **load: Any) -> tuple[Case, Done]:
    """The case that a cell is judged by, and the run with what its servers wrote down."""
    cases: list[Case] = []

    def watch(case: Case) -> Any:
        cases.append(case)
        return iter(())

    done = sweep(path, {"bed": bed}, prompt_lens=[1000], duration_s=25.0, seed=11, **load)
    with mock.patch.object(diagnosis, "CAUSES", (watch,)):
        summarise(done.run)
    return cases[0], done


@pytest.mark.parametrize(
    ("slots", "load"),
    [
        (64, {"rates": [2.0], "output_len": 40}),
        (64, {"rates": [3.0], "output_len": 8}),
        (64, {"streams": [6], "output_len": 60}),
        (4, {"rates": [2.5], "output_len": 80}),
        (4, {"streams": [7], "output_len": 60}),
    ],
)
def test_the_replayed_loop_does_what_the_real_one_did(tmp_path: Path, slots: int, load: dict[str, Any]) -> None:
    case, done = judged(tmp_path / "run", Settings(**{**BED, "max_num_seqs": slots}), **load)
    rows = [row for row in done.truth["bed"] if "noticed" in row]

    def mean_ms(*legs: tuple[str, str]) -> float:
        return 1000 * sum(float(row[until] - row[since]) for row in rows for since, until in legs) / len(rows)

    met = case.posts
    assert met is not None and len(rows) == case.cell.answers.count("ok")
    noticed = ("transfer_end", "noticed")
    assert met.loading_ms == pytest.approx(mean_ms(("load_start", "post_start"), noticed), rel=0.1, abs=STEP_MS)
    assert met.first_ms == pytest.approx(mean_ms(("admitted", "first_token")) - STEP_MS, rel=0.1, abs=STEP_MS)
    if slots == 64:
        assert met.late_ms == pytest.approx(mean_ms(("queued", "post_start"), noticed), rel=0.1, abs=STEP_MS)
    assert case.turns is not None and met.lost == pytest.approx(case.turns.lost.value, abs=0.03)


def test_loads_behind_a_preempted_request_wait_for_blocks(tmp_path: Path) -> None:
    """It goes first and finds no blocks, so that loaded requests behind it stay where they are with slots free."""
    pool = {"post_fixed_ms": 1.0, "decode_blocks": 330, "max_model_len": 1200, "decode_prefix_caching": False}
    case, _ = judged(tmp_path / "run", Settings(**{**BED, **pool}), rates=[5.0], output_len=120)
    assert case.preempted and (case.split.for_blocks or 0) > 20 * STEP_MS
    assert case.split.get("poll") < 5 * STEP_MS


def test_a_proxy_is_seen_beside_a_client_that_is_late(tmp_path: Path) -> None:
    bed = Settings(**{**BED, "post_fixed_ms": 1.0, "proxy_ms": 300.0})
    late = Sabotage(late_ms=250.0)
    done = sweep(tmp_path / "run", {"bed": bed}, rates=[3.5], duration_s=25.0, output_len=40, sabotage=late)
    (cell,) = summarise(done.run)["cells"]
    assert {cause["cause"] for cause in cell["diagnosis"]} == {"client", "proxy"}
