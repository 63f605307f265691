"""The requests that a page shows: which ones, and what is said of them, in Python and in a real Chromium."""

from __future__ import annotations

import asyncio
import json
import re

import numpy as np
import pytest

from pdbench.report import explorer
from pdbench.report.html import render_html
from tests.report_views.chromium import ALL_DRAWN, BINARY, chromium
from tests.report_views.made_run import bare_summary, grid_summary, run_of

browser = pytest.mark.skipif(BINARY is None, reason="no Chromium here: apt-get install chromium")


@pytest.mark.parametrize("n", [1, 14, 15, 16, 400, 5000])
@pytest.mark.parametrize("silent", [0.0, 0.3, 1.0])
def test_what_is_kept_of_many_is_bounded_and_holds_the_slowest(n, silent):
    rng = np.random.default_rng(n)
    ttft = np.where(rng.random(n) < silent, np.nan, rng.exponential(size=n))
    found = explorer.kept(ttft, 15)
    assert found == sorted(set(found)) and len(found) <= 15
    assert len(found) == n if n <= 15 else len(found) >= 10
    assert np.isnan(ttft).any() == np.isnan(ttft[found]).any()
    if not np.isnan(ttft).all():
        assert int(np.nanargmax(ttft)) in found


def rows_of(page: str) -> list[dict]:
    text = re.search(r'<script type="application/json" id="requests">(.*?)</script>', page, re.DOTALL)
    assert text
    found: list[dict] = json.loads(text[1])
    return found


def test_the_shown_stamps_are_those_of_the_table(tmp_path):
    summary = grid_summary(rates=(1, 8), lens=(1024,))
    run = run_of(tmp_path / "run", summary, requests_a_cell=20)
    requests, chunks = run.table("requests"), run.table("chunks")
    shown = rows_of(render_html(summary, run))
    assert [cell["of"] for cell in shown] == ["20 requests"] * 2 and all(cell["all"] for cell in shown)
    for cell, (_, rows) in zip(shown, requests.groupby("cell"), strict=True):
        rows = rows.sort_values("intended_s")
        ttft = (rows["first_token_s"] - rows["intended_s"]) * 1000
        assert cell["first_token"] == pytest.approx(ttft.tolist(), rel=1e-4)
        names = [cell["prefix"] + str(index) for index in cell["index"]] if cell["id"] is None else cell["id"]
        assert names == rows["request_id"].tolist()
        offsets = dict(zip(chunks["request_id"], chunks["offset_s"], strict=True))
        longest = [np.diff(offsets[name]).max() * 1000 for name in rows["request_id"]]
        assert cell["gap"] == pytest.approx(longest, rel=1e-4)


def test_a_page_stays_small_however_many_requests_a_run_has(tmp_path):
    sizes = []
    for n in (400, 1600):
        summary = grid_summary(rates=(1, 2), lens=(1024,))
        page = render_html(summary, run_of(tmp_path / str(n), summary, requests_a_cell=n))
        assert sum(len(cell["at"]) for cell in rows_of(page)) <= explorer.MAX_REQUESTS
        sizes.append(len(page))
    assert max(sizes) < 1_000_000


def test_a_grid_of_two_targets_stays_small_too(tmp_path):
    """Sixteen cells in which a thousand requests or more are shown."""
    summary = grid_summary(targets=("pull", "push"))
    page = render_html(summary, run_of(tmp_path / "run", summary, requests_a_cell=100))
    assert sum(len(cell["at"]) for cell in rows_of(page)) > 1000
    assert len(page.encode()) < 1_200_000


def test_without_requests_the_page_says_so(tmp_path):
    run = run_of(tmp_path / "run", bare_summary(), requests_a_cell=0, metrics=False)
    assert "Not measured: single requests: the run has none." in render_html(bare_summary(), run)


CAPTION = "document.querySelector('#picked h3').textContent"


@browser
@pytest.mark.browser
def test_a_request_is_picked_by_click_by_key_and_by_button(tmp_path):
    summary = grid_summary(rates=(1, 8), lens=(1024,))
    run = run_of(tmp_path / "run", summary, requests_a_cell=20)
    file = tmp_path / "run" / "report.html"
    file.write_text(render_html(summary, run))
    first = run.table("requests").query("cell == 0").sort_values("intended_s", ignore_index=True)
    ttft = first["first_token_s"] - first["intended_s"]

    async def look() -> None:
        async with chromium() as page:
            await page.open(file)
            await page.run(ALL_DRAWN)
            picked = int(ttft.argmax())
            assert await page.run(CAPTION) == f"Request {picked} abc-0-0-{picked}"
            # The sum of the stages before the first token is TTFT.
            shown = await page.run(
                "Array.from(document.querySelectorAll('#picked td.n'), e => parseFloat(e.textContent))"
            )
            assert sum(shown[:3]) == pytest.approx(ttft.max() * 1000, rel=1e-3)
            await page.run("document.querySelector('[role=application]').focus()")
            await page.key("ArrowLeft")
            assert (await page.run(CAPTION)).startswith(f"Request {picked - 1} ")
            await page.key("ArrowUp")
            ranks = ttft.argsort()
            above = ranks[ranks[ranks == picked - 1].index[0] + 1]
            assert (await page.run(CAPTION)).startswith(f"Request {above} ")
            await page.run("document.querySelector('[data-step=\"1\"]').click()")
            assert (await page.run(CAPTION)).startswith(f"Request {above + 1} ")
            await page.click("[role=application] .points path")
            assert await page.run(CAPTION) == "Request 0 abc-0-0-0"
            await page.run("const s = document.getElementById('explorer-cell'); s.value = 1;"
                           "s.dispatchEvent(new Event('change'))")  # fmt: skip
            assert "abc-1-0-" in await page.run(CAPTION)
            assert page.complaints() == []

    asyncio.run(look())
