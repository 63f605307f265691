"""report.html in a real Chromium: it draws, logs nothing, fetches nothing, and hostile text stays text."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from pdbench.report.html import render_html
from tests.report_views.chromium import ALL_DRAWN, AXE, BINARY, Page, chromium
from tests.report_views.made_run import bare_summary, grid_summary, run_of

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(BINARY is None, reason="no Chromium here: apt-get install chromium"),
]

HOSTILE = "<img src=x onerror=\"window.pwned=1\"></script><script>window.pwned=1</script><a href='javascript:1'>%{y}"
DRAWN = """Array.from(document.querySelectorAll('.plot')).map(plot =>
    plot.querySelectorAll('svg .trace, svg .point, svg .scatterlayer path').length)"""
COLOURS = "[getComputedStyle(document.body).color, document.querySelector('.plot .xtick text').style.fill]"
TITLE = "document.querySelector('.plot .xtitle').textContent"
PRESSED = "document.querySelector('button[data-figure]').getAttribute('aria-pressed')"
CUT_OFF = """Array.from(document.querySelectorAll('.plot .bartext, .plot .ytick text')).filter(text => {
    const shown = text.getBoundingClientRect(), frame = text.closest('.plot').getBoundingClientRect();
    return shown.left < frame.left - 1 || shown.right > frame.right + 1 }).map(text => text.textContent)"""
HIDDEN = """Array.from(document.querySelectorAll('.scroll')).filter(box => box.scrollWidth > box.clientWidth)
    .map(box => `${box.querySelector('caption').textContent}: ${box.scrollWidth} of ${box.clientWidth} px`)"""
UNPACKED = "new Promise(done => (function look() { window.pdbench ? done(true) : setTimeout(look, 5) })())"
A_FRAME = "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"


def written(folder: Path, name: str, summary: dict) -> Path:
    run = run_of(folder / name, summary, requests_a_cell=10, metrics=name != "bare", command=HOSTILE)
    file = folder / f"{name}.html"
    file.write_text(render_html(summary, run))
    return file


def hostile() -> dict:
    summary = grid_summary(rates=(1, 8), lens=(16384,), targets=(HOSTILE, "b"))
    for cell in summary["cells"]:
        cell["verdict"] = HOSTILE
        cell["validity"] = [{"code": HOSTILE, "severity": "void", "evidence": HOSTILE}]
        cell["diagnosis"] = [{"cause": HOSTILE, "share": 0.5, "evidence": [HOSTILE], "advice": HOSTILE}]
    return summary


async def check(page: Page, file: Path, figures: int) -> None:
    """Every figure is drawn, nothing is complained of, nothing is fetched, nothing hostile ran."""
    await page.open(file)
    await page.run(ALL_DRAWN)
    drawn = await page.run(DRAWN)
    assert len(drawn) == figures and all(drawn), (file.name, drawn)
    assert await page.run("window.pwned") is None
    assert await page.run("document.querySelectorAll('img, a[href^=javascript]').length") == 0
    assert await page.run("document.documentElement.scrollWidth <= innerWidth"), file.name
    await page.run("document.querySelectorAll('button').forEach(button => button.click())")
    assert page.complaints() == [], file.name
    assert page.fetched(file) == [], file.name


def test_pages_draw_log_nothing_and_fetch_nothing(tmp_path):
    # Split and waterfall, three latencies, slots and rates, waiting and running of each target, ITL of each prompt
    # length and target, each request.
    pages = [(written(tmp_path, "hostile", hostile()), 2 + 3 + 4 + 2 + 2 + 1)]
    pages += [(written(tmp_path, "one", grid_summary(rates=(8,), lens=(16384,))), 2 + 3 + 2 + 1 + 1 + 1)]
    pages += [(written(tmp_path, "bare", bare_summary()), 0)]

    async def look() -> None:
        async with chromium() as page:
            for file, figures in pages:
                await check(page, file, figures)

    asyncio.run(look())


def test_figures_follow_the_reader(tmp_path):
    """The colour scheme, the printer, a narrow screen, and the button that turns milliseconds into shares."""
    file = written(tmp_path, "grid", grid_summary())

    async def look() -> None:
        async with chromium() as page:
            await page.open(file, 1400)
            assert [table for table in await page.run(HIDDEN) if table.startswith("Cells in numbers")] == []
            await page.open(file, 420)
            await page.run(ALL_DRAWN)
            assert await page.run("document.documentElement.scrollWidth <= 420")
            assert await page.run(CUT_OFF) == []
            assert "%" in await page.run("document.querySelectorAll('.plot')[1].textContent"), "the waterfall's shares"
            light = await page.run(COLOURS)
            await page.scheme(True)
            await page.run(A_FRAME)
            await page.run("new Promise(done => setTimeout(done, 500))")
            dark = await page.run(COLOURS)
            assert light[0] != dark[0] and light[1] != dark[1]
            await page.run("window.dispatchEvent(new Event('beforeprint'))")
            assert await page.run(COLOURS) == light
            await page.run("window.dispatchEvent(new Event('afterprint'))")
            assert await page.run(COLOURS) == dark
            assert await page.run(f"[{TITLE}, {PRESSED}]") == ["mean TTFT, ms", "false"]
            await page.run("document.querySelector('button[data-figure]').click()")
            assert await page.run(f"[{TITLE}, {PRESSED}]") == ["share of mean TTFT", "true"]
            assert page.complaints() == []

    asyncio.run(look())


SERIOUS = """axe.run(document, {resultTypes: ["violations"]}).then(found => found.violations
    .filter(fault => ["serious", "critical"].includes(fault.impact))
    .map(fault => fault.id + ": " + fault.nodes.map(node => node.target.join(" ")).join(", ")))"""


@pytest.mark.skipif(
    not AXE.exists(), reason="no axe-core here: npm install --prefix .work/axe axe-core (as .ci/run does)"
)
@pytest.mark.parametrize("dark", [False, True])
def test_axe_finds_no_serious_fault(tmp_path, dark):
    pages = [written(tmp_path, "grid", grid_summary()), written(tmp_path, "hostile", hostile())]

    async def look() -> None:
        async with chromium() as page:
            for file in pages:
                await page.open(file, dark=dark)
                await page.run(ALL_DRAWN)
                await page.run(AXE.read_text() + "; true")
                assert await page.run(SERIOUS) == []
                # The twin: a fault that is put there is found.
                await page.run("document.body.append(document.createElement('input'))")
                assert await page.run(SERIOUS) == ["label: input"]

    asyncio.run(look())


def test_a_browser_that_cannot_unpack_the_figures_says_so(tmp_path):
    file = written(tmp_path, "grid", grid_summary(rates=(1,), lens=(1024,)))

    async def look() -> None:
        async with chromium() as page:
            await page.call("Page.enable")
            await page.call("Page.addScriptToEvaluateOnNewDocument", source="delete window.DecompressionStream")
            await page.open(file)
            await page.run(A_FRAME)
            said = await page.run("Array.from(document.querySelectorAll('.plot'), plot => plot.textContent)")
            assert said and all("too old to unpack" in text for text in said)

    asyncio.run(look())


def test_a_print_has_every_figure_and_no_control(tmp_path):
    file = written(tmp_path, "grid", grid_summary())

    async def look() -> None:
        async with chromium() as page:
            await page.open(file)
            await page.run(UNPACKED)
            await page.run("window.dispatchEvent(new Event('beforeprint'))")
            assert await page.run("document.querySelectorAll('.plot:not([data-drawn])').length") == 0
            widths = await page.run("Array.from(document.querySelectorAll('.plot svg.main-svg'), e => e.clientWidth)")
            assert max(widths) <= 690
            await page.call("Emulation.setEmulatedMedia", media="print")
            hidden = (
                "Array.from(document.querySelectorAll('button')).every(e => getComputedStyle(e).display === 'none')"
            )
            assert await page.run(hidden)

    asyncio.run(look())
