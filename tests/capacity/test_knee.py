"""Co-located and P/D side by side: one has a knee, where theory puts it, the other has none."""

from __future__ import annotations

from pathlib import Path

import pytest

from pdbench.report.command import conclude
from pdbench.report.markdown import render_markdown
from pdbench.testbed.settings import Settings
from tests.planted.virtual import sweep

PROMPT, OUTPUT = 8192, 16
BEDS = {"coloc": Settings(mode="colocated"), "pd": Settings(mode="push")}
RATES = [1.0, 2.6, 8.0]


def test_the_knee_is_where_every_hundredth_gap_holds_a_prompt(tmp_path: Path) -> None:
    """Each prompt stalls every stream beside it for one gap. A stream has 1/gap gaps a second and meets `rate` stalls,
    so p99 ITL becomes a stall where rate x gap is 1 %. On P/D a prompt stalls nobody."""
    search = {"find": "knee", "slos": [], "max_duration_s": 1.0}  # the probes of RATES, and none beyond
    load = {"rates": RATES, "probe_requests": 150, "prompt_lens": [PROMPT], "output_len": OUTPUT, "duration_s": None}
    run = sweep(tmp_path / "run", BEDS, search=search, **load).run
    summary = conclude(run)
    coloc, pd = summary["capacity"]["answers"]
    gap_s = min(cell["mean_itl_ms"] for cell in summary["cells"] if cell["target"] == "coloc") / 1000
    assert coloc["holds"] == RATES[0] < 0.01 / gap_s < coloc["fails"] == RATES[1]
    shares = [probe["ratios"][0] * 0.01 for probe in coloc["probes"]]
    assert shares[:2] == pytest.approx([rate * gap_s for rate in RATES[:2]], rel=0.6)  # 13 stalls, and 35
    assert coloc["slos"][0]["limit"] == pytest.approx(3 * 5.7, rel=0.03)  # a stream alone takes 5.7 ms a token
    assert pd["holds"] == RATES[2] and "fails" not in pd
    assert f"coloc, {PROMPT:,}-token prompts: knee between 1 and 2.6 req/s" in summary["verdict"]
    assert f"pd, {PROMPT:,}-token prompts: no knee up to 8 req/s" in summary["verdict"]
    assert f"ITL p99, {PROMPT:,}-token prompts" in (tmp_path / "run" / "report.html").read_text()
    assert "Probes, coloc, 8,192-token prompts" in render_markdown(summary, run)
