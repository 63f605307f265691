"""The topology page in a real Chromium: nothing logged, fetched or run, and the text fits its boxes."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.probe_topo.conftest import Look
from tests.probe_topo.tables import table
from tests.probe_topo.test_views import MACHINES, hostile
from tests.report_views.chromium import AXE, BINARY, chromium
from tests.report_views.test_browser import SERIOUS

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(BINARY is None, reason="no Chromium here: apt-get install chromium"),
]

# Texts of a box that stick out of its rectangle, and labels that stick out of the drawing.
OVERFLOWS = """Array.from(document.querySelectorAll('svg.topology g')).flatMap(group => {
    const box = group.querySelector('rect')?.getBoundingClientRect();
    return box ? Array.from(group.querySelectorAll('text')).filter(text => {
        const own = text.getBoundingClientRect();
        return own.left < box.left - 1 || own.right > box.right + 1 || own.bottom > box.bottom + 1;
    }).map(text => text.textContent) : []; })"""
OUTSIDE = """Array.from(document.querySelectorAll('svg.topology text')).filter(text => {
    const own = text.getBBox(), box = text.ownerSVGElement.viewBox.baseVal;
    return own.x < 0 || own.y < 0 || own.x + own.width > box.width || own.y + own.height > box.height;
}).map(text => text.textContent)"""


def test_pages_in_a_browser(look: Look, hgx_host: Path, tmp_path: Path) -> None:
    pages = {}
    for name, machine in MACHINES.items():
        roles = ["prefill=0", "decode=1"] if name != "none" else None
        for kind, lines in (("plain", table(machine)), ("hostile", hostile(machine))):
            seen: dict[str, Any] = look(lines, views=True, root=hgx_host, roles=roles)
            pages[tmp_path / f"{name}-{kind}.html"] = seen["page"]
    for file, page in pages.items():
        file.write_text(page, encoding="utf-8")
    asyncio.run(shown(list(pages)))


async def shown(files: list[Path]) -> None:
    async with chromium() as page:
        for file in files:
            await page.open(file)
            assert page.complaints() == [] and page.fetched(file) == [], file.name
            assert await page.run("document.querySelectorAll('script, img').length") == 0, file.name
            assert await page.run("document.documentElement.scrollWidth <= innerWidth"), file.name
            assert await page.run(OVERFLOWS) == [], file.name
            assert await page.run(OUTSIDE) == [], file.name


@pytest.mark.skipif(
    not AXE.exists(), reason="no axe-core here: npm install --prefix .work/axe axe-core (as .ci/run does)"
)
@pytest.mark.parametrize("dark", [False, True])
def test_axe_finds_no_serious_fault(look: Look, hgx_host: Path, tmp_path: Path, dark: bool) -> None:
    files = []
    for name in ("h200", "l40s", "lost", "unknown"):
        files.append(tmp_path / f"{name}.html")
        request = {"views": True, "root": hgx_host, "roles": ["prefill=0", "decode=1"]}
        files[-1].write_text(look(table(MACHINES[name]), **request)["page"], encoding="utf-8")

    async def check() -> None:
        async with chromium() as page:
            for file in files:
                await page.open(file, dark=dark)
                await page.run(AXE.read_text() + "; true")
                assert await page.run(SERIOUS) == [], file.name

    asyncio.run(check())
