"""The pages of compare and history in a real Chromium: nothing logged, nothing fetched, hostile text stays text, and
axe-core finds no serious fault."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest

from pdbench.report.compare.comparison import compare
from pdbench.report.compare.gate import Rules
from pdbench.report.compare.html import render_html
from pdbench.report.compare.sides import Side
from pdbench.report.history import html as history_html
from pdbench.report.history.runs import read_runs
from pdbench.report.history.story import tell
from tests.compare.made import cell, edited, noisy, repeat, summary
from tests.history.test_history import nights
from tests.report_views.chromium import AXE, BINARY, Page, chromium
from tests.report_views.test_browser import HOSTILE, SERIOUS

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(BINARY is None, reason="no Chromium here: apt-get install chromium"),
]


def pages(folder: Path) -> list[Path]:
    """A comparison with every kind of change and hostile names, a large one, a refused one, and a history."""
    rng = np.random.default_rng(1)
    places = [{"request_rate": rate, "prompt_len": n} for rate in (1.0, 2.0, 4.0) for n in (512, 16384)]
    base = summary([cell(noisy(rng, 8, noise=0.02), **place) for place in places], simulated=True)
    changes = [{"mean_ttft_ms": 0.3}, {"mean_tpot_ms": -0.3}, {}, {}, {}]
    cells = [cell(noisy(rng, 8, change, noise=0.02), **place) for change, place in zip(changes, places, strict=False)]
    void = cell([repeat(i, {}, void="stall") for i in range(8)], **places[-1])
    new = edited(summary([*cells, void], simulated=True), lambda d: d.update(revision=HOSTILE, driver=HOSTILE))
    many = summary([cell(noisy(rng, 5), request_rate=float(rate + 1)) for rate in range(60)])
    other = edited(many, lambda d: d["plan"].update(arrivals=HOSTILE))
    written = []
    for name, one, two in (("changes", base, new), ("large", many, many), ("refused", many, other)):
        sides = [
            Side(role, Path(f"{role}-{HOSTILE}"), document, {}) for role, document in (("BASE", one), ("NEW", two))
        ]
        (folder / f"{name}.html").write_text(render_html([compare(*sides, Rules())]))
        written.append(folder / f"{name}.html")
    runs = nights(folder / "runs", 14, slower_from=8, driver=HOSTILE)
    (folder / "history.html").write_text(history_html.render_html(tell(*read_runs([str(runs)]))))
    return [*written, folder / "history.html"]


# A table of changes whose last column, the gate, lies behind a scroll bar.
CUT_OFF = "box => box.querySelector('.strip') && box.scrollWidth > box.clientWidth"


async def check(page: Page, file: Path, dark: bool) -> None:
    await page.open(file, 420 if dark else 1200, dark=dark)
    assert await page.run("document.documentElement.scrollWidth <= innerWidth"), file.name
    assert dark or await page.run(f"[...document.querySelectorAll('.scroll')].filter({CUT_OFF}).length") == 0, file.name
    assert await page.run("window.pwned") is None
    assert await page.run("document.querySelectorAll('img, a[href^=javascript]').length") == 0
    assert await page.run("document.querySelectorAll('svg').length > 0") or file.stem == "refused"
    assert page.complaints() == [], file.name
    assert page.fetched(file) == [], file.name
    if AXE.exists():
        await page.run("document.querySelectorAll('details').forEach(each => { each.open = true })")
        await page.run(AXE.read_text())
        assert await page.run(SERIOUS) == [], file.name


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark and narrow"])
def test_pages_are_whole_in_a_browser(tmp_path: Path, dark: bool) -> None:
    files = pages(tmp_path)
    assert all(file.stat().st_size < 1_500_000 for file in files)

    async def look() -> None:
        async with chromium() as page:
            for file in files:
                await check(page, file, dark)

    asyncio.run(look())
