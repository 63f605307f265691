"""The tables of classes, stages and turns: they fit, hold every part, and show foreign names as nothing but text."""

from __future__ import annotations

from typing import Any

import pytest

from pdbench.report.html import render_html
from pdbench.report.part_tables import KINDS
from tests.report_views.made_run import cell_summary, grid_summary, run_of
from tests.report_views.test_html import HOSTILE, Tags
from tests.report_views.test_text import lines_of, shown


def parts() -> dict[str, Any]:
    """Three kinds of parts, each with figures of its own."""
    one, other = cell_summary(0, 2, 1024), cell_summary(0, 8, 16384)
    stage = {"rate_start": 1.0, "rate_end": 4.5, "end_s": 30.0}
    return {
        "classes": {"chat": one, HOSTILE: other},
        "stages": [{**one, **stage, "steady": True}, {**other, **stage, "rate_end": 1.0, "steady": False}],
        "turns": [{**one, "turn": 1, "prompt_tokens": 512.0}, {**other, "turn": 5, "prompt_tokens": 2688.0}],
    }


def parted() -> dict[str, Any]:
    summary = grid_summary(rates=(2, 8), lens=(1024,))
    summary["cells"][0] |= parts() | {"traffic": f"mix {HOSTILE}"}
    return summary


@pytest.mark.parametrize("width", [40, 60, 80, 100, 160, 240])
def test_no_line_is_longer_than_the_terminal(width):
    assert not [line for line in lines_of(parted(), width) if len(line) > width]


def test_every_part_has_its_row():
    text = shown(parted(), 160)
    for title, _ in KINDS.values():
        assert title in text
    for words in ("chat", "1 to 4.50".rstrip("0"), "NO", "2,688"):
        assert words in text, words
    assert "\x1b" not in text
    assert "By class" not in shown(grid_summary(), 160)


def test_parts_in_html(tmp_path):
    summary = parted()
    page = Tags(render_html(summary, run_of(tmp_path / "run", summary)))
    captions = "".join(page.text)
    for title, _ in KINDS.values():
        assert f"{title}; latencies in ms" in captions
    assert not page.named("img") and "boom()" in captions


def test_void_parts_are_struck_out(tmp_path):
    summary = grid_summary(rates=(8,), lens=(16384,))
    summary["cells"][0] |= parts()
    assert summary["cells"][0]["validity"][0]["severity"] == "void"
    page = Tags(render_html(summary, run_of(tmp_path / "run", summary)))
    struck = [attributes for attributes in page.named("td") if "untrusted" in (attributes.get("class") or "")]
    assert len(struck) > 20
